"""The retention probe on a fake Pulsar of one topic and one bookie, polled by hand."""

from __future__ import annotations

import copy
import json
from typing import Any

from probes.retention_pulsar.probe import Config, RetentionPulsar
from soak.core.errors import ProbeError
from soak.core.model import Reading
from soak.core.units import SECOND_NS
from tests.support.fakes import FakeClock
from tests.support.paths import DATA

RECORDED = DATA / "recorded" / "pulsar"
STATS = json.loads((RECORDED / "internal-stats-4.2.4.json").read_text())
PAGE = (RECORDED / "bookie-4.17.3.txt").read_text()
TOPIC = "soak-1"
BOOKIE = "http://bookie:8000/metrics"


class FakeCluster:
    """A cluster of one topic and one bookie: ledgers are closed with 1,000 entries, 1 MiB each."""

    bookies = (BOOKIE,)

    def __init__(self, clock: FakeClock, partitions: int) -> None:
        self._clock = clock
        self.ids = {at: [10 * at + 1, 10 * at + 2] for at in range(partitions)}
        self.deleted_bytes = 0
        self.compacted_bytes = 0
        self.error: ProbeError | None = None
        self.page_error: ProbeError | None = None
        self.damaged: bytes | None = None
        self.asked = 0
        self.halved: set[int] = set()
        self.silent: set[int] = set()

    def trim(self, count: int = 1, partition: int = 0) -> None:
        del self.ids[partition][:count]

    def roll(self, partition: int = 0) -> None:
        self.ids[partition].append(max(map(max, self.ids.values())) + 5)

    def ledgers(self, topic: str) -> dict[int, Any]:
        assert topic == TOPIC
        self.asked += 1
        self._clock.advance(0.25)
        if self.error is not None:
            raise self.error
        answers = {at: stats(ids) for at, ids in self.ids.items()}
        for at in self.halved:
            del answers[at]["state"]
        for at in self.silent:
            del answers[at]
        return answers

    def page(self, bookie: str) -> bytes:
        assert bookie == BOOKIE
        if self.page_error is not None:
            raise self.page_error
        return self.damaged or _with(self.deleted_bytes, self.compacted_bytes)


def stats(ids: list[int]) -> dict[str, Any]:
    found: dict[str, Any] = copy.deepcopy(STATS)
    found["ledgers"] = [{"ledgerId": at, "entries": 1000, "size": 2**20} for at in ids]
    found["ledgers"][-1] |= {"entries": 0, "size": 0}
    return found


def _with(deleted: int, compacted: int) -> bytes:
    """Return the recorded page with these counters."""
    lines = []
    for line in PAGE.splitlines():
        head, _, value = line.rpartition(" ")
        if line.startswith("bookie_RECLAIMED_DELETION"):
            value = str(deleted)
        if line.startswith("bookie_RECLAIMED_COMPACTION"):
            value = str(compacted)
        lines.append(f"{head} {value}\n")
    return "".join(lines).encode()


class Watch:
    def __init__(self, partitions: int = 1, **settings: object) -> None:
        self.clock = FakeClock(mono_ns=5 * SECOND_NS)
        self.cluster = FakeCluster(self.clock, partitions)
        config = Config(topics=(TOPIC,), **settings)  # type: ignore[arg-type]  # what a test sets
        self.probe = RetentionPulsar(config, self.clock)

    def poll(self) -> Reading:
        """Poll once, and read a second later."""
        self.probe.poll(self.cluster)
        self.clock.advance(1)
        return self.probe.loop.buffer.take(self.clock.mono_ns())


def values(reading: Reading) -> dict[str, float]:
    return {column.metric: value for column, value in reading.samples}
