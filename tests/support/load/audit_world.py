"""A small world of producers, a log and subscriptions, whose every message is known by name.

It writes records as the daemons do, and counts from the definitions, message by message, what an audit
of these records must find: the slow twin of `soak.core.audit`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

from soak.core.audit import EXPIRED_EVENT, FINAL_POSITION_EVENT, SEND_FAILED_EVENT
from soak.core.model import Column, Event, Record, Span
from tests.support.load.stream_spans import spans

Message = tuple[str, int]
"""Producer stream and sequence number."""


@dataclass
class Producer:
    """Writes each partition in a producer stream of its own; what a second held is lost with a kill."""

    instance: int
    epoch: int = 1
    following: dict[str, int] = field(default_factory=dict)
    acks: list[tuple[Message, int]] = field(default_factory=list)
    failed: list[Message] = field(default_factory=list)
    ended: set[tuple[int, int]] = field(default_factory=set)


@dataclass
class Reader:
    """One subscription's consumer of one partition; it goes on from its journal after a kill."""

    subscription: int
    partition: int
    position: int = 0
    seen: set[Message] = field(default_factory=set)
    batch: list[tuple[Message, int]] = field(default_factory=list)
    duplicated: int = 0
    holes: list[tuple[int, int]] = field(default_factory=list)
    recorded: tuple[int, frozenset[Message]] = (0, frozenset())


