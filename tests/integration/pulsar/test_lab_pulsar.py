"""The configuration of the lab's Pulsar, and how it starts; `test_pulsar_audit.py` kills it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pulsar import Client, Producer, PulsarException

from soak.core.errors import LabError
from soak.lab.brokers import pulsar
from soak.lab.relay import Network


@pytest.mark.broker
def test_a_standalone_that_cannot_start_says_why_and_is_ended(tmp_path: Path) -> None:
    """Its JVM would live on after such a failure, deaf to SIGTERM."""
    with pytest.raises(
        LabError, match=r"(?s)(did not start|ended with).*Failed to start.*value -1"
    ):
        pulsar.start(tmp_path, {"managedLedgerDefaultEnsembleSize": "-1"})


@pytest.mark.broker
def test_a_setting_of_the_wrong_kind_is_named(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"(?s)ended with status 1.*numIOThreads.*many"):
        pulsar.start(tmp_path, {"numIOThreads": "many"})


@pytest.mark.broker
def test_a_relay_holds_up_what_clients_send(tmp_path: Path) -> None:
    """All of it comes through: a slow way is felt by each message, and a cut one lets none pass."""
    broker = pulsar.start(tmp_path / "pulsar", {}, relayed=True)
    relay = broker.relay
    assert relay is not None
    try:
        client = Client(broker.service_url, operation_timeout_seconds=60)
        producer = client.create_producer("persistent://public/default/t", send_timeout_millis=2000)
        relay.apply(Network(delay_seconds=0.2))
        is_slow = any(seconds_of(producer) >= 0.4 for _ in range(2000))  # within 20 ms
        relay.apply(Network(is_cut=True))
        with pytest.raises(PulsarException):
            send_on(producer)
        relay.apply(Network())
        client.close()
    finally:
        broker.kill()  # nothing in it is needed any more

    assert is_slow


def seconds_of(producer: Producer) -> float:
    begun = time.monotonic()
    producer.send(b"x")
    return time.monotonic() - begun


def send_on(producer: Producer) -> None:
    """Send until it fails: the relay hears of it within 20 ms."""
    while True:
        producer.send(b"x")
