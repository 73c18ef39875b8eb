"""A log of findings in memory, as brokers keep it: turns, ownership and compaction without a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from soak.core.errors import FindingsError
from soak.core.ports import Clock
from soak.store.findings.topic_log import LogRecord, NotOwnerError, TurnLostError, Write


@dataclass
class FakeCluster:
    """What all logs share; `turn` and `owner` are the log that has them."""

    clock: Clock
    records: list[LogRecord] = field(default_factory=list)
    turn: object = None
    owner: object = None
    is_reachable: bool = True
    end: int = 0

    def log(self) -> FakeLog:
        return FakeLog(self)

    def put(self, topic: str, key: bytes, value: bytes | None) -> None:
        at_ms = self.clock.wall_ns() // 10**6
        self.records.append(LogRecord(topic, 0, self.end, key, value, at_ms))
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
    before_write: Callable[[], None] = lambda: None
    _next: int = 0
    _is_member: bool = False

    @property
    def has_turn(self) -> bool:
        return self.cluster.turn is self

    def read_new(self) -> list[LogRecord]:
        self._reach()
        found = [one for one in self.cluster.records if one.offset >= self._next]
        self._next = max((one.offset + 1 for one in found), default=self._next)
        return found

    def rewind(self) -> None:
        self._next = 0

    def take_turn(self) -> None:
        self._reach()
        self.cluster.turn = self

    def write(self, records: Sequence[Write]) -> None:
        self._reach()
        self.before_write()
        if self.cluster.turn is not self:
            raise TurnLostError("another writer")
        if self._is_member and self.cluster.owner is not self:
            raise NotOwnerError("another daemon")
        for record in records:
            self.cluster.put(*record)

    def claim(self) -> bool:
        self._reach()
        self._is_member = True
        if self.cluster.owner is None:
            self.cluster.owner = self
        return self.cluster.owner is self

    def close(self) -> None:
        self._is_member = False
        self.rewind()
        for name in ("turn", "owner"):
            if getattr(self.cluster, name) is self:
                setattr(self.cluster, name, None)

    def _reach(self) -> None:
        if not self.cluster.is_reachable:
            raise FindingsError("no Kafka broker answered")
