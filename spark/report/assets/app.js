// Wires the page: sections, toolbar, keyboard, theme, search.
const root = document.documentElement, $ = (selector) => document.querySelector(selector), $$ = (selector) => document.querySelectorAll(selector);
const DARK = matchMedia("(prefers-color-scheme: dark)");
let main = null, heatMap = null, isDark = DARK.matches, wasDark = false;

async function showMain(kind) {
  const [lanes] = await Promise.all([eventTimes(), document.fonts.load("12px Inter")]);
  const lines = run.main[kind].lines.map(([label, index, token, isOff], at) => [label, index, token, main?.spec.lines[at]?.isOff ?? isOff]);
  main?.close();
  const note = series[lines[0][1]].note;
  main = new Chart($("#main"), { title: `${kind} latency`, note, lanes, lines, limit: run.limits[kind], height: innerWidth > 700 ? 380 : 320 });
  await main.update(true);
  const ariaLabel = `${kind} latency over the run. Left and right pan, plus and minus zoom, Escape shows the whole run.`;
  Object.assign(main.body, { tabIndex: 0, role: "group", ariaLabel });
  run.incidents.forEach(({ title, span, isAgainstCluster }, at) => {
    const row = ["", "low", "lower"][run.incidents.filter((other) => other.span[0] < span[0]).length % 3]; // on a phone flags need rows
    main.plot.over.append(node("button", { type: "button", className: `flag ${row} ${isAgainstCluster ? "" : "other"}`, textContent: at + 1, ariaLabel: `Incident ${at + 1}: ${title}`,
      onmousedown: (event) => event.stopPropagation(), onclick: () => choose(at + 1) }));
  });
  lanes.forEach((lane, at) => addLane(main, lane, at));
  drawLanes(main);
  $("#main").classList.add("drawn");
}
function eachAlone(...steps) { // a part of the page that cannot be drawn stops no other
  steps.forEach((step) => {
    try { step(); } catch (error) { console.error(error); }
  });
}
function showHeatMap() {
  const box = $("#heat_map .wide"), line = run.main[run.heat?.kind]?.lines.find(([label]) => label === "p99");
  if (!box || !line) return; // the still picture stands
  new Chart(box, { title: `Messages by ${run.heat.kind.toLowerCase()} latency`, note: `all ${run.heat.kind === "Publish" ? "producers" : "consumers"}; faint: 1 in 10,000, strong: all; line: p99`, lines: [["", line[1], "c2"]],
    height: 240, heat: drawHeat, range: [run.heat.low, run.heat.high], isLog: true });
  $("#heat_map").classList.add("drawn");
}
function showGrid(selector, found, more) {
  const box = $(selector);
  if (box) eachAlone(...found.map((spec) => () => new Chart(box, { ...spec, ...more })));
}
function showSections() {
  eachAlone(
    () => $(".list tbody tr") && !picked && pick(linked() ?? run.worst, false),
    () => showGrid("#rates", run.load.slice(0, 1), { height: 150, left: true }),
    showHeatMap,
    () => $$(".levels-table").forEach((table) => (table.open = false)),
    () => showGrid("#load-grid", run.load.slice(1)),
    () => showGrid("#hosts-grid", run.hosts),
    () => showGrid("#brokers-grid", run.brokers),
  );
}

function drawHeat(plot, at) {
  const { ctx, bbox, scales: { x, y } } = plot, { bands, perDecade, low } = run.heat;
  const [top, bottom] = [y.max, y.min].map((value) => bands - perDecade * Math.log10(value / low));
  if (!unpacked.has("heat")) return void block("heat").then(() => plot.redraw(false));
  heatMap ??= paintHeat(unpacked.get("heat"));
  const clip = new Path2D();
  clip.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip(clip);
  ctx.imageSmoothingEnabled = false;
  ctx.globalCompositeOperation = isDark ? "lighten" : "darken"; // several buckets share a pixel: the strongest shows
  for (let bucket = Math.max(0, Math.floor(x.min / BUCKET)); bucket < Math.min(x.max / BUCKET, BUCKETS); bucket++) {
    const from = Math.floor(at(bucket * BUCKET)), to = Math.ceil(at((bucket + 1) * BUCKET));
    ctx.drawImage(heatMap, bucket, top, 1, bottom - top, from, bbox.top, to - from, bbox.height);
  }
}
function paintHeat(words) { // a share of 1 in 10,000 to all in three shades of one hue
  const canvas = new OffscreenCanvas(BUCKETS, run.heat.bands), pen = canvas.getContext("2d", { willReadFrequently: true });
  const shades = ["heat1", "heat2", "heat3"].map((token) => {
    pen.fillStyle = ink(token);
    pen.fillRect(0, 0, 1, 1);
    return pen.getImageData(0, 0, 1, 1).data;
  });
  const image = pen.createImageData(canvas.width, canvas.height), width = words.length / run.heat.bands;
  words.forEach((level, at) => { // rows come lowest band first
    const place = 4 * ((run.heat.bands - 1 - Math.floor(at / width)) * BUCKETS + (at % width)), shade = Math.min(Math.floor(level / 50), 1);
    for (let part = 0; part < 3; part++) image.data[place + part] = shades[shade][part] + (shades[shade + 1][part] - shades[shade][part]) * (level / 50 - shade);
    image.data[place + 3] = level ? 255 : 0;
  });
  pen.putImageData(image, 0, 0);
  return canvas;
}

