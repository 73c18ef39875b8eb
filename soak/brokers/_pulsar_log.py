"""What a Pulsar partition's log looks like from outside, asked for beside the load, never in its way."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from soak.brokers._pulsar_admin import Admin, path_of
from soak.brokers._pulsar_offsets import pack, unpack
from soak.core.errors import BrokerError
from soak.core.ports import Topics

LOG = logging.getLogger("soak.brokers.pulsar")

PERIOD_SECONDS = 1.0
PARTITIONS_A_SECOND = 200
"""More than these are asked for less often: an answer lists every ledger."""


@dataclass(frozen=True, slots=True)
class Log:
    """A partition's ledgers in order, and the entries in each."""

    ledgers: tuple[int, ...]
    entries: tuple[int, ...]
    last: tuple[int, int]  # ledger and entry; the entry is -1 where nothing was written
    added: int = 0  # entries since a broker took the partition over

    @property
    def bounds(self) -> tuple[int, int]:
        """Return the earliest offset still readable and the next one to be written."""
        ledger, entry = self.last
        end = pack(ledger, entry + 1)
        return (pack(self.ledgers[0], 0) if self.ledgers else end), end

    def entries_from(self, offset: int) -> int:
        """Return the entries from an offset on; one that was begun counts as read."""
        if offset < 0:
            return sum(self.entries)
        ledger, entry, index = unpack(offset)
        following = bisect_left(self.ledgers, ledger)
        left = sum(self.entries[following:])
        if following < len(self.ledgers) and self.ledgers[following] == ledger:
            left -= min(entry + (index > 0), self.entries[following])
        return left


def log_of(stats: Mapping[str, Any]) -> Log:
    """Read the admin interface's `internalStats` of one partition."""
    ledgers = tuple(int(one["ledgerId"]) for one in stats["ledgers"])
    entries = [int(one["entries"]) for one in stats["ledgers"]]
    if entries and stats["state"] == "LedgerOpened":  # of an open ledger the list says 0
        entries[-1] = int(stats["currentLedgerEntries"])
    ledger, _, entry = str(stats["lastConfirmedEntry"]).partition(":")
    last = max(int(ledger), 0), int(entry)
    return Log(ledgers, tuple(entries), last, int(stats["entriesAddedCounter"]))


def is_last_ledger_lost(before: Log, after: Log, *, was_away: bool) -> bool:
    """Say whether the ledger that was written to is gone although retention cannot have taken it.

    A broker that finds it empty when it comes back leaves it out of its list, as if it had been trimmed.
    """
    is_gone = bool(before.ledgers) and before.ledgers[-1] not in after.ledgers
    return is_gone and before.entries[-1] > 0 and (was_away or after.added < before.added)


class LogWatcher:
    """Keeps the newest answer of every partition, from a thread of its own."""

    def __init__(
        self, admin: Admin, topics: Topics, period_seconds: float = PERIOD_SECONDS
    ) -> None:
        self._admin = admin
        self._topics = topics
        self._period_seconds = max(period_seconds, topics.total / PARTITIONS_A_SECOND)
        self._logs: dict[int, Log] = {}
        self._lost: dict[int, int] = {}  # the first offset of a ledger that was lost, by partition
        self._was_away = False
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="pulsar-log", daemon=True)
        self._said = ""

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ask no more; does not wait for an answer that is under way."""
        self._stop.set()

    def entries_behind(self, positions: Mapping[int, int]) -> int | None:
        """Return the entries from these positions on, as of the last answer; None before the first."""
        with self._lock:
            if any(at not in self._logs for at in positions):
                return None
            return sum(self._logs[at].entries_from(place) for at, place in positions.items())

    def bounds(self, at: int) -> tuple[int, int]:
        """Return the earliest offset that was not deleted, and the next one to be written, as of now.

        Raises:
            BrokerError: the cluster did not answer in time.
        """
        name = f"{path_of(partition_name(self._topics, at))}/internalStats"
        log = log_of(self._admin.get(name))
        self._take({at: log})
        low, high = log.bounds
        return min(low, self._lost.get(at, low)), high

    def ask(self) -> None:
        """Take the cluster's answer; keep the last one when it does not give any."""
        try:
            found = dict(self._answers())
        except (BrokerError, KeyError, TypeError, ValueError) as error:
            self._was_away = True
            if str(error) != self._said:
                self._said = str(error)
                LOG.warning("no_log_bounds error=%s", error)
            return
        self._take(found)
        self._was_away = False

    def _answers(self) -> Iterator[tuple[int, Log]]:
        for number, name in enumerate(self._topics.names):
            answer = self._admin.get(f"{path_of(name)}/partitioned-internalStats")
            for partition, stats in answer["partitions"].items():
                at = number * self._topics.partitions + int(partition.rpartition("-")[2])
                yield at, log_of(stats)

    def _take(self, found: Mapping[int, Log]) -> None:
        with self._lock:
            for at, log in found.items():
                before = self._logs.get(at, log)
                if is_last_ledger_lost(before, log, was_away=self._was_away):
                    ledger = before.ledgers[-1]
                    LOG.warning("ledger_lost partition=%d ledger=%d", at, ledger)
                    self._lost.setdefault(at, pack(ledger, 0))
            self._logs = {**self._logs, **found}

    def _follow(self) -> None:
        while True:
            self.ask()
            if self._stop.wait(self._period_seconds):
                return


def partition_name(topics: Topics, at: int) -> str:
    """Return the name under which a cluster has a partition, by its running number."""
    topic, partition = topics.split(at)
    return f"{topic}-partition-{partition}"
