"""What else the cluster has to do: copies that are behind, and what others write to their own topics.

Source:   the list of all topics (AdminClient.list_topics) with replicas and those in sync, and the newest
          offsets of other topics than the run's (AdminClient.list_offsets), every `cluster_period` on a
          thread and with a client of its own, so that nothing delays the offsets of the run's topics.
Overhead: 4 us of CPU a partition of the cluster and 36 us a partition of other topics; so many of them that
          this is above 1 % of a core are looked at less often.
Caveats:  Only topics that the user may see. Of more than 20,000 partitions of other topics, some topics are
          followed, by a hash of their names. The first offset of a partition says nothing of its growth, nor
          does the first one after an answer was missing, or after the topic was created again.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol
from zlib import crc32

from probes.common.counters import Deltas
from probes.common.polling import ReadingBuffer
from probes.retention_kafka.log_starts import Partition
from soak.core.errors import ProbeError
from soak.core.model import Column, Event
from soak.core.ports import Clock
from soak.core.wording import OTHERS_NAME

GREW = "other_topic_grew"
"""Others began to write more; names a topic with what they wrote to it, messages a second."""

MAX_FOLLOWED = 20_000  # partitions of other topics
MAX_FOLLOWERS = 16  # brokers with a column of their own, as leaders have
MOST_RATIO = 0.01  # of a core
LIST_NS, OFFSET_NS = 5_000, 40_000  # of CPU a partition, and some more than was measured
_ROUNDS = 12  # whose median is usual
_LEAST_ROUNDS = 3
_MORE = 1.3  # of what is usual
_LEAST_RISE = 10.0  # messages a second: fewer load no broker
_MAX_NAMED = 3
_NAMED_SHARE = 0.25  # of the rise

_WRITTEN = Column("cluster_other_messages", (), "messages")

Choose = Callable[[Mapping[str, int]], Sequence[str]]
"""Takes how many partitions each topic has, and returns the topics to follow."""
Failed = Callable[[ProbeError], None]


@dataclass(frozen=True, slots=True)
class Listing:
    """What a cluster says of its topics."""

    addresses: Mapping[int, str]  # of the brokers that it knows to be up
    behind: Mapping[
        int, int
    ]  # partitions with a copy that is not in sync, by the broker that holds it
    partitions: int
    followed: Sequence[Partition]  # those with a leader, of the topics that were chosen


class ClusterOffsets(Protocol):
    """The requests to a cluster; see `KafkaOffsets`."""

    def listing(self, choose: Choose) -> Listing: ...
    def latest(self, partitions: Sequence[Partition], failed: Failed) -> dict[Partition, int]: ...


class Cluster:
    """`poll` is one round of a thread, called every `period_ns`; tests call it themselves."""

    def __init__(
        self, ours: Collection[str], period_ns: int, clock: Clock, buffer: ReadingBuffer
    ) -> None:
        self._ours = frozenset(ours)
        self._period_ns = period_ns
        self._clock = clock
        self._buffer = buffer
        self._due_ns = 0
        self._followers = _Followers()
        self._written = OtherWrites()
        self._asked_wall_ns = 0
        self._is_cut = False

    def poll(self, offsets: ClusterOffsets) -> None:
        """Ask once, if it is time again, and pass on what is known.

        Raises:
            ProbeError: the cluster does not answer.
        """
        begin_ns = self._clock.mono_ns()
        if begin_ns < self._due_ns:
            return
        listing = offsets.listing(self._chosen)
        cost_ns = LIST_NS * listing.partitions + OFFSET_NS * len(listing.followed)
        rounds = max(1, math.ceil(cost_ns / MOST_RATIO / self._period_ns))
        self._due_ns = begin_ns + rounds * self._period_ns - self._period_ns // 2
        self._buffer.put((), self._followers.columns(listing), (), begin_ns)
        begin_ns, asked_ns = self._clock.mono_ns(), self._clock.wall_ns()
        ends = offsets.latest(listing.followed, self._failed) if listing.followed else {}
        since_ns, self._asked_wall_ns = self._asked_wall_ns, asked_ns
        rate, grown = self._written.take(ends, begin_ns)
        if rate is not None:
            events = [Event(GREW, self._clock.wall_ns(), since_ns, one.fields()) for one in grown]
            self._buffer.put((), [(_WRITTEN, rate)], events, begin_ns)

    def _failed(self, error: ProbeError) -> None:
        self._buffer.failed(ProbeError(f"what others write is not known of all topics: {error}"))

    def _chosen(self, counts: Mapping[str, int]) -> Sequence[str]:
        """Return the topics of others; of too many, the same ones whatever else there is."""
        others = [name for name in counts if name not in self._ours]
        total = sum(counts[name] for name in others)
        if total <= MAX_FOLLOWED:
            return others
        chosen, left = [], MAX_FOLLOWED
        for name in sorted(others, key=lambda one: (crc32(one.encode()), one)):
            if counts[name] <= left:
                chosen.append(name)
                left -= counts[name]
        if not self._is_cut:
            self._is_cut = True
            text = f"of {total} partitions of other topics {MAX_FOLLOWED - left} are followed"
            self._buffer.failed(ProbeError(text))
        return chosen


class _Followers:
    """Names brokers once and for all: by their address, or by their id where they were never up."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def columns(self, listing: Listing) -> list[tuple[Column, float]]:
        """Return of each broker how many partitions it has a copy of that is not in sync."""
        for number in sorted({*listing.addresses, *listing.behind}):
            if number not in self._names:
                is_named = len(self._names) < MAX_FOLLOWERS
                name = listing.addresses.get(number, str(number)) if is_named else OTHERS_NAME
                self._names[number] = name
        sums = Counter(dict.fromkeys(self._names.values(), 0))
        for number, count in listing.behind.items():
            sums[self._names[number]] += count
        metric = "cluster_under_replicated_partitions"
        return [
            (Column(metric, (("follower", name),), "partitions"), float(count))
            for name, count in sums.items()
        ]


