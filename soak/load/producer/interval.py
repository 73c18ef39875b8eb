"""Counters and histograms of one second of a producer, and the record's columns made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from soak.core.audit import SEND_ERRORS_EVENT, SEND_FAILED_EVENT
from soak.core.header import stream_name
from soak.core.histogram import Histogram
from soak.core.model import Column, Event, Span
from soak.core.ports import FAILED_OFFSET, UNKNOWN_OFFSET
from soak.core.streams import spans_by
from soak.load.latency import LatencyByLeader, quantile_columns, threshold_columns
from soak.load.leaders import Leaders
from soak.load.producer.in_flight import Settled

INVALID_LAG_SECONDS = 0.020
"""A second says more about this client than about the cluster when 1 % of its sends were later than this and
the lag was most of the latency."""
INVALID_PAUSE_SECONDS = 0.050
"""The same for a pause in which acknowledgements could not be taken."""
BUSY_RATIO = 0.85
"""A sending thread that uses this much of a core may itself be the bottleneck."""

MAX_REASONS = 5  # of failures in one second that are recorded

_NONE = np.zeros(0, dtype=np.int64)


class ProducerInterval:
    """What a producer measured in one second; a finished one is written while the next one counts."""

    def __init__(
        self,
        instances: Sequence[int],
        epoch: int,
        partitions: int,
        *,
        block_bits: int = 0,
        limits_seconds: tuple[float, ...] = (),
    ) -> None:
        """`limits_seconds`: those of the plan's objectives, above which messages are counted."""
        self._instances = instances
        self._epoch = epoch
        self._partitions = partitions
        self._block_bits = block_bits
        self._limits_seconds = limits_seconds
        self.by_leader = LatencyByLeader("publish_latency_seconds")
        self.latency = Histogram()
        self._service = Histogram()
        self._lag = Histogram()
        self._settled: list[Settled] = []
        self._failures: Counter[str] = Counter()
        self._delays_ns: list[NDArray[np.int64]] = []
        self._pause_ns = 0
        self.sent = 0
        self.skipped = 0
        self.queue_full = 0
        self.backpressured = 0  # sent late because the cluster accepted no more

    def following(self) -> ProducerInterval:
        """Return the next one, empty."""
        found = ProducerInterval(
            self._instances,
            self._epoch,
            self._partitions,
            block_bits=self._block_bits,
            limits_seconds=self._limits_seconds,
        )
        found.by_leader = self.by_leader.following()
        return found

    def note_sent(self, delay_ns: NDArray[np.int64]) -> None:
        """Count messages that the client accepted; `delay_ns`, shape (n,), is actual minus intended time."""
        self.sent += delay_ns.size
        self._delays_ns.append(delay_ns)

    def count_delays(self) -> None:
        """Count the delays of all sends so far: a histogram costs the same for one as for a thousand."""
        if self._delays_ns:
            self._lag.record_ns(np.concatenate(self._delays_ns))
            self._delays_ns = []

    def note_pause(self, pause_ns: int) -> None:
        """Note a time in which acknowledgements could not be taken: they may be stamped that much late."""
        self._pause_ns = max(self._pause_ns, pause_ns)

    def note_settled(self, settled: Settled, leaders: Leaders) -> None:
        """Count messages that were acknowledged or have failed."""
        if settled.offset.size == 0:
            return
        is_acked = settled.offset != FAILED_OFFSET
        self.latency.record_ns(settled.latency_ns[is_acked])
        self._service.record_ns(settled.service_ns[is_acked])
        if leaders.several:
            partition = settled.stream[is_acked] % self._partitions
            self.by_leader.record_ns(leaders, partition, settled.latency_ns[is_acked])
        self._settled.append(settled)

    def note_failures(self, failures: Mapping[str, int]) -> None:
        """Count messages that failed by their reason, in the words of the client."""
        self._failures.update(failures)

    def samples(
        self,
        in_flight: int,
        waiting_seconds: int,
        cpu_ratio: float,
        cpu_waiting_ratio: float,
        busy_ratio: float,
    ) -> list[tuple[Column, float]]:
        """Return columns and values in a fixed order.

        `waiting_seconds`: how long the oldest message that is not acknowledged has been due.
        """
        self.count_delays()
        failed, unplaced = (
            sum(int(np.count_nonzero(item.offset == offset)) for item in self._settled)
            for offset in (FAILED_OFFSET, UNKNOWN_OFFSET)
        )
        counts = {
            "sent_messages": self.sent,
            "acked_messages": sum(item.offset.size for item in self._settled) - failed,
            "failed_messages": failed,
            "unplaced_messages": unplaced,
            "missed_messages": self.skipped,
            "queue_full_messages": self.queue_full,
            "held_back_messages": self.backpressured,
            "in_flight_messages": in_flight,
            "negative_latency_messages": self.latency.negative,
            "overflow_messages": self.latency.overflow,
        }
        return [
            *quantile_columns("publish_latency_seconds", self.latency),
            *quantile_columns("publish_service_seconds", self._service, (0.5, 0.99)),
            *quantile_columns("schedule_lag_seconds", self._lag, (0.5, 0.99)),
            *((Column(name, (), "messages"), float(value)) for name, value in counts.items()),
            (Column("publish_waiting_seconds", (), "seconds"), float(waiting_seconds)),
            (Column("callback_delay_seconds", (), "seconds"), self._pause_ns / 1e9),
            (Column("process_cpu_ratio", (), "cores"), cpu_ratio),
            (Column("process_cpu_waiting_ratio", (), "ratio"), cpu_waiting_ratio),
            (Column("sender_busy_ratio", (), "cores"), busy_ratio),
            *self.by_leader.samples(),
            *threshold_columns(
                "publish_latency_above_messages", self.latency, self._limits_seconds
            ),
        ]

    def histograms(self) -> dict[str, Histogram]:
        """Return all histograms by the names of their columns."""
        self.count_delays()
        return {
            "publish_latency_seconds": self.latency,
            "publish_service_seconds": self._service,
            "schedule_lag_seconds": self._lag,
            **self.by_leader.histograms(),
        }

    def acknowledged(self) -> dict[str, tuple[Span, ...]]:
        """Return the acknowledged spans by producer stream."""
        stream, sequence, offset = self._all()
        is_acked = offset != FAILED_OFFSET
        return self._named(
            spans_by(stream[is_acked], sequence[is_acked], offset[is_acked], self._block_bits)
        )

    def sent_next(self, following: NDArray[np.int64]) -> dict[str, int]:
        """Return the next sequence number of each stream that was used; `following` is 0 for the others."""
        return {self._name(at): int(following[at]) for at in np.flatnonzero(following).tolist()}

    def failures(self, at_ns: int, since_ns: int) -> list[Event]:
        """Return one event for each span of messages that the client gave up, and one for each reason."""
        stream, sequence, offset = self._all()
        is_failed = offset == FAILED_OFFSET
        # Failed messages have no offsets: their sequence numbers order the spans.
        spans = self._named(spans_by(stream[is_failed], sequence[is_failed], sequence[is_failed]))
        reasons = self._failures.most_common(MAX_REASONS)
        return [
            *(
                Event(SEND_ERRORS_EVENT, at_ns, since_ns, {"reason": reason, "messages": count})
                for reason, count in reasons
            ),
            *(
                Event(
                    SEND_FAILED_EVENT, at_ns, since_ns, {"lane": name, "first": first, "last": last}
                )
                for name, found in spans.items()
                for first, last, _, _ in found
            ),
        ]

    def reason(self, busy_ratio: float) -> str:
        """Return why this second says nothing about the cluster, or "".

        Late sends and full queues are valid where the cluster accepts no more, but not where our own thread
        had no time left (`busy_ratio`, in cores, of this second).
        """
        is_busy = busy_ratio >= BUSY_RATIO
        if self.queue_full and is_busy:
            return "queue_full"
        self.count_delays()
        (lag,) = self._lag.quantiles_seconds((0.99,))
        (latency,) = self.latency.quantiles_seconds((0.99,))
        is_backpressured = self.backpressured >= self.sent / 2 and not is_busy
        # `not <`: a latency of NaN means that nothing was acknowledged.
        if lag > INVALID_LAG_SECONDS and not lag < latency / 2 and not is_backpressured:
            return "schedule_lag"
        pause = self._pause_ns / 1e9
        is_invalid = pause > INVALID_PAUSE_SECONDS and not pause < latency / 2
        return "callback_delay" if is_invalid else ""

    def _all(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        if not self._settled:
            return _NONE, _NONE, _NONE
        return (
            np.concatenate([item.stream for item in self._settled]),
            np.concatenate([item.sequence for item in self._settled]),
            np.concatenate([item.offset for item in self._settled]),
        )

    def _named(self, found: dict[int, tuple[Span, ...]]) -> dict[str, tuple[Span, ...]]:
        return {self._name(at): spans for at, spans in found.items()}

    def _name(self, at: int) -> str:
        client, partition = divmod(at, self._partitions)
        return stream_name(self._instances[client], self._epoch, partition)
