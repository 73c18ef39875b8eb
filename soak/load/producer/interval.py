"""Counters and histograms of one second of a producer, and the record's columns made of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from soak.core.audit import SEND_FAILED_EVENT
from soak.core.header import stream_name
from soak.core.histogram import THRESHOLDS_SECONDS, Histogram
from soak.core.model import Column, Event, Span
from soak.core.ports import FAILED_OFFSET, UNKNOWN_OFFSET
from soak.core.streams import spans_by
from soak.load.latency import LatencyByLeader
from soak.load.leaders import Leaders
from soak.load.producer.in_flight import Settled
from soak.runtime.recorder import quantile_column

QUANTILES = (0.5, 0.99, 0.999)
INVALID_LAG_SECONDS = 0.020
"""A second in which 1 % of the sends were this late, and in which that lag makes up most of the latency,
says more about this client than about the cluster."""

INVALID_PAUSE_SECONDS = 0.050
"""The same for a pause in which no acknowledgement could be noted."""
BUSY_RATIO = 0.85
"""A sending thread that used this much of a core may itself be what is slow."""

_NONE = np.zeros(0, dtype=np.int64)


class ProducerInterval:
    """Counters and histograms of one second, which may be written while the next one is collected."""

    def __init__(
        self, instances: Sequence[int], epoch: int, partitions: int, *, block_bits: int = 0
    ) -> None:
        self._instances = instances
        self._epoch = epoch
        self._partitions = partitions
        self._block_bits = block_bits
        self.by_leader = LatencyByLeader("publish_latency_seconds")
        self.latency = Histogram()
        self._service = Histogram()
        self._lag = Histogram()
        self._settled: list[Settled] = []
        self._delays_ns: list[NDArray[np.int64]] = []
        self._pause_ns = 0
        self.sent = 0
        self.missed = 0
        self.queue_full = 0
        self.held_back = 0  # sent late because the cluster had taken no more

    def following(self) -> ProducerInterval:
        """Return the next one, empty."""
        found = ProducerInterval(
            self._instances, self._epoch, self._partitions, block_bits=self._block_bits
        )
        found.by_leader = self.by_leader.following()
        return found

    def note_sent(self, delay_ns: NDArray[np.int64]) -> None:
        """Note a batch handed to the client; `delay_ns`, shape (n,), is actual minus intended time."""
        self.sent += delay_ns.size
        self._delays_ns.append(delay_ns)

    def count_delays(self) -> None:
        """Count in one go what came in chunks: a histogram costs the same for one as for a thousand."""
        if self._delays_ns:
            self._lag.record_ns(np.concatenate(self._delays_ns))
            self._delays_ns = []

    def note_pause(self, pause_ns: int) -> None:
        """Note how long no acknowledgement could be taken: that much later it may be noted."""
        self._pause_ns = max(self._pause_ns, pause_ns)

    def note_settled(self, settled: Settled, leaders: Leaders) -> None:
        if settled.offset.size == 0:
            return
        good = settled.offset != FAILED_OFFSET
        self.latency.record_ns(settled.latency_ns[good])
        self._service.record_ns(settled.service_ns[good])
        if leaders.several:
            partition = settled.stream[good] % self._partitions
            self.by_leader.record_ns(leaders, partition, settled.latency_ns[good])
        self._settled.append(settled)

    def samples(
        self,
        in_flight: int,
        waiting_seconds: int,
        cpu_ratio: float,
        cpu_waiting_ratio: float,
        busy_ratio: float,
    ) -> list[tuple[Column, float]]:
        """Return columns and values in a fixed order.

        `waiting_seconds`: how long the oldest message has been due that is not acknowledged yet.
        """
        self.count_delays()
        failed = sum(int(np.count_nonzero(item.offset == FAILED_OFFSET)) for item in self._settled)
        acked = sum(item.offset.size for item in self._settled) - failed
        unplaced = sum(
            int(np.count_nonzero(item.offset == UNKNOWN_OFFSET)) for item in self._settled
        )
        counts = {
            "sent_messages": self.sent,
            "acked_messages": acked,
            "failed_messages": failed,
            "unplaced_messages": unplaced,
            "missed_messages": self.missed,
            "queue_full_messages": self.queue_full,
            "held_back_messages": self.held_back,
            "in_flight_messages": in_flight,
            "negative_latency_messages": self.latency.negative,
            "overflow_messages": self.latency.overflow,
        }
        return [
            *latency_columns("publish_latency_seconds", self.latency),
            *_quantiles("publish_service_seconds", self._service, (0.5, 0.99)),
            (quantile_column("publish_service_seconds", "max"), maximum_seconds(self._service)),
            *_quantiles("schedule_lag_seconds", self._lag, (0.5, 0.99)),
            (quantile_column("schedule_lag_seconds", "max"), maximum_seconds(self._lag)),
            *((Column(name, (), "messages"), float(value)) for name, value in counts.items()),
            (Column("publish_waiting_seconds", (), "seconds"), float(waiting_seconds)),
            (Column("callback_delay_seconds", (), "seconds"), self._pause_ns / 1e9),
            (Column("process_cpu_ratio", (), "cores"), cpu_ratio),
            (Column("process_cpu_waiting_ratio", (), "ratio"), cpu_waiting_ratio),
            (Column("sender_busy_ratio", (), "cores"), busy_ratio),
            *self.by_leader.samples(),
            *above_columns("publish_latency_above_messages", self.latency),
        ]

    def histograms(self) -> dict[str, Histogram]:
        """Return them by their columns' names: from the intended time, from the send, the lag, by leader."""
        self.count_delays()
        return {
            "publish_latency_seconds": self.latency,
            "publish_service_seconds": self._service,
            "schedule_lag_seconds": self._lag,
            **self.by_leader.histograms(),
        }

    def acknowledged(self) -> dict[str, tuple[Span, ...]]:
        """Return the runs acknowledged in this second, by lane."""
        stream_, sequence, offset = self._all()
        good = offset != FAILED_OFFSET
        return self._named(spans_by(stream_[good], sequence[good], offset[good], self._block_bits))

    def sent_next(self, following: NDArray[np.int64]) -> dict[str, int]:
        """Return the next sequence number of the lanes that were sent to, by their index."""
        return {self._name(at): int(following[at]) for at in np.flatnonzero(following).tolist()}

    def failures(self, at_ns: int, since_ns: int) -> list[Event]:
        """Return one event a run of messages that the client gave up."""
        stream_, sequence, offset = self._all()
        bad = offset == FAILED_OFFSET
        # without offsets the sequence numbers themselves order the run
        runs = self._named(spans_by(stream_[bad], sequence[bad], sequence[bad]))
        return [
            Event(SEND_FAILED_EVENT, at_ns, since_ns, {"lane": name, "first": first, "last": last})
            for name, found in runs.items()
            for first, last, _, _ in found
        ]

    def reason(self, busy_ratio: float) -> str:
        """Return why this second says nothing about the cluster, or "".

        A schedule that is behind because the cluster takes no more is the cluster's doing, and so is a full
        queue; unless our own thread had no time left (`busy_ratio`, in cores, of this second).
        """
        is_busy = busy_ratio >= BUSY_RATIO
        if self.queue_full and is_busy:
            return "queue_full"
        self.count_delays()
        (lag,) = self._lag.quantiles_seconds((0.99,))
        (latency,) = self.latency.quantiles_seconds((0.99,))
        is_held = self.held_back >= self.sent / 2 and not is_busy
        if lag > INVALID_LAG_SECONDS and not lag < latency / 2 and not is_held:  # NaN: no answer
            return "schedule_lag"
        pause = self._pause_ns / 1e9
        return "callback_delay" if pause > INVALID_PAUSE_SECONDS and not pause < latency / 2 else ""

    def _all(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        if not self._settled:
            return _NONE, _NONE, _NONE
        return (
            np.concatenate([item.stream for item in self._settled]),
            np.concatenate([item.sequence for item in self._settled]),
            np.concatenate([item.offset for item in self._settled]),
        )

    def _named(self, found: dict[int, tuple[Span, ...]]) -> dict[str, tuple[Span, ...]]:
        return {self._name(at): runs for at, runs in found.items()}

    def _name(self, at: int) -> str:
        client, partition = divmod(at, self._partitions)
        return stream_name(self._instances[client], self._epoch, partition)


def maximum_seconds(histogram: Histogram) -> float:
    """Return the exact maximum, or NaN when nothing was counted."""
    return histogram.max_ns / 1e9 if histogram.total or histogram.negative else float("nan")


def latency_columns(metric: str, histogram: Histogram) -> list[tuple[Column, float]]:
    """Return p50, p99, p99.9 and the maximum of a latency."""
    return [
        *_quantiles(metric, histogram, QUANTILES),
        (quantile_column(metric, "max"), maximum_seconds(histogram)),
    ]


def above_columns(metric: str, histogram: Histogram) -> list[tuple[Column, float]]:
    """Return the counts at or above each fixed threshold."""
    return [
        (Column(metric, (("threshold", f"{threshold:g}"),), "messages"), float(count))
        for threshold, count in zip(THRESHOLDS_SECONDS, histogram.above(), strict=True)
    ]


def _quantiles(
    metric: str, histogram: Histogram, quantiles: tuple[float, ...]
) -> list[tuple[Column, float]]:
    values = histogram.quantiles_seconds(quantiles)
    return [
        (quantile_column(metric, f"{quantile:g}"), value)
        for quantile, value in zip(quantiles, values, strict=True)
    ]
