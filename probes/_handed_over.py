"""What a thread that polls hands over to the reading: sums and events since the last, newest values."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from soak.core.errors import ProbeError
from soak.core.model import Column, Event, Reading
from soak.core.ports import Clock
from soak.core.units import SECOND_NS

MAX_EVENTS = 1000  # kept between two readings; those beyond are counted
SAY_AGAIN_NS = 60 * SECOND_NS


@dataclass(slots=True)
class _Box:
    sums: dict[Column, float] = field(default_factory=dict)
    newest: dict[Column, float] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    dropped: int = 0
    cost_ns: int = 0
    trouble: ProbeError | None = None


class HandedOver:
    """One thread puts in, another takes out. Its own columns begin with `prefix`."""

    def __init__(self, clock: Clock, prefix: str = "retention") -> None:
        self._clock = clock
        self._prefix = prefix
        self._lock = threading.Lock()
        self._box = _Box()
        self._polled_ns: int | None = None
        self._said = "", 0  # the trouble that was last told of, and when

    def put(
        self,
        sums: Iterable[tuple[Column, float]],
        newest: Iterable[tuple[Column, float]],
        events: Iterable[Event],
        begin_ns: int,
    ) -> None:
        """Add what was seen since `begin_ns`. A sum with NaN in it is not known, and will be left out."""
        with self._lock:
            box = self._box
            for column, value in sums:
                box.sums[column] = box.sums.get(column, 0.0) + value
            box.newest.update(newest)
            for event in events:
                if len(box.events) < MAX_EVENTS:
                    box.events.append(event)
                else:
                    box.dropped += 1
            box.cost_ns += self._clock.mono_ns() - begin_ns

    def polled(self) -> None:
        """Note that a poll has ended well."""
        self._polled_ns = self._clock.mono_ns()

    def failed(self, error: ProbeError) -> None:
        """Note that something could not be had; of several since the last reading the newest is told."""
        with self._lock:
            self._box.trouble = error

    def take(self, begin_ns: int) -> Reading:
        """Return what came since the last call; without a poll only how old the last one is.

        What failed is an event `<prefix>_failed`, the same one at most once a minute.

        Raises:
            ProbeError: something failed, and nothing else came.
        """
        with self._lock:
            box, self._box = self._box, _Box()
        if box.trouble is not None and not (box.sums or box.newest or box.events):
            raise box.trouble
        polled_ns = self._polled_ns
        samples: list[tuple[Column, float]] = []
        if polled_ns is not None:
            age = (self._clock.mono_ns() - polled_ns) / SECOND_NS
            samples.append((Column(f"{self._prefix}_poll_age_seconds", (), "seconds"), age))
        found = (*box.sums.items(), *box.newest.items())
        samples += [(column, value) for column, value in found if not math.isnan(value)]
        if box.dropped:
            samples.append(
                (Column(f"{self._prefix}_dropped_events", (), "events"), float(box.dropped))
            )
        cost_ns = box.cost_ns + self._clock.mono_ns() - begin_ns
        events = (*box.events, *self._told(box.trouble))
        return Reading(tuple(samples), events, cost_ns / SECOND_NS)

    def _told(self, trouble: ProbeError | None) -> list[Event]:
        if trouble is None:
            return []
        reason, now_ns = str(trouble)[:500], self._clock.mono_ns()
        said, said_ns = self._said
        if said == reason and now_ns - said_ns < SAY_AGAIN_NS:
            return []
        self._said = reason, now_ns
        at_ns = self._clock.wall_ns()
        return [Event(f"{self._prefix}_failed", at_ns, at_ns - SECOND_NS, {"reason": reason})]
