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
