"""A log of findings in memory, as brokers keep it: turns, ownership and compaction without a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from soak.core.errors import FindingsError
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.store.findings.topic_log import LogRecord, NotOwnerError, TurnLostError, Write

KEEP_NS = 90 * 24 * 3600 * SECOND_NS


@dataclass
class FakeCluster:
    """What all logs share; `turn` and `owner` are the log that has them."""

    clock: Clock
    records: list[LogRecord] = field(default_factory=list)
    turn: object = None
    owner: object = None
    is_reachable: bool = True
    end: int = 0
    hidden_from: dict[str, int] = field(default_factory=dict)
    """By topic, where a transaction of another run begins that has not ended."""

    def log(self, keep_ns: int = KEEP_NS) -> FakeLog:
        return FakeLog(self, keep_ns)

    def put(self, topic: str, key: bytes, value: bytes | None, keep_ns: int = KEEP_NS) -> None:
        expires_ms = (self.clock.wall_ns() + keep_ns) // 10**6
        self.records.append(LogRecord(topic, 0, self.end, key, value, expires_ms))
        self.end += 1

    def compact(self) -> None:
        """Keep the last record of each key, and no deletions."""
        last = {(one.topic, one.key): one for one in self.records}
        self.records = [one for one in last.values() if one.value is not None]

    def values(self) -> dict[tuple[str, bytes], bytes]:
        """Return what each key has."""
        last = {(one.topic, one.key): one.value for one in self.records}
        return {key: value for key, value in last.items() if value is not None}


@dataclass(eq=False)
class FakeLog:
    """One process's access; `before_write` is called when a transaction is about to commit."""

    cluster: FakeCluster
    keep_ns: int = KEEP_NS
    before_write: Callable[[], None] = lambda: None
    _next: dict[str, int] = field(default_factory=dict)  # offset, by topic
    _is_member: bool = False

    @property
    def has_turn(self) -> bool:
        return self.cluster.turn is self

    def read_new(self, *, to_end: bool = False) -> Iterable[LogRecord]:
        self._reach()
        if to_end:
            self.cluster.hidden_from.clear()  # its end was awaited
        for one in sorted(self.cluster.records, key=lambda one: one.offset):
            hidden_from = self.cluster.hidden_from.get(one.topic, self.cluster.end)
            if self._next.get(one.topic, 0) <= one.offset < hidden_from:
                self._next[one.topic] = one.offset + 1
                yield one

    def rewind(self) -> None:
        self._next.clear()

    def take_turn(self) -> None:
        self._reach()
        self.cluster.turn = self

    def end_turn(self) -> None:
        if self.has_turn:
            self.cluster.turn = None

    def write(self, records: Sequence[Write]) -> None:
        self._reach()
        self.before_write()
        if self.cluster.turn is not self:
            raise TurnLostError("another writer")
        if self._is_member and self.cluster.owner is not self:
            raise NotOwnerError("another daemon")
        for record in records:
            self.cluster.put(*record, self.keep_ns)

    def claim(self) -> bool:
        self._reach()
        self._is_member = True
        if self.cluster.owner is None:
            self.cluster.owner = self
        return self.cluster.owner is self

    def close(self) -> None:
        self._is_member = False
        self.rewind()
        self.end_turn()
        if self.cluster.owner is self:
            self.cluster.owner = None

    def _reach(self) -> None:
        if not self.cluster.is_reachable:
            raise FindingsError("no Kafka broker answered")
