const REASONS = { 401: "its token has changed", 404: "the run is gone", 500: "a file of it is damaged" };
// Asks the server for `path` as often as `element` says, while the page is seen, and shows each answer.
function poll(element, path, show) {
  "use strict";
  const answer = document.getElementById("answer"), unanswered = answer.textContent;
  const later = () => { if (Number(element.dataset.poll)) setTimeout(look, 1000 * Number(element.dataset.poll)); };
  async function look() {
    if (document.hidden) { document.addEventListener("visibilitychange", look, { once: true }); return; }
    try {
      const response = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(20000) });
      const text = await response.text();
      if (response.ok) show(text);
      else {
        const why = REASONS[response.status]; // else it is busy, and the next look may find it
        answer.textContent = why ? `\`soak serve\` cannot show this any more: ${why}. What you see is old.` : unanswered;
      }
      answer.hidden = response.ok;
    } catch {
      answer.textContent = unanswered;
      answer.hidden = false;
    }
    later();
  }
  later();
}
// Replaces the main part of a page of a run by what the server has now.
(() => {
  "use strict";
  const main = document.querySelector("main[data-poll]");
  if (!main) return;
  const said = document.getElementById("said");
  const stops = () => [...main.querySelectorAll("a, [tabindex]")]; // where the keyboard may be
  poll(main, "now", (text) => {
    const next = new DOMParser().parseFromString(text, "text/html").querySelector("main");
    const at = stops().indexOf(document.activeElement);
    if (getSelection().isCollapsed) main.replaceChildren(...next.childNodes); // somebody copies text
    if (at >= 0) stops()[at]?.focus({ preventScroll: true });
    sayTroubles();
    if (next.dataset.poll) main.dataset.poll = next.dataset.poll; else delete main.dataset.poll;
  });
  function sayTroubles() { // aloud once, not again with each new count of its seconds
    const troubles = [...main.querySelectorAll(".trouble")].map((one) => one.textContent);
    const kinds = troubles.join().replace(/[\d.,:]+/g, "");
    if (said.dataset.kinds !== kinds) said.textContent = troubles.join(". ");
    said.dataset.kinds = kinds;
  }
})();
// Shows a newer report of a run that goes on, at the place where the reader was.
(() => {
  "use strict";
  const frame = document.querySelector("iframe[data-poll]");
  if (!frame) return;
  const said = document.getElementById("said");
  let place = 0, wanted = 0; // from the top of the report: where the reader is, and where a new one begins
  addEventListener("message", (event) => {
    if (event.source !== frame.contentWindow) return;
    if (event.data === "ready") event.source.postMessage(wanted, "*"); // a report has an origin of its own
    else if (Number.isFinite(event.data)) place = event.data;
  });
  if (location.hash && frame.dataset.version) frame.src += location.hash;
  poll(frame, "report.json", (text) => {
    const found = JSON.parse(text);
    said.textContent = found.text;
    frame.dataset.poll = found.again_seconds;
    if (!found.version || found.version === frame.dataset.version) return;
    frame.dataset.version = found.version;
    wanted = place;
    frame.hidden = false;
    frame.contentWindow.location.replace(`report.html?${found.version}`);
  });
})();
