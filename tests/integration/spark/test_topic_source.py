"""The topic source on a real Kafka inside a real Spark: what is shipped is what is read, once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame, SparkSession

from soak.core.clock import SystemClock
from soak.core.model import Record
from soak.core.plan.plan import Ship
from soak.core.units import SECOND_NS
from soak.lab.ports import Running
from soak.shipping.sender import Shipper
from soak.store.run_folder import RunFolder
from soak.store.samples_topic import SamplesWriter, headers_of
from spark.sources import journals
from spark.sources.samples_topic import NAME, SamplesSource, TopicOptions
from spark.sources.topic_log import KafkaTopicLog, Lost, TopicRecord
from spark.sources.topic_offsets import Ends
from tests.support.spark.fake_topic import START_NS, columns_text_line, record_line
from tests.support.spark.synthetic_run import START_WALL_NS, Shape, write_synthetic_run

pytestmark = [pytest.mark.broker, pytest.mark.spark]

PATIENCE_SECONDS = 60
HEADERS: list[tuple[str, str | bytes | None]] = list(headers_of("r1", START_NS).items())


class Topic:
    """A topic of one test."""

    def __init__(self, broker: Running, name: str, partitions: int = 2, **settings: str) -> None:
        self.servers = broker.bootstrap_servers
        self.ship = Ship(bootstrap_servers=self.servers, topic=name, timeout=5 * SECOND_NS)
        self.admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        self._settings = {key.replace("_", "."): value for key, value in settings.items()}
        self.create(partitions)

    def create(self, partitions: int = 2) -> None:
        new = NewTopic(
            self.ship.topic,
            num_partitions=partitions,
            replication_factor=1,
            config={"max.message.bytes": str(16 * 2**20), **self._settings},
        )
        self.admin.create_topics([new])[self.ship.topic].result(PATIENCE_SECONDS)
        self._wait(lambda now: now is not None and len(now.ends) == partitions)

    def delete(self) -> None:
        self.admin.delete_topics([self.ship.topic])[self.ship.topic].result(PATIENCE_SECONDS)
        self._wait(lambda now: now is None)

    def _wait(self, is_so: Callable[[Ends | None], bool]) -> None:
        """Wait until every broker says so: it hears of topics a little later."""
        clock, log = SystemClock(), self.log()
        deadline_ns = clock.mono_ns() + PATIENCE_SECONDS * SECOND_NS
        while not is_so(log.ends()):
            assert clock.mono_ns() < deadline_ns
            clock.sleep_until(clock.mono_ns() + SECOND_NS // 20)

    def delete_before(self, offset: int, partition: int = 0) -> None:
        place = TopicPartition(self.ship.topic, partition, offset)
        self.admin.delete_records([place])[place].result(PATIENCE_SECONDS)

    def write(
        self,
        values: Sequence[bytes],
        partition: int = 0,
        key: str | None = "probe@b",
        headers: list[tuple[str, str | bytes | None]] | None = None,
    ) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "message.max.bytes": 16 * 2**20})
        for value in values:
            producer.produce(
                self.ship.topic, value, key, partition=partition, headers=headers or HEADERS
            )
        assert producer.flush(PATIENCE_SECONDS) == 0  # and each write follows the one before

    def log(self) -> KafkaTopicLog:
        return KafkaTopicLog(self.ship, SystemClock())


@pytest.fixture
def topic(lab_kafka: Running, request: pytest.FixtureRequest) -> Topic:
    return Topic(lab_kafka, request.node.name)


class Query:
    """Runs a streaming query on the topic, as often as a test asks, on one checkpoint."""

    def __init__(self, session: SparkSession, topic: Topic, checkpoint: Path, **more: Any) -> None:
        self._session = session
        self._options = TopicOptions(ship=topic.ship, **more).to_options()
        self._checkpoint = checkpoint
        self.rows: list[dict[str, Any]] = []
        self.batches = 0
        session.dataSource.register(SamplesSource)

    def once(self, fails: Callable[[int], bool] = lambda _: False) -> list[dict[str, Any]]:
        """Read what is there now; return the rows of it."""
        before = len(self.rows)
        stream = self._session.readStream.format(NAME).options(**self._options).load()

        def on_batch(frame: DataFrame, batch: int) -> None:
            found = [row.asDict() for row in frame.collect()]
            if fails(batch):
                raise RuntimeError("killed")
            self.rows += found
            self.batches += 1

        query = (
            stream.writeStream.option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .foreachBatch(on_batch)
            .start()
        )
        query.awaitTermination()
        return self.rows[before:]


def seen(rows: Sequence[dict[str, Any]]) -> list[int]:
    return sorted(row["k"] for row in rows if row["gap"] is None)


def gaps(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [row["gap"] for row in rows if row["gap"] is not None]


def comparable(rows: Sequence[Any]) -> list[str]:
    """Return rows without what depends on the way: phases, and which row carries the columns."""
    dropped = {"columns", "phase"}
    return sorted(
        json.dumps({key: one for key, one in row.asDict().items() if key not in dropped})
        for row in rows
    )


def test_what_is_shipped_reads_as_the_journals_do(
    spark_session: SparkSession, lab_kafka: Running, tmp_path: Path
) -> None:
    """The same rows, by a stream in small batches and by a reader of all."""
    folder = write_synthetic_run(tmp_path / "r", Shape(seconds=97))
    topic = Topic(lab_kafka, "shipped", 8)
    ship_all(folder, topic)
    spark_session.dataSource.register(journals.JournalSource)
    spark_session.dataSource.register(SamplesSource)
    options = {"run_dir": str(folder.path), "run": "synthetic-1"}
    wanted = spark_session.read.format(journals.NAME).options(**options).load().collect()

    whole = (
        spark_session.read.format(NAME)
        .options(**TopicOptions(ship=topic.ship).to_options())
        .load()
        .collect()
    )
    query = Query(spark_session, topic, tmp_path / "checkpoint", batch_records=150)
    streamed = query.once()

    assert comparable(whole) == comparable(wanted)
    assert [json.dumps(row) for row in streamed if row["gap"]] == []
    assert len(streamed) == len(wanted) == 3 * 97
    assert {(row["source"], row["k"]): row["values"] for row in streamed}.keys() == {
        (row["source"], row["k"]) for row in wanted
    }
    assert query.batches >= 2
    assert all(
        row["columns"] is not None
        for row in [next(one for one in streamed if one["source"] == "probe@host")]
    )


def ship_all(folder: RunFolder, topic: Topic) -> None:
    writer = SamplesWriter(topic.ship, "synthetic-1", START_WALL_NS, SystemClock())
    shipper = Shipper(folder, writer, SystemClock(), "host")
    while shipper.waiting_bytes():
        shipper.send_batch()
    writer.close()


def test_a_query_that_begins_again_loses_and_doubles_nothing(
    spark_session: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    """Killed in a batch, it reads that batch again, with columns of long before."""
    topic.write([columns_text_line(), *(record_line(k) for k in range(60))])
    query = Query(spark_session, topic, tmp_path / "checkpoint", batch_records=17)
    with pytest.raises(Exception, match="killed"):
        query.once(lambda batch: batch == 2)
    before = seen(query.rows)
    topic.write([record_line(k) for k in range(60, 83)])
    rows = query.once()

    assert before == list(range(33))
    assert seen(rows) == list(range(33, 83))
    assert gaps(query.rows) == []


def test_a_first_batch_that_is_read_again_begins_where_it_did(
    spark_session: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    """Killed in it; `since` is a time of each start, by then a later one."""
    topic.write([columns_text_line(), *(record_line(k) for k in range(40))])
    checkpoint = tmp_path / "checkpoint"
    first = {"first_offset": checkpoint / "first.json", "batch_records": 17}
    with pytest.raises(Exception, match="killed"):
        Query(spark_session, topic, checkpoint, since_ms=0, **first).once(lambda _: True)
    now_ms = SystemClock().wall_ns() // 10**6

    rows = Query(spark_session, topic, checkpoint, since_ms=now_ms + 60_000, **first).once()

    assert seen(rows) == list(range(40))
    assert gaps(rows) == []


def test_poisoned_records_are_gaps_and_dead_letters(
    spark_session: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    """Each with its place; those around them are read."""
    topic.write([columns_text_line(), record_line(0)])
    topic.write([b"not json"])
    topic.write([record_line(1)], key=None)
    topic.write([record_line(2)], headers=[("x", b"y")])
    topic.write([record_line(3)])
    rows = Query(spark_session, topic, tmp_path / "c", keeps_dead_letters=True).once()
    name = topic.ship.topic
    dead = KafkaTopicLog(Ship(bootstrap_servers=topic.servers, topic=f"{name}.dead"), SystemClock())
    letters = list(everything(dead))

    assert seen(rows) == [0, 3]
    assert [gap.partition(": ")[0] for gap in sorted(gaps(rows))] == [
        f"topic {name}, partition 0, offset {offset}" for offset in (2, 3, 4)
    ]
    assert sorted(one.key or b"" for one in letters) == [
        f"{name}/0/{offset}".encode() for offset in (2, 3, 4)
    ]
    assert {one.value for one in letters} == {b"not json", record_line(1), record_line(2)}
    assert all(dict(one.headers)["reason"] for one in letters)


def everything(log: KafkaTopicLog) -> Iterator[TopicRecord]:
    ends = log.ends()
    assert ends is not None
    for partition, end in ends.ends.items():
        for found in log.read(partition, 0, end):
            assert isinstance(found, TopicRecord)
            yield found


def test_a_truncated_topic_is_read_on(
    spark_session: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    """What retention deleted is reported with its place."""
    topic.write([columns_text_line(), *(record_line(k) for k in range(9))])
    query = Query(spark_session, topic, tmp_path / "c")
    query.once()
    topic.write([record_line(k) for k in range(9, 19)])
    topic.write([columns_text_line(), record_line(19)])
    topic.delete_before(15)
    rows = query.once()

    assert seen(rows) == list(range(14, 20))
    assert gaps(rows) == [
        f"topic {topic.ship.topic}, partition 0, offset 10 to 14: deleted before they were read"
    ]


def test_a_topic_made_anew_is_read_from_its_beginning(
    spark_session: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.write([columns_text_line(), *(record_line(k) for k in range(3))])
    query = Query(spark_session, topic, tmp_path / "c")
    query.once()
    topic.delete()
    topic.create()
    topic.write([columns_text_line(), *(record_line(k) for k in range(100, 123))])
    rows = query.once()

    assert seen(rows) == list(range(100, 123))
    assert len(gaps(rows)) == 1
    assert "created again; offsets read of the old one were 0: 4, 1: 0" in gaps(rows)[0]


def test_an_added_partition_is_read(
    spark_session: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    from confluent_kafka.cimpl import NewPartitions  # noqa: PLC0415  # for one test

    query = Query(spark_session, topic, tmp_path / "c")
    topic.write([columns_text_line(), record_line(1)])
    query.once()
    name = topic.ship.topic
    topic.admin.create_partitions([NewPartitions(name, 3)])[name].result(PATIENCE_SECONDS)
    topic.write([columns_text_line(), record_line(2)], partition=2)
    rows = query.once()

    assert seen(rows) == [2]
    assert gaps(rows) == [f"topic {name}: partition 2 is new"]


def test_offsets_without_a_record_end_a_range(topic: Topic) -> None:
    """Markers of transactions, also the last one of the log; what was aborted is read as well."""
    producer = Producer({"bootstrap.servers": topic.servers, "transactional.id": topic.ship.topic})
    producer.init_transactions(PATIENCE_SECONDS)
    for ending in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(topic.ship.topic, b"x", "probe@b", partition=0)
        assert producer.flush(PATIENCE_SECONDS) == 0
        ending(PATIENCE_SECONDS)
    producer.begin_transaction()  # one that stays open blocks no reader
    producer.produce(topic.ship.topic, b"x", "probe@b", partition=0)
    producer.flush(PATIENCE_SECONDS)
    ends = topic.log().ends()
    assert ends is not None

    found = [list(topic.log().read(0, 0, end)) for end in (2, 4, 5)]
    behind = list(topic.log().read(0, 1, 2))

    assert ends.ends[0] == 5
    assert [[one[1] for one in part] for part in found] == [[0], [0, 2], [0, 2, 4]]
    assert behind == []


def test_a_record_of_five_megabytes_is_read(
    spark_session: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    from soak.core.journal_format import columns_line, encode  # noqa: PLC0415  # for one test
    from tests.support.spark.fake_topic import COLUMNS  # noqa: PLC0415  # as above

    large = encode(
        Record(
            1,
            1,
            10**9,
            10**9,
            columns_line(COLUMNS).id,
            (1.0, 2.0),
            histograms={f"x{at}": "A" * 2**18 for at in range(20)},
        )
    )
    topic.write([columns_text_line(), large, record_line(2)])

    assert seen(Query(spark_session, topic, tmp_path / "c").once()) == [1, 2]


def test_the_first_batch_begins_at_a_time(
    spark_session: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    """With columns of before it."""
    topic.write([columns_text_line(), record_line(1)])
    clock = SystemClock()
    clock.sleep_until(clock.mono_ns() + SECOND_NS // 10)
    now_ms = clock.wall_ns() // 10**6
    topic.write([record_line(2)])

    assert seen(Query(spark_session, topic, tmp_path / "c", since_ms=now_ms).once()) == [2]


def test_a_silent_cluster_is_waited_for(topic: Topic) -> None:
    """It says nothing new; a task that was assigned records fails, for they will come."""
    from soak.core.errors import BrokerError  # noqa: PLC0415  # for one test

    away = Ship(bootstrap_servers="127.0.0.1:9", topic=topic.ship.topic, timeout=SECOND_NS)
    log = KafkaTopicLog(away, SystemClock())

    with pytest.raises(BrokerError, match="Connection refused"):
        list(log.read(0, 0, 1))
    assert log.ends() is None


def test_a_log_that_is_shorter_than_planned_ends(topic: Topic) -> None:
    topic.write([b"x", b"y"])

    *found, lost = list(topic.log().read(0, 0, 5))

    assert len(found) == 2
    assert lost == Lost(0, 2, 5, "the log ends at 2")


def test_secrets_stay_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options travel through Spark's logs and plans."""
    from soak.core.errors import SettingError  # noqa: PLC0415  # for one test

    def options(password: str) -> dict[str, str]:
        client = {"security.protocol": "SASL_SSL", "sasl.password": password}
        ship = Ship(bootstrap_servers="h:9", client=client)
        return TopicOptions(ship=ship).to_options()

    (tmp_path / "password").write_text("hunter2\n")
    monkeypatch.setenv("PASSWORD", "hunter2")
    for reference in ("${env:PASSWORD}", f"${{file:{tmp_path}/password}}"):
        found = options(reference)
        assert "hunter2" not in json.dumps(found)
        assert TopicOptions.of(found).ship.client["sasl.password"] == reference
    with pytest.raises(SettingError, match="a secret must not stand in a plan"):
        options("hunter2")
