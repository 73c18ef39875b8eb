"""The retention forecast of a run compared with the deletions that happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from soak.core import json_text
from soak.core.cluster.forecast import compare_with_event
from soak.core.errors import RunFolderError
from soak.store.run_folder import RunFolder
from spark.timeline import Timeline

_DELETION = "retention_deletion"
_WATCHED = "retention_deletions"
_FREED = ("segment_unlinked", "space_reclaimed")


def forecast_of(folder: RunFolder) -> Mapping[str, Any]:
    """Return what was forecast when the load began; empty where it was not made.

    Raises:
        RunFolderError: the file is damaged.
    """
    if not folder.forecast.exists():
        return {}
    try:
        return dict(json_text.loads(folder.forecast.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise RunFolderError(f"{folder.forecast} is damaged: {error}") from error


def retention(timeline: Timeline, told: Mapping[str, Any]) -> dict[str, object]:
    """Return what `summary.json` says of retention: what was forecast, what happened, and the difference."""
    begin, end = timeline.soak
    seconds = timeline.event_seconds.get(_DELETION)
    happened = compare_with_event(
        told,
        {
            "first_deletion": first_of(timeline, _DELETION),
            "first_free": min(
                (at for kind in _FREED if (at := first_of(timeline, kind)) is not None),
                default=None,
            ),
        },
        _watched_until(timeline),
    )
    within = 0 if seconds is None else int(((seconds >= begin) & (seconds < end)).sum())
    return {
        "forecast": dict(told),
        "happened": {**happened, "soak_seconds_with_deletions": within},
    }


def _watched_until(timeline: Timeline) -> float | None:
    """Return until when there was load and somebody looked for deletions; None: nobody did."""
    looks = [
        int(seconds[-1]) + 1.0
        for name, (seconds, _) in timeline.series.items()
        if timeline.columns[name].metric == _WATCHED and seconds.size
    ]
    load_end = timeline.phases.first_k("drain")
    ends = [max(looks), *([] if load_end is None else [load_end])] if looks else []
    return min(ends, default=None)


def first_of(timeline: Timeline, kind: str) -> float | None:
    """Return the second since the load's start in which the first event of a kind was seen, or None."""
    found = timeline.event_seconds.get(kind)
    return None if found is None or not found.size else float(found[0])
