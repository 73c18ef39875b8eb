"""The samples topic as a Spark source: the records of all runs that `soak ship` sends, as rows of one schema.

A batch is a range of offsets of each partition, and each is a task. What cannot be read becomes a row with a
`gap` and its place, and may be kept in the topic of dead letters; the query goes on. Rows come late, repeated
and out of order, as the topic has them: (source, epoch, k) identifies one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from soak.clients.client_settings import LIBRDKAFKA_SECRETS, refuse_literal_secrets
from soak.core import json_text
from soak.core.clock import SystemClock
from soak.core.errors import BrokerError, SoakError
from soak.core.plan.plan import Ship
from soak.core.ports import Clock
from soak.service.files import write_atomically
from soak.store.admission import signer_of
from soak.store.samples_topic import SamplesClients
from spark.sources.journals import batches
from spark.sources.schema import ROWS
from spark.sources.topic_log import KafkaTopicLog, TopicLog
from spark.sources.topic_offsets import (
    Ends,
    Offset,
    Range,
    capped,
    first_offset,
    lag,
    newest,
    ranges,
)
from spark.sources.topic_rows import DeadLetters, KafkaDeadLetters, KnownColumns, TopicRows

NAME = "soak_samples"
BATCH_RECORDS = 20_000
"""What one batch takes of a backlog at most, however fast the host is."""
FIRST_RECORDS = 5000  # before anything is known of the host
LEAST_RECORDS = 500
_ON_TIME = 1.2  # intervals; a batch that takes longer holds up the next
_GROWTH, _MOST_SHRINKAGE = 1.5, 0.25  # of one batch to the next


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions:
    """Settings of a reader of the topic; secrets stay references, which each process resolves itself."""

    ship: Ship
    since_ms: int | None = None  # begin with records of this time; None: with the oldest
    first_offset: Path | None = None  # file in which a stream keeps where it began
    batch_records: int = BATCH_RECORDS
    interval_ns: int = (
        0  # of the trigger: a backlog is taken in batches that fit into it; 0: of one size
    )
    has_announcements: bool = False  # also give a row for each announcement of a run
    keeps_dead_letters: bool = False  # in the topic of this name and ".dead"

    def to_options(self) -> dict[str, str]:
        """Return the options for `spark.read` and `spark.readStream`.

        Raises:
            SettingError: a client setting holds a secret itself.
        """
        ship = self.ship
        refuse_literal_secrets("client", ship.client, LIBRDKAFKA_SECRETS)
        refuse_literal_secrets("ship", {"key": ship.key}, ("key",))
        return {
            "bootstrap_servers": ship.bootstrap_servers,
            "topic": ship.topic,
            "client": json.dumps(ship.client),
            "timeout_ns": str(ship.timeout),
            "key": ship.key,  # a reference
            "since_ms": "" if self.since_ms is None else str(self.since_ms),
            "first_offset": "" if self.first_offset is None else str(self.first_offset),
            "batch_records": str(self.batch_records),
            "interval_ns": str(self.interval_ns),
            "announcements": str(self.has_announcements).lower(),
            "dead_letters": str(self.keeps_dead_letters).lower(),
        }

    @classmethod
    def of(cls, options: Mapping[str, str]) -> TopicOptions:
        """Return what `to_options` gave; all but the servers may be missing.

        Raises:
            SettingError: a client setting holds a secret itself.
        """
        client = json_text.loads(options.get("client", "{}"))
        refuse_literal_secrets("client", client, LIBRDKAFKA_SECRETS)
        known = Ship(bootstrap_servers=options["bootstrap_servers"])
        ship = replace(
            known,
            topic=options.get("topic", known.topic),
            client=client,
            timeout=int(options.get("timeout_ns", known.timeout)),
            key=options.get("key", ""),
        )
        since, first = options.get("since_ms", ""), options.get("first_offset", "")
        return cls(
            ship=ship,
            since_ms=int(since) if since else None,
            first_offset=Path(first) if first else None,
            batch_records=int(options.get("batch_records", BATCH_RECORDS)),
            interval_ns=int(options.get("interval_ns", 0)),
            has_announcements=options.get("announcements", "false") == "true",
            keeps_dead_letters=options.get("dead_letters", "false") == "true",
        )


class SamplesSource(DataSource):
    """Options: those of `TopicOptions.to_options`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return ROWS

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  # Spark's signature
        return TopicReader(TopicOptions.of(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802  # Spark's signature
        return TopicTail(TopicOptions.of(self.options))


class _Part(InputPartition):
    def __init__(self, span: Range, topic: str) -> None:
        super().__init__(None)
        self.span = span
        self.topic = topic  # its id


class TopicReader(DataSourceReader):
    """All that is there, a partition a task."""

    def __init__(self, options: TopicOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        log = _log_of(self._options)
        start = first_offset(log.begins(self._options.since_ms))
        now = _ends_of(log, self._options)
        log.close()
        return _parts(start, newest(start, now, None))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


@dataclass(slots=True)
class BatchSize:
    """How many records a batch takes of a backlog, learnt from how long the last ones took.

    Spark asks for the next batch when the last one is done, but not before the next trigger. So a batch that
    was asked for on time may have taken any part of the interval, and the next one is a little larger.
    """

    interval_ns: int
    most: int
    records: int = FIRST_RECORDS
    _planned: int = 0  # of the batch in hand; 0: none
    _planned_ns: int = 0
    _is_limited: bool = False
    _is_first: bool = True  # it starts the workers, and says nothing

    def limit(self, now_ns: int) -> int:
        """Return the size of the next batch; call it when the last one is done."""
        if not self.interval_ns:
            return self.most
        if self._planned and not self._is_first:
            self._learn((now_ns - self._planned_ns) / self.interval_ns)
        self._is_first &= not self._planned
        self._planned = 0
        return min(self.records, self.most)

    def plan(self, records: int, now_ns: int, *, is_limited: bool) -> None:
        """Note the batch that follows; `is_limited`: there was more to take."""
        self._planned, self._planned_ns, self._is_limited = records, now_ns, is_limited

    def _learn(self, intervals: float) -> None:
        if intervals > _ON_TIME:
            factor = max(_MOST_SHRINKAGE, 1 / intervals)
            taken = min(self.records, self._planned)
            self.records = max(LEAST_RECORDS, int(taken * factor))
        elif self._is_limited:
            self.records = min(self.most, int(self.records * _GROWTH))


class TopicTail(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What was written since the last batch, a partition a task."""

    def __init__(
        self, options: TopicOptions, log: TopicLog | None = None, clock: Clock | None = None
    ) -> None:
        """`log` is for a process that plans; a task makes its own."""
        self._options = options
        self._log = log
        self._clock = clock or SystemClock()
        self._size = BatchSize(options.interval_ns, options.batch_records)
        self._target: Ends | None = None

    def initialOffset(self) -> Offset:  # type: ignore[override]  # noqa: N802  # Spark's name
        """Return where the first batch begins: Spark asks again until that batch is committed.

        By then a time may lead to a later place, behind the end that the batch was planned with.
        """
        kept = self._options.first_offset
        if kept is not None and kept.exists():
            known: Offset = json_text.loads(kept.read_text())
            return known
        first = first_offset(self._planning_log().begins(self._options.since_ms))
        if kept is not None:
            write_atomically(kept, json.dumps(first) + "\n")
        return first

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        return ReadMaxRows(self._options.batch_records)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        self._target = _ends_of(self._planning_log(), self._options)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # type: ignore[override]  # noqa: N802  # Spark's name
        if not isinstance(limit, ReadMaxRows | ReadAllAvailable):
            raise ValueError(f"a topic is limited by records, not by {limit}")  # noqa: TRY004  # a setting
        now = self._planning_log().ends()
        if now is not None and self._target is not None:
            now = capped(now, self._target)
        if now is None:  # no broker answers: there is nothing new for now
            return start
        if isinstance(limit, ReadAllAvailable):
            return newest(start, now, None)
        wanted = self._size.limit(self._clock.mono_ns())
        found = newest(start, now, min(wanted, limit.max_rows))
        left = lag(found, now)
        taken = lag(start, now) - left
        self._size.plan(taken, self._clock.mono_ns(), is_limited=left > 0)
        return found

    def reportLatestOffset(self) -> None:  # noqa: N802  # Spark's name
        """Another question to the cluster in each batch: the progress of the job says how far it is."""

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:  # type: ignore[override]
        return _parts(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)

    def stop(self) -> None:
        if self._log is not None:
            self._log.close()

    def _planning_log(self) -> TopicLog:
        if self._log is None:
            self._log = _log_of(self._options)
        return self._log


def _ends_of(log: TopicLog, options: TopicOptions) -> Ends:
    found = log.ends()
    if found is None:
        raise BrokerError(f"cannot read {options.ship.topic}: no broker answers, or it is missing")
    return found


def _parts(start: Offset, end: Offset) -> list[InputPartition]:
    return [_Part(one, end["topic"]) for one in ranges(start, end)]


def _read(options: TopicOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, _Part):  # Spark makes an empty one when there is none
        return
    log, letters = _log_of(options), _letters_of(options)
    ship = options.ship
    columns = known_columns(ship.bootstrap_servers, ship.topic, partition.topic)
    rows = TopicRows(
        ship.topic,
        log,
        columns,
        letters,
        is_announcing=options.has_announcements,
        signer=signer_of(ship),
    )
    try:
        yield from batches(rows.of(partition.span))
    finally:
        log.close()


def fault_of_reading(ship: Ship) -> str:
    """Return why this process cannot read the topic of a plan, or its secrets; "" if it can."""
    clock = SystemClock()
    log = KafkaTopicLog(ship, clock)
    try:
        signer_of(ship)
        SamplesClients(ship, "soakd-fleet", clock).check_connection()  # says why there is none
        log.describe()
    except SoakError as error:
        return str(error)
    finally:
        log.close()
    return ""


def _log_of(options: TopicOptions) -> KafkaTopicLog:
    return KafkaTopicLog(options.ship, SystemClock())


def _letters_of(options: TopicOptions) -> DeadLetters | None:
    return KafkaDeadLetters(options.ship, SystemClock()) if options.keeps_dead_letters else None


@lru_cache(maxsize=4)
def known_columns(servers: str, topic: str, topic_id: str) -> KnownColumns:  # noqa: ARG001  # the key
    """Return what this process knows of the columns on a topic; Spark uses a worker for many tasks."""
    return KnownColumns()
