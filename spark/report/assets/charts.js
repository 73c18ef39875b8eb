// Charts over time with one view and one cursor. A chart far from the screen waits until it comes near.
const view = { min: 0, max: run.seconds }, charts = new Set();
const isWhole = () => view.max - view.min === run.seconds;
const near = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => target.chart.update(isIntersecting)), { rootMargin: "240px" });
const sized = new ResizeObserver((entries) => entries.forEach(({ target }) => target.clientWidth && target.resize()));
const scrolled = new ResizeObserver((entries) => entries.forEach(({ target: { scrollWidth, clientWidth, scrollHeight, clientHeight }, target }) =>
  (target.tabIndex = scrollWidth > clientWidth || scrollHeight > clientHeight ? 0 : -1))); // a stop of the keyboard only where it scrolls

function node(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children); // strings become text, never markup
  return made;
}
let inks = new Map();
const probe = document.body.appendChild(node("i", { hidden: true }));
function ink(token, percent = 100) { // the colour that a variable of page.css has in the theme of now
  probe.style.color = `color-mix(in srgb, var(--${token}) ${percent}%, transparent)`;
  if (!inks.has(token + percent)) inks.set(token + percent, getComputedStyle(probe).color);
  return inks.get(token + percent);
}
function zoom(min, max) {
  const span = Math.min(Math.max(max - min, 20), run.seconds);
  view.min = Math.min(Math.max(min, 0), run.seconds - span);
  view.max = view.min + span;
  charts.forEach((chart) => chart.update());
  document.dispatchEvent(new Event("viewchange"));
}
const isShort = (unit) => unit === "s" || unit === "%" || unit[0] === "B"; // the others stand in the caption
function frame(parent, title, note, height) { // the figure around a chart
  const caption = node("figcaption", {}, node("b", {}, title, node("small", {}, note))), body = node("div", { className: "plot" });
  body.style.height = `${height}px`;
  return { figure: parent.appendChild(node("figure", { className: "chart" }, caption, body)), caption, body };
}
function axes(x, y, isGrid = true) {
  const style = { stroke: () => ink("soft"), font: `12px ${getComputedStyle(document.body).fontFamily}`, ticks: { show: false },
    grid: { show: isGrid, stroke: () => ink("rule"), width: 1 }, filter: (plot, found) => found };
  return [{ ...style, gap: 6, size: 40, ...x }, { ...style, gap: 8, size: 72, space: 34, scale: "y", ...y }];
}
const TWOS = Array.from({ length: 60 }, (_, power) => 2 ** power); // steps of a linear scale of bytes
function levels(unit, low, high, height) { // of a logarithmic scale; of bytes 1 KiB, 4 KiB, ... or 1 KiB, 32 KiB, 1 MiB, ...
  if (unit[0] !== "B") return decades(low, high, height);
  const [first, last] = [low, high].map(Math.log2), step = [1, 2, 5, 10, 20].find((one) => (last - first) / one <= height / 34) ?? 50, found = [];
  for (let power = Math.ceil(first / step) * step; power <= last; power += step) found.push(2 ** power);
  return found;
}
function decades(low, high, height) { // levels of a logarithmic scale: 1, or 1 3, or 1 2 5 of each decade
  const span = Math.log10(high / low), marks = span > Math.min(3.4, height / 80) ? [1] : span > height / 200 ? [1, 3] : [1, 2, 5], found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) found.push(...marks.map((by) => by * 10 ** power));
  return found.filter((value) => value >= low && value <= high);
}

