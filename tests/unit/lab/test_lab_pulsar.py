"""The lab's Pulsar: what it is told, what it refuses, and its relay; `test_pulsar_audit.py` kills it."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest
from pulsar import Client, Producer, PulsarException

from soak.core.errors import LabError
from soak.lab.brokers import pulsar
from soak.lab.brokers import pulsar as files
from soak.lab.jars import pulsar_lock
from soak.lab.jars.lock import parse_lock
from soak.lab.relay import Network

PORTS = files.Ports(1, 2, 3, 4)
TAKEN = LabError("ended with status 1: java.net.BindException: Address already in use")


def test_settings_reach_broker_and_bookie_but_not_those_that_the_lab_decides() -> None:
    """Where it listens is not for a plan to say."""
    text = files.standalone_conf(PORTS, {"journalWriteData": "false"})

    assert "journalWriteData=false\n" in text
    assert "journalWriteData=true\n" not in text
    with pytest.raises(LabError, match="sets webServicePort"):
        files.standalone_conf(PORTS, {"webServicePort": "8080"})
    with pytest.raises(LabError, match="line break"):
        files.standalone_conf(PORTS, {"a": "1\nbindAddress=0.0.0.0"})


def test_a_standalone_listens_on_loopback_alone() -> None:
    """The settings without which it would be open to the network."""
    text = files.standalone_conf(PORTS, {})

    for line in ("bindAddress=127.0.0.1", "httpServerHost=127.0.0.1", "listeningInterface=lo"):
        assert f"{line}\n" in text


def test_behind_a_relay_clients_are_told_of_it_alone() -> None:
    """Pulsar sends them to the address that it tells, and takes one way of telling."""
    ports = files.Ports(1, 2, 3, 4, relay=5)

    text = files.standalone_conf(ports, {})

    assert "advertisedListeners=relay:pulsar://127.0.0.1:5\n" in text
    assert "brokerServicePort=1\n" in text
    assert "advertisedAddress=" not in text
    assert "-a" not in files.standalone_arguments(Path("c"), Path("d"), ports)


def test_the_lock_names_what_lies_in_a_maven_repository(tmp_path: Path) -> None:
    """Group, version and classifier are read from where a jar lies."""
    folder = tmp_path / "io" / "netty" / "epoll" / "4.1"
    folder.mkdir(parents=True)
    (folder / "epoll-4.1-linux-x86_64.jar").write_bytes(b"jar")

    (found,) = pulsar_lock.pinned(tmp_path)

    assert found.coordinate == "io.netty:epoll:4.1:linux-x86_64"
    assert found.sha256 == hashlib.sha256(b"jar").hexdigest()


def test_the_lock_holds_one_version_of_each_jar() -> None:
    """Two would mix on the class path."""
    pinned = parse_lock(pulsar.LOCK.read_text(), pulsar.LOCK.name)
    modules = [(one.group, one.name, one.classifier) for one in pinned]

    assert len(set(modules)) == len(modules) == 329


@dataclass
class Starts:
    """How starts end, one after another, and what each found; each leaves data that knows its ports."""

    ends: list[BaseException | None] = field(default_factory=list)
    found: list[list[str]] = field(default_factory=list)

    def begin(self, broker: pulsar.Pulsar) -> None:
        data = broker.data_directory
        self.found.append(sorted(path.name for path in data.iterdir()))
        (data / "cookie").write_text((data.parent / "ports.json").read_text())
        end = self.ends.pop(0)
        if end is not None:
            raise end


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Starts:
    """No JVM is started, and nothing is fetched."""
    made = Starts()

    def restart(broker: pulsar.Pulsar) -> None:
        made.begin(broker)

    monkeypatch.setattr(pulsar.Pulsar, "restart", restart)
    monkeypatch.setattr("soak.lab.jars.cache.fetch", lambda _: Path("jars"))
    return made


def test_a_first_start_that_was_cut_short_keeps_its_ports(tmp_path: Path, starts: Starts) -> None:
    """What it left would be refused under others."""
    starts.ends = [KeyboardInterrupt(), None]
    with pytest.raises(KeyboardInterrupt):
        pulsar.start(tmp_path, {})
    known = (tmp_path / "data" / "cookie").read_text()
    pulsar.start(tmp_path, {})

    assert starts.found == [[], ["cookie"]]
    assert (tmp_path / "ports.json").read_text() == known


def test_a_new_standalone_whose_port_was_taken_begins_anew_with_others(
    tmp_path: Path, starts: Starts
) -> None:
    """Nothing is there that knows the first ones, also after the last try."""
    starts.ends = [TAKEN, None, *[TAKEN] * 3]
    pulsar.start(tmp_path / "once", {})
    with pytest.raises(LabError, match="already in use"):
        pulsar.start(tmp_path / "always", {})

    assert starts.found == [[]] * 5
    cookie = tmp_path / "once" / "data" / "cookie"
    assert cookie.read_text() == (tmp_path / "once" / "ports.json").read_text()
    assert [path.name for path in (tmp_path / "always").iterdir()] == ["standalone.conf"]


def test_a_standalone_whose_first_start_was_cut_short_is_new_all_the_same(
    tmp_path: Path, starts: Starts
) -> None:
    """It wrote down its ports and came no further; since then somebody took one."""
    starts.ends = [TAKEN, None]
    (tmp_path / "ports.json").write_text(json.dumps(asdict(PORTS)))
    pulsar.start(tmp_path, {})

    assert starts.found == [[], []]


def test_what_lay_in_a_folder_before_its_first_start_stays_there(
    tmp_path: Path, starts: Starts
) -> None:
    """Whoever has its port."""
    starts.ends = [TAKEN, None]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "theirs").touch()
    pulsar.start(tmp_path, {})

    assert starts.found == [["theirs"], ["cookie", "theirs"]]


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
