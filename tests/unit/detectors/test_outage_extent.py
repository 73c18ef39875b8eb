"""Which clients, leaders and partitions an outage is about."""

from __future__ import annotations

from dataclasses import replace

from detectors.attribution import attribute
from detectors.incidents import group
from detectors.nearby import Nearby, TimedEvent
from soak.core.audit import SEND_FAILED_EVENT
from soak.core.header import stream_name
from soak.core.model import Event
from tests.support.detection.incident_world import outage, rise


def failed(k: int, partition: int) -> TimedEvent:
    fields: dict[str, str | int | float] = {
        "lane": stream_name(7, 1, partition),
        "first": 0,
        "last": 9,
    }
    return TimedEvent(k, Event(SEND_FAILED_EVENT, 0, 0, fields), "produce.0@h")


def texts(*leaders: str, events: tuple[TimedEvent, ...] = ()) -> list[str]:
    first, second = outage(100, 61.0), outage(101, 60.0, "produce.1@h")
    own = [replace(first, series=f'{first.series}{{leader="{name}"}}') for name in leaders]
    (incident,) = group([*(own or [first]), second])
    causes = attribute(incident, Nearby(0, 400, events=events))
    return [item.text for item in causes[0].evidence if "concerned" in item.text]


def test_clients_leaders_and_partitions_are_named() -> None:
    """A message that failed before the outage tells nothing of it."""
    events = (failed(90, 9), failed(130, 3), failed(131, 0), failed(131, 3))

    assert texts("b2:9092", events=events) == [
        "Clients concerned: produce.0@h, produce.1@h.",
        "Leaders concerned: b2:9092.",
        "Partitions concerned: 0, 3.",
    ]


def test_what_is_not_recorded_is_left_out() -> None:
    assert texts() == ["Clients concerned: produce.0@h, produce.1@h."]


def test_many_partitions_are_counted() -> None:
    events = tuple(failed(130, partition) for partition in range(40))

    assert texts(events=events)[-1].endswith(", 10, 11 and 28 more.")


def test_latency_concerns_nobody_in_particular() -> None:
    (incident,) = group([rise(100)])

    found = attribute(incident, Nearby(0, 400, events=(failed(130, 3),)))

    assert not any("concerned" in item.text for item in found[0].evidence)
