"""The log of a Pulsar partition: message ids as rising offsets, ledgers and entries, lag.

An offset holds ledger, entry and place in the batch. The ledger comes first, so that a run of offsets can
be cut where a ledger ends, which is what retention deletes. The admin interface is polled apart from the
load.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soak.brokers.pulsar.topics import may_skip_unread
from soak.clients.pulsar_admin import Admin, topic_path
from soak.core.errors import BrokerError
from soak.core.ports import Clock, Topics
from soak.core.retry import Once
from soak.core.units import SECOND_NS

LOG = logging.getLogger("soak.brokers.pulsar")

PERIOD_SECONDS = 1.0
PARTITIONS_PER_SECOND = 200
"""More partitions are polled less often: an answer lists every ledger."""
STALE_PERIODS = 5
"""An older answer is not used to tell how much is left to read."""

Ints = NDArray[np.int64]

INDEX_BITS = 12
ENTRY_BITS = 24
LEDGER_BITS = 63 - ENTRY_BITS - INDEX_BITS
BLOCK_BITS = ENTRY_BITS + INDEX_BITS
MAX_BATCH_MESSAGES = 1 << INDEX_BITS

_LIMITS = (
    (LEDGER_BITS, "ledgers"),
    (ENTRY_BITS, "entries a ledger (managedLedgerMaxEntriesPerLedger)"),
    (INDEX_BITS, "messages a batch (batching_max_messages)"),
)


def pack_offset(ledger: int, entry: int, index: int = 0) -> int:
    """Return the offset of one message; -1, the index of a message outside a batch, counts as 0."""
    return ledger << BLOCK_BITS | entry << INDEX_BITS | max(index, 0)


def unpack_offset(offset: int) -> tuple[int, int, int]:
    """Return ledger, entry and index in the batch."""
    index = offset & (MAX_BATCH_MESSAGES - 1)
    return offset >> BLOCK_BITS, offset >> INDEX_BITS & ((1 << ENTRY_BITS) - 1), index


def pack_offsets(ledger: Ints, entry: Ints, index: Ints) -> Ints:
    """Return the offsets of many messages, as `pack`.

    Raises:
        BrokerError: a part does not fit into its bits.
    """
    index = np.maximum(index, 0)
    for part, (bits, what) in zip((ledger, entry, index), _LIMITS, strict=True):
        if part.size and int(part.max()) >> bits:
            raise BrokerError(
                f"an offset has room for {1 << bits} {what}, not for {part.max() + 1}"
            )
    packed: Ints = ledger << BLOCK_BITS | entry << INDEX_BITS | index
    return packed


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """The ledgers of a partition in order, and the entries in each."""

    ledgers: tuple[int, ...]
    entries: tuple[int, ...]
    last: tuple[int, int]  # ledger and entry; the entry is -1 where nothing was written

    @property
    def bounds(self) -> tuple[int, int]:
        """Return the earliest offset still readable and the next one to be written."""
        ledger, entry = self.last
        end = pack_offset(ledger, entry + 1)
        return (pack_offset(self.ledgers[0], 0) if self.ledgers else end), end

    def entries_from(self, offset: int) -> int:
        """Return the number of entries from an offset on; an entry read in part counts as read."""
        if offset < 0:
            return sum(self.entries)
        ledger, entry, index = unpack_offset(offset)
        following = bisect_left(self.ledgers, ledger)
        remaining = sum(self.entries[following:])
        if following < len(self.ledgers) and self.ledgers[following] == ledger:
            remaining -= min(entry + (index > 0), self.entries[following])
        return remaining


def log_of(stats: Any) -> PartitionLog:  # noqa: ANN401  # what the cluster says
    """Parse the admin interface's `internalStats` of one partition.

    Raises:
        BrokerError: it is incomplete, as while a broker loads the partition.
    """
    try:
        ledgers = tuple(int(one["ledgerId"]) for one in stats["ledgers"])
        entries = [int(one["entries"]) for one in stats["ledgers"]]
        if entries and stats["state"] == "LedgerOpened":  # the list has 0 for an open ledger
            entries[-1] = int(stats["currentLedgerEntries"])
        ledger, _, entry = str(stats["lastConfirmedEntry"]).partition(":")
        return PartitionLog(ledgers, tuple(entries), (max(int(ledger), 0), int(entry)))
    except (KeyError, TypeError, ValueError) as error:
        raise BrokerError(
            f"the answer about the log of a partition is incomplete: {error!r}"
        ) from error


class LogWatcher:
    """Keeps the newest answer about every partition, polled by a thread of its own.

    `kept_from` is the offset, by partition, from which a subscription keeps unread messages, so that
    retention cannot have deleted them: a ledger that is missing all the same was lost.
    """

    def __init__(
        self,
        admin: Admin,
        topics: Topics,
        kept_from: Mapping[int, int],
        clock: Clock,
        period_seconds: float = PERIOD_SECONDS,
    ) -> None:
        self._admin = admin
        self._topics = topics
        self._kept_from = kept_from
        self._clock = clock
        self._period_seconds = max(period_seconds, topics.total / PARTITIONS_PER_SECOND)
        self._logs: Mapping[int, PartitionLog] = {}
        self._as_of_ns = 0
        self._has_died = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="pulsar-log", daemon=True)
        self._errors = Once()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop polling; does not wait for a request in flight."""
        self._stop.set()

    def entries_behind(self, positions: Mapping[int, int]) -> int | None:
        """Return the number of entries from these positions on, as last answered; None if that is stale.

        Raises:
            BrokerError: the polling thread has died.
        """
        if self._has_died:
            raise BrokerError("the thread that polls the logs of Pulsar's partitions has died")
        logs = self._logs
        age_ns = self._clock.mono_ns() - self._as_of_ns
        is_stale = age_ns > STALE_PERIODS * self._period_seconds * SECOND_NS
        if is_stale or any(at not in logs for at in positions):
            return None
        return sum(logs[at].entries_from(position) for at, position in positions.items())

    def bounds(self, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return the offset below which retention may have deleted, and the next one, as of now.

        Raises:
            BrokerError: the cluster did not answer for all of them in time.
        """
        found = {}
        for at, log in self._logs_of(partitions):
            low, high = log.bounds
            found[at] = min(low, self._kept_from.get(at, low)), high
        missing = len(set(partitions) - found.keys())
        if missing:
            raise BrokerError(
                f"the cluster did not answer about {missing} of {len(partitions)} logs"
            )
        return found

    def poll(self) -> None:
        """Poll the cluster; keep the last answer if it does not give any."""
        now_ns = self._clock.mono_ns()
        try:
            self._logs = {at: log_of(stats) for at, stats in stats_of(self._admin, self._topics)}
        except BrokerError as error:
            if self._errors.is_new(str(error)):
                LOG.warning("log_bounds_unknown error=%s", error)
            return
        self._as_of_ns = now_ns

    def _logs_of(self, partitions: Sequence[int]) -> Iterator[tuple[int, PartitionLog]]:
        """Request one partition, or for several the whole topic."""
        if len(partitions) == 1:
            name = partition_name(self._topics, partitions[0])
            yield partitions[0], log_of(self._admin.get(f"{topic_path(name)}/internalStats"))
            return
        wanted = set(partitions)
        for at, stats in stats_of(self._admin, self._topics):
            if at in wanted:
                yield at, log_of(stats)

    def _follow(self) -> None:
        try:
            while True:
                self.poll()
                if self._stop.wait(self._period_seconds):
                    return
        finally:
            self._has_died = not self._stop.is_set()


def stats_of(admin: Admin, topics: Topics) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the admin interface's `internalStats` of every partition, by partition index.

    Raises:
        BrokerError: the cluster did not answer in time.
    """
    for number, name in enumerate(topics.names):
        answer = admin.get(f"{topic_path(name)}/partitioned-internalStats")
        if not isinstance(answer, dict) or not isinstance(answer.get("partitions"), dict):
            raise BrokerError(f"the cluster did not answer about the logs of {name}")
        for partition, stats in answer["partitions"].items():
            if isinstance(stats, dict):
                yield number * topics.partitions + int(partition.rpartition("-")[2]), stats


def kept_from(admin: Admin, topics: Topics, subscription: str) -> dict[int, int]:
    """Return the offset from which a subscription keeps unread messages, by partition.

    An existing subscription keeps all of them, a new one those that the log holds now. Partitions whose
    topic has a limit that makes subscriptions skip messages are left out.

    Raises:
        BrokerError: the cluster did not answer in time.
    """
    skipping = [may_skip_unread(admin, name) for name in topics.names]
    return {
        at: 0 if subscription in stats.get("cursors", ()) else log_of(stats).bounds[0]
        for at, stats in stats_of(admin, topics)
        if not skipping[at // topics.partitions]
    }


def partition_name(topics: Topics, at: int) -> str:
    """Return the name of a partition, by its index over all topics."""
    topic, partition = topics.split(at)
    return f"{topic}-partition-{partition}"