// spec: title, note, height, lines [[label, index, ink, isOff]], range [low, high], home {min, max}, isLog, lanes, heat, limit
class Chart {
  constructor(parent, spec) {
    const lines = spec.lines.map(([label, index, token, isOff]) => ({ label, index, ink: token, isOff }));
    const isLog = lines.some(({ index }) => series[index].isLog);
    this.spec = { note: "", height: 168, isLog, unit: series[lines[0].index].unit, ...spec, lines };
    const { title, note, height, unit } = this.spec, says = isShort(unit) || !unit || `${title} ${note}`.includes(unit.replace("/s", "")) ? note : [note, unit].filter(Boolean).join(", ");
    Object.assign(this, frame(parent, title, says, height));
    this.times = this.caption.firstChild.appendChild(node("small"));
    this.values = this.spec.lines.map((line, at) => this.addKey(line, at));
    if (this.spec.help) this.caption.append(node("small", { className: "help" }, this.spec.help));
    this.figure.chart = this;
    this.body.resize = () => this.plot?.setSize({ width: this.body.clientWidth, height: this.spec.height });
    charts.add(this);
    near.observe(this.figure);
    sized.observe(this.body);
  }
  addKey(line, at) { // an entry of the legend: a switch with the value under the cursor
    const value = node("b");
    if (this.spec.lines.length === 1) return this.caption.appendChild(node("span", { className: "value" }, value)).firstChild;
    const key = this.caption.appendChild(node("button", { type: "button", className: "line-key", ariaPressed: String(!line.isOff) }, line.label, value));
    key.style.setProperty("--line", `var(--${line.ink})`);
    key.onclick = () => {
      line.isOff = !line.isOff;
      key.ariaPressed = String(!line.isOff);
      [1, 2, 3].forEach((part) => this.plot.setSeries(3 * at + part, { show: !line.isOff }));
    };
    return value;
  }
  range() { // an uPlot scale takes no notice of a new unit unless an end moves too, so bytes end a microsecond later
    const { min, max } = isWhole() && this.spec.home ? this.spec.home : view;
    return [min, max + (axis === "written" ? 1e-6 : 0)];
  }
  async update(isNear = this.isNear) { // brings the chart to the view: builds it, fetches another grid, or only zooms
    this.isNear = isNear;
    this.values.forEach((value) => value.replaceChildren());
    const [min, max] = this.range();
    this.times.textContent = stretch(min, max);
    if (!isNear) return;
    const hasSeconds = this.spec.lines.every(({ index }) => series[index].fine >= 0);
    const grid = hasSeconds && max - min <= 120 * BUCKET && run.windows.some(([begin, end]) => begin < max && end > min) ? fine : coarse;
    if (this.grid !== grid) return (this.loading = this.load(grid));
    this.plot?.setScale("x", { min, max });
  }
  async load(grid) { // draws the series on a grid, and done when the chart is there
    this.grid = grid;
    const indices = this.spec.lines.map(({ index }) => index), wait = missing(indices, grid);
    if (wait) await wait; // else nothing is put off: paper does not wait
    if (this.grid !== grid) return this.loading; // the view has moved on
    if (!charts.has(this)) return;
    this.data = [grid.map(({ k }) => k), ...indices.flatMap((index) => columns(index, grid))];
    if (this.plot) this.plot.setData(this.data, false);
    else this.build();
    const [min, max] = this.range(); // of now: it may have changed meanwhile
    this.plot.setScale("x", { min, max });
  }
  build() {
    const { lines, lanes, heat, height, unit, left, range: given } = this.spec, every = this.data.slice(1).flat().filter((value) => value != null);
    const known = this.spec.isLog ? every.filter((value) => value > 0) : every;
    const [low, high] = given ?? [known.reduce((a, b) => Math.min(a, b), Infinity), known.reduce((a, b) => Math.max(a, b), -Infinity)];
    const isLog = (this.spec.isLog = this.spec.isLog && low > 0 && Number.isFinite(low));
    const most = isLog ? 0 : Math.max(high, 0) || 1;
    const room = lanes ? 0.13 : 0; // the numbers of incidents stand above the lines
    const range = isLog ? [low / 1.25, high * Math.max(1.3, (high / low) ** room)] : given ? [Math.min(0, low), 1.08 * most] : (plot, from, to) => [Math.min(0, from ?? 0) * 1.08, 1.08 * (to > 0 ? to : 1)];
    const part = ({ isOff, ink: token }, width, percent) => (
      { scale: "y", points: { show: false }, show: !isOff, width, stroke: percent ? () => ink(token, percent) : null });
    this.plot = new uPlot({
      width: this.body.clientWidth, height, legend: { show: false }, padding: [lanes ? 24 : 6, 22, 0, 0],
      cursor: { y: false, points: { show: false }, drag: { setScale: false }, bind: { dblclick: () => () => zoom(0, run.seconds) },
        sync: { key: "run", scales: ["x", null], setSeries: false, filters: { pub: (type) => /move|leave/.test(type), sub: () => this.isNear } } },
      scales: { x: { time: false, distr: 100, fwd: forward, bwd: backward, range: () => this.range() }, y: { distr: isLog ? 3 : 1, range } },
      axes: axes({ gap: lanes ? 10 + 18 * lanes.length : 6, size: lanes ? 50 + 18 * lanes.length : 40, values: (plot, found) => tickLabels(found),
        splits: (plot, at, min, max) => ticks(min, max, Math.max(2, plot.bbox.width / devicePixelRatio / 62)) },
      { size: lanes || left ? 100 : 62, values: (plot, found) => found.map((value) => amount(value, isShort(unit) ? unit : "")), ...(unit[0] === "B" && { incrs: TWOS }), ...(isLog && { splits: () => levels(unit, ...range, height) }) }, !heat),
      // The edges of a band are drawn too, or a spike of one second would be narrower than a pixel and vanish.
      series: [{}, ...lines.flatMap((line) => [part(line, 0.6, heat || isSeconds ? 0 : 45), part(line, 0.6, heat || isSeconds ? 0 : 45), part(line, 1.3, 100)])],
      bands: heat || isSeconds ? [] : lines.map(({ ink: token }, at) => ({ series: [3 * at + 1, 3 * at + 2], fill: () => ink(token, lines.length > 2 && !lanes ? 13 : 24) })),
      hooks: { drawClear: [() => this.drawBackdrop()], draw: [() => lanes && drawLanes(this)], setCursor: [() => this.read()], setSelect: [(plot) => {
        const { left, width } = plot.select;
        if (width > 3) zoom(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
        plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      }] },
    }, this.data, this.body);
  }
  drawBackdrop() { // what lies behind the lines: heat, gaps, phases, incidents, the plan's limit
    const { ctx, bbox } = this.plot, { heat, lanes, lines, limit } = this.spec, ratio = devicePixelRatio, right = bbox.left + bbox.width, [min, max] = this.range();
    const hosts = new Set(lines.map(({ index }) => series[index].source)), at = (k) => Math.min(Math.max(this.plot.valToPos(k, "x", true), bbox.left), right);
    const isOf = (source) => hosts.has(source) || (/^(produce|consume)\./.test(source) && hosts.has("")) || source === "run";
    const box = (begin, end, fill, height = bbox.height) => {
      ctx.fillStyle = fill;
      if (end > min && begin < max) ctx.fillRect(at(begin), bbox.top, Math.max(at(end) - at(begin), 2), height);
    };
    ctx.save();
    if (heat) heat(this.plot, at);
    else {
      run.phases.forEach(([name, begin, end]) => name !== "soak" && box(begin, end, ink("unjudged")));
      run.invalid.forEach(([begin, end, source]) => (lanes || isOf(source)) && box(begin, end, ink("untrusted")));
      run.incidents.forEach(({ span, isAgainstCluster }) => box(...span, ink(isAgainstCluster ? "span" : "unjudged")));
    }
    run.gaps.forEach(([begin, end, source]) => (isOf(source) || (lanes && /^(produce|consume)/.test(source))) && box(begin, end, hatch(ctx)));
    run.incidents.forEach(({ span, isAgainstCluster }) => box(...span, ink(isAgainstCluster ? "bad" : "soft", 55), 3 * ratio));
    const y = limit ? this.plot.valToPos(limit, "y", true) : -1;
    if (y >= bbox.top && y <= bbox.top + bbox.height) { // else it lies beyond what is drawn
      drawText(this.plot, `limit ${amount(limit, "s")}`, right - 4 * ratio, y - 10 * ratio, "right");
      ctx.strokeStyle = ink("soft");
      ctx.setLineDash([5 * ratio, 4 * ratio]);
      ctx.strokeRect(bbox.left, y, bbox.width, 0);
    }
    ctx.restore();
  }
  read() { // the values under the cursor into the legend; they stay when it leaves, or a switch would slip away under it
    const { left, idx } = this.plot.cursor, { unit, lanes, lines } = this.spec;
    if (left < 0 || idx == null) return;
    this.values.forEach((value, at) => {
      const columns = this.data.slice(3 * at + 1, 3 * at + 4), place = columns[2].findLastIndex((one, there) => there <= idx && one !== undefined);
      const [high, low, middle] = columns.map((column) => column[place]); // between two values the one before
      const band = lanes && high > low ? ` (${amount(low, unit)} to ${amount(high, unit)})` : "";
      value.textContent = lines[at].isOff ? "" : amount(middle, unit) + band;
    });
    document.dispatchEvent(new CustomEvent("cursor", { detail: this.data[0][idx] }));
  }
  close() {
    charts.delete(this);
    this.plot?.destroy();
    this.figure.remove();
  }
}
function hatch(ctx) {
  const tile = new OffscreenCanvas(8, 8), pen = tile.getContext("2d");
  Object.assign(pen, { strokeStyle: ink("hatch"), lineWidth: 1.4 });
  for (const x of [-8, 0, 8]) pen.stroke(new Path2D(`M${x} 8L${x + 8} 0`));
  return ctx.createPattern(tile, "repeat");
}
function drawText({ ctx, axes: [{ font }] }, text, x, y, textAlign) {
  Object.assign(ctx, { font: font[0], fillStyle: ink("soft"), textBaseline: "middle", textAlign });
  ctx.fillText(text, x, y);
}

// Says of the event under the pointer, or of one after the other by the arrow keys, what it was and when.
function addLane({ plot }, [name, times, kind], lane) {
  const tip = node("span", { className: "tip", hidden: true }), strip = node("button", { type: "button", className: "lane", ariaLabel: `${name}: arrow keys go from one to the next` }, tip);
  const live = node("span", { className: "hidden" }), x = (at) => plot.valToPos(times[at], "x"), isSeen = (at) => times[at] >= view.min && times[at] <= view.max;
  let shown = -1;
  const show = (at, others = 0) => {
    tip.hidden = !isSeen((shown = at)); // also where there is none
    if (tip.hidden) return;
    tip.textContent = `${kind(at)} at ${moment(times[at], true)}${others ? `, ${others} more here` : ""}`;
    const half = tip.offsetWidth / 2;
    tip.style.left = `${Math.min(Math.max(x(at), half), plot.over.clientWidth - half)}px`;
  };
  live.setAttribute("aria-live", "polite");
  strip.style.top = `calc(100% + ${6 + lane * 18}px)`;
  strip.onmousemove = ({ clientX }) => {
    const place = clientX - plot.over.getBoundingClientRect().left, near = times.flatMap((_, at) => (isSeen(at) && Math.abs(x(at) - place) < 4 ? [at] : []));
    const nearest = near.reduce((a, b) => (Math.abs(x(b) - place) < Math.abs(x(a) - place) ? b : a), near[0] ?? -1);
    show(nearest, near.length - 1);
  };
  strip.onmouseleave = strip.onblur = () => show(-1);
  strip.onfocus = () => strip.matches(":focus-visible") && show(times.findIndex((_, at) => isSeen(at)));
  strip.onkeydown = (event) => {
    const next = shown + ({ ArrowRight: 1, ArrowLeft: -1 }[event.key] ?? NaN);
    if (!isSeen(next)) return;
    event.preventDefault();
    show(next);
    live.textContent = tip.textContent;
  };
  plot.over.append(strip, live);
}

// Of the main chart alone: phases above, events below, a numbered flag on each incident.
function drawLanes({ plot, spec }) {
  const { ctx, bbox } = plot, ratio = devicePixelRatio, right = bbox.left + bbox.width;
  const at = (k) => plot.valToPos(k, "x", true), inside = (k) => Math.min(Math.max(at(k), bbox.left), right);
  const phases = run.phases.map(([name, begin, end]) => [name, inside(begin), inside(end)]).filter(([, from, to]) => to > from);
  ctx.save();
  for (const [name, from, to] of phases) {
    ctx.fillStyle = ink(name === "soak" ? "fill" : "unjudged");
    ctx.fillRect(from, 2 * ratio, to - from, 16 * ratio);
  }
  for (const [name, from, to] of phases) { // the name of a short phase may reach into its neighbour
    const isLong = to - from > 60 * ratio, middle = [(from + to) / 2, "center"];
    const [x, align] = isLong ? middle : from === bbox.left ? [from, "left"] : to === right ? [to, "right"] : middle;
    if (isLong || bbox.width > 700 * ratio) drawText(plot, name, x, 10.5 * ratio, align);
  }
  spec.lanes.forEach(([name, times], lane) => {
    const top = bbox.top + bbox.height + (6 + lane * 18) * ratio, counts = new Map();
    drawText(plot, name, bbox.left - 8 * ratio, top + 6.5 * ratio, "right");
    for (const x of times.filter((k) => k >= view.min && k <= view.max).map((k) => Math.round(at(k)))) counts.set(x, (counts.get(x) ?? 0) + 1);
    const most = Math.max(...counts.values(), 1);
    for (const [x, n] of counts) {
      ctx.fillStyle = ink("event", Math.round(30 + (70 * n) / most));
      ctx.fillRect(x, top, ratio * (times.length < 50 ? 2 : 1), 13 * ratio);
    }
  });
  ctx.restore();
  for (const flag of plot.over.querySelectorAll(".flag")) {
    const [begin, end] = run.incidents[flag.textContent - 1].span;
    flag.hidden = end < view.min || begin > view.max;
    const middle = ((inside(begin) + inside(end)) / 2 - bbox.left) / ratio;
    flag.style.left = `${Math.min(Math.max(middle, 13), bbox.width / ratio - 13)}px`;
  }
}
