"""Numbers as people read them on a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from soak.core.model import Finding

_BARS = "▁▂▃▄▅▆▇█"
_DECADES = 5  # a sparkline spans 100 us to 10 s
_LOWEST_EXPONENT = -4.0


def latency(seconds: float) -> str:
    """Return three digits with a unit: `4.12 ms`."""
    if math.isnan(seconds):
        return "-"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.2g} us"


def count(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:,.0f}"


def span(seconds: int) -> str:
    """Return `h:mm:ss` or `m:ss`."""
    minutes, rest = divmod(max(0, seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def sparkline(values: Sequence[float], width: int) -> str:
    """Return one bar a column, logarithmic from 100 us to 10 s; a column is the worst of its seconds."""
    if not values or width <= 0:
        return ""
    per_column = -(-len(values) // width)
    columns = [values[at : at + per_column] for at in range(0, len(values), per_column)]
    return "".join(_bar([value for value in column if not math.isnan(value)]) for column in columns)


def finding(found: Finding) -> str:
    """Return a finding in one line."""
    name = found.series.partition("|")[2]
    ratio = f" (x{found.ratio:.3g})" if found.before > 0 else ""
    return (
        f"{found.state}: {name} {latency(found.before)} -> {latency(found.after)}{ratio} "
        f"since second {found.onset_k}, cause {found.cause}"
    )


def _bar(values: Sequence[float]) -> str:
    if not values:
        return " "
    height = (math.log10(max(*values, 1e-9)) - _LOWEST_EXPONENT) / _DECADES
    return _BARS[min(len(_BARS) - 1, max(0, int(height * len(_BARS))))]
