"""Round trips to brokers: a longer path, a broker that stalls, and one connection that is late."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import struct
import threading
from collections.abc import Iterator

import pytest

from probes.round_trip import Config, RoundTrip, RoundTrips, parse_address
from soak.core.clock import SystemClock
from soak.core.errors import NotAvailableError, ProbeError
from soak.core.units import SECOND_NS
from tests.support.fakes import FakeClock

LIMIT_SECONDS = 30.0


class Asked(socketserver.StreamRequestHandler):
    """Answers every question with eight bytes, and keeps the questions."""

    def handle(self) -> None:
        server = self.server
        assert isinstance(server, Broker)
        while size := self.rfile.read(4):
            server.questions.append(self.rfile.read(*struct.unpack(">i", size)))
            self.wfile.write(server.answer)
            server.is_asked.set()


class Broker(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Asked)
        self.questions: list[bytes] = []
        self.is_asked = threading.Event()
        self.answer = struct.pack(">iq", 8, 0)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def _until_failed(probe: RoundTrip) -> None:
    while True:
        probe.read()


def test_a_late_answer_is_compared_with_the_first_of_its_instant() -> None:
    """If all are late alike there is no lone delay."""
    answers = RoundTrips()
    for instant, seconds in ((1, 0.25), (1, 0.25), (2, 0.5), (2, 2.5), (2, 0.5)):
        answers.add(instant, seconds)

    assert answers.take() == (0.25, 2.0)
    assert answers.take() is None


def test_an_answer_may_come_many_instants_later() -> None:
    """The first answer of its instant is kept for a bounded time."""
    answers = RoundTrips()
    answers.add(0, 0.1)
    for instant in range(1, 5000):
        answers.add(instant, 0.1)
    answers.add(4990, 1.1)

    assert answers.take() == (0.1, 1.0)
    assert len(answers.first_seconds) < 2000


def test_a_broker_is_asked_for_its_versions_only(broker: Broker) -> None:
    """In Kafka's protocol: key 18, version 0."""
    target = f"127.0.0.1:{broker.server_address[1]}"
    config = Config(bootstrap_servers=target, period=SECOND_NS // 100, connections=1)
    probe = RoundTrip(config, SystemClock())
    try:
        probe.read()
        assert broker.is_asked.wait(LIMIT_SECONDS)
        reading = probe.read()
        while not reading.samples:
            reading = probe.read()
    finally:
        probe.close()

    assert set(broker.questions) == {struct.pack(">hhih4s", 18, 0, 0, 4, b"soak")}
    assert {column.metric for column, _ in reading.samples} == {
        "broker_round_trip_seconds",
        "broker_lone_delay_seconds",
    }
    assert {dict(column.labels)["target"] for column, _ in reading.samples} == {target}


def test_a_missing_server_is_a_failure() -> None:
    """With its address."""
    probe = RoundTrip(
        Config(bootstrap_servers="127.0.0.1:1", period=SECOND_NS // 100), SystemClock()
    )
    try:
        with pytest.raises(ProbeError, match="cannot reach 127"):
            _until_failed(probe)
    finally:
        probe.close()


@pytest.mark.long
def test_a_server_that_ends_each_connection_is_tried_ever_more_rarely() -> None:
    """Four connections, six tries each: after 0.1, 0.2, 0.4, 0.8 and 1 s, and not ten times a second."""
    clock = SystemClock()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LIMIT_SECONDS)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        probe = RoundTrip(Config(bootstrap_servers=address), clock)
        try:
            begin_ns = clock.mono_ns()
            probe.read()
            for _ in range(24):
                server.accept()[0].close()
            seconds = (clock.mono_ns() - begin_ns) / SECOND_NS
            with pytest.raises(ProbeError, match="cannot reach"):
                probe.read()
        finally:
            probe.close()

    assert seconds > 1.5


@pytest.mark.parametrize(
    ("server", "place"),
    [
        ("b:9093", ("b", 9093)),
        ("b", ("b", 9092)),
        ("PLAINTEXT://b:9093", ("b", 9093)),
        ("[::1]:9093", ("::1", 9093)),
        ("[::1]", ("::1", 9092)),
    ],
)
def test_addresses_are_read_as_by_the_brokers_client(server: str, place: tuple[str, int]) -> None:
    """With or without a protocol and a port."""
    assert parse_address(server) == place


@pytest.mark.long
@pytest.mark.parametrize("answer", [b"\xff\xff\xff\xff", b"HTTP/1.1 400\r\n"])
def test_an_answer_of_another_protocol_is_a_failure(broker: Broker, answer: bytes) -> None:
    """The gigabyte that it announces is not read."""
    broker.answer = answer
    target = f"127.0.0.1:{broker.server_address[1]}"
    probe = RoundTrip(Config(bootstrap_servers=target, period=SECOND_NS // 100), SystemClock())
    try:
        with pytest.raises(ProbeError, match="not in Kafka's protocol"):
            _until_failed(probe)
    finally:
        probe.close()


def test_an_invalid_address_does_not_affect_the_others(broker: Broker) -> None:
    """The others are asked."""
    target = f"127.0.0.1:{broker.server_address[1]}"
    config = Config(bootstrap_servers=f"b:no-port,{target}", period=SECOND_NS // 100)
    probe = RoundTrip(config, SystemClock())
    found: set[str] = set()
    try:
        while not found:
            with contextlib.suppress(ProbeError):
                found = {dict(column.labels)["target"] for column, _ in probe.read().samples}
    finally:
        probe.close()

    assert found == {target}


def test_a_server_that_does_not_answer_is_a_failure() -> None:
    """The connection is made, but no answer comes."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        config = Config(bootstrap_servers=target, period=SECOND_NS // 100, timeout=SECOND_NS // 50)
        probe = RoundTrip(config, SystemClock())
        with pytest.raises(ProbeError, match="no answer in time"):
            _until_failed(probe)
        probe.close()


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        Config(bootstrap_servers="b:9092", client={"security.protocol": "SASL_SSL"}),
    ],
    ids=["no server", "a login"],
)
def test_brokers_with_tls_or_sasl_are_not_available(config: Config) -> None:
    """This is no failure."""
    with pytest.raises(NotAvailableError, match="needs bootstrap_servers without TLS and SASL"):
        RoundTrip(config, FakeClock()).read()
