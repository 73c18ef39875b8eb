"""Text for people: titles of series, amounts, times and findings, in mails, reports and the terminal."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from soak.core.model import Finding, Kind
from soak.core.plan.objectives import parse_objective
from soak.core.series import parse_series
from soak.core.units import SECOND_NS

OTHERS_NAME = "others"
"""The name of all leaders that have no series of their own."""

WAITING = "publish_waiting_seconds"
"""The wait of the oldest unacknowledged message, at most 10 s."""

ACKNOWLEDGEMENTS_STOPPED = "acknowledgement_outage_seconds"
ACKNOWLEDGEMENTS_SHORT = "acknowledgement_shortfall_seconds"
DELIVERY_STOPPED = "delivery_outage_seconds"
"""The lengths of outages; no journal has these series, which the detector derives from counts of messages."""

# not part of a title, unlike those of counts and sizes: `deleted bytes`
_SILENT_UNITS = frozenset({"seconds", "ratio", "cores"})
_QUANTILES = {"0.5": "p50", "0.99": "p99", "0.999": "p99.9", "max": "max"}
_PHRASES = (
    ("end to end", "end-to-end"),
    ("publish waiting", "wait of the oldest unacknowledged message"),
    ("node ", ""),
    ("disk device turnover", "drive writes, in multiples of its capacity"),
    ("disk turnover", "drive writes since the probe began, in multiples of its capacity"),
    ("disk discarded sectors", "sectors discarded"),
    ("broker lone delay", "delay of the last of several answers"),
    ("process cpu waiting", "wait of a thread for CPU"),
    ("process cpu", "CPU of the process"),
    ("cpu", "CPU"),
    ("io ", "IO "),
    ("lag messages", "consumer lag"),
    ("cluster other messages", "messages written to other topics"),
    ("cluster under replicated partitions", "partitions with a copy that is behind"),
)
_ACRONYMS = {"gc": "GC", "cpu": "CPU"}
_KINDS = {
    "step": "",
    "drift": "drifting",
    "spikes": "spiking",
    "stalls": "in single seconds",
    "tail": "in its tail",
}
WHOLE_SENTENCES = frozenset[Kind]({"outage", "objective"})
"""Kinds of which `what_text` says all, without a title of the series."""
_OUTAGES = {
    ACKNOWLEDGEMENTS_STOPPED: "nothing was acknowledged{} for {}",
    ACKNOWLEDGEMENTS_SHORT: "too few messages were acknowledged in time{} for {}",
    DELIVERY_STOPPED: "nothing was received{} for {}",
}
_NUMBER = re.compile(r"[\d.]+")  # a label value that needs its key
_CUT = "..."
# controls for terminals, line breaks and text direction, invisible characters, half surrogate pairs
_CONTROLS = (
    "\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f"
)
_UNPRINTABLE = re.compile(f"(?P<blank>[\t\n\r\v\f\x85\u2028\u2029]+)|[{_CONTROLS}]")
_NOT_FOR_A_TERMINAL = re.compile(f"(?![\t\n]|\r\n)[{_CONTROLS}]")
_BLOCKS = "▁▂▃▄▅▆▇█"
_LEAST_SPAN = math.log(10)  # of a sparkline: noise of a few percent stays flat
_ROUNDED_UP = 0.9995  # of a scale: with three digits 999.6 us is 1 ms
_SYMBOLS = {"seconds": "s", "bytes": "B"}
_SCALES = {
    "seconds": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")),
    "bytes": (
        *((2.0**50, "PiB"), (2.0**40, "TiB"), (2.0**30, "GiB")),
        *((2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")),
    ),
}


def title(series: str) -> str:
    """Return a title such as `p99 end-to-end latency`, `... (leader 2)` or `disk write await (vda)`."""
    name = parse_series(series)
    unit = name.unit if name.unit in _SILENT_UNITS else ""
    words = name.metric.removesuffix(f"_{unit}" if unit else "")
    if unit in {"ratio", "cores"}:
        words = words.removesuffix("_seconds")
    words = words.replace("_", " ")
    for plain, better in _PHRASES:
        words = words.replace(plain, better)
    share = name.label("quantile")
    quantile = _QUANTILES.get(share, f"p{share}" if share else "")
    others = ", ".join(_label(key, text) for key, text in name.labels if key != "quantile")
    return " ".join(part for part in (quantile, words, f"({others})" if others else "") if part)


def cause_text(cause: str) -> str:
    """Return a cause in words: `drive GC` for `drive_gc`."""
    return " ".join(_ACRONYMS.get(word, word) for word in cause.split("_"))


def title_with_source(series: str) -> str:
    """Return the title with its source: `disk write await (vda) of probe@b1`."""
    source = parse_series(series).source
    return f"{title(series)} of {source}" if source else title(series)


def title_with_other_source(series: str, other: str) -> str:
    """Return the title, with its source if that differs from the other series' source."""
    return (
        title(series)
        if parse_series(series).source == parse_series(other).source
        else title_with_source(series)
    )


