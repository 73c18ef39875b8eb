"""The charts in mails: latency quantiles and deletions around an onset, or the p99 of a whole run."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from soak.alerting.places import NOWHERE, Places
from soak.core import wording
from soak.core.errors import JournalError
from soak.core.model import Column, Finding
from soak.core.series import SeriesId, parse_series, series_name
from soak.core.units import SECOND_NS
from soak.store.journal.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DELETION_EVENT = "retention_deletion"
_QUANTILES = ("0.5", "0.99", "0.999")
_LEAD_SECONDS = 120
_MAX_SECONDS = 900
_SLOW_KINDS = frozenset({"drift", "spikes"})
# the palette of Okabe and Ito, which colour-blind readers can distinguish
_STYLE = {"0.5": ("p50", "#56b4e9"), "0.99": ("p99", "#0072b2"), "0.999": ("p99.9", "#d55e00")}
_PLAIN = ("", "#0072b2")
_DELETION_COLOUR, _INTERVAL_COLOUR = "#7a7a7a", "#e69f00"
_LINES = {"publish": ("publish", "#0072b2"), "end_to_end": ("end to end", "#d55e00")}
_HOUR, _DAY = 3600, 86_400
_TICKS = (
    *(10, 30, 60, 120, 300, 600, 1800),
    *(_HOUR * hours for hours in (1, 2, 4, 8, 12, 24, 48, 168)),
)
"""Seconds between two labels."""
_MAX_TICKS = 6
_MAX_TITLE_LENGTH = 66  # of a line
_TITLE_SIZE = 8  # in points, so that such a line has room
_MIN_LOG_DECADES = 0.3  # below it a log scale may have no label
_SUBS = ((0.6, tuple(range(1, 10))), (2.5, (1, 2, 5)), (math.inf, (1,)))
"""Up to a number of decades: the multiples of a power of ten that have a label."""


@dataclass(frozen=True, slots=True)
class Window:
    """The seconds that were measured, `k` ascending; NaN where a value is missing."""

    k: NDArray[np.int64]
    values: dict[str, NDArray[np.float64]]  # by quantile ("" for a series without), shape (n,)
    headline: str  # the quantile of the finding
    deletions_k: tuple[int, ...]

    @property
    def headline_values(self) -> NDArray[np.float64]:
        return self.values[self.headline]

    def level(self, first_k: int, last_k: int) -> float:
        """Return the median of the headline between two seconds; NaN when nothing was measured there."""
        values = self.headline_values[(self.k >= first_k) & (self.k <= last_k)]
        values = values[np.isfinite(values)]
        return float(np.median(values)) if values.size else float("nan")


def drawn(finding: Finding) -> Finding:
    """Return the finding as it is drawn: an outage by the messages that came through, without levels."""
    if finding.kind != "outage":
        return finding
    name = parse_series(finding.series)
    count = "received_messages" if name.metric == wording.DELIVERY_STOPPED else "acked_messages"
    series = series_name(name.source, count)
    return replace(finding, series=series, before=math.nan, after=math.nan)


def window_bounds(finding: Finding, *, is_resolved: bool) -> tuple[int, int]:
    """Return the seconds to show: around the onset, or around the return to normal."""
    if is_resolved and finding.resolved_k is not None:
        end = finding.resolved_k + _LEAD_SECONDS
        return max(finding.onset_k - _LEAD_SECONDS, end - _MAX_SECONDS), end
    if finding.kind in _SLOW_KINDS:  # it began long before it could be detected
        end = finding.raised_k + _LEAD_SECONDS
        return max(finding.onset_k - _LEAD_SECONDS, end - _MAX_SECONDS), end
    return finding.onset_k - _LEAD_SECONDS, finding.onset_k + 2 * _LEAD_SECONDS


def read_window(journal: Path, series: str, first_k: int, last_k: int) -> Window | None:
    """Return the values of a series between two seconds from the journals; None when there are none."""
    name = parse_series(series)
    if not (journal / name.source).is_dir():
        raise JournalError(f"no journal of {name.source} in {journal}")
    found = History(journal).window(first_k, last_k + 1)
    seconds = found.sources.get(name.source)
    if seconds is None:
        return None
    family = {
        dict(column.labels).get("quantile", ""): at
        for at, column in enumerate(seconds.columns)
        if _is_of_family(column, name)
    }
    is_measured = np.isfinite(seconds.values[:, list(family.values())]).any(axis=1)
    if not is_measured.any():
        return None
    shown = (
        [*_QUANTILES, name.label("quantile")]
        if name.label("quantile") in _QUANTILES
        else [name.label("quantile")]
    )
    nothing = np.full(int(is_measured.sum()), np.nan)
    values = {
        quantile: seconds.values[is_measured, family[quantile]] if quantile in family else nothing
        for quantile in dict.fromkeys(shown)
    }
    deletions = sorted({k for k, _, event in found.events if event.kind == DELETION_EVENT})
    return Window(seconds.k[is_measured], values, name.label("quantile"), tuple(deletions))


def _is_of_family(column: Column, name: SeriesId) -> bool:
    same = [pair for pair in column.labels if pair[0] != "quantile"]
    wanted = [pair for pair in name.labels if pair[0] != "quantile"]
    return column.metric == name.metric and same == wanted


def load_library() -> None:
    """Import what draws: half a second, several on a busy host, which a message need not wait for."""
    import matplotlib.backends.backend_agg  # noqa: PLC0415  # as in `draw_chart`
    import matplotlib.figure  # noqa: F401, PLC0415


def chart_title(
    finding: Finding, window: Window, start_wall_ns: int, places: Places = NOWHERE
) -> str:
    """Return two lines: what is drawn and of which broker, then who measured it and from when to when."""
    name = parse_series(finding.series)
    what = wording.printable(places.with_leaders(places.named(wording.title(finding.series))))
    times = _times(start_wall_ns, int(window.k[0]), int(window.k[-1]) + 1)
    source = wording.shortened(
        wording.printable(name.source), _MAX_TITLE_LENGTH - len(f", {times}")
    )
    return f"{wording.shortened(what, _MAX_TITLE_LENGTH)}\n{source}, {times}"


def _times(start_wall_ns: int, first_k: int, end_k: int) -> str:
    first, end = (start_wall_ns + k * SECOND_NS for k in (first_k, end_k))
    return f"{wording.day(first)} {wording.moment(first)} to {wording.moment_with_day(end, first)}"


def draw_chart(
    finding: Finding, window: Window, start_wall_ns: int, places: Places = NOWHERE
) -> bytes:
    """Return a PNG of 960 x 540 pixels that is readable on a phone."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  # 0.5 s and 60 MB
    from matplotlib.figure import Figure  # noqa: PLC0415  # which most runs never need

    figure = Figure(figsize=(4.8, 2.7), dpi=200, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    _draw_finding(axes, finding, window)
    for quantile, values in window.values.items():
        label, colour = _STYLE.get(quantile, _PLAIN)
        width = 1.3 if quantile == window.headline else 0.7
        k, shown = with_breaks(window.k, values)
        # dots, because a line does not show a single second between two gaps
        axes.plot(k, shown, ".-", color=colour, linewidth=width, markersize=2, label=label)
    if window.deletions_k:
        ticks = np.array(window.deletions_k)
        axes.plot(
            ticks,
            np.full(ticks.size, 0.02),
            "|",
            color=_DELETION_COLOUR,
            markersize=5,
            transform=axes.get_xaxis_transform(),
            label="deletions",
        )
    unit = parse_series(finding.series).unit
    _set_amounts(axes, np.concatenate(list(window.values.values())), unit)
    _set_moments(axes, int(window.k[0]), int(window.k[-1]) + 1, start_wall_ns)
    title = chart_title(finding, window, start_wall_ns, places)
    axes.set_title(title, fontsize=_TITLE_SIZE, loc="left", parse_math=False)
    return _finished(figure, axes)


def _finished(figure: Figure, axes: Axes) -> bytes:
    axes.grid(visible=True, alpha=0.25)
    axes.tick_params(labelsize=8)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(
            fontsize=8,
            ncols=4,
            loc="upper left",
            bbox_to_anchor=(0.0, -0.12),  # below the axes: the title may be long
            frameon=False,
            handlelength=1.2,
            columnspacing=1.0,
        )
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


@dataclass(frozen=True, slots=True)
class Overview:
    """The highest p99 of all clients over a whole run, as the report left it; values may be None."""

    start_wall_ns: int
    step_seconds: int
    k: list[int]
    p99_seconds: dict[str, list[float | None]]  # by "publish" and "end_to_end"
    incidents: list[tuple[int, int]]  # first second of each, and first after it


def overview_title(overview: Overview) -> str:
    """Return two lines: what is drawn and of whom, then from when to when."""
    times = _times(overview.start_wall_ns, overview.k[0], overview.k[-1] + overview.step_seconds)
    return f"p99 latency, the highest of all producers and consumers\n{times}, incidents shaded"


def draw_overview(overview: Overview) -> bytes | None:
    """Return a PNG of 960 x 540 pixels with the incidents shaded; None when nothing was measured."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  # as above
    from matplotlib.figure import Figure  # noqa: PLC0415  # as above

    k = np.array(overview.k, dtype=np.int64)
    lines = {
        name: np.array([math.nan if one is None else one for one in values])
        for name, values in overview.p99_seconds.items()
    }
    lines = {name: values for name, values in lines.items() if np.isfinite(values).any()}
    if not lines:
        return None
    figure = Figure(figsize=(4.8, 2.7), dpi=200, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for first, end in overview.incidents:
        axes.axvspan(first, end, color=_INTERVAL_COLOUR, alpha=0.35, linewidth=0)
    for name, values in lines.items():
        label, colour = _LINES[name]
        axes.plot(k, values, ".-", color=colour, linewidth=1.0, markersize=2, label=label)
    _set_amounts(axes, np.concatenate(list(lines.values())), "seconds")
    _set_moments(axes, int(k[0]), int(k[-1]) + overview.step_seconds, overview.start_wall_ns)
    axes.set_title(overview_title(overview), fontsize=_TITLE_SIZE, loc="left")
    return _finished(figure, axes)


def _draw_finding(axes: Axes, finding: Finding, window: Window) -> None:
    """Draw the onset with its interval, the levels before and after it, and the end."""
    low, high = finding.interval
    end = int(window.k[-1]) + 1 if finding.resolved_k is None else finding.resolved_k
    axes.axvspan(low, high + 1, color=_INTERVAL_COLOUR, alpha=0.35, linewidth=0)
    axes.axvline(finding.onset_k, color=_INTERVAL_COLOUR, linewidth=1.0)
    if finding.resolved_k is not None:
        axes.axvline(finding.resolved_k, color=_DELETION_COLOUR, linewidth=1.0, linestyle="--")
    spans = ((finding.before, window.k[0], finding.onset_k), (finding.after, finding.onset_k, end))
    for level, first, last in spans:
        axes.hlines(level, first, last, color="black", linewidth=0.9, linestyle=":")


def _set_amounts(axes: Axes, shown: NDArray[np.float64], unit: str) -> None:
    from matplotlib.ticker import LogLocator  # noqa: PLC0415  # as above

    shown = shown[np.isfinite(shown)]
    decades = math.log10(shown.max() / shown.min()) if shown.size and shown.min() > 0 else 0.0
    if decades > _MIN_LOG_DECADES:
        axes.set_yscale("log")
        subs = next(subs for most, subs in _SUBS if decades < most)
        axes.yaxis.set_major_locator(LogLocator(subs=subs))
    axes.yaxis.set_major_formatter(lambda value, _: wording.amount(value, unit))
    axes.yaxis.set_minor_formatter("")


def _set_moments(axes: Axes, first: int, last: int, start_wall_ns: int) -> None:
    start = start_wall_ns // SECOND_NS
    step = next((one for one in _TICKS if last - first <= one * _MAX_TICKS), _TICKS[-1])
    ticks = range(first + -(start + first) % step, last + 1, step)
    length = len("03:12") if step >= _TICKS[2] else len("03:12:41")
    moments = [start_wall_ns + k * SECOND_NS for k in ticks]
    labels = [
        wording.day(one)[len("2026-") :]
        if last - first > _DAY and one // SECOND_NS % _DAY == 0
        else wording.moment(one)[:length]
        for one in moments
    ]
    axes.set_xticks(list(ticks), labels)
    axes.set_xlim(first, last)
    day = wording.day(start_wall_ns + first * SECOND_NS)
    axes.set_xlabel(f"{day} UTC", fontsize=8, loc="right", labelpad=1)


def with_breaks(
    k: NDArray[np.int64], values: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the points with a NaN in each gap, so that no line is drawn where nothing was measured."""
    holes = np.flatnonzero(np.diff(k) > 1) + 1
    return np.insert(k.astype(float), holes, np.nan), np.insert(values, holes, np.nan)
