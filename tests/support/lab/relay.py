"""Mirrors one Kafka topic into another and, on the way, does to messages what an audit must notice."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import confluent_kafka

from soak.core import header

SPACING = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How many messages are dropped, sent twice, and sent after the next one of their producer stream."""

    dropped: int
    twice: int
    late: int

    @property
    def needed(self) -> int:
        """Return how many messages must come for all of them to happen."""
        return SPACING * (self.dropped + self.twice + self.late + 2)


def relay(
    bootstrap: str, source: str, target: str, partitions: int, count: int, faults: Faults
) -> int:
    """Mirror `count` messages, one fault every `SPACING`; return how many were written."""
    todo = deque(["drop"] * faults.dropped + ["twice"] * faults.twice + ["late"] * faults.late)
    reader = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "relay"})
    writer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    reader.assign([confluent_kafka.TopicPartition(source, at, 0) for at in range(partitions)])
    held: dict[tuple[int, ...], list[tuple[int, bytes]]] = {}
    written = 0
    for number in range(count):
        message = reader.poll(30)
        assert message is not None
        assert message.error() is None
        partition, value = message.partition(), message.value()
        assert partition is not None
        assert value is not None
        ((row,), _) = header.parse([value])
        stream = int(row["instance"]), int(row["epoch"]), partition
        fault = todo.popleft() if todo and number % SPACING == SPACING - 1 else "none"
        if fault == "late":
            held.setdefault(stream, []).append((partition, value))
        if fault in ("drop", "late"):
            continue
        out = [(partition, value)] * (2 if fault == "twice" else 1) + held.pop(stream, [])
        for where, what in out:
            writer.produce(target, what, partition=where)
        written += len(out)
        writer.poll(0)
    assert not todo
    assert not held
    assert writer.flush(30) == 0
    reader.close()
    return written
