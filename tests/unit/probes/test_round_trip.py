"""Round trips to brokers: a longer path, a broker that stalls, one connection that is late, and logins."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes.round_trip.connection import answer_of_scram, first_of_scram, in_fixed_order
from probes.round_trip.probe import Config, RoundTrip, RoundTrips, parse_address, preflight
from soak.app.preflight.probes import probe_warnings
from soak.core.clock import SystemClock
from soak.core.errors import NotAvailableError, ProbeError
from soak.core.plan import text as plan_text
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

    assert answers.take() == (0.25, 2.0, 0.5)
    assert answers.take() is None


def test_a_broker_that_stands_still_for_a_part_of_a_second_is_seen_in_its_longest_wait() -> None:
    """Most instants are answered at once, so the shortest shows nothing; no connection is late alone."""
    answers = RoundTrips()
    for instant in range(10):
        for _ in range(4):
            answers.add(instant, 0.3 if instant == 4 else 0.001)

    assert answers.take() == (0.001, 0.0, 0.3)


def test_an_answer_may_come_many_instants_later() -> None:
    """The first answer of its instant is kept for a bounded time."""
    answers = RoundTrips()
    answers.add(0, 0.1)
    for instant in range(1, 5000):
        answers.add(instant, 0.1)
    answers.add(4990, 1.1)

    assert answers.take() == (0.1, 1.0, 0.1)
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
        "broker_stall_seconds",
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


def test_all_connections_go_to_the_same_address_of_a_server() -> None:
    """A name server returns those of several brokers in turn, and their delays are compared."""
    v4, v6 = socket.AF_INET, socket.AF_INET6

    def found(*places: tuple[int, str]) -> list[str]:
        return in_fixed_order([(family, 1, 6, "", (host, 0)) for family, host in places])

    first = found((v6, "::2"), (v4, "10.0.0.2"), (v6, "::1"), (v4, "10.0.0.1"))
    second = found((v6, "::1"), (v4, "10.0.0.1"), (v6, "::2"), (v4, "10.0.0.2"))

    assert first == second == ["::1", "::2", "10.0.0.1", "10.0.0.2"]


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


def test_without_a_server_it_is_not_available() -> None:
    """This is no failure."""
    with pytest.raises(NotAvailableError, match="round_trip: it needs bootstrap_servers"):
        RoundTrip(Config(), FakeClock()).read()


@pytest.mark.parametrize(
    ("client", "why"),
    [
        (
            {"security.protocol": "sasl_ssl", "sasl.mechanism": "OAUTHBEARER"},
            "it cannot log in with OAUTHBEARER, only with PLAIN, SCRAM-SHA-256, SCRAM-SHA-512",
        ),
        ({"security.protocol": "SASL_PLAINTEXT"}, "it cannot log in with GSSAPI, only with "),
        (
            {"security.protocol": "SSL", "ssl.keystore.location": "/k.p12"},
            "it does not take ssl.keystore.location",
        ),
    ],
    ids=["a login that it has not", "the client's default login", "a key store"],
)
def test_a_listener_that_it_cannot_use_is_said_before_the_run(
    client: dict[str, str], why: str
) -> None:
    """With what to do; in the run it is not available, which is no failure."""
    config = Config(bootstrap_servers="b:9093", client=client)

    (warning,) = preflight(config, FakeClock())
    with pytest.raises(NotAvailableError, match=f"round_trip: {why}"):
        RoundTrip(config, FakeClock()).read()

    assert f"the probe round_trip will measure nothing: {why}" in warning
    assert "name a listener that it can use in probes.round_trip.bootstrap_servers" in warning


@pytest.mark.parametrize(
    "client",
    [
        {},
        {"security.protocol": "PLAINTEXT", "ssl.keystore.location": "/not/used"},
        {"security.protocol": "SSL", "ssl.ca.location": "/ca.pem"},
        {"security.protocol": "SASL_SSL", "sasl.mechanisms": "SCRAM-SHA-512"},
        {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN"},
    ],
)
def test_a_listener_that_it_can_use_gives_no_warning(client: dict[str, str]) -> None:
    assert preflight(Config(bootstrap_servers="b:9093", client=client), FakeClock()) == []


def test_the_settings_of_the_plan_decide_before_the_run() -> None:
    """A probe without settings of its own uses those of the broker's clients."""
    plan = plan_text.load(
        "name: x\nbroker: {kafka: {bootstrap_servers: 'b:9093', common: {security.protocol: SASL_SSL, "
        "sasl.mechanism: OAUTHBEARER}}}\nprobes: {round_trip: {}}\n",
        "plan.yaml",
    ).plan

    (warning,) = probe_warnings(plan, FakeClock())

    assert "it cannot log in with OAUTHBEARER" in warning


