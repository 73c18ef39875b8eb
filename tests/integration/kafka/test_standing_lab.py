"""A lab that stands by itself: up, spoken to, down, and nothing left of one that was killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from soak.cli import lab as commands
from soak.core.errors import LabError
from soak.lab import standing
from soak.lab.drive import drive, folder
from soak.lab.drive.folder import DriveCommand
from soak.lab.standing import Home, LabRequest
from soak.service.files import user_cache
from tests.support.lab.lab import SHORT_SESSIONS, remains
from tests.unit.service.test_children import has_ended


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home("kafka", tmp_path)
    yield home
    if home.is_held():
        standing.down(home)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the user's that has jars and no labs."""
    jars = user_cache() / "jars"
    (tmp_path / "soakd").mkdir()
    (tmp_path / "soakd" / "jars").symlink_to(jars)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def asked(home: Home, **changes: int) -> LabRequest:
    nodes = changes.get("nodes", 1)
    return LabRequest(broker="kafka", folder=str(home.files), nodes=nodes, settings=SHORT_SESSIONS)


@pytest.mark.broker
def test_a_real_kafka_stands_until_it_is_taken_down(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command line: killed it is shown as ended, restarted it takes messages at its old address."""
    settings = [f"{key}={value}" for key, value in SHORT_SESSIONS.items()]
    commands.up("kafka", directory=cache / "here", setting=settings)
    home = Home("kafka")
    state = home.read()
    assert state is not None
    try:
        commands.kill("kafka", 1)
        assert "broker 1: ended" in capsys.readouterr().out
        commands.restart("kafka")
        producer = Producer({"bootstrap.servers": state.addresses["bootstrap_servers"]})
        producer.produce("t", b"x")
        assert producer.flush(30) == 0
        commands.logs("kafka", lines=3)
        assert f"==> {cache}/here/kafka/node-1/logs/broker.log <==" in capsys.readouterr().out
        with pytest.raises(LabError, match="no broker 2; known: 1"):
            commands.kill("kafka", 2)
    finally:
        commands.down("kafka")

    assert (home.is_held(), home.read()) == (False, None)
    with pytest.raises(LabError, match="holds a kafka of 1 brokers; name another --dir"):
        commands.up("kafka", 3, cache / "here")
    assert not home.is_held()


@pytest.mark.broker
def test_kill_9_of_the_keeper_leaves_nothing_and_the_next_start_clears_its_state(
    home: Home,
) -> None:
    """The broker dies with it; the data stays."""
    state = standing.up(home, asked(home))
    descriptor = os.pidfd_open(state.parts[0].pid)
    try:
        os.kill(int(home.lock.read_text()), signal.SIGKILL)

        assert has_ended(descriptor)
    finally:
        os.close(descriptor)
    assert home.read() == state
    again = standing.up(home, asked(home))
    assert again.parts != state.parts


@pytest.mark.broker
def test_its_data_may_lie_on_an_injected_drive(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file controls it, and it ends with the lab, also if it does not answer."""
    lack = drive.missing_drive_tools()
    if lack:
        pytest.skip(lack)
    commands.up("kafka", directory=cache / "here", drive="256MiB")
    try:
        state = Home("kafka").read()
        shown = capsys.readouterr().out
        assert state is not None
        folder.write_command(Path(state.drives[0].control), DriveCommand(is_stopped=True))
    finally:
        commands.down("kafka")

    assert "Traceback" not in Home("kafka").log.read_text()
    assert (
        f"drive of broker 1: {state.drives[0].device}, controlled by {cache}/here/drive-1/" in shown
    )
    assert remains(cache) == []


@pytest.mark.broker
def test_a_lab_that_cannot_start_says_why(home: Home) -> None:
    """With the broker's own last lines, and no keeper is left."""
    bad = LabRequest(broker="kafka", folder=str(home.files), settings={"num.io.threads": "many"})

    with pytest.raises(LabError, match=r"(?s)ended with status 1.*num\.io\.threads"):
        standing.up(home, bad)

    assert not home.is_held()
