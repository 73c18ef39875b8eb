"""The picture in a mail: latency around the onset, small enough for a phone, with nothing to fetch."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray

from soak.core import wording
from soak.core.model import Finding
from soak.core.units import SECOND_NS
from soak.daemons.alert_window import Window

# Okabe and Ito's palette, told apart by all eyes: blue, orange, vermilion
_STYLE = {"0.5": ("p50", "#56b4e9"), "0.99": ("p99", "#0072b2"), "0.999": ("p99.9", "#d55e00")}
_PLAIN = ("", "#0072b2")
_DELETION, _INTERVAL = "#7a7a7a", "#e69f00"


def draw(finding: Finding, window: Window, start_wall_ns: int) -> bytes:
    """Return a PNG of 720 x 330 pixels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  # 0.5 s, 60 MB
    from matplotlib.figure import Figure  # noqa: PLC0415  # that most runs never need

    figure = Figure(figsize=(7.2, 3.3), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    low, high = finding.interval
    axes.axvspan(low, high + 1, color=_INTERVAL, alpha=0.35, linewidth=0)
    axes.axvline(finding.onset_k, color=_INTERVAL, linewidth=1.2)
    if finding.gone_k is not None:
        axes.axvline(finding.gone_k, color=_DELETION, linewidth=1.2, linestyle="--")
    for quantile, values in window.values.items():
        label, colour = _STYLE.get(quantile, _PLAIN)
        width = 1.6 if quantile == window.headline else 0.9
        k, shown = with_breaks(window.k, values)
        axes.plot(k, shown, color=colour, linewidth=width, label=label)
    if any(np.nanmin(values, initial=np.inf) > 0 for values in window.values.values()):
        axes.set_yscale("log")
    unit = wording.split(finding.series).unit
    axes.yaxis.set_major_formatter(lambda value, _: wording.amount(value, unit))
    axes.yaxis.set_minor_formatter("")
    axes.xaxis.set_major_formatter(
        lambda k, _: wording.moment(start_wall_ns + int(k) * SECOND_NS)[:-1]
    )
    if window.deletions_k:
        ticks = np.array(window.deletions_k)
        floor = np.zeros(ticks.size)
        axes.plot(
            ticks,
            floor + 0.02,
            "|",
            color=_DELETION,
            markersize=7,
            transform=axes.get_xaxis_transform(),
            label="deletions",
        )
    axes.set_xlim(int(window.k[0]), int(window.k[-1]) + 1)
    axes.set_title(wording.title(finding.series), fontsize=10, loc="left", parse_math=False)
    axes.grid(visible=True, alpha=0.25)
    axes.tick_params(labelsize=8)
    axes.set_xlabel("UTC", fontsize=8, loc="right", labelpad=0)
    axes.legend(fontsize=8, ncols=4, loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False)
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def with_breaks(
    k: NDArray[np.int64], values: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the points with a NaN in each gap, so that no line is drawn where nothing was measured."""
    holes = np.flatnonzero(np.diff(k) > 1) + 1
    return np.insert(k.astype(float), holes, np.nan), np.insert(values, holes, np.nan)
