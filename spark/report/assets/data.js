// The numbers of the run. A time is always k: seconds since the run began. spark/report/packing.py writes the format.
const run = JSON.parse(document.getElementById("numbers").textContent);
const MISSING = 65535, MINUTE = 60, BUCKET = run.bucket, BUCKETS = run.buckets;
const series = run.series.map(([source, title, note, unit, isLog, offset, step, block, place, fine, distance]) =>
  ({ source, title, note, unit, isLog, offset, step, block, place, fine, distance }));

const blocks = new Map(), unpacked = new Map();
function block(name) { // unpacked when first needed
  if (!blocks.has(name)) blocks.set(name, unpack(document.getElementById(`block-${name}`).textContent).then((words) => (unpacked.set(name, words), words)));
  return blocks.get(name);
}
// Returns what to wait for before `columns` of these series; null when all of it is there, so that nothing is put off.
function missing(indices, grid) {
  const names = new Set(indices.flatMap((index) => [series[index].block, ...(grid === fine ? [`${series[index].block}-seconds`] : [])]));
  const found = [...names].filter((name) => !unpacked.has(name));
  return found.length ? Promise.all(found.map(block)) : null;
}
async function unpack(text) {
  const bytes = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const split = new Uint8Array(await new Response(plain).arrayBuffer()), words = new Uint16Array(split.length / 2);
  for (let at = 0; at < words.length; at++) words[at] = split[at] | (split[words.length + at] << 8);
  return words;
}

// Two grids: every bucket; and every bucket, but every second where the run was kept second by second.
const isSeconds = BUCKET === 1;
const coarse = Array.from({ length: BUCKETS }, (_, bucket) => ({ k: bucket * BUCKET + Math.floor(BUCKET / 2), bucket }));
const kept = run.windows.flatMap(([begin, end]) => Array.from({ length: end - begin }, (_, at) => begin + at));
const isKept = new Set(kept);
const fine = [...coarse.filter(({ k }) => !isKept.has(k)), ...kept.map((k, second) => ({ k, second }))].sort((a, b) => a.k - b.k);

// Returns [high, low, middle] of a series whose blocks are unpacked, null where nothing was measured. Between two values
// that are no further apart than usual it is undefined: a line goes on there, as of what is read every 10 seconds.
function columns(index, grid) {
  const { block: name, place, fine: finePlace, isLog, offset, step, distance } = series[index], size = isSeconds ? BUCKETS : 3 * BUCKETS;
  const words = unpacked.get(name).subarray(place * size, (place + 1) * size);
  const seconds = grid === fine && unpacked.get(`${name}-seconds`).subarray(finePlace * kept.length, (finePlace + 1) * kept.length);
  const value = (steps) => (isLog ? Math.exp(offset + step * steps) : offset + step * steps);
  const high = [], low = [], middle = [];
  let last = -1; // the place of the last value
  grid.forEach(({ k, bucket, second }, at) => {
    const isBucket = second === undefined, steps = isBucket ? words[bucket] : seconds[second], isKnown = steps !== MISSING, isBand = isBucket && !isSeconds;
    middle.push(isKnown ? value(steps) : null);
    high.push(isKnown ? value(steps + (isBand ? words[BUCKETS + bucket] : 0)) : null);
    low.push(isKnown ? value(steps - (isBand ? words[2 * BUCKETS + bucket] : 0)) : null);
    if (!isKnown) return;
    const width = isBucket || grid[last]?.second === undefined ? BUCKET : 1; // a bucket's value may be of any second in it
    if (last >= 0 && k - grid[last].k <= 1.5 * distance + width - 1) [high, low, middle].forEach((column) => column.fill(undefined, last + 1, at));
    last = at;
  });
  return [high, low, middle];
}
async function eventTimes() {
  const words = await block("events");
  let at = 0; // of each lane first every hour, then every second within it, then every kind
  return Object.entries(run.events).map(([name, { count: length, kinds }]) => {
    const part = words.subarray(at, (at += 3 * length));
    return [name, Array.from({ length }, (_, event) => part[event] * 3600 + part[length + event]), (event) => kinds[part[2 * length + event]]];
  });
}
