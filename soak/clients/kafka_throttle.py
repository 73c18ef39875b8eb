"""How long Kafka brokers make a client wait because of a quota, from librdkafka's statistics."""

from __future__ import annotations

import logging

from soak.core import json_text
from soak.core.ports import Clock
from soak.core.retry import Once
from soak.core.units import SECOND_NS

LOG = logging.getLogger(__name__)

_PARTITIONS_PER_SECOND = 100
"""The statistics have a paragraph for each partition: of many partitions they are made less often."""


def statistics_interval_ms(partitions: int) -> str:
    """Return the setting `statistics.interval.ms` of a client of so many partitions."""
    return str(1000 * max(1, -(-partitions // _PARTITIONS_PER_SECOND)))


class ThrottleTimes:
    """The longest wait that each broker imposed, while it lasts; `note` is the client's `stats_cb`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._imposed: dict[str, tuple[float, int]] | None = None  # seconds, and when they are over
        self._errors = Once()

    def seconds(self) -> dict[str, float] | None:
        """Return the waits of the last report, and earlier ones that were in force then; None before it.

        By host and port of the broker.
        """
        if self._imposed is None:
            return None
        return {name: wait for name, (wait, _) in self._imposed.items()}

    def note(self, statistics: str | bytes) -> None:
        """Read one report, a JSON object whose `brokers` have a `nodename` and a `throttle` in ms."""
        try:
            waits: dict[str, float] = {}
            for broker in json_text.loads(statistics)["brokers"].values():
                name = broker["nodename"]  # also of the entry that the client was given at first
                waits[name] = max(waits.get(name, 0.0), broker["throttle"]["max"] / 1000)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if self._errors.is_new(repr(error)):
                LOG.warning("client_statistics_not_read error=%r", error)
            return
        now_ns = self._clock.mono_ns()
        in_force = {
            name: known for name, known in (self._imposed or {}).items() if now_ns < known[1]
        }
        imposed = {
            name: (wait, now_ns + int(wait * SECOND_NS))
            for name, wait in waits.items()
            if wait > 0.0
        }
        self._imposed = in_force | imposed
