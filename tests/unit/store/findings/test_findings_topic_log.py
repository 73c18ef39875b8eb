"""The log of findings on librdkafka's mock cluster: transactions, and the owner of the outbox."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, Producer

from soak.core.clock import SystemClock
from soak.core.errors import FindingsBusyError, FindingsError
from soak.core.plan.plan import Store
from soak.core.units import SECOND_NS
from soak.store.findings.topic_log import FINDINGS_TOPIC, OUTBOX_TOPIC, TOPICS, KafkaFindingsLog
from tests.support.fakes import FakeClock

PARTITIONS = [(topic, partition) for topic in TOPICS for partition in range(4)]
"""What the mock cluster creates."""


@pytest.fixture
def servers() -> Iterator[str]:
    holder = Producer({"bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": "1"})
    for topic in TOPICS:
        holder.list_topics(topic, timeout=5)
    (found,) = holder.list_topics(timeout=5).brokers.values()
    yield f"{found.host}:{found.port}"
    del holder


@pytest.fixture
def log(servers: str) -> Iterator[KafkaFindingsLog]:
    found = log_at(servers)
    yield found
    found.close()


def log_at(servers: str) -> KafkaFindingsLog:
    store = Store(url=f"kafka://{servers}", timeout=SECOND_NS)
    return KafkaFindingsLog(store, "run1", SystemClock(), lambda: PARTITIONS)


def read(log: KafkaFindingsLog) -> list[tuple[str, bytes, bytes | None]]:
    return sorted((one.topic, one.key, one.value) for one in log.read_new())


@pytest.mark.parametrize("servers", ["[::1]:9092", "b1:9092,[fe80::1%eth0]:9092", "10.0.0.1:9092"])
def test_a_store_may_have_any_kind_of_address(servers: str) -> None:
    assert Store(url=f"kafka://{servers}").servers == servers


@pytest.mark.parametrize("servers", ["::1:9092", "[::1]", "[b1]:9092", "b1:9092,"])
def test_an_address_that_is_none_is_refused(servers: str) -> None:
    with pytest.raises(ValueError, match="IPv6 addresses in brackets"):
        Store(url=f"kafka://{servers}")


@pytest.mark.long
def test_a_transaction_is_read_once_and_from_the_beginning_after_a_rewind(
    log: KafkaFindingsLog,
) -> None:
    """Deletions too; what is read is of both topics."""
    records = [(FINDINGS_TOPIC, b"a", b"1"), (OUTBOX_TOPIC, b"b", None)]
    before = read(log)
    log.take_turn()
    log.write(records)
    found = read(log), read(log)
    log.rewind()

    assert (before, *found, read(log)) == ([], records, [], records)


def test_a_write_needs_a_turn(log: KafkaFindingsLog) -> None:
    assert not log.has_turn
    with pytest.raises(FindingsBusyError):
        log.write([(FINDINGS_TOPIC, b"a", b"1")])


@pytest.mark.long
def test_the_owner_of_the_outbox_writes(log: KafkaFindingsLog) -> None:
    """Its transactions carry its place in the group."""
    assert log.claim()
    log.take_turn()
    log.write([(OUTBOX_TOPIC, b"b", b"1")])

    assert read(log) == [(OUTBOX_TOPIC, b"b", b"1")]
    assert log.claim()


@pytest.mark.long
def test_a_claim_leaves_all_records_to_be_read(servers: str, log: KafkaFindingsLog) -> None:
    """A daemon that starts late has the findings of the time before."""
    log.take_turn()
    log.write([(FINDINGS_TOPIC, b"a", b"1")])
    late = log_at(servers)

    assert late.claim()
    assert read(late) == [(FINDINGS_TOPIC, b"a", b"1")]
    late.close()


class Refused:
    """A client that the cluster refuses again and again, in the place of one of confluent_kafka."""

    code = KafkaError.UNKNOWN

    def __init__(self, settings: dict[str, object], *, logger: object) -> None:
        pass

    def assign(self, _places: object) -> None:
        pass

    def subscribe(self, _topics: object, **_callbacks: object) -> None:
        pass

    def get_watermark_offsets(self, _place: object, **_timeout: float) -> tuple[int, int]:
        return 0, 1

    def poll(self, _seconds: float) -> Refused:
        return self

    def consume(self, _messages: int, _seconds: float) -> list[Refused]:
        return []

    def topic(self) -> str:
        return FINDINGS_TOPIC

    def partition(self) -> int:
        return 0

    def error(self) -> KafkaError:
        return KafkaError(self.code, "refused")

    def close(self) -> None:
        pass


class SteppingClock(FakeClock):
    """A second passes with each look at it."""

    def mono_ns(self) -> int:
        self.advance(1)
        return super().mono_ns()


def refused_log(monkeypatch: pytest.MonkeyPatch, code: int) -> KafkaFindingsLog:
    monkeypatch.setattr(Refused, "code", code)
    monkeypatch.setattr("confluent_kafka.Consumer", Refused)
    store = Store(url="kafka://127.0.0.1:1")
    return KafkaFindingsLog(store, "run1", SteppingClock(), lambda: [(FINDINGS_TOPIC, 0)])


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN, KafkaError.TOPIC_AUTHORIZATION_FAILED])
def test_a_partition_that_cannot_be_read_is_an_error_in_time(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """With what the cluster says, however often it does."""
    log = refused_log(monkeypatch, code)

    with pytest.raises(
        FindingsError, match=r"cannot read soak\.findings and soak\.outbox: refused"
    ):
        list(log.read_new())


def test_a_group_that_refuses_this_process_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no other daemon that sends: no one does."""
    log = refused_log(monkeypatch, KafkaError.GROUP_AUTHORIZATION_FAILED)

    for _ in range(2):
        with pytest.raises(FindingsError, match=r"group soak-alert-run1, .*: refused; allow Read"):
            log.claim()


def test_a_group_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Refused, "poll", lambda *_: None)
    log = refused_log(monkeypatch, KafkaError.UNKNOWN)

    with pytest.raises(
        FindingsError, match=r"cannot join group soak-alert-run1, .*: no answer yet"
    ):
        log.claim()


def test_a_cluster_that_does_not_answer_is_named() -> None:
    """With what the client says of it."""
    log = KafkaFindingsLog(
        Store(url="kafka://127.0.0.1:1", timeout=SECOND_NS), "run1", SystemClock()
    )

    with pytest.raises(FindingsError, match=r"no Kafka broker answered at 127\.0\.0\.1:1"):
        log.read_new()
