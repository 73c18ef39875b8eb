"""The retention forecast in words, in JSON, and what there is to warn of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from soak.core.forecast import Forecast, Limits, Stored, Window
from soak.core.wording import amount, span

_LIMIT = {"bytes": "the limit in bytes", "time": "the limit in time"}
_MOST_FILL_RATIO = 0.9


@dataclass(frozen=True, slots=True)
class Drive:
    """The drive that holds all copies."""

    total_bytes: int
    free_bytes: int

    def fill_ratio(self, held_bytes: float) -> float:
        """Return how full it is with so many bytes more, above 1 where they do not fit."""
        return (self.total_bytes - self.free_bytes + held_bytes) / self.total_bytes


def lines(found: Forecast, drive: Drive | None) -> list[str]:
    """Return what is foreseen, a sentence a line."""
    if found.first_deletion is None:
        told = ["Retention: nothing is ever deleted, as the topic has no limit that is reached."]
    else:
        told = [_first(found, found.first_deletion)]
    held = amount(found.most_held_bytes, "bytes")
    written = amount(found.written_bytes, "bytes")
    fill = (
        ""
        if drive is None
        else f", the drive then {drive.fill_ratio(found.most_held_bytes):.0%} full"
    )
    return [
        *told,
        f"Storage: {written} are written, at most {held} held, all copies together{fill}.",
    ]


def warnings(found: Forecast, drive: Drive | None) -> list[str]:
    """Return what a run as planned would miss, a sentence each; none where it sees the limit reached."""
    said = []
    window = found.first_deletion
    if window is not None and found.seen in {"after the run", "after the soak"}:
        said.append(
            f"the soak ends before old data is deleted, {span(window.middle)} after the start: what "
            "deletion does to latency will not be seen"
        )
    if found.seen == "in the soak" and not found.seen_seconds:
        said.append(
            "the soak may end before the broker looks for old data to delete: what deletion does to latency "
            "may not be seen"
        )
    if found.seen == "in the warm-up":
        said.append(
            "old data is deleted from the warm-up on: a step of latency that comes with it "
            "falls into the warm-up, and the soak begins on the higher level"
        )
    if found.seen == "never":
        said.append(
            "no limit of retention is reached, however long the run: its part will not be seen"
        )
    if drive is not None and drive.fill_ratio(found.most_held_bytes) > _MOST_FILL_RATIO:
        held, free = amount(found.most_held_bytes, "bytes"), amount(drive.free_bytes, "bytes")
        said.append(f"{held} are to be held, and the drive has {free} free")
    return said


def to_json(
    found: Forecast, limits: Limits, stored: Stored, drive: Drive | None
) -> dict[str, object]:
    """Return what `forecast.json` holds; null for what never happens or is not known."""
    numbers = {
        key: _finite(value) if isinstance(value, float) else value
        for key, value in asdict(limits).items()
        if key != "notes"
    }
    return {
        "limit": found.limit,
        "first_closed_seconds": _rounded(found.first_closed),
        "first_deletion_seconds": _pair(found.first_deletion),
        "first_free_seconds": _pair(found.first_free),
        "deletions_every_seconds": _rounded(found.deletions_every),
        "written_bytes": round(found.written_bytes),
        "most_held_bytes": round(found.most_held_bytes),
        "drive_fill_ratio": None
        if drive is None
        else round(drive.fill_ratio(found.most_held_bytes), 4),
        "seen": found.seen,
        "seen_seconds": round(found.seen_seconds, 1),
        "message_bytes": round(stored.message_bytes, 1),
        "messages_per_batch": round(stored.messages_per_batch, 2),
        "limits": numbers,
        "notes": list(limits.notes),
        "warnings": warnings(found, drive),
    }


def unknown(why: str) -> dict[str, object]:
    """Return what `forecast.json` holds where the cluster told nothing."""
    return {"first_deletion_seconds": None, "seen": "unknown", "notes": [why], "warnings": []}


def not_foreseen(why: str) -> str:
    """Return the line for a plan of which the first deletion cannot be foreseen."""
    return f"Retention: when old data is first deleted is not foreseen: {why}."


def compared(
    told: Mapping[str, object],
    seconds: Mapping[str, float | None],
    watched_until: float | None = None,
) -> dict[str, object]:
    """Return forecast and event side by side: `seconds` since the load's start of the first of each.

    `error_seconds` is by how much the first deletion came later than the middle of what was foreseen;
    `is_as_foreseen`: within 10 % or 5 s of the times foreseen, null where there is nothing to compare. It
    is false as well where none came though somebody watched the load for longer, to `watched_until`.
    """
    window, came = told.get("first_deletion_seconds"), seconds.get("first_deletion")
    error = ratio = holds = None
    if isinstance(window, list):
        early, late = (float(value) for value in window)
        middle = (early + late) / 2
        most = max(TOLERANCE_SECONDS, TOLERANCE_RATIO * middle)
        if came is not None:
            error = came - middle
            ratio = error / middle if middle > 0 else None
            holds = max(early - came, came - late, 0.0) <= most
        elif watched_until is not None and watched_until > late + most:
            holds = False
    return {
        "first_deletion_seconds": came,
        "first_free_seconds": seconds.get("first_free"),
        "error_seconds": None if error is None else round(error, 1),
        "error_ratio": None if ratio is None else round(ratio, 3),
        "is_as_foreseen": holds,
    }


TOLERANCE_SECONDS = 5.0
TOLERANCE_RATIO = 0.1


def _first(found: Forecast, window: Window) -> str:
    when = span(window.earliest)
    if span(window.latest) != when:
        when = f"between {when} and {span(window.latest)}"
    said = f"Retention: {_LIMIT[found.limit]} is reached {when} after the start, {found.seen}"
    if found.seen == "in the soak" and found.seen_seconds:
        said += f", which goes on for {span(found.seen_seconds)} with deletions"
    if found.first_free is not None:
        said += f"; the space is free {span(found.first_free.earliest - window.earliest)} later"
    return f"{said}."


def _pair(window: Window | None) -> list[float] | None:
    return None if window is None else [round(window.earliest, 1), round(window.latest, 1)]


def _rounded(value: float) -> float | None:
    return round(value, 3) if math.isfinite(value) else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
