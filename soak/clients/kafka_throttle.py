"""How long Kafka brokers make a client wait because of a quota, from librdkafka's statistics."""

from __future__ import annotations

import json
import logging

from soak.core.retry import Once

LOG = logging.getLogger(__name__)

_PARTITIONS_PER_SECOND = 100
"""The statistics have a paragraph for each partition: of many partitions they are made less often."""


def statistics_interval_ms(partitions: int) -> str:
    """Return the setting `statistics.interval.ms` of a client of so many partitions."""
    return str(1000 * max(1, -(-partitions // _PARTITIONS_PER_SECOND)))


class ThrottleTimes:
    """The longest wait that each broker imposed, by the client's last report; `note` is its `stats_cb`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] | None = None
        """By host and port, of brokers that imposed one; None before the first report."""
        self._errors = Once()

    def note(self, statistics: str | bytes) -> None:
        """Read one report, a JSON object whose `brokers` have a `nodename` and a `throttle` in ms."""
        try:
            brokers = json.loads(statistics)["brokers"].values()
            waits = {one["nodename"]: one["throttle"]["max"] / 1000 for one in brokers}
            self.seconds = {name: seconds for name, seconds in waits.items() if seconds > 0.0}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if self._errors.is_new(repr(error)):
                LOG.warning("client_statistics_not_read error=%r", error)
