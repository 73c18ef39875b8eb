// Replaces the main part of a page of a run by what the server has now, as often as the page asks for it.
(() => {
  "use strict";
  const main = document.querySelector("main[data-poll]");
  if (!main) return;
  const answer = document.getElementById("answer"), said = document.getElementById("said");
  const stops = () => [...main.querySelectorAll("a, [tabindex]")]; // where the keyboard may be
  const later = () => { if (main.dataset.poll) setTimeout(look, 1000 * Number(main.dataset.poll)); };
  async function look() {
    if (document.hidden) { document.addEventListener("visibilitychange", look, { once: true }); return; }
    try {
      const response = await fetch("now", { cache: "no-store", signal: AbortSignal.timeout(20000) });
      if (!response.ok) throw new Error(String(response.status));
      const text = await response.text();
      const next = new DOMParser().parseFromString(text, "text/html").querySelector("main");
      const at = stops().indexOf(document.activeElement);
      if (getSelection().isCollapsed) main.replaceChildren(...next.childNodes); // somebody copies text
      if (at >= 0) stops()[at]?.focus({ preventScroll: true });
      sayTroubles();
      if (next.dataset.poll) main.dataset.poll = next.dataset.poll; else delete main.dataset.poll;
      answer.hidden = true;
    } catch { answer.hidden = false; }
    later();
  }
  function sayTroubles() { // aloud once, not again with each new count of its seconds
    const troubles = [...main.querySelectorAll(".trouble")].map((one) => one.textContent);
    const kinds = troubles.join().replace(/[\d.,:]+/g, "");
    if (said.dataset.kinds !== kinds) said.textContent = troubles.join(". ");
    said.dataset.kinds = kinds;
  }
  later();
})();
// Shows a newer report of a run that goes on, at the place where the reader was.
(() => {
  "use strict";
  const frame = document.querySelector("iframe[data-poll]");
  if (!frame) return;
  const answer = document.getElementById("answer"), said = document.getElementById("said");
  let place = 0, wanted = 0; // from the top of the report: where the reader is, and where a new one begins
  addEventListener("message", (event) => {
    if (event.source !== frame.contentWindow) return;
    if (event.data === "ready") event.source.postMessage(wanted, "*"); // a report has an origin of its own
    else if (Number.isFinite(event.data)) place = event.data;
  });
  if (location.hash && frame.dataset.version) frame.src += location.hash;
  const later = () => { if (Number(frame.dataset.poll)) setTimeout(look, 1000 * Number(frame.dataset.poll)); };
  async function look() {
    if (document.hidden) { document.addEventListener("visibilitychange", look, { once: true }); return; }
    try {
      const response = await fetch("report.json", { cache: "no-store", signal: AbortSignal.timeout(20000) });
      if (!response.ok) throw new Error(String(response.status));
      const found = await response.json();
      said.textContent = found.text;
      frame.dataset.poll = found.again_seconds;
      if (found.version && found.version !== frame.dataset.version) {
        frame.dataset.version = found.version;
        wanted = place;
        frame.hidden = false;
        frame.contentWindow.location.replace(`report.html?${found.version}`);
      }
      answer.hidden = true;
    } catch { answer.hidden = false; }
    later();
  }
  later();
})();