const STILL = matchMedia("(prefers-reduced-motion: reduce)");
const linked = () => [...$$(".list [data-pick]")].filter(({ hash }) => hash === location.hash).map(({ dataset }) => Number(dataset.pick))[0];
function choose(rank) { // what was chosen comes into view, and the keyboard goes on there
  pick(rank);
  const article = $(`#incident-${rank}`), { top } = article.getBoundingClientRect(), heading = article.querySelector("h3");
  heading.tabIndex = -1;
  heading.focus({ preventScroll: true });
  if (top < 0 || top > innerHeight / 2) article.scrollIntoView({ behavior: STILL.matches ? "instant" : "smooth" });
}

function showView() {
  $("#range").replaceChildren(isWhole() ? "Whole run" : stretch(view.min, view.max));
  $("#cursor").replaceChildren(duration(view.max - view.min));
}
function setTheme(dark) {
  isDark = dark;
  root.dataset.theme = dark ? "dark" : "light";
  $("#theme").ariaPressed = String(dark);
  inks = new Map();
  heatMap = null;
  [...charts, ...opened].forEach(({ plot }) => plot?.redraw(false, true));
}
function setAxis(name) {
  axis = name;
  if (isClock()) $$("time[data-k]").forEach((time) => time.replaceChildren(moment(Number(time.dataset.k), true)));
  charts.forEach((chart) => chart.update().then(() => chart.plot?.redraw(false, true)));
  showView();
}
function moveView(by, pan = 0) { // zoom by a factor, pan by a share of what is seen
  const half = ((view.max - view.min) * by) / 2, middle = (view.max + view.min) / 2 + 2 * half * pan;
  zoom(middle - half, middle + half);
}
function search(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean), name = ({ title, note }) => `${title}, ${note}`;
  const found = series.flatMap((one, index) => (words.length && words.every((word) => name(one).toLowerCase().includes(word)) ? [index] : []));
  $("#search output").replaceChildren(words.length ? `${found.length} found${found.length > 40 ? ", the first 40 shown" : ""}` : "");
  $(".found").replaceChildren(...found.slice(0, 40).map((index) => {
    const { title, note } = series[index], chart = () => [...charts].find(({ spec }) => spec.found === index);
    const button = node("button", { type: "button", ariaPressed: String(Boolean(chart())) }, name(series[index]));
    button.onclick = () => {
      if (chart()) chart().close();
      else new Chart($("#search .grid"), { title, note, found: index, lines: [["", index, "c1"]] });
      button.ariaPressed = String(Boolean(chart()));
    };
    return button;
  }));
}

function listen() {
  const keys = { ArrowLeft: [1, -0.25], ArrowRight: [1, 0.25], "+": [0.5], "=": [0.5], "-": [2] };
  document.addEventListener("viewchange", showView);
  document.addEventListener("cursor", ({ detail }) => $("#cursor").replaceChildren(`cursor at ${moment(detail, true)}`));
  document.addEventListener("change", ({ target }) => ({ axis: setAxis, kind: showMain })[target.name]?.(target.value));
  document.addEventListener("click", (event) => {
    const chosen = event.target.closest("[data-pick], .list tbody tr"), button = event.target.closest("[data-move]");
    if (button) moveView(...JSON.parse(button.dataset.move));
    if (!chosen) return;
    event.preventDefault();
    choose(Number(chosen.dataset.pick ?? chosen.dataset.rank));
  });
  document.addEventListener("keydown", (event) => {
    const here = document.activeElement, step = { ArrowDown: 1, ArrowUp: -1 }[event.key], move = here === main?.body && keys[event.key];
    const neighbour = step && here.dataset.pick && $(`.list [data-pick="${Number(here.dataset.pick) + step}"]`);
    if (event.key === "Escape") zoom(0, run.seconds);
    if (neighbour || move) event.preventDefault();
    if (neighbour) neighbour.focus();
    if (move) moveView(...move);
  });
  $("#search input")?.addEventListener("input", ({ target }) => search(target.value));
  $("#theme").onclick = () => setTheme(!isDark);
  DARK.addEventListener("change", ({ matches }) => setTheme(matches));
  addEventListener("beforeprint", () => [(wasDark = isDark), setTheme(false), showOnPaper()]);
  addEventListener("afterprint", () => [leavePaper(), setTheme(wasDark)]);
}

const kinds = Object.keys(run.main);
$$(".wide, pre").forEach((box) => scrolled.observe(box));
$("#theme").ariaPressed = String(isDark);
$("#theme").onclick = () => setTheme(!isDark);
if (kinds.length) {
  listen();
  showView();
  showMain($("input[name=kind]:checked").value).then(() => {
    performance.mark("first-chart");
    requestAnimationFrame(() => [showSections(), setTimeout(() => prepareForPaper().catch(() => {}), 500)]);
  }).catch((error) => [console.error(error), (root.className = "")]); // no DecompressionStream, damaged data: the static page stands
} else root.className = ""; // nothing was measured: no chart to draw
