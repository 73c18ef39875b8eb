"""A broker that is away: what its clients say is neither lost nor a flood, and they are back soon."""

from __future__ import annotations

import logging
import socket
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from probes.retention_kafka.offsets import KafkaOffsets
from soak.brokers import kafka
from soak.clients.kafka_log import ClientLog, ErrorCause
from soak.core.clock import SystemClock
from soak.core.errors import BrokerError, ProbeError
from soak.core.ports import Topics
from soak.core.units import SECOND_NS
from tests.support.fakes import FakeClock

REFUSED = "[thrd:b1:9092/1]: b1:9092/1: Connect to ipv4#10.0.0.1:9092 failed: Connection refused"
MS = SECOND_NS // 1000


def say(log: ClientLog, text: str, client: str = "rdkafka#consumer-1") -> None:
    """Give a line as librdkafka's binding does."""
    log.log(logging.ERROR, "%s [%s] %s", "FAIL", client, text)


def test_a_broker_that_is_down_is_a_line_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    """Twenty a second for 23 s, whichever client says it and however long its attempt took."""
    clock = FakeClock()
    log = ClientLog(logging.getLogger("soak.brokers.kafka"), clock)

    for number in range(23 * 20):
        say(log, f"{REFUSED} (after {number}ms in state CONNECT)", f"rdkafka#consumer-{number % 3}")
        clock.advance_ns(50 * MS)

    assert [record.getMessage().rpartition(" ")[2] for record in caplog.records] == [
        "skipped=0",
        "skipped=199",
        "skipped=199",
    ]
    assert all(REFUSED in record.getMessage() for record in caplog.records)


def test_every_kind_of_line_is_heard_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """Another broker and another reason are other kinds."""
    log = ClientLog(logging.getLogger("soak.brokers.kafka"), FakeClock())

    for text in (REFUSED, REFUSED.replace("b1", "b2"), REFUSED.replace("refused", "reset")):
        say(log, text)

    assert len(caplog.records) == 3


def test_partitions_are_no_kinds_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    """A broker that dies says the same of a thousand partitions, each at an offset of its own."""
    log = ClientLog(logging.getLogger("soak.brokers.kafka"), FakeClock())

    for number in range(1000):
        at = f"(at offset {number} (leader epoch 0), broker 1)"
        say(log, f"soak [{number}]: offset reset {at} to END")
        say(log, f"soak [{number}]: offset reset {at} to cached BEGINNING offset {7 * number}")

    assert [record.getMessage().partition(" to ")[2][:6] for record in caplog.records] == [
        "END' s",
        "cached",
    ]


class Silent:
    """An admin client without a broker, whose callbacks report why."""

    def __init__(self, cause: ErrorCause, *errors: tuple[int, str]) -> None:
        self._cause = cause
        self._errors = errors

    def list_topics(self, **_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "broker transport failure"))

    def poll(self, _: float) -> None:
        for error in self._errors:
            self._cause.note(KafkaError(*error))


@pytest.mark.parametrize("first", [KafkaError._AUTHENTICATION, KafkaError._SSL])
def test_a_refusal_is_the_cause_and_not_what_follows_from_it(first: int) -> None:
    """Of all that the client was told."""
    cause = ErrorCause()
    admin: Any = Silent(
        cause,
        (KafkaError._TRANSPORT, "Connect to b1 failed"),
        (first, "invalid credentials"),
        (KafkaError._TRANSPORT, "Disconnected"),
        (KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"),
    )

    with pytest.raises(BrokerError, match=r"answered at b1:9092: invalid credentials$"):
        cause.metadata(admin, "b1:9092", 1.0)


def test_without_a_cause_the_question_s_own_words_stand() -> None:
    """That all brokers are down says no more than they do."""
    cause = ErrorCause()
    admin: Any = Silent(cause, (KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))

    with pytest.raises(BrokerError, match=r"answered at b1:9092: broker transport failure$"):
        cause.metadata(admin, "b1:9092", 1.0)


def test_between_two_attempts_to_connect_lies_a_second_at_most_unless_the_plan_says_more() -> None:
    """The client tells it by refusing a shortest pause that is longer than the longest."""
    longer = {"reconnect.backoff.ms": "1001"}
    planned = {**longer, "reconnect.backoff.max.ms": "5000"}

    kafka.connect(kafka.Config(common=planned), SystemClock()).check_settings()

    with pytest.raises(BrokerError, match=r"`reconnect\.backoff\.max\.ms` must be"):
        kafka.connect(kafka.Config(common=longer), SystemClock()).check_settings()


def test_a_request_that_is_never_answered_is_told_by_name(caplog: pytest.LogCaptureFixture) -> None:
    """What listens there takes the connection and says nothing."""
    caplog.set_level(logging.INFO)
    impatient = {"api.version.request.timeout.ms": "100"}
    clock = SystemClock()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        where = f"127.0.0.1:{mute.getsockname()[1]}"
        broker = kafka.connect(kafka.Config(bootstrap_servers=where, common=impatient), clock)
        broker.check_settings()
        assert not caplog.records

        consumer = broker.consumer(Topics(("t",), 1), "", {0: 0})
        end_ns = clock.mono_ns() + 30 * SECOND_NS
        while "Timed out ApiVersionRequest in flight" not in caplog.text:
            assert clock.mono_ns() < end_ns
            consumer.receive(1, 0.1)
        consumer.close()


def test_a_probe_keeps_nothing_of_what_its_client_is_told_while_the_broker_is_away() -> None:
    """It asks for weeks: of ten refused connections and more at most those since the answer are left."""
    offsets = KafkaOffsets({"bootstrap.servers": "127.0.0.1:1"}, 0.6)

    with pytest.raises(ProbeError, match="cannot list topics"):
        offsets.partitions(["soak-x"], lambda _: None)

    assert offsets._admin.poll(0) < 5
