"""The journals of a run as a Spark source: tailed for the detector, or read whole, as by a notebook.

Spark keeps the places in its checkpoint, so a line is read again only in a batch that is repeated.
What cannot be read becomes a row with a `gap`, never an error.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes
from pyspark.sql.types import StructType

from soak.core.clock import SystemClock
from soak.core.errors import RunFolderError
from soak.core.plan.phases import Phases
from soak.core.ports import Clock
from soak.store.journal.reader import SourceReader
from soak.store.run_folder import RunFolder, read_phases
from spark.cluster.executors import fault_of_folder
from spark.sources.offsets import (
    MISSING,
    Caution,
    ColumnsIndex,
    Offset,
    Span,
    columns_at,
    newest,
    size_bytes,
    spans,
    stepped_over,
)
from spark.sources.pacing import Pace
from spark.sources.schema import ARROW_ROWS, ROWS, Row, gap_row, record_row

NAME = "soak_journal"
BATCH_BYTES = 16 * 2**20
"""What one batch takes at most, however fast the host is."""
_ROWS_A_BATCH = 2_000


class JournalSource(DataSource):
    """Options: `run_dir`; `run`, its id; of a stream `interval_ns`, of its batches, and `tasks`.

    Of one on a cluster also `shared`: a `shared_file` of the run folder that each executor has to see.
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return ROWS

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  # Spark's signature
        return JournalReader(_Place.of(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802  # Spark's signature
        return JournalTail(_Place.of(self.options))


@dataclass(frozen=True, slots=True)
class _Place:
    folder: Path
    run: str
    interval_ns: int
    tasks: int
    shared: str

    @classmethod
    def of(cls, options: Any) -> _Place:  # noqa: ANN401  # Spark's own dictionary
        interval_ns, tasks = (int(options.get(*one)) for one in (("interval_ns", 0), ("tasks", 1)))
        shared = options.get("shared", "")
        return cls(Path(options["run_dir"]), options["run"], interval_ns, tasks, shared)

    @property
    def journal(self) -> Path:
        return RunFolder(self.folder).journal


class _Spans(InputPartition):
    def __init__(self, listed: Sequence[Span], ranks: Mapping[str, int] | None = None) -> None:
        super().__init__(None)
        self.spans = tuple(listed)
        self.ranks = dict(ranks or {})


class JournalReader(DataSourceReader):
    """All that is there, a file a partition."""

    def __init__(self, place: _Place) -> None:
        self._place = place

    def partitions(self) -> Sequence[InputPartition]:
        journal = self._place.journal
        listed = spans(journal, {}, newest(journal, {}, None), ColumnsIndex())
        return [_Spans([span]) for span in listed]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches(rows(self._place.folder, self._place.run, _spans_of(partition)))


class JournalTail(DataSourceStreamReader):
    """What was appended since the last batch, in as many partitions as tasks: a worker more costs more.

    Sources are dealt out to them, and to the shards of the detector, by their rank: the order in which they
    were first seen, which is that of the offset. So each has as many as another, and keeps them for good.
    """

    def __init__(self, place: _Place, clock: Clock | None = None) -> None:
        self._place = place
        self._index = ColumnsIndex()
        self._pace = Pace(clock or SystemClock(), place.interval_ns, BATCH_BYTES)

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        return ReadMaxBytes(BATCH_BYTES)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802  # Spark's name
        journal = self._place.journal
        if isinstance(limit, ReadAllAvailable):
            return newest(journal, start, None)
        if isinstance(limit, ReadMaxBytes):
            return self._next(start, limit.max_bytes) if self._pace.is_time() else start
        raise ValueError(f"a journal is limited by bytes, not by {limit}")

    def _next(self, start: Offset, most_bytes: int) -> Offset:
        journal = self._place.journal
        caution = Caution.read(caution_path(self._place.folder))
        if caution.applies(start):
            end = caution.end(journal, start)
            self._pace.plan(size_bytes(journal, start, end), is_limited=True)
            return end
        end = newest(journal, start, min(most_bytes, self._pace.limit_bytes))
        is_limited = end != newest(journal, start, None)
        self._pace.plan(size_bytes(journal, start, end), is_limited=is_limited)
        return end

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        ranks = {source: rank for rank, source in enumerate(end)}
        dealt: dict[int, list[Span]] = {}
        for span in spans(self._place.journal, start, end, self._index):
            dealt.setdefault(ranks[span.source] % self._place.tasks, []).append(span)
        return [_Spans(listed, ranks) for _, listed in sorted(dealt.items())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # an executor that joins later may have another folder there, as a copy of this one
        fault = fault_of_folder(Path(self._place.shared)) if self._place.shared else ""
        if fault:
            host = socket.gethostname()
            raise RunFolderError(f"executors do not share {self._place.folder}: {host}: {fault}")
        ranks = partition.ranks if isinstance(partition, _Spans) else {}
        found = rows(self._place.folder, self._place.run, _spans_of(partition))
        return batches({**row, "shard": ranks[str(row["source"])]} for row in found)


def rows(folder: Path, run: str, listed: Iterable[Span]) -> Iterator[Row]:
    """Give the records in these spans as rows of `ROWS`, and a row with a `gap` for each damage."""
    paths = RunFolder(folder)
    phases = read_phases(paths.phases)
    readers: dict[str, SourceReader] = {}
    given: set[tuple[str, str]] = set()  # source and id: those of another source are others
    passed: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for source, segment, begin, end in Caution.read(caution_path(folder)).passed:
        passed.setdefault((source, segment), []).append((begin, end))
    for whole in listed:
        parts = stepped_over(whole, passed) if (whole.source, whole.segment) in passed else [whole]
        if parts != [whole]:
            path = whole.path(paths.journal)
            reason = f"{path.name} from byte {whole.begin} on: a line that ends the detector is stepped over"
            yield gap_row(run, whole.source, reason)
        for span in parts:
            yield from _rows_of(run, paths, phases, readers, given, span)


def _rows_of(
    run: str,
    paths: RunFolder,
    phases: Phases,
    readers: dict[str, SourceReader],
    given: set[tuple[str, str]],
    span: Span,
) -> Iterator[Row]:
    reader = readers.setdefault(span.source, SourceReader(paths.journal / span.source))
    path = span.path(paths.journal)
    if span.end == MISSING:
        yield gap_row(run, span.source, f"files are missing from {path.name} on")
        return
    if span.end < span.begin:
        yield gap_row(run, span.source, f"{path.name} ends at {span.end}, read to {span.begin}")
        return
    for place in span.columns_at:
        known = columns_at(path, place)
        if known is not None:
            reader.columns[known[0]] = known[1]
    for record, columns in reader.read(path, span.begin, span.end):
        named = span.source, record.columns_id
        is_new = named not in given
        given.add(named)
        yield record_row(run, span.source, record, columns if is_new else None, phases.at(record.k))
    for damage in reader.damage:
        reason = f"{damage.path.name} at byte {damage.offset}: {damage.reason}"
        yield gap_row(run, span.source, reason)
    reader.damage.clear()


def caution_path(folder: Path) -> Path:
    """Return the file that says how to read on after a batch that killed its processes."""
    return RunFolder(folder).spark / "caution.json"


def batches(found: Iterator[Row]) -> Iterator[pa.RecordBatch]:
    """Give rows as Arrow batches of bounded size."""
    while part := list(islice(found, _ROWS_A_BATCH)):
        yield pa.RecordBatch.from_pylist(part, schema=ARROW_ROWS)


def _spans_of(partition: InputPartition) -> tuple[Span, ...]:
    # Spark asks for at least one partition and makes an empty one when there is none
    return partition.spans if isinstance(partition, _Spans) else ()
