"""The configuration of the lab's Pulsar, and how it starts; `test_pulsar_audit.py` kills it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from soak.core.errors import LabError
from soak.lab.brokers import pulsar
from soak.lab.brokers import pulsar as files
from soak.lab.jars import pulsar_lock
from soak.lab.jars.lock import parse_lock

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


def test_behind_a_relay_clients_know_of_it_alone() -> None:
    """Clients go to the advertised address, for which Pulsar accepts only one setting."""
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
def starts() -> Starts:
    return Starts()


def start(folder: Path, starts: Starts) -> pulsar.Pulsar:
    """Start a standalone without a JVM and without fetching its jars."""

    class Standalone(pulsar.Pulsar):
        def restart(self) -> None:
            starts.begin(self)

    return pulsar.start(folder, {}, jars=Path("jars"), standalone=Standalone)


def test_a_first_start_that_was_cut_short_keeps_its_ports(tmp_path: Path, starts: Starts) -> None:
    """What it left would be refused under others."""
    starts.ends = [KeyboardInterrupt(), None]
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, starts)
    known = (tmp_path / "data" / "cookie").read_text()
    start(tmp_path, starts)

    assert starts.found == [[], ["cookie"]]
    assert (tmp_path / "ports.json").read_text() == known


def test_a_new_standalone_whose_port_was_taken_begins_anew_with_others(
    tmp_path: Path, starts: Starts
) -> None:
    """Nothing is there that knows the first ones, also after the last try."""
    starts.ends = [TAKEN, None, *[TAKEN] * 3]
    start(tmp_path / "once", starts)
    with pytest.raises(LabError, match="already in use"):
        start(tmp_path / "always", starts)

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
    start(tmp_path, starts)

    assert starts.found == [[], []]


def test_what_lay_in_a_folder_before_its_first_start_stays_there(
    tmp_path: Path, starts: Starts
) -> None:
    """Whoever has its port."""
    starts.ends = [TAKEN, None]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "theirs").touch()
    start(tmp_path, starts)

    assert starts.found == [["theirs"], ["cookie", "theirs"]]
