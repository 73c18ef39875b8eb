"""Numbers in evidence, as people read them."""

from __future__ import annotations

from detectors.channels import column_of

_SCALES = ((1.0, "s"), (1e-3, "ms"), (0.0, "us"))


def latency(seconds: float) -> str:
    for scale, unit in _SCALES:
        if abs(seconds) >= scale:
            return f"{seconds / (scale or 1e-6):.3g} {unit}"
    return f"{seconds:g} s"  # not a number


def size(count: float) -> str:
    for scale, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"


def offset(seconds: int) -> str:
    """Return where an instant lies relative to the onset."""
    if seconds == 0:
        return "in the second of the onset"
    return f"{abs(seconds)} s {'before' if seconds < 0 else 'after'} the onset"


def quantity(series: str) -> str:
    """Return `p99 publish latency` for a latency series, else the column's name."""
    column = column_of(series)
    quantile = dict(column.labels).get("quantile")
    if not column.metric.endswith("_seconds") or quantile is None:
        return column.name
    name = (
        column.metric.removesuffix("_seconds").replace("_", " ").replace("end to end", "end-to-end")
    )
    if quantile == "max":
        return f"largest {name}"
    return f"p{quantile.removeprefix('0.').ljust(2, '0')} {name}"
