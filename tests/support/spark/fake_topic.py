"""A samples topic in memory: partitions with offsets, retention, compaction and a topic made anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from soak.core.journal_format import columns_line, encode
from soak.core.model import Column, Record
from soak.store.samples_topic import headers_of
from spark.sources.topic_log import Lost, TopicRecord
from spark.sources.topic_offsets import Ends

START_NS = 1_790_000_000 * 10**9
COLUMNS = (Column("a_seconds", (), "seconds"), Column("b_bytes", (("device", "x"),), "bytes"))


def columns_text_line(columns: Sequence[Column] = COLUMNS) -> bytes:
    return encode(columns_line(columns)).rstrip(b"\n")


def record_line(k: int, epoch: int = 1, columns: Sequence[Column] = COLUMNS) -> bytes:
    name = columns_line(columns).id
    values = tuple(float(k) for _ in columns)
    return encode(Record(k, epoch, k * 10**9, 10**9, name, values)).rstrip(b"\n")


class FakeTopic:
    """`reads` has the ranges that were asked for; a partition in `silent` does not answer."""

    def __init__(self, partitions: int = 1, topic: str = "one") -> None:
        self.name = topic
        self.records: dict[int, list[TopicRecord]] = {at: [] for at in range(partitions)}
        self.oldest = dict.fromkeys(range(partitions), 0)
        self.end = dict.fromkeys(range(partitions), 0)
        self.silent: set[int] = set()
        self.is_away = False
        self.reads: list[tuple[int, int, int]] = []

    def write(
        self,
        value: bytes | None,
        partition: int = 0,
        *,
        key: bytes | None = b"probe@b",
        run: str = "r1",
        headers: Sequence[tuple[str, bytes | None]] | None = None,
    ) -> int:
        """Append a record and return its offset."""
        offset = self.end[partition]
        named = list(headers_of(run, START_NS).items()) if headers is None else headers
        self.records[partition].append(TopicRecord(partition, offset, key, value, named))
        self.end[partition] = offset + 1
        return offset

    def skip(self, count: int, partition: int = 0) -> None:
        """Leave offsets without a record, as a transaction or compaction does."""
        self.end[partition] += count

    def delete_before(self, offset: int, partition: int = 0) -> None:
        self.oldest[partition] = offset
        self.records[partition] = [one for one in self.records[partition] if one.offset >= offset]

    def ends(self) -> Ends | None:
        if self.is_away:
            return None
        return Ends(self.name, {at: end for at, end in self.end.items() if at not in self.silent})

    def begins(self, since_ms: int | None) -> Ends:
        return Ends(self.name, dict(self.oldest if since_ms is None else self.end))

    def read(self, partition: int, begin: int, end: int) -> Iterator[TopicRecord | Lost]:
        self.reads.append((partition, begin, end))
        if begin < self.oldest[partition]:
            lost = min(self.oldest[partition], end)
            yield Lost(partition, begin, lost, "deleted before they were read")
        for record in self.records[partition]:
            if begin <= record.offset < end:
                yield record

    def close(self) -> None:
        pass
