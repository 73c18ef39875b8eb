"""Outages of a whole run, from the seconds in which not all went well, by the rules of the stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from detectors import outage
from detectors.client_seconds import Second
from soak.core.model import Change, Column
from soak.core.plan.plan import OUTAGE_DETECTOR
from soak.core.series import series_name
from soak.core.units import SECOND_NS
from spark.digest import RoughSeconds
from spark.timeline import Timeline

_WELL = {"sent_messages": 1.0, "acked_messages": 1.0, "received_messages": 1.0}
_DUE = ("sent_messages", "missed_messages", "received_messages")


def outages(timeline: Timeline) -> list[Change]:
    """Return the outages of all clients in order of their raises, with what was due to each in all."""
    config: outage.Config = timeline.plan.detection.detectors[OUTAGE_DETECTOR]
    found = [
        replace(change, due_messages=_due(timeline, source))
        for source in timeline.rough
        for change in outage.detect(source, _rows(timeline, source, config), config)
    ]
    return sorted(found, key=lambda change: (change.raised_k, change.series))


def _rows(
    timeline: Timeline, source: str, config: outage.Config
) -> Iterator[tuple[Sequence[Column], Second]]:
    """Give the rough seconds of a source, each with the good ones behind it that may end an outage."""
    rough = {
        int(k): (part.columns, part.values[row])
        for part in timeline.rough[source]
        for row, k in enumerate(part.k)
    }
    recorded, behind = timeline.seconds[source], config.after // SECOND_NS
    at = np.searchsorted(recorded, sorted(rough))
    near = np.unique(np.add.outer(at, np.arange(behind + 1)))
    invalid = timeline.invalid.get(source, {})
    columns, good = _good(timeline.rough[source][0])
    for k in recorded[near[near < recorded.size]].tolist():
        known, values = rough.get(k, (columns, good))
        yield (
            known,
            Second(k, values, is_valid=k not in invalid, phase=timeline.phases.at(k)),
        )


def _good(
    part: RoughSeconds,
) -> tuple[Sequence[Column], np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Return a second in which all that was sent was acknowledged at once, by every leader."""
    values = [
        _WELL.get(column.metric, 0.0) if not column.labels else 0.0 for column in part.columns
    ]
    return part.columns, np.array(values)


def _due(timeline: Timeline, source: str) -> int:
    total = 0.0
    for metric in _DUE:
        _, counts = timeline.series.get(series_name(source, metric), (None, np.zeros(0)))
        total += float(counts.sum())
    return round(total)
