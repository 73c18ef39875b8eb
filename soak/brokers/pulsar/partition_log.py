"""The log of a Pulsar partition: message ids as rising offsets, ledgers and entries, lag."""

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


# --- What a Pulsar partition's log looks like from outside, asked for beside the load, never in its way.

LOG = logging.getLogger("soak.brokers.pulsar.broker")

PERIOD_SECONDS = 1.0
PARTITIONS_PER_SECOND = 200
"""More than these are asked for less often: an answer lists every ledger."""
STALE_PERIODS = 5
"""An answer that is older says nothing about what is left to read."""


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """A partition's ledgers in order, and the entries in each."""

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
        """Return the entries from an offset on; one that was begun counts as read."""
        if offset < 0:
            return sum(self.entries)
        ledger, entry, index = unpack_offset(offset)
        following = bisect_left(self.ledgers, ledger)
        left = sum(self.entries[following:])
        if following < len(self.ledgers) and self.ledgers[following] == ledger:
            left -= min(entry + (index > 0), self.entries[following])
        return left


def log_of(stats: Any) -> PartitionLog:  # noqa: ANN401  # what the cluster says
    """Read the admin interface's `internalStats` of one partition.

    Raises:
        BrokerError: something is missing from it, as where a broker is about to take the partition.
    """
    try:
        ledgers = tuple(int(one["ledgerId"]) for one in stats["ledgers"])
        entries = [int(one["entries"]) for one in stats["ledgers"]]
        if entries and stats["state"] == "LedgerOpened":  # of an open ledger the list says 0
            entries[-1] = int(stats["currentLedgerEntries"])
        ledger, _, entry = str(stats["lastConfirmedEntry"]).partition(":")
        return PartitionLog(ledgers, tuple(entries), (max(int(ledger), 0), int(entry)))
    except (KeyError, TypeError, ValueError) as error:
        raise BrokerError(f"a partition's log is not told in whole: {error!r}") from error


class LogWatcher:
    """Keeps the newest answer of every partition, from a thread of its own.

    `kept_from` is the offset, by partition, from which on a subscription keeps everything that it has not
    read, so that no rule can have deleted it: a ledger that is gone all the same was lost.
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
        """Ask no more; does not wait for an answer that is under way."""
        self._stop.set()

    def entries_behind(self, positions: Mapping[int, int]) -> int | None:
        """Return the entries from these positions on, as of the last answer; None without a fresh one.

        Raises:
            BrokerError: nobody asks any more.
        """
        if self._has_died:
            raise BrokerError("the thread that asks for the ends of Pulsar's logs has died")
        logs = self._logs
        age_ns = self._clock.mono_ns() - self._as_of_ns
        is_stale = age_ns > STALE_PERIODS * self._period_seconds * SECOND_NS
        if is_stale or any(at not in logs for at in positions):
            return None
        return sum(logs[at].entries_from(position) for at, position in positions.items())

    def bounds(self, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return below which offset a rule may have deleted, and the next one to be written, as of now.

        Raises:
            BrokerError: the cluster did not answer for all of them in time.
        """
        found = {}
        for at, log in self._logs_of(partitions):
            low, high = log.bounds
            found[at] = min(low, self._kept_from.get(at, low)), high
        missing = len(set(partitions) - found.keys())
        if missing:
            raise BrokerError(f"the cluster told nothing of {missing} of {len(partitions)} logs")
        return found

    def ask(self) -> None:
        """Take the cluster's answer; keep the last one when it does not give any."""
        now_ns = self._clock.mono_ns()
        try:
            self._logs = {at: log_of(stats) for at, stats in stats_of(self._admin, self._topics)}
        except BrokerError as error:
            if self._errors.is_new(str(error)):
                LOG.warning("no_log_bounds error=%s", error)
            return
        self._as_of_ns = now_ns

    def _logs_of(self, partitions: Sequence[int]) -> Iterator[tuple[int, PartitionLog]]:
        """Ask for one partition alone; for several, all of their topic are one question."""
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
                self.ask()
                if self._stop.wait(self._period_seconds):
                    return
        finally:
            self._has_died = not self._stop.is_set()


def stats_of(admin: Admin, topics: Topics) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Give the admin interface's `internalStats` of every partition, by running number.

    Raises:
        BrokerError: the cluster did not answer in time.
    """
    for number, name in enumerate(topics.names):
        answer = admin.get(f"{topic_path(name)}/partitioned-internalStats")
        if not isinstance(answer, dict) or not isinstance(answer.get("partitions"), dict):
            raise BrokerError(f"the cluster told no logs of {name}")
        for partition, stats in answer["partitions"].items():
            if isinstance(stats, dict):
                yield number * topics.partitions + int(partition.rpartition("-")[2]), stats


def kept_from(admin: Admin, topics: Topics, subscription: str) -> dict[int, int]:
    """Return from which offset on a subscription will keep, or has kept, what it has not read.

    That is everything where it is there already, and what the log holds now where it is new. Partitions are
    left out whose topic has a rule that makes subscriptions forget.

    Raises:
        BrokerError: the cluster did not answer in time.
    """
    forgetful = [may_skip_unread(admin, name) for name in topics.names]
    return {
        at: 0 if subscription in stats.get("cursors", ()) else log_of(stats).bounds[0]
        for at, stats in stats_of(admin, topics)
        if not forgetful[at // topics.partitions]
    }


def partition_name(topics: Topics, at: int) -> str:
    """Return the name under which a cluster has a partition, by its running number."""
    topic, partition = topics.split(at)
    return f"{topic}-partition-{partition}"
