"""What `soak detect` prints: a line a change, or a line a step of several series."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from soak.core import wording
from soak.core.model import Change

_KINDS = {"step": "", "drift": "drift ", "spikes": "spikes ", "tail": "tail "}


@dataclass(frozen=True, slots=True)
class Rows:
    """When each row was, in seconds, how far they are apart, and whether several series have them."""

    seconds: NDArray[np.float64]
    spacing_seconds: float
    are_shared: bool


def text(changes: Sequence[Change], rows: Rows) -> str:
    """Return a sentence: what the clearest series did and when, then what the others did."""
    first, *others = changes
    low, high = (_time(rows, k) for k in first.interval)
    period = _period_seconds(first, rows)
    every = (
        ""
        if period is None
        else f", every {np.format_float_positional(period, precision=4, fractional=False, trim='-')} s"
    )
    beside = "".join(
        f"{', ' if at else '; with '}{other.series}: {_levels(other)}"
        for at, other in enumerate(others)
    )
    return wording.printable(
        f"{first.series}: {_KINDS[first.kind]}{_levels(first)} at "
        f"{_time(rows, first.onset_k)} s (between {low} and {high} s), "
        f"row {first.onset_k}{every}{beside}"
    )


def nothing(names: str, rows: Rows) -> str:
    """Return a sentence: none of these series has a change."""
    return wording.printable(f"{names}: no change in {rows.seconds.size} rows")


def jsonl(changes: Sequence[Change], raised: int | None, rows: Rows) -> str:
    """Return an object; of several series `moved` says what each did, clearest first."""
    first = changes[0]
    fields: dict[str, object] = {"index": first.onset_k}
    if raised is not None:
        fields["raised_index"] = raised
    fields |= {
        "before": first.before,
        "after": first.after,
        "kind": first.kind,
        "interval": list(first.interval),
        "confidence": round(first.confidence, 4),
    }
    period = _period_seconds(first, rows)
    if period is not None:
        fields["period_seconds"] = float(f"{period:.6g}")
    if rows.are_shared:
        fields["moved"] = [
            {"series": one.series, "before": one.before, "after": one.after} for one in changes
        ]
    return json.dumps(fields)


def _time(rows: Rows, k: int) -> str:
    """Return the fewest digits that tell this time from every other one, without an exponent."""
    return np.format_float_positional(rows.seconds[k], trim="-")


def _levels(change: Change) -> str:
    return f"{change.before:.6g} to {change.after:.6g}"


def _period_seconds(change: Change, rows: Rows) -> float | None:
    """Return how far spikes lie apart; a row stands for a second in the change."""
    if change.period_seconds is None:
        return None
    return change.period_seconds * rows.spacing_seconds
