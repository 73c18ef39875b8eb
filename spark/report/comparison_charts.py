"""Pictures of `soak compare` and of trends, as static SVG: intervals, quantiles, heat maps, throughput."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from detectors.comparison import Distribution, band_edge
from soak.core import wording
from spark.batch.comparison.comparison import Comparison, Quantity, Side
from spark.batch.comparison.run import SHARES, ComparedRun, second_of
from spark.report.page import joined, shown_name, tag

_WIDTH, _HEIGHT = 460, 300
_LEFT, _RIGHT, _TOP, _FOOT = 62, 14, 12, 34
_HEAT_COLUMNS, _HEAT_BANDS = 160, 40
_RATE_POINTS = 400
_MAX_NAME = 300
_WHOLE_PERCENT = 100
_SHADES = (0.01, 0.03, 0.10, 0.30)
_QQ_SHARES = (0.01, 0.05, *(x / 10 for x in range(1, 10)), 0.95, 0.99, 0.995, 0.999, 0.9999)


def forest(quantities: Sequence[Quantity], margin: float) -> Markup:
    """Return the intervals of the ratios, over the band of practical equivalence."""
    known = [one for one in quantities if one.interval is not None]
    if not known:
        return Markup()
    reach = max(
        2 * math.log1p(margin),
        *(min(abs(math.log(edge)), 3.0) for one in known for edge in one.interval or ()),
    )
    width, row = 2 * _WIDTH, 26
    height = _TOP + row * len(known) + _FOOT
    left = 140

    def x(log_ratio: float) -> float:
        share = (min(max(log_ratio, -reach), reach) + reach) / (2 * reach)
        return left + (width - left - _RIGHT) * share

    foot = height - _FOOT
    inner = x(math.log1p(margin)) - x(-math.log1p(margin))
    parts = [
        tag(
            "rect",
            x=f"{x(-math.log1p(margin)):.1f}",
            y=_TOP,
            width=f"{inner:.1f}",
            height=foot - _TOP,
            class_="margin",
        ),
        _line(x(0), _TOP, x(0), foot, "diagonal"),
    ]
    for place in (-1.0, -0.5, 0.0, 0.5, 1.0):
        percent = 100 * math.expm1(place * reach)
        text = f"{percent:+,.0f} %" if abs(percent) >= _WHOLE_PERCENT else f"{percent:+.3g} %"
        class_ = "axis end" if place == 1.0 else "axis middle"
        parts.append(_text(text, x(place * reach), height - 17, class_))
    for at, one in enumerate(known):
        y = _TOP + row * (at + 0.5)
        low, high = (math.log(edge) for edge in one.interval or (1.0, 1.0))
        middle = (low + high) / 2
        title = tag("title", f"{one.name}: {one.verdict}; {one.why}")
        parts.append(_text(one.name, left - 8, y + 4, "axis end"))
        parts.append(tag("g", title + _line(x(low), y, x(high), y, "range")))
        parts.append(tag("circle", cx=f"{x(middle):.1f}", cy=y, r=4, class_="dot"))
    parts.append(_text("after against before", x(0), height - 4, "axis middle"))
    label = "Difference of each latency"
    svg = tag("svg", joined(parts), viewBox=f"0 0 {width} {height}", role="img", aria_label=label)
    note = (
        f"Line: the interval of 95 %; dot: its middle. Green band: {100 * margin:g} % either way count as no "
        "difference."
    )
    return _titled(label, svg, note)


def _titled(title: str, picture: Markup, note: str | Markup = "") -> Markup:
    """Return a picture below its title, with what its marks mean."""
    below = tag("p", note, class_="legend") if note else Markup()
    return tag("div", tag("h3", title) + picture + below)


_SIDES = tag("b", "before", class_="a") + Markup(", ") + tag("b", "after", class_="b") + Markup(".")


def _pooled(side: Side, latency: str) -> tuple[NDArray[np.float64], int] | None:
    """Return the messages of all runs by band, and the first band."""
    found = [one for run in side.runs if (one := run.distribution(latency)) is not None]
    if not found:
        return None
    first = min(one.first_band for one in found)
    last = max(one.first_band + one.counts.shape[1] for one in found)
    sums = np.zeros(last - first)
    for one in found:
        begin = one.first_band - first
        sums[begin : begin + one.counts.shape[1]] += one.counts.sum(axis=0)
    return sums, first


def quantile_plot(found: Comparison, latency: str) -> Markup | None:
    """Return quantiles of one side against the same ones of the other, both axes logarithmic."""
    both = [_pooled(side, latency) for side in (found.before, found.after)]
    if both[0] is None or both[1] is None:
        return None
    points = []
    for share in _QQ_SHARES:
        values = [
            Distribution(sums[None, :], first, 1).quantile(share)
            for sums, first in (both[0], both[1])
        ]
        points.append((share, *values))
    low = min(min(old, new) for _, old, new in points) / 1.2
    high = max(max(old, new) for _, old, new in points) * 1.2
    size = _HEIGHT - _TOP - _FOOT

    def place(value: float) -> float:
        return math.log(value / low) / math.log(high / low)

    def x(value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * place(value)

    def y(value: float) -> float:
        return _TOP + size * (1 - place(value))

    parts = [_line(x(low), y(low), x(high), y(high), "diagonal")]
    for level in _ticks(low, high):
        text = wording.amount(level, "seconds")
        parts += [
            _line(_LEFT, y(level), _WIDTH - _RIGHT, y(level), "grid"),
            _text(text, _LEFT - 6, y(level) + 4, "axis end"),
        ]
        parts.append(_text(text, x(level), _HEIGHT - 16, "axis middle"))
    parts.append(
        _text("before: across; after: up; dashed: equal", _WIDTH / 2, _HEIGHT - 3, "axis middle")
    )
    label = "Quantiles, after against before"
    for share, old, new in points:
        title = f"p{100 * share:g}: {wording.amount(old, 'seconds')}, then {wording.amount(new, 'seconds')}"
        parts.append(
            tag(
                "circle",
                tag("title", title),
                cx=f"{x(old):.1f}",
                cy=f"{y(new):.1f}",
                r=4,
                class_="dot",
            )
        )
        if share in SHARES.values():
            parts.append(_text(f"p{100 * share:g}", x(old) - 8, y(new) - 6, "axis end"))
    return _titled(label, _svg(parts, label))


def distributions(found: Comparison, latency: str) -> Markup:
    """Return the share of messages above each latency, both axes logarithmic: its tail is what matters."""
    both = [
        (name, _pooled(side, latency))
        for name, side in zip(("before", "after"), (found.before, found.after), strict=True)
    ]
    there = [(name, *one) for name, one in both if one is not None]
    edges = [(band_edge(first), band_edge(first + sums.size)) for _, sums, first in there]
    low, high = min(edge[0] for edge in edges), max(edge[1] for edge in edges)
    least = 1.0 / max(sums.sum() for _, sums, _ in there)

    def x(value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log(value / low) / math.log(high / low)

    def y(share: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _FOOT) * math.log(max(share, least)) / math.log(least)

    parts = [
        _text(wording.amount(level, "seconds"), x(level), _HEIGHT - 16, "axis middle")
        for level in _ticks(low, high)
    ]
    for decade in range(8):
        share = 10.0**-decade
        if share >= least:
            parts.append(_line(_LEFT, y(share), _WIDTH - _RIGHT, y(share), "grid"))
            parts.append(_text(f"{100 * share:g}%", _LEFT - 6, y(share) + 4, "axis end"))
    for name, sums, first in there:
        above = 1.0 - np.cumsum(sums) / sums.sum()
        points = [
            f"{x(band_edge(first + at + 1)):.1f} {y(float(share)):.1f}"
            for at, share in enumerate(above.tolist())
        ]
        parts.append(tag("path", tag("title", name), d="M" + "L".join(points), class_=name))
    parts.append(_text("share of messages", _LEFT, _TOP - 2, "axis"))
    parts.append(_text("latency", _WIDTH / 2, _HEIGHT - 3, "axis middle"))
    label = "Share of messages above each latency"
    return _titled(label, _svg(parts, label), _SIDES)


def heat_maps(found: Comparison, latency: str) -> Markup:
    """Return the heat map of the first run of each side that has one, with one axis of latency."""
    drawn = []
    for side in (found.before, found.after):
        run = next((one for one in side.runs if latency in one.recorded.cells), None)
        one = None if run is None else run.distribution(latency, most=_HEAT_COLUMNS)
        if run is not None and one is not None:
            drawn.append((run, one))
    first = min(one.first_band for _, one in drawn)
    last = max(one.first_band + one.counts.shape[1] for _, one in drawn)
    origin = _origin(found)
    pair = joined([_heat_map(run, one, (first, last), origin) for run, one in drawn])
    title = "Share of messages in each band of latency, by time"
    return _titled(title, tag("div", pair, class_="pair") + _heat_legend())


def _heat_legend() -> Markup:
    """Return what the shades and the lines of heat maps mean."""
    edges = [f"{100 * share:g}" for share in _SHADES]
    names = [
        f"below {edges[0]} %",
        *(f"{a} to {b} %" for a, b in pairwise(edges)),
        f"{edges[-1]} % or more",
    ]
    x, middle = _LEFT, 11
    parts = [_text("share of messages:", x, middle + 4, "axis")]
    x += 120
    for level, name in enumerate(names, 1):
        place = {"x": x, "y": 4, "width": 14, "height": 14}
        parts += [
            tag("rect", **place, class_=f"heat{level}"),
            _text(name, x + 20, middle + 4, "axis"),
        ]
        x += 100
    parts += [_line(x + 6, 3, x + 6, 19, "incident"), _text("incident", x + 14, middle + 4, "axis")]
    label = "Shades of the heat maps"
    return tag("svg", joined(parts), viewBox=f"0 0 {2 * _WIDTH} 22", role="img", aria_label=label)


def _heat_map(run: ComparedRun, one: Distribution, bands: tuple[int, int], origin: str) -> Markup:
    """Return the heat map of a run over bands [first, last), with its incidents."""
    first, last = bands
    name = shown_name(run.path.name, _MAX_NAME)
    begin = one.first_band - first
    counts = np.zeros((one.counts.shape[0], last - first))
    counts[:, begin : begin + one.counts.shape[1]] = one.counts
    found = Distribution(counts, first, one.interval_seconds)
    group = max(1, -(-found.counts.shape[1] // _HEAT_BANDS))
    starts = np.arange(0, found.counts.shape[1], group)
    counts = np.add.reduceat(found.counts, starts, axis=1)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
    shade = np.where(shares > 0, 1 + np.searchsorted(np.array(_SHADES), shares, side="right"), 0)
    width = (_WIDTH - _LEFT - _RIGHT) / shares.shape[0]
    height = (_HEIGHT - _TOP - _FOOT) / shares.shape[1]
    foot = _HEIGHT - _FOOT
    parts = []
    for level in range(1, len(_SHADES) + 2):
        path = "".join(
            f"M{_LEFT + column * width:.1f} {foot - (row + 1) * height:.1f}"
            f"h{width + 0.2:.1f}v{height:.1f}h{-width - 0.2:.1f}z"
            for column, row in np.argwhere(shade == level).tolist()
        )
        if path:
            parts.append(tag("path", d=path, class_=f"heat{level}"))
    low, high = (band_edge(found.first_band + edge) for edge in (0, int(starts[-1]) + group))
    for value in _ticks(low, high):
        at = foot - (foot - _TOP) * math.log(value / low) / math.log(high / low)
        parts.append(_text(wording.amount(value, "seconds"), _LEFT - 6, at + 4, "axis end"))
    parts.append(_text("latency", _LEFT, _TOP - 2, "axis"))
    seconds = shares.shape[0] * found.interval_seconds
    parts += _time_axis(seconds, origin)
    parts += _incident_marks(run, seconds)
    return tag(
        "div",
        tag("p", name, class_="legend") + _svg(parts, f"Heat map of {name}"),
    )


def _incident_marks(run: ComparedRun, seconds: int) -> Iterator[Markup]:
    judged = run.judged
    for one in run.incidents:
        k = second_of(run.start_wall_ns, one.at)
        if k is None or not judged.size:
            continue
        at = int(np.searchsorted(judged, k))
        if at < min(seconds, judged.size):
            x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * at / max(seconds, 1)
            title = tag("title", shown_name(f"{one.at}: {one.what}, cause {one.cause}", _MAX_NAME))
            yield tag("g", title + _line(x, _TOP, x, _HEIGHT - _FOOT, "incident"))


def throughput(found: Comparison) -> Markup:
    """Return the acknowledged messages per second of both sides, as they are aligned."""
    lines = []
    for name, side in zip(("before", "after"), (found.before, found.after), strict=True):
        for run in side.runs:
            counts = run.counts("acked_messages")
            if counts.size:
                step = -(-counts.size // _RATE_POINTS)
                means = np.add.reduceat(counts, np.arange(0, counts.size, step)).astype(np.float64)
                sizes = np.diff(np.append(np.arange(0, counts.size, step), counts.size))
                lines.append(
                    (name, shown_name(run.path.name, _MAX_NAME), step, means / sizes, counts.size)
                )
    if not lines:
        return tag("p", "The journals have no throughput; the table has the means.")
    longest = max(size for *_, size in lines)
    highest = max(float(values.max()) for *_, values, _ in lines) or 1.0
    foot = _HEIGHT - _FOOT
    parts = _time_axis(longest, _origin(found))
    for share in (0.0, 0.5, 1.0):
        y = foot - (foot - _TOP) * share
        parts += [
            _line(_LEFT, y, _WIDTH - _RIGHT, y, "grid"),
            _text(f"{share * highest:,.0f}/s", _LEFT - 6, y + 4, "axis end"),
        ]
    for name, title, step, values, _ in lines:
        x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * np.arange(values.size) * step / longest
        y_values = foot - (foot - _TOP) * values / highest
        points = [f"{a:.1f} {b:.1f}" for a, b in zip(x.tolist(), y_values.tolist(), strict=True)]
        parts.append(tag("path", tag("title", title), d="M" + "L".join(points), class_=name))
    label = "Acknowledged messages per second"
    return _titled(label, _svg(parts, label), _SIDES)


def course_svg(
    name: str,
    unit: str,
    values: Mapping[str, float],
    changes: Sequence[str] = (),
) -> Markup:
    """Return the chart of a quantity by run, in order of time; those in `changes` brought another level."""
    known = [value for value in values.values() if math.isfinite(value)]
    is_log = unit == "seconds"
    low, high = (min(known) / 1.1, max(known) * 1.1) if is_log else (0.0, max(*known, 1e-9) * 1.1)
    width, foot = 2 * _WIDTH, _HEIGHT - _FOOT

    def x(at: int) -> float:
        return _LEFT + (width - _LEFT - _RIGHT) * (at + 0.5) / len(values)

    def y(value: float) -> float:
        share = math.log(value / low) / math.log(high / low) if is_log else value / high
        return foot - (foot - _TOP) * share

    parts = []
    for level in _ticks(low, high) if is_log else (0.0, high / 2, high):
        parts += [
            _line(_LEFT, y(level), width - _RIGHT, y(level), "grid"),
            _text(wording.amount(level, unit), _LEFT - 6, y(level) + 4, "axis end"),
        ]
    places = {run: at for at, run in enumerate(values)}
    for run in changes:
        edge = (x(places[run]) + x(places[run] - 1)) / 2
        parts.append(_line(edge, _TOP, edge, foot, "incident"))
        parts.append(_text(f"from {shown_name(run, _MAX_NAME)} on", edge + 5, _TOP + 12, "axis"))
    drawn = [(x(at), y(one)) for at, one in enumerate(values.values()) if math.isfinite(one)]
    for (x1, y1), (x2, y2) in pairwise(drawn):
        parts.append(_line(x1, y1, x2, y2, "before"))
    for at, (run, value) in enumerate(values.items()):
        if math.isfinite(value):
            place = {"cx": f"{x(at):.1f}", "cy": f"{y(value):.1f}", "r": 4}
            shown = shown_name(run, _MAX_NAME)
            title = tag("title", f"{shown}: {wording.amount(value, unit)}")
            parts.append(tag("circle", title, **place, class_="dot"))
    parts.append(
        _text(f"runs in order of time, {len(values)}", width / 2, _HEIGHT - 8, "axis middle")
    )
    label = f"{shown_name(name, _MAX_NAME)} by run"
    return tag("svg", joined(parts), viewBox=f"0 0 {width} {_HEIGHT}", role="img", aria_label=label)


def _svg(parts: Sequence[Markup], label: str) -> Markup:
    box = f"0 0 {_WIDTH} {_HEIGHT}"
    return tag("svg", joined(parts), viewBox=box, role="img", aria_label=label)


def _line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    ends = {"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}
    return tag("line", **ends, class_=class_)


def _text(text: str, x: float, y: float, class_: str) -> Markup:
    return tag("text", text, x=f"{x:.1f}", y=f"{y:.1f}", class_=class_)


def _origin(found: Comparison) -> str:
    """Return what the axis of time begins at."""
    if found.settings.align == "soak":
        return "from the start of the soak"
    return "from the first second that is compared"


def _time_axis(seconds: int, origin: str) -> list[Markup]:
    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        at = _LEFT + (_WIDTH - _LEFT - _RIGHT) * share
        class_ = "axis end" if share == 1.0 else "axis middle"
        parts.append(_text(_length(share * seconds), at, _HEIGHT - 16, class_))
    parts.append(_text(origin, _WIDTH / 2, _HEIGHT - 3, "axis middle"))
    return parts


def _length(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten within a range; fewer where there are many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for digits in ((1, 2, 5), (1,)):
        found = [
            float(f"{digit}e{power}")
            for power in range(first, last + 1)
            for digit in digits
            if low <= float(f"{digit}e{power}") <= high
        ]
        if len(found) <= 7:  # noqa: PLR2004  # more would run into each other
            return found
    return found