# --- logins

PASSWORD = "pencil"


def text_of(request: bytes) -> str:
    """Return the message of a login that is in a request."""
    return request[18:].decode()  # after key, version, id, name and length


def login_answer(message: str = "", code: int = 0, why: str = "") -> bytes:
    """Return an answer of SaslAuthenticate 0."""
    said = struct.pack(">h", len(why)) + why.encode() if why else struct.pack(">h", -1)
    body = struct.pack(">ih", 0, code) + said + struct.pack(">i", len(message)) + message.encode()
    return struct.pack(">i", len(body)) + body


class LoginBroker(Broker):
    """Answers requests in the order of a login with PLAIN, and every later one as `Broker` does."""

    def __init__(self, refusal: str) -> None:
        super().__init__()
        self.refusal = refusal
        self.messages: list[str] = []

    def answer_to(self, request: bytes) -> bytes:
        key, _ = struct.unpack_from(">hh", request)
        if key == 17:
            return struct.pack(">iihi", 10, 0, 0, 0)
        if key == 36:
            self.messages.append(text_of(request))
            return login_answer(code=58 if self.refusal else 0, why=self.refusal)
        self.is_asked.set()
        return self.answer


class LoggedIn(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        server = self.server
        assert isinstance(server, LoginBroker)
        while size := self.rfile.read(4):
            self.wfile.write(server.answer_to(self.rfile.read(*struct.unpack(">i", size))))


@contextlib.contextmanager
def login_broker(refusal: str = "") -> Iterator[LoginBroker]:
    with LoginBroker(refusal) as made:
        made.RequestHandlerClass = LoggedIn
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def logged_in_at(made: Broker, password: Path) -> RoundTrip:
    password.write_text(PASSWORD)
    config = Config(
        bootstrap_servers=f"127.0.0.1:{made.server_address[1]}",
        client={
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "user",
            "sasl.password": f"${{file:{password}}}",
        },
        period=SECOND_NS // 100,
        connections=1,
    )
    return RoundTrip(config, SystemClock())


def test_after_a_login_a_broker_is_asked_as_without_one(tmp_path: Path) -> None:
    """The password comes from where the plan says."""
    with login_broker() as made:
        probe = logged_in_at(made, tmp_path / "password")
        try:
            while not (reading := probe.read()).samples:
                pass
        finally:
            probe.close()

    assert made.messages == [f"\0user\0{PASSWORD}"]
    assert {column.metric for column, _ in reading.samples} == {
        "broker_round_trip_seconds",
        "broker_lone_delay_seconds",
        "broker_stall_seconds",
    }


def test_a_login_that_is_refused_is_a_failure(tmp_path: Path) -> None:
    """With the broker's reason."""
    with login_broker("wrong password") as made:
        probe = logged_in_at(made, tmp_path / "password")
        try:
            with pytest.raises(
                ProbeError, match=r"cannot log in at .*: the login is refused: wrong"
            ):
                _until_failed(probe)
        finally:
            probe.close()

    assert made.messages == [f"\0user\0{PASSWORD}"]


def test_a_secret_that_is_missing_is_a_failure(tmp_path: Path) -> None:
    """With the setting that names it."""
    with login_broker() as made:
        probe = logged_in_at(made, tmp_path / "password")
        (tmp_path / "password").unlink()
        try:
            with pytest.raises(ProbeError, match=r"sasl\.password: cannot read"):
                _until_failed(probe)
        finally:
            probe.close()


def test_scram_answers_as_the_example_of_its_standard() -> None:
    """RFC 7677, section 3; the broker proves that it knows the password, too."""
    first = first_of_scram("user", "rOprNGfwEbeRWgbNEkqO")
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"

    last, verifier = answer_of_scram(
        "sha256", PASSWORD, first, f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )

    assert first == "n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert last == f"c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert verifier == "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize(
    "challenge",
    [
        "r=another,s=AA==,i=4096",
        "r=nonce1,s=AA==,i=1",
        "r=nonce1,s=AA==,i=999999999",
        "r=nonce1,s=AA==,i=many",
        "r=nonce1,s=A,i=4096",
        "nothing",
        "",
    ],
)
def test_a_challenge_that_is_none_of_scram_is_refused(challenge: str) -> None:
    """One whose work is too little would give the password away, one with too much takes the processor."""
    with pytest.raises(ValueError, match=r"."):
        answer_of_scram("sha256", PASSWORD, "n=user,r=nonce", challenge)


def test_a_name_with_signs_of_scram_stays_one_name() -> None:
    assert first_of_scram("a,b=c", "x") == "n=a=2Cb=3Dc,r=x"
