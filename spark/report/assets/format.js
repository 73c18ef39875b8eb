// Numbers and times in words, and the horizontal axis.
const SPACE = "\u00a0", PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]], BINARY = [[2 ** 50, "Pi"], [2 ** 40, "Ti"], [2 ** 30, "Gi"], [2 ** 20, "Mi"], [2 ** 10, "Ki"], [1, ""]];
const MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(" ");
const digits = (value, most) => value.toLocaleString("en", { maximumSignificantDigits: most });
const two = (value) => String(Math.floor(value)).padStart(2, "0");

function amount(value, unit) {
  if (value == null) return "no data";
  if (unit === "%") return digits(100 * value, 3) + "%";
  if (value === 0) return "0";
  if (unit === "s") {
    const size = Math.abs(value), [scale, name] = size >= 0.9995 ? [1, "s"] : size >= 0.9995e-3 ? [1e-3, "ms"] : [1e-6, "µs"];
    return digits(value / scale, scale === 1 || size / scale >= 100 ? 3 : 2) + SPACE + name;
  }
  const [size, prefix] = (unit[0] === "B" ? BINARY : PREFIXES).find(([least]) => Math.abs(value) >= least * 0.9995) ?? [1, ""];
  if (unit[0] === "B") return digits(value / size, Math.abs(value / size) < 1000 ? 3 : 4) + SPACE + prefix + unit;
  const plain = Math.abs(value) < 100 ? digits(value, 3) : Math.abs(value) >= 1e7 ? digits(value / size, 3) + prefix : Math.round(value).toLocaleString("en");
  return plain + (unit ? SPACE + unit : "");
}
function duration(k) {
  const parts = [[Math.floor(k / 3600), "h"], [Math.floor(k / 60) % 60, "min"], [k < 600 ? Math.round(k % 60) : 0, "s"]];
  return parts.filter(([n]) => n).map(([n, unit]) => n + SPACE + unit).join(" ");
}

// A time lies on the axis at forward(k), in the axis' own unit: seconds, or bytes written.
let axis = "utc";
const isClock = () => axis === "utc" || axis === "local";
const written = [0, ...(run.written ?? []).map((at, bucket) => at * 1e3 + bucket)]; // ascends in an outage too, as a scale must
function forward(k) {
  if (axis !== "written") return k;
  const at = Math.min(Math.max(k / BUCKET, 0), BUCKETS), bucket = Math.min(Math.floor(at), BUCKETS - 1);
  return written[bucket] + (written[bucket + 1] - written[bucket]) * (at - bucket);
}
function backward(place) {
  if (axis !== "written") return place;
  let low = 0, high = BUCKETS - 1;
  while (low < high) { // the last bucket that begins at or before the place
    const middle = (low + high + 1) >> 1;
    if (written[middle] <= place) low = middle;
    else high = middle - 1;
  }
  return BUCKET * (low + (place - written[low]) / (written[low + 1] - written[low]));
}
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 180, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
function ticks(min, max, most) {
  const low = forward(min), high = forward(max), found = [];
  const step = axis === "written" ? 2 ** Math.ceil(Math.log2((high - low) / most)) : STEPS.find((one) => (high - low) / one <= most) ?? 86400 * Math.ceil((high - low) / most / 86400);
  const shift = isClock() ? run.start + zoneOffset(min) : 0;
  for (let at = Math.ceil((low + shift) / step) * step - shift; at <= high; at += step) found.push(backward(at));
  return found;
}
const zoneOffset = (k) => (axis === "local" ? -60 * new Date((run.start + k) * 1000).getTimezoneOffset() : 0);
const stamp = (k) => new Date((Math.floor(run.start + k + 1e-3) + zoneOffset(k)) * 1000);
const day = (k) => `${stamp(k).getUTCDate()}${SPACE}${MONTHS[stamp(k).getUTCMonth()]}`;
function hour(k, hasSeconds) {
  if (axis === "written") return amount(forward(k), "B");
  return isClock() ? stamp(k).toISOString().slice(11, hasSeconds ? 19 : 16) : `${Math.floor(k / 3600)}:${two((k / 60) % 60)}${hasSeconds ? `:${two(k % 60)}` : ""}`;
}
const moment = (k, hasSeconds) => (isClock() && run.seconds > 86400 ? `${day(k)} ` : "") + hour(k, hasSeconds) + (axis === "elapsed" ? `${SPACE}h` : "");
const stretch = (min, max) => `${moment(min, max - min < 1800)} to ${(isClock() && day(min) === day(max) ? hour : moment)(max, max - min < 1800)}`;
const tickLabels = (found) => found.map((k, at) => hour(k, found[1] - found[0] < MINUTE) + (isClock() && (!at || day(k) !== day(found[at - 1])) ? `\n${day(k)}` : ""));
