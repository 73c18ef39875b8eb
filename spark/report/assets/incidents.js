// One incident at a time: the series that its evidence cites, their peers, and the distribution of latency.
let opened = [], picked = 0; // the rank of the incident that is shown; 0: none yet
const HEIGHT = 148;
function around([begin, end]) { // an incident with some of the time before and after it
  const margin = Math.max(60, 0.25 * (end - begin), 2 * BUCKET);
  return { min: Math.max(0, begin - margin), max: Math.min(run.seconds, end + margin) };
}

function pick(rank, isZoomed = true) {
  const one = run.incidents[rank - 1];
  picked = rank;
  for (const row of document.querySelectorAll(".list tbody tr")) {
    const isPicked = Number(row.dataset.rank) === rank;
    row.ariaCurrent = isPicked ? "true" : null;
    document.getElementById(`incident-${row.dataset.rank}`).hidden = !isPicked;
  }
  opened.forEach((chart) => chart.close());
  opened = [];
  if (!one) return; // beyond those that have charts
  const home = around(one.span);
  if (isZoomed) zoom(home.min, home.max);
  showEvidence(document.querySelector(`#incident-${rank} .cells`), one, home, opened);
}

const cited = ({ charts: several }) => several.flatMap(({ lines }) => lines.map(([, index]) => index));
async function showEvidence(box, one, home, shown) {
  const wait = missing(cited(one), coarse);
  if (wait) {
    await wait;
    if (shown !== opened) return; // another was picked meanwhile
  }
  const rows = Map.groupBy ? Map.groupBy(one.charts, ({ row }) => row) : one.charts.reduce((map, chart) => map.set(chart.row, [...(map.get(chart.row) ?? []), chart]), new Map());
  const ranges = new Map([...rows].map(([row, several]) => [row, extent(several, home)]));
  if (box.closest("article").hidden) return;
  if (Object.keys(one.curves).length > 1) addQuantiles(box, one, shown);
  for (const [row, several] of rows) {
    const [low, high] = ranges.get(row), isLog = low > 0 && high > 30 * low, range = high >= low ? [low, high] : undefined;
    for (const chart of several) shown.push(new Chart(box, { ...chart, height: HEIGHT, home, ...(range && { range }), isLog }));
  }
}
function extent(several, { min, max }) { // peers are compared on one scale
  const parts = several.flatMap(({ lines }) => lines.map(([, index]) => columns(index, coarse)));
  let low = Infinity, high = -Infinity;
  for (const [highs, lows] of parts) coarse.forEach(({ k }, at) => {
    if (k < min || k > max || lows[at] == null) return;
    low = Math.min(low, lows[at]);
    high = Math.max(high, highs[at]);
  });
  return [low, high];
}

function addQuantiles(box, one, shown) {
  const lines = [["before", "c3"], ["during", "bad"], ["after", "c1", [5, 4]]].filter(([name]) => one.curves[name]), { figure, caption, body } = frame(box, "Distribution of latency", "all messages", HEIGHT);
  for (const [name, token] of lines) caption.appendChild(node("span", { className: "line-key" }, name)).style.setProperty("--line", `var(--${token})`);
  const all = lines.flatMap(([name]) => one.curves[name]).filter((value) => value !== null), range = [Math.min(...all) / 1.25, Math.max(...all) * 1.3];
  const plot = new uPlot({
    width: body.clientWidth, height: HEIGHT, legend: { show: false }, cursor: { show: false }, padding: [6, 28, 0, 0],
    scales: { x: { time: false, range: [0, 4] }, y: { distr: 3, range } },
    axes: axes({ splits: () => [Math.log10(2), 1, 2, 3, 4], values: () => ["p50", "p90", "p99", "p99.9", "p99.99"] },
      { splits: () => decades(...range, HEIGHT), values: (u, found) => found.map((value) => amount(value, "s")) }),
    series: [{}, ...lines.map(([, token, dash]) => ({ scale: "y", stroke: () => ink(token), width: 1.6, dash, points: { show: false } }))],
  }, [run.curve, ...lines.map(([name]) => one.curves[name])], body);
  body.resize = () => plot.setSize({ width: body.clientWidth, height: HEIGHT });
  sized.observe(body);
  shown.push({ plot, close: () => [plot.destroy(), figure.remove()] });
}

// Paper shows the whole run, each incident with its charts, and each chart, also those that were never scrolled to.
// A browser prints what is there when `beforeprint` returns, so what that needs is unpacked as soon as the page has time.
let onPaper = [];
const hasSeconds = (index) => series[index].fine >= 0;
async function prepareForPaper() {
  const every = [...[...charts].flatMap(({ spec }) => spec.lines.map(({ index }) => index)), ...run.incidents.flatMap(cited)];
  await Promise.all([missing(every, coarse), missing(every.filter(hasSeconds), fine)]);
  performance.mark("ready-for-paper");
}
function showOnPaper() {
  const { min, max } = view;
  onPaper.push({ close: () => zoom(min, max) });
  document.documentElement.classList.add("paper"); // charts have one width, whatever the screen has
  zoom(0, run.seconds);
  run.incidents.forEach((one, at) => {
    const article = document.getElementById(`incident-${at + 1}`);
    if (!article.hidden || missing(cited(one), coarse)) return;
    article.hidden = false;
    onPaper.push({ close: () => (article.hidden = true) });
    showEvidence(article.querySelector(".cells"), one, around(one.span), onPaper);
  });
  charts.forEach((chart) => {
    if (chart.isNear) return;
    onPaper.push({ close: () => (chart.isNear = false) });
    chart.update(true);
  });
  resizeAll();
}
function leavePaper() {
  document.documentElement.classList.remove("paper");
  onPaper.splice(0).reverse().forEach((one) => one.close());
  resizeAll();
}
function resizeAll() {
  document.querySelectorAll(".plot").forEach((body) => body.clientWidth && body.resize?.());
}