def _label(key: str, text: str) -> str:
    if (key, text) == ("leader", OTHERS_NAME):
        return "other leaders"
    return f"{key} {text}" if key == "leader" or _NUMBER.fullmatch(text) else text


def amount(value: float, unit: str) -> str:
    """Return a value in base units for display: three digits, whole numbers in full, a ratio in percent."""
    if not math.isfinite(value):
        return "-"
    if value == 0:
        return "0%" if unit == "ratio" else f"0 {_SYMBOLS.get(unit, unit)}".strip()
    for scale, name in _SCALES.get(unit, ()):
        if abs(value) >= _ROUNDED_UP * scale or name in {"us", "B"}:
            return f"{_short(value / scale)} {name}"
    if unit == "ratio":
        return f"{_short(100.0 * value)}%"
    if unit == "":
        return _short(value)
    shown = _short(value)
    return f"{shown} {unit.removesuffix('s') if shown == '1' else unit}"


def amount_of(series: str, value: float) -> str:
    """Return a value of a series for display, with `/s` if it is counted per second."""
    name = parse_series(series)
    return amount(value, name.unit) + "/s" * name.is_per_second


GRANT_HINT = "; grant it: "
"""Stands in a note before the command that grants a right."""


def busy_host_text(host: str, used: float) -> str:
    """Return what it means for the figures of a run that a host of the load had hardly any CPU left."""
    share = "all CPU" if used >= 1 else f"{share_down(used, 0)} or more of the CPU"
    return (
        f"On {host}, a host of the load, {share} was in use in half of the soak's seconds: latencies may be "
        "its own, not the cluster's."
    )


def printable(text: str) -> str:
    """Return a line with escapes for unprintable characters, which names and log lines may contain.

    Line breaks and tabs become blanks.
    """
    return _UNPRINTABLE.sub(_printed, text)


def escaped(text: str) -> str:
    """Return a text of several lines that no terminal obeys and every reader sees in its order."""
    return _NOT_FOR_A_TERMINAL.sub(_printed, text)


def _printed(match: re.Match[str]) -> str:
    if match.groupdict().get("blank"):
        return " "
    return match[0].encode("unicode_escape").decode("ascii")


def shortened(text: str, width: int) -> str:
    """Return the text without its middle if it is too long: the end of a path says most."""
    if len(text) <= width:
        return text
    head = (width - len(_CUT)) // 3
    return f"{text[:head]}{_CUT}{text[len(text) - width + len(_CUT) + head :]}"


