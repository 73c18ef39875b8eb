"""Clients while a broker is down: their log lines are neither lost nor a flood, and they reconnect soon."""

from __future__ import annotations

import logging
import socket
from concurrent.futures import Future
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

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
    """Log a line as librdkafka's binding does."""
    log.log(logging.ERROR, "%s [%s] %s", "FAIL", client, text)


def test_a_broker_that_is_down_causes_one_line_in_ten_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Twenty a second for 23 s, from several clients, with different durations."""
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


def test_every_kind_of_line_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """Another broker and another reason are other kinds."""
    log = ClientLog(logging.getLogger("soak.brokers.kafka"), FakeClock())

    for text in (REFUSED, REFUSED.replace("b1", "b2"), REFUSED.replace("refused", "reset")):
        say(log, text)

    assert len(caplog.records) == 3


def test_lines_about_different_partitions_are_one_kind(caplog: pytest.LogCaptureFixture) -> None:
    """After a broker dies, a line comes for each of a thousand partitions, with its offset."""
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
def test_a_refusal_is_the_cause_and_not_its_consequences(first: int) -> None:
    """Of all errors of the client."""
    cause = ErrorCause()
    admin: Any = Silent(
        cause,
        (KafkaError._TRANSPORT, "Connect to b1 failed"),
        (first, "invalid credentials"),
        (KafkaError._TRANSPORT, "Disconnected"),
        (KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"),
    )

    with pytest.raises(BrokerError, match=r"at b1:9092.*: invalid credentials$"):
        cause.metadata(admin, "b1:9092", 1.0)


def test_without_a_cause_the_error_of_the_request_is_shown() -> None:
    """That all brokers are down adds nothing to it."""
    cause = ErrorCause()
    admin: Any = Silent(cause, (KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))

    with pytest.raises(BrokerError, match=r"answered at b1:9092: broker transport failure$"):
        cause.metadata(admin, "b1:9092", 1.0)


def test_attempts_to_connect_are_a_second_apart_at_most_unless_the_plan_says_otherwise() -> None:
    """The client refuses a minimum above its maximum, which shows the maximum."""
    longer = {"reconnect.backoff.ms": "1001"}
    planned = {**longer, "reconnect.backoff.max.ms": "5000"}

    kafka.connect(kafka.Config(common=planned), SystemClock()).check_settings()

    with pytest.raises(BrokerError, match=r"`reconnect\.backoff\.max\.ms` must be"):
        kafka.connect(kafka.Config(common=longer), SystemClock()).check_settings()


@pytest.mark.long
def test_a_request_that_is_never_answered_is_logged_by_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server accepts the connection and never answers."""
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


@pytest.mark.long
def test_a_probe_keeps_no_backlog_of_events_while_the_broker_is_down() -> None:
    """It runs for weeks: at most the events since the last request are waiting."""
    offsets = KafkaOffsets({"bootstrap.servers": "127.0.0.1:1"}, 0.6)

    with pytest.raises(ProbeError, match="cannot list topics"):
        offsets.partitions(["soak-x"], lambda _: None)

    assert offsets._admin.poll(0) < 5


class Unanswering:
    """An admin client that is never answered; after `fails_after` polls it reports an error."""

    def __init__(self, clock: FakeClock, cause: ErrorCause, code: int, fails_after: int) -> None:
        self._clock, self._cause, self._code = clock, cause, code
        self._polls, self._fails_after = 0, fails_after

    def describe_cluster(self, **_: object) -> Future[None]:
        return Future()

    def poll(self, seconds: float) -> None:
        self._clock.advance(seconds)
        self._polls += 1
        if self._polls == self._fails_after:
            self._cause.note(KafkaError(self._code, "the reason"))


@pytest.mark.parametrize(
    ("code", "waited_seconds", "said"),
    [
        (KafkaError._AUTHENTICATION, 1.2, "the broker at b1:9093 refused the login: the reason"),
        (KafkaError._SSL, 1.2, "no Kafka broker answered at b1:9093: the reason"),
        (KafkaError._TRANSPORT, 10.0, "no Kafka broker answered at b1:9093: the reason"),
    ],
)
def test_a_refused_login_ends_the_wait_for_a_broker(
    code: int, waited_seconds: float, said: str
) -> None:
    """Another broker has a second more; one that is only away may come back until the timeout."""
    clock, cause = FakeClock(), ErrorCause()
    admin = cast("AdminClient", Unanswering(clock, cause, code, fails_after=2))
    begin_ns = clock.mono_ns()

    with pytest.raises(BrokerError, match=said):
        cause.wait_for_login(admin, "b1:9093", 10.0, clock)
    assert (clock.mono_ns() - begin_ns) / SECOND_NS == pytest.approx(waited_seconds, abs=0.15)
