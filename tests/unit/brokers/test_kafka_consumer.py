"""What a Kafka consumer says of the errors that its client reports instead of messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from confluent_kafka import KafkaError

from soak.brokers.kafka.consumer import (
    MAX_ERROR_KINDS,
    Fetched,
    FetchError,
    KafkaConsumer,
    ReceiveErrors,
)
from soak.clients.kafka_throttle import ThrottleTimes
from soak.core.ports import ReceiveError, Topics
from tests.support.fakes import FakeClock

REFUSED = "b1:9092/1: Connect to ipv4#10.0.0.1:9092 failed: Connection refused (after {} in state CONNECT)"
TRANSPORT, EOF = KafkaError._TRANSPORT, KafkaError._PARTITION_EOF  # their public names
NONE = np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class Client:
    """A client that takes its assignment, and a fetch that gives these errors, once each."""

    fetched: list[Sequence[FetchError]] = field(default_factory=list)

    def assign(self, partitions: object) -> None:
        del partitions

    def take(self, limit: int, timeout_seconds: float) -> Fetched:
        del limit, timeout_seconds
        return Fetched([], [], NONE, NONE, self.fetched.pop(0))


def consumer(errors: ReceiveErrors, *fetched: Sequence[FetchError]) -> KafkaConsumer:
    clock, client = FakeClock(), cast("Any", Client(list(fetched)))
    throttle = ThrottleTimes(clock)
    return KafkaConsumer(client, Topics(("t",), 2), {0: 0}, clock, 1.0, client, throttle, errors)


def test_refused_connections_are_one_error_with_the_broker_s_address() -> None:
    """The client reports each try, with the time that it took."""
    errors = ReceiveErrors()
    for took in ("0ms", "2ms", "0ms, 1 identical error(s) suppressed"):
        errors.note(KafkaError(TRANSPORT, REFUSED.format(took)))

    ((error, count),) = consumer(errors, ()).receive(10, 0.1).errors.items()

    assert (error.broker, error.code, count) == ("b1:9092", "_TRANSPORT", 3)
    assert error.reason.endswith("failed: Connection refused")


def test_a_refused_partition_is_named() -> None:
    text = "Fetch from broker 1 failed: Broker: Topic authorization failed"
    denied = FetchError(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, text), "t-1")
    played = consumer(ReceiveErrors(), [denied, denied], [])

    found = [played.receive(10, 0.1).errors for _ in range(2)]

    assert found == [
        {ReceiveError(text, "TOPIC_AUTHORIZATION_FAILED", partition="t-1"): 2},
        {},
    ]


def test_the_end_of_a_partition_and_a_group_that_is_never_joined_are_no_errors() -> None:
    errors = ReceiveErrors()
    for code in (EOF, KafkaError.GROUP_AUTHORIZATION_FAILED):
        errors.note(KafkaError(code), "t-0")

    assert errors.take() == {}


def test_brokers_are_found_in_all_forms_of_the_client_s_texts() -> None:
    texts = {
        "sasl_ssl://b2.example:9094/bootstrap: Disconnected": "b2.example:9094",
        "[2001:db8::1]:9092/3: Connection setup timed out": "[2001:db8::1]:9092",
        "3/3 brokers are down": "",
    }
    found = {}
    for text in texts:
        errors = ReceiveErrors()
        errors.note(KafkaError(TRANSPORT, text))
        found[text] = next(iter(errors.take())).broker

    assert found == texts


def test_kinds_of_errors_are_bounded() -> None:
    errors = ReceiveErrors()
    for at in range(3 * MAX_ERROR_KINDS):
        errors.note(KafkaError(TRANSPORT, f"b{at}:9092/{at}: Disconnected"))

    assert len(errors.take()) == MAX_ERROR_KINDS
