"""Static SVG plots over the seconds of a run: lines that break at gaps, bands, marks, a log scale."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from soak.core import wording
from spark.batch.coverage import merged_spans, runs
from spark.report.page import Page, joined, source_text, tag

WIDTH = 960
LEFT, RIGHT, TOP, BOTTOM = 80, 12, 10, 42
_SHORT_UNITS = frozenset({"seconds", "bytes", "ratio"})  # the others stand in the heading
_MOST_MOMENTS = 9
_STEPS = (5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
_FEW_DECADES, _TALL = 10**2.5, 200  # up to here 1, 2 and 5 of a decade have room for their labels
_LEAST_LEVELS = 2  # or the scale cannot be seen
_LOWEST = 1e-9
MOST_POINTS = 1600  # beyond this neighbours are drawn as their highest


@dataclass(slots=True)
class Plot:
    """Draw onto it in any order; `svg` puts bands below lines below marks."""

    page: Page
    height: int
    low: float
    high: float
    unit: str
    is_log: bool = True
    quantity: str = "Latency"
    _below: list[Markup] = field(default_factory=list)
    _lines: list[Markup] = field(default_factory=list)
    _above: list[Markup] = field(default_factory=list)

    def x(self, k: float) -> float:
        return float(self.places(np.array([k]))[0])

    def places(self, k: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """Return `x` of many seconds at once, shape as `k`."""
        span = max(1, self.page.timeline.end_k)
        return LEFT + (WIDTH - LEFT - RIGHT) * np.clip(k / span, 0.0, 1.0)

    def y(self, value: float) -> float:
        if self.is_log:
            low, high = math.log10(self.low), math.log10(self.high)
            share = (math.log10(max(value, self.low)) - low) / (high - low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return TOP + (self.height - TOP - BOTTOM) * (1 - min(max(share, 0.0), 1.0))

    def band(self, from_k: float, to_k: float, class_: str, title: str) -> None:
        """Shade seconds [from_k, to_k) over the whole height; never thinner than can be seen."""
        left, right = self.x(from_k), self.x(to_k)
        self._below.append(
            tag(
                "rect",
                tag("title", title),
                x=f"{left:.1f}",
                y=TOP,
                width=f"{max(right - left, 1.5):.1f}",
                height=self.height - TOP - BOTTOM,
                class_=class_,
            )
        )

    def line(
        self, k: NDArray[np.int64], values: NDArray[np.float64], class_: str, title: str
    ) -> None:
        """Draw a series; a missing second breaks the line."""
        k, values = _thinned(k, values)
        if k.size == 0:
            return
        usual = np.median(np.diff(k)) if k.size > 1 else 1
        breaks = np.flatnonzero(np.diff(k) > 1.5 * usual) + 1
        drawn = zip(self.places(k + 0.5).tolist(), values.tolist(), strict=True)
        every = [f"{x:.1f} {self.y(value):.1f}" for x, value in drawn]
        path = []
        for begin, end in pairwise([0, *breaks.tolist(), k.size]):
            points = every[begin:end]
            path.append("M" + "L".join(points) + ("h1.5" if len(points) == 1 else ""))
        self._lines.append(
            tag("path", tag("title", title), d="".join(path), class_=f"line {class_}")
        )

    def mark(self, k: float, class_: str, title: str) -> None:
        """Draw an upright line at a second."""
        at = f"{self.x(k):.1f}"
        ends = {"x1": at, "x2": at, "y1": TOP, "y2": self.height - BOTTOM}
        self._above.append(tag("line", tag("title", title), class_=class_, **ends))

    def level(self, from_k: float, to_k: float, value: float, title: str) -> None:
        """Draw a dashed line at the height of a value over seconds [from_k, to_k)."""
        y = f"{self.y(value):.1f}"
        ends = {"x1": f"{self.x(from_k):.1f}", "x2": f"{self.x(to_k):.1f}", "y1": y, "y2": y}
        self._above.append(tag("line", tag("title", title), class_="level", **ends))

    def label(self, k: float, text: str, line: int) -> None:
        """Write next to a second, on the side where there is more room; `line` 0 is the topmost."""
        at = self.x(k)
        is_left = at < LEFT + 0.6 * (WIDTH - LEFT - RIGHT)
        self._above.append(
            tag(
                "text",
                text,
                x=f"{at + 6 if is_left else at - 6:.1f}",
                y=TOP + 14 + 15 * line,
                class_="note" if is_left else "note end",
            )
        )

    def ticks(self, seconds: Sequence[float], class_: str, title: str) -> None:
        """Draw short ticks at the foot, one path for all of them."""
        middles = np.asarray(seconds, dtype=np.float64) + 0.5
        places = sorted({round(place, 1) for place in self.places(middles).tolist()})
        foot = self.height - BOTTOM
        path = "".join(f"M{place} {foot}v-7" for place in places)
        if path:
            self._above.append(tag("path", tag("title", title), d=path, class_=class_))

    def svg(self, label: str) -> Markup:
        parts = [*self._below, *self._axes(), *self._lines, *self._above]
        box = f"0 0 {WIDTH} {self.height}"
        drawn = tag("svg", joined(parts), viewBox=box, role="img", aria_label=label)
        return tag("div", drawn, class_="plot", tabindex=0)

    def _axes(self) -> list[Markup]:
        parts = []
        for value in self._levels():
            y = f"{self.y(value):.1f}"
            parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
            text = wording.amount(value, self.unit if self.unit in _SHORT_UNITS else "")
            parts.append(tag("text", text, x=LEFT - 6, y=y, dy="0.32em", class_="axis end"))
        for k in self._moments():
            at = f"{self.x(k):.1f}"
            text = self.page.moment(k)
            parts.append(tag("text", text, x=at, y=self.height - 24, class_="axis middle"))
        return parts + self._axis_titles()

    def _axis_titles(self) -> list[Markup]:
        """Return what the axes measure and in what unit: upright on the left, and below the times."""
        middle = (TOP + self.height - BOTTOM) / 2
        text = f"{self.quantity} ({self.unit}){', log scale' if self.is_log else ''}"
        turned = f"translate(14 {middle:.1f}) rotate(-90)"
        across = (LEFT + WIDTH - RIGHT) / 2
        return [
            tag("text", text, transform=turned, class_="axis middle"),
            tag("text", "Time of day (UTC)", x=across, y=self.height - 6, class_="axis middle"),
        ]

    def _levels(self) -> list[float]:
        if not self.is_log:
            return [self.low, (self.low + self.high) / 2, self.high]
        few = self.high / self.low <= _FEW_DECADES and self.height >= _TALL
        decades = [level for level in _levels(1) if _is_within(level, self)]
        if len(decades) >= _LEAST_LEVELS and not few:
            return decades
        return [level for level in _levels(3) if _is_within(level, self)]

    def _moments(self) -> list[float]:
        span = self.page.timeline.end_k
        step = next((step for step in _STEPS if span / step <= _MOST_MOMENTS), _STEPS[-1])
        return [k for k in range(step, max(span, 1), step) if self.x(k) < WIDTH - RIGHT - 24]


def log_range(values: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    """Return the nearest of 1, 2 and 5 times a power of ten below and above all values."""
    there = [part[part > 0] for part in values]
    there = [part for part in there if part.size]
    if not there:
        return 1e-3, 1.0
    low = min(float(part.min()) for part in there)
    high = max(float(part.max()) for part in there)
    bottom = max(level for level in _levels(3) if level <= max(low, _LOWEST))
    top = min((level for level in _levels(3) if level >= high), default=high)
    return bottom, max(top, 2.0 * bottom)


def _levels(a_decade: int) -> list[float]:
    """Return 1 (and 2 and 5) times each power of ten that a value here may have."""
    return [float(f"{digit}e{power}") for power in range(-9, 15) for digit in (1, 2, 5)[:a_decade]]


def _is_within(level: float, plot: Plot) -> bool:
    return plot.low * (1 - 1e-9) <= level <= plot.high * (1 + 1e-9)


def shade(plot: Plot) -> None:
    """Draw what belongs to every plot on the time axis: phases, gaps, invalid seconds, findings."""
    timeline, page = plot.page.timeline, plot.page
    edges = [*timeline.phases.from_k[1:], timeline.end_k]
    for decided, edge in zip(timeline.phases.decisions, edges, strict=False):
        last = min(edge, timeline.end_k)
        if decided.phase not in {"soak", "end"} and last > decided.from_k:
            words = f"{decided.phase} {decided.part}".rstrip()
            plot.band(decided.from_k, last, "phase", f"{words}: not judged ({decided.reason})")
    _shade_unmeasured(plot)
    for one in page.shown:
        low, high = one.finding.interval
        plot.band(low, high + 1, "interval", "the onset lies in here with 95 % confidence")
        title = f"{page.moment(one.finding.onset_k)}: {wording.cause_text(one.finding.cause)}"
        plot.mark(one.finding.onset_k, "onset", title)
        if one.finding.resolved_k is not None:
            plot.mark(
                one.finding.resolved_k, "gone", f"{page.moment(one.finding.resolved_k)}: resolved"
            )


def _shade_unmeasured(plot: Plot) -> None:
    timeline, page = plot.page.timeline, plot.page
    pixel = timeline.end_k / (WIDTH - LEFT - RIGHT)
    gaps = defaultdict(list)
    for gap in page.covered.gaps:
        if gap.to_k > gap.from_k:
            gaps[gap.source, gap.why].append((gap.from_k, gap.to_k))
    for (source, why), spans in gaps.items():
        for from_k, to_k in merged_spans(spans, pixel):
            plot.band(from_k, to_k, "gap", f"gap: {source_text(page, source)} {why}")
    for source, reasons in timeline.invalid.items():
        for why in dict.fromkeys(reasons.values()):
            invalid = np.array(sorted(k for k in reasons if reasons[k] == why), dtype=np.int64)
            for from_k, to_k in merged_spans([(a, b + 1) for a, b in runs(invalid)], pixel):
                title = (
                    f"{page.moment(from_k)}: {source_text(page, source)} was the bottleneck: {why}"
                )
                plot.band(from_k, to_k, "untrusted", title)


def _thinned(
    k: NDArray[np.int64], values: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    if k.size <= MOST_POINTS:
        return k, values
    starts = np.arange(0, k.size, math.ceil(k.size / MOST_POINTS))
    return k[starts], np.maximum.reduceat(values, starts)