def counted(number: int, what: str) -> str:
    """Return a count such as `1 gap` or `2 gaps`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def listed(parts: Sequence[str]) -> str:
    """Return a list such as `a`, `a and b` or `a, b and c`."""
    return " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)


def known(number: int | None) -> str:
    """Return a count such as `1,017`, or `not known`."""
    return "not known" if number is None else f"{number:,}"


def share_down(ratio: float, decimals: int) -> str:
    """Return a percentage rounded down, for a share that should be high: 99.996 % is `99.99%`."""
    return _share(ratio, decimals, ROUND_FLOOR)


def share_up(ratio: float, decimals: int) -> str:
    """Return a percentage rounded up, for a share that should be low: 10.01 % is `10.1%`."""
    return _share(ratio, decimals, ROUND_CEILING)


def factor(before: float, after: float) -> str:
    """Return `x15`, or `15 times less` for a fall; "" without a ratio."""
    if not (math.isfinite(before) and math.isfinite(after)) or min(before, after) <= 0:
        return ""
    shown = _digits(max(before, after) / min(before, after), 2)
    return f"x{shown}" if after >= before else f"{shown} times less"


def subject_tag(*, is_lab: bool) -> str:
    """Return how the subject of a mail about a run begins; of a lab that is a rehearsal."""
    return "[soakd lab]" if is_lab else "[soakd]"


def step(before: float, after: float, unit: str) -> str:
    """Return `4.1 ms -> 61 ms (x15)`, or the two amounts without a ratio."""
    ratio = factor(before, after)
    return f"{amount(before, unit)} -> {amount(after, unit)}" + (f" ({ratio})" if ratio else "")


def change_text(found: Finding) -> str:
    """Return the levels of a finding before and after, or the length of an outage and its messages."""
    levels = level_text(found.series, found.kind, found.before, found.after)
    messages = _messages_text(found)
    return f"{levels}; {messages}" if found.kind == "outage" and messages else levels


def _length(seconds: float) -> str:
    """Return a length to the second up to two minutes: of an outage each of them counts."""
    return f"{round(seconds)} s" if seconds < 120 else span(seconds)  # noqa: PLR2004


def what_text(found: Finding, max_title_length: int | None = None) -> str:
    """Return what changed and by how much: `p99 publish latency 4.1 ms -> 61 ms (x15)`."""
    change = change_text(found)
    if found.kind == "objective":
        return f"objective missed: {parse_series(found.series).label('objective')}: {change}"
    if found.kind == "outage":
        return change
    name = title(found.series)
    return f"{name if max_title_length is None else shortened(name, max_title_length)} {change}"


def _messages_text(found: Finding) -> str:
    """Return `61,668 of 356,400 messages of the run so far failed, 12 came late`.

    Without what is 0 or unknown; of an outage that is over it says "until then".
    """
    counts = [(found.failed_messages, "failed"), (found.late_messages, "came late")]
    parts = [f"{count:,} {did}" for count, did in counts if count]
    if not parts or found.due_messages is None:
        return ""
    first, _, did = parts[0].partition(" ")
    is_over = found.state == "gone" or found.resolved_k is not None
    so_far = f"of the run {'until then' if is_over else 'so far'}"
    return ", ".join([f"{first} of {found.due_messages:,} messages {so_far} {did}", *parts[1:]])


def level_text(series: str, kind: Kind, before: float, after: float) -> str:
    """Return levels before and after: `4.1 ms -> 61 ms (x15)`, with the kind unless it is a step.

    The wait of an unacknowledged message is a lower bound.
    """
    name = parse_series(series)
    if kind == "objective":
        objective = parse_objective(name.label("objective"))
        whole = round(before / (1.0 - float(objective.target)))
        return f"{after:,.0f} of {whole:,} {objective.unit} were bad, {_short(before)} allowed"
    if kind == "outage":
        leader = name.label("leader")
        by = f" by {_label('leader', leader)}" if leader else ""
        return _OUTAGES.get(name.metric, "an outage{} for {}").format(by, _length(after))
    did = f"{_KINDS[kind]} {step(before, after, name.unit)}".lstrip()
    return f"{did} and longer" if name.metric == WAITING and after > before else did


def budget_left_text(left: float, unit: str) -> str:
    """Return what is left of a budget: `18.6 minutes left`, or `exceeded by 0.4 minutes`."""
    return f"exceeded by {amount(-left, unit)}" if left < 0 else f"{amount(left, unit)} left"


def finding_text(found: Finding, start_wall_ns: int) -> str:
    """Return one line about a finding of a run that started at this time."""
    began_k = found.onset_k
    if found.kind == "outage" and found.worst_k is not None:
        began_k = found.worst_k  # its length counts from there, the incident may be older
    since = moment_with_day(start_wall_ns + began_k * SECOND_NS, start_wall_ns)
    note = not_counted_note(is_about_cluster=found.is_about_cluster)
    what = f"{state_word(found.state)}: {what_text(found)}"
    return printable(f"{what} since {since}, cause {found.cause}{note}")


def state_word(state: str) -> str:
    """Return the state of a finding for people: `gone` in files is `resolved`."""
    return "resolved" if state == "gone" else state


def not_counted_note(*, is_about_cluster: bool) -> str:
    """Return the note on a finding that does not count against the cluster, or ""."""
    return "" if is_about_cluster else ", not counted against the cluster"


def moment(wall_ns: int) -> str:
    """Return the time of day, UTC: `03:12:41Z`."""
    return f"{datetime.fromtimestamp(wall_ns // SECOND_NS, UTC):%H:%M:%SZ}"


def moment_with_day(wall_ns: int, than_wall_ns: int) -> str:
    """Return the time of day, UTC, with the day if that differs: `2026-09-22 00:01:40Z`."""
    on = "" if day(wall_ns) == day(than_wall_ns) else f"{day(wall_ns)} "
    return f"{on}{moment(wall_ns)}"


def day(wall_ns: int) -> str:
    return f"{datetime.fromtimestamp(wall_ns // SECOND_NS, UTC):%Y-%m-%d}"


def iso(wall_ns: int) -> str:
    """Return the instant in ISO 8601, UTC, whole seconds."""
    return f"{datetime.fromtimestamp(wall_ns // SECOND_NS, UTC):%Y-%m-%dT%H:%M:%SZ}"


def span(seconds: float) -> str:
    """Return a length such as `45 s`, `7 min 30 s` or `3 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 60:  # noqa: PLR2004  # a minute
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:  # noqa: PLR2004  # an hour
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def sparkline(values: Sequence[float], width: int) -> str:
    """Return a sparkline on a log scale; a column shows the maximum of its values, NaN is a space.

    Values at or below zero have the lowest block.
    """
    if not values or width < 1:
        return ""
    width = min(width, len(values))
    columns = []
    for at in range(width):
        part = values[at * len(values) // width : (at + 1) * len(values) // width]
        columns.append(max((value for value in part if math.isfinite(value)), default=math.nan))
    logs = [math.log(value) for value in columns if value > 0]
    if not logs:
        return "".join(" " if math.isnan(value) else _BLOCKS[0] for value in columns)
    low = min(logs)
    scale = (len(_BLOCKS) - 1) / max(max(logs) - low, _LEAST_SPAN)
    return "".join(_block(value, low, scale) for value in columns)


def _block(value: float, low: float, scale: float) -> str:
    if math.isnan(value):
        return " "
    return _BLOCKS[round((math.log(value) - low) * scale)] if value > 0 else _BLOCKS[0]


def _share(ratio: float, decimals: int, rounding: str) -> str:
    percent = Decimal(repr(float(ratio))) * 100  # as it is written: 0.07 is not 7.000...1 %
    return f"{percent.quantize(Decimal(1).scaleb(-decimals), rounding)}%"


def _short(value: float) -> str:
    for scale, suffix in ((1e9, "G"), (1e6, "M")):
        if abs(value) >= _ROUNDED_UP * scale:
            return f"{_digits(value / scale, 3)}{suffix}"
    return _digits(value, 3)


def _digits(value: float, significant: int) -> str:
    """Return this many digits without an exponent; whole numbers keep all digits: `1,017`."""
    power = math.floor(math.log10(abs(value))) if value else 0
    decimals = min(max(significant - 1 - power, 0), 9)
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text