class World:
    """Actions change it; `records` is what the journals hold, in order of time."""

    def __init__(self, producers: int, subscriptions: int, partitions: int) -> None:
        self.producers = [Producer(number + 1) for number in range(producers)]
        self.readers = [
            Reader(subscription, partition)
            for subscription in range(subscriptions)
            for partition in range(partitions)
        ]
        self.logs: list[dict[int, Message]] = [{} for _ in range(partitions)]
        self.ends = [0] * partitions
        self.starts = [0] * partitions
        self.records: list[tuple[Record, tuple[Column, ...], int]] = []
        self.writers: list[str] = []  # of the records, in their order
        self.acked: dict[Message, int] = {}  # all of these as recorded
        self.failed: set[Message] = set()
        self.sent: dict[str, int] = {}
        self.received: dict[int, set[Message]] = defaultdict(set)
        self.highest: Counter[tuple[int, int]] = Counter()
        self.gone: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        self.final: dict[tuple[int, int], tuple[int, int, int]] = {}  # position, log end, record
        self.written: dict[tuple[int, int], int] = {}  # the newest record by partition and offset
        self.duplicated = 0

    def send(self, number: int, partition: int, fates: list[str]) -> None:
        """Send one message a fate; the log takes them in order."""
        producer = self.producers[number]
        stream = f"{producer.instance}.{producer.epoch}.{partition}"
        for fate in fates:
            sequence = producer.following.get(stream, 0)
            producer.following[stream] = sequence + 1
            message = stream, sequence
            offset = self.ends[partition]
            if fate != "refused":
                self.ends[partition] += 1
            if fate not in ("refused", "vanished"):
                self.logs[partition][offset] = message
            if fate == "twice":
                self.logs[partition][offset + 1] = message
                self.ends[partition] += 1
            if fate in ("refused", "unanswered"):
                producer.failed.append(message)
            else:
                producer.acks.append((message, offset))

    def truncate(self, partition: int, count: int) -> None:
        """Let the broker forget the end of its log; its offsets are given out again."""
        end = max(self.starts[partition], self.ends[partition] - count)
        for offset in range(end, self.ends[partition]):
            self.logs[partition].pop(offset, None)
        self.ends[partition] = end
        for reader in self.readers:
            if reader.partition == partition:
                reader.position = min(reader.position, end)

    def expire(self, partition: int, count: int) -> None:
        start = min(self.ends[partition], self.starts[partition] + count)
        for offset in range(self.starts[partition], start):
            self.logs[partition].pop(offset, None)
        self.starts[partition] = start

    def read(self, number: int, count: int) -> None:
        reader = self.readers[number]
        self._jump(reader)
        log, end = self.logs[reader.partition], self.ends[reader.partition]
        for offset in range(reader.position, min(end, reader.position + count)):
            if offset in log and log[offset] in reader.seen:
                reader.duplicated += 1
            elif offset in log:
                reader.seen.add(log[offset])
                reader.batch.append((log[offset], offset))
            reader.position = offset + 1

    def _jump(self, reader: Reader) -> None:
        start = self.starts[reader.partition]
        if reader.position < start:
            reader.holes.append((reader.position, start))
            reader.position = start

    def record(self) -> None:
        """Let every daemon write its second."""
        for producer in self.producers:
            self._record_producer(producer)
        for reader in self.readers:
            self._record_reader(reader, [])

    def kill_producer(self, number: int) -> None:
        """Kill between two records, and start again in a new epoch."""
        producer = self.producers[number]
        producer.epoch += 1
        producer.following, producer.acks, producer.failed = {}, [], []

    def kill_reader(self, number: int) -> None:
        reader = self.readers[number]
        reader.position, seen = reader.recorded
        reader.seen, reader.batch, reader.holes, reader.duplicated = set(seen), [], [], 0

    def end(self, number: int) -> None:
        """Close a producer on purpose, and start it again."""
        producer = self.producers[number]
        self._record_producer(producer)
        producer.ended.add((producer.instance, producer.epoch))
        self.kill_producer(number)

    def finish(self, number: int) -> None:
        """Let a consumer write its last word; it may go on all the same."""
        reader = self.readers[number]
        self._jump(reader)
        fields = {"position": reader.position, "log_end": self.ends[reader.partition]}
        self.final[reader.subscription, reader.partition] = (
            reader.position,
            self.ends[reader.partition],
            len(self.records),
        )
        self._record_reader(reader, [self._event(FINAL_POSITION_EVENT, reader, fields)])

    def truth(self) -> dict[str, int]:
        """Count every message by the definitions."""
        counts = Counter[str](acked=len(self.acked), duplicated=self.duplicated)
        for subscription in {reader.subscription for reader in self.readers}:
            got = self.received[subscription]
            counts["received"] += len(got)
            for message, offset in self.acked.items():
                if message not in got:
                    counts[self._fate(subscription, message, offset)] += 1
        everywhere = set[Message]().union(*self.received.values())
        ended = {pair for producer in self.producers for pair in producer.ended}
        for stream, sequence in everywhere | {
            (stream, at) for stream, following in self.sent.items() for at in range(following)
        }:
            instance, epoch, _ = (int(part) for part in stream.split("."))
            message = stream, sequence
            is_given_up = message in self.failed or (instance, epoch) in ended
            if message in self.acked:
                continue
            if is_given_up:
                counts["received_unacked"] += message in everywhere
            else:
                counts["unknown"] += 1
        return dict(counts)

    def _fate(self, subscription: int, message: Message, offset: int) -> str:
        place = subscription, int(message[0].rpartition(".")[2])
        if any(begin <= offset < end for begin, end in self.gone[place]):
            return "expired"
        above = self.highest[place]
        position, end, looked = self.final.get(place, (-1, 0, 0))
        if position < above:
            return "unknown" if offset >= above else "lost"
        is_late = offset >= end and self.written[place[1], offset] > looked
        return "unknown" if is_late or position <= offset < end else "lost"

    def _record_producer(self, producer: Producer) -> None:
        acknowledged = _by_stream(producer.acks)
        events = tuple(
            Event(SEND_FAILED_EVENT, 0, 0, {"lane": stream, "first": at, "last": at})
            for stream, at in producer.failed
        )
        self.acked.update(producer.acks)
        for (stream, _), offset in producer.acks:
            self.written[int(stream.rpartition(".")[2]), offset] = len(self.records)
        self.failed.update(producer.failed)
        self.sent.update(producer.following)
        following = dict(producer.following)
        self.writers.append(f"produce.{producer.instance}@h")
        self._append(acknowledged=acknowledged, sent_next=following, events=events)
        producer.acks, producer.failed = [], []

    def _record_reader(self, reader: Reader, events: list[Event]) -> None:
        place = reader.subscription, reader.partition
        for begin, end in reader.holes:
            fields = {"from_offset": begin, "to_offset": end}
            events.insert(0, self._event(EXPIRED_EVENT, reader, fields))
            self.gone[place].append((begin, end))
        for message, offset in reader.batch:
            self.received[reader.subscription].add(message)
            self.highest[place] = max(self.highest[place], offset + 1)
        self.duplicated += reader.duplicated
        self.writers.append(f"consume.{self.readers.index(reader)}@h")
        self._append(
            reader.subscription,
            {"duplicated_messages": reader.duplicated},
            received=_by_stream(reader.batch),
            events=tuple(events),
        )
        reader.recorded = reader.position, frozenset(reader.seen)
        reader.batch, reader.holes, reader.duplicated = [], [], 0

    def _event(self, kind: str, reader: Reader, fields: dict[str, int]) -> Event:
        return Event(kind, len(self.records) + 1, 0, {"partition": reader.partition, **fields})

    def _append(
        self, subscription: int = 0, counts: dict[str, int] | None = None, **kept: object
    ) -> None:
        columns = tuple(Column(name) for name in counts or {})
        values = tuple(float(value) for value in (counts or {}).values())
        k = len(self.records)
        record = Record(k, 1, k + 1, 0, "", values, **kept)  # type: ignore[arg-type]  # its fields
        self.records.append((record, columns, subscription))


def _by_stream(messages: list[tuple[Message, int]]) -> dict[str, tuple[Span, ...]]:
    streams: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for (stream, sequence), offset in messages:
        streams[stream].append((sequence, offset))
    return {
        stream: spans(*np.array(pairs, dtype=np.int64).reshape(-1, 2).T)
        for stream, pairs in streams.items()
    }