@dataclass(frozen=True, slots=True)
class Grown:
    """A topic to which others began to write more, in messages a second."""

    topic: str
    before: float
    after: float

    @property
    def rise(self) -> float:
        return self.after - self.before

    def fields(self) -> dict[str, str | int | float]:
        return {
            "topic": self.topic,
            "before": round(self.before, 1),
            "after": round(self.after, 1),
        }


class OtherWrites:
    """What is written a second, by how newest offsets grow from one round to the next."""

    def __init__(self) -> None:
        self._deltas: Deltas[Partition] = Deltas()
        self._totals: deque[float] = deque(maxlen=_ROUNDS)
        self._usual: dict[str, float] = {}
        self._is_high = False

    def take(
        self, ends: Mapping[Partition, int], asked_ns: int
    ) -> tuple[float | None, Sequence[Grown]]:
        """Return the messages a second of all partitions, and the topics that made them many more.

        None while no growth is known though there are partitions. A jump names its topics once.
        """
        growth = self._deltas.take(ends, asked_ns)
        if ends and not growth.by:
            return None, ()
        rates: dict[str, float] = {}
        for (topic, _), messages in growth.by.items():
            rates[topic] = rates.get(topic, 0.0) + messages / growth.seconds
        total = sum(rates.values(), 0.0)
        grown = self._grown(rates, total)
        self._totals.append(total)
        usual = self._usual
        self._usual = {
            topic: usual.get(topic, 0.0) + (rate - usual.get(topic, 0.0)) / len(self._totals)
            for topic, rate in rates.items()
        }
        return total, grown

    def _grown(self, rates: Mapping[str, float], total: float) -> Sequence[Grown]:
        was_high = self._is_high
        usual = median(self._totals) if len(self._totals) >= _LEAST_ROUNDS else total
        rise = total - usual
        self._is_high = rise >= max(_LEAST_RISE, (_MORE - 1.0) * usual)
        if was_high or not self._is_high:
            return ()
        found = [Grown(topic, self._usual.get(topic, 0.0), rate) for topic, rate in rates.items()]
        large = [one for one in found if one.rise >= _NAMED_SHARE * rise]
        return sorted(large, key=lambda one: (-one.rise, one.topic))[:_MAX_NAMED]
