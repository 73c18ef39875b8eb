"""A lab that stands by itself: up, spoken to, down, and nothing left of one that was killed."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from soak.cli import lab as commands
from soak.core.errors import LabError, PlanError
from soak.lab import standing
from soak.lab.files import start_ticks
from soak.lab.lab import Lab
from soak.lab.standing import Home, LabRequest, LabState, ProcessState
from soak.lab.standing_keeper import serve
from soak.runtime.grid import boot_id
from soak.service.files import file_lock, user_cache
from tests.support.lab.lab import SHORT_SESSIONS
from tests.support.lab.sleeping_broker import SleepingBroker

KILL_AND_END = (b'{"action": "kill", "number": 1}', b'{"action": "down"}')


_STARTING = """
import signal, sys
from pathlib import Path
from soak.service.signals import exit_on_sigterm
from soak.service.files import file_lock

exit_on_sigterm()
with file_lock(Path(sys.argv[1]), "the lab"):
    print("begun", flush=True)
    signal.pause()
"""


class Unkillable(SleepingBroker):
    """A broker that hangs in the kernel, on a drive that does not answer: once."""

    def kill(self) -> None:
        if not self.addresses:
            self.addresses["was"] = "asked"
            raise subprocess.TimeoutExpired("kill", 10)
        super().kill()


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


def left_by_a_killed_one(home: Home, pid: int, start_ticks: int, boot: str = "") -> None:
    part = ProcessState(number=1, pid=pid, start_ticks=start_ticks, log="broker.log")
    home.write(LabState(asked=asked(home), addresses={}, parts=[part], boot=boot or boot_id()))


@pytest.mark.parametrize("after_boot", ["", "\n"])
def test_what_a_killed_lab_left_running_is_killed(home: Home, after_boot: str) -> None:
    """And its state is removed; version 0.1.0 stored the boot id with a newline."""
    with subprocess.Popen(["sleep", "600"]) as process:
        ticks = start_ticks(process.pid) or 0
        left_by_a_killed_one(home, process.pid, ticks, boot=boot_id() + after_boot)

        standing.clear(home)

        assert process.wait(20) == -signal.SIGKILL
    assert home.read() is None


def test_another_process_that_got_the_number_lives_on(home: Home) -> None:
    """It began at another time."""
    with subprocess.Popen(["sleep", "600"]) as process:
        left_by_a_killed_one(home, process.pid, (start_ticks(process.pid) or 0) - 1)

        standing.clear(home)

        assert process.poll() is None
        process.kill()


def test_a_process_of_another_boot_lives_on(home: Home) -> None:
    """Number and time may repeat."""
    with subprocess.Popen(["sleep", "600"]) as process:
        ticks = start_ticks(process.pid) or 0
        left_by_a_killed_one(home, process.pid, ticks, boot="another")

        standing.clear(home)

        assert process.poll() is None
        process.kill()


def test_a_process_that_ended_and_was_not_waited_for_does_not_count_as_there() -> None:
    """A zombie keeps its number and its time."""
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

        assert start_ticks(process.pid) is None


def test_a_lab_that_is_up_is_not_started_twice(home: Home) -> None:
    """Its keeper holds the lock."""
    with (
        file_lock(home.lock, "this lab"),
        pytest.raises(LabError, match=r"is up already; `soak lab down kafka` ends it"),
    ):
        standing.up(home, asked(home))


def test_who_looks_whether_a_keeper_lives_disturbs_nobody(home: Home) -> None:
    """Neither another who looks, nor what the lock says of its last holder."""
    with file_lock(home.lock, "this lab"):
        pass
    said = home.lock.read_text()
    with home.lock.open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)

        assert not home.is_held()
    assert home.lock.read_text() == said


def test_two_do_not_start_or_end_a_lab_at_once(home: Home) -> None:
    """The second gets an error with the process id, and changes nothing."""
    with home.change_locked():
        with pytest.raises(LabError, match=rf"in use by process {os.getpid()} .* starts or ends"):
            standing.up(home, asked(home))
        with pytest.raises(LabError, match="starts or ends the lab"):
            standing.down(home)

    assert not home.asked.exists()


def test_a_lab_that_is_being_started_is_shown_as_starting(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also while what it consists of is fetched, which takes minutes; it is not up yet."""
    home = Home("kafka")

    def look() -> None:
        with pytest.raises(typer.Exit) as ended:
            commands.status("kafka")
        assert ended.value.exit_code == 1
        raise LabError("no network")

    with pytest.raises(LabError, match="no network"):
        standing.up(home, asked(home), prepare=look)

    assert capsys.readouterr().out == f"kafka: starts or ends; log {home.log}\n"
    assert home.path.is_relative_to(cache)
    assert not home.asked.exists()


@pytest.mark.long
def test_a_keeper_whose_start_nobody_waits_for_is_shown_and_is_ended_by_down(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`up` was killed: the keeper does not listen yet, and ends on SIGTERM."""
    home = Home("kafka")
    with subprocess.Popen(
        [sys.executable, "-c", _STARTING, str(home.lock)], stdout=subprocess.PIPE, text=True
    ) as keeper:
        assert keeper.stdout is not None
        keeper.stdout.readline()
        with pytest.raises(typer.Exit):
            commands.status("kafka")
        commands.down("kafka")

    assert (
        capsys.readouterr().out
        == f"kafka: starts or ends; log {home.log}\nthe lab's kafka is down\n"
    )
    assert keeper.returncode == 143
    assert home.path.is_relative_to(cache)


def test_no_request_ends_the_keeper_but_the_one_that_is_meant_to(
    home: Home, tmp_path: Path
) -> None:
    """Nonsense and a broker that cannot be killed are answered."""
    home.path.mkdir()
    lab = Lab(tmp_path, Unkillable(subprocess.Popen(["sleep", "600"]), tmp_path), None, {})
    lines = (
        b"[]",
        b"23",
        b'{"action": "dance"}',
        b'{"action": "kill", "number": 7}',
        *KILL_AND_END,
    )
    answers: list[str] = []
    with home.socket_address() as address, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        keeper = threading.Thread(target=serve, args=(home, asked(home), lab, listener))
        keeper.start()
        for line in lines:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(20)
                connection.connect(address)
                connection.sendall(line + b"\n")
                answers.append(json.loads(connection.makefile("rb").readline())["error"])
        keeper.join(20)
    lab.broker.kill()

    *nonsense, unknown, hung, ended = answers
    assert all(answer.startswith("not a request: ") for answer in nonsense)
    assert unknown == "the lab has no broker 7; known: 1"
    assert "timed out" in hung
    assert (ended, keeper.is_alive()) == ("", False)


def test_a_lab_that_is_not_up_says_how_to_start_it(home: Home) -> None:
    """Whatever is asked of it; nothing is created by that."""
    with pytest.raises(LabError, match="`soak lab up kafka` starts one"):
        standing.ask(home, "kill")

    standing.down(home)

    assert not home.path.exists()


@pytest.mark.parametrize(
    ("broker", "brokers", "setting", "message"),
    [
        ("kafk", 1, "", "no lab broker 'kafk'; did you mean 'kafka'"),
        ("pulsar", 3, "", "at most 1 brokers, not 3"),
        ("kafka", 1, "log.retention.ms", "'log.retention.ms' is not KEY=VALUE"),
    ],
)
def test_what_no_lab_can_be_is_refused(
    broker: str, brokers: int, setting: str, message: str
) -> None:
    """Before anything is started."""
    with pytest.raises(PlanError, match=message):
        commands.up(broker, brokers, setting=[setting] if setting else [])


@pytest.mark.parametrize(
    ("size", "filesystem", "message"),
    [
        ("1 bucket", "ext4", "--drive: '1 bucket' is not a size"),
        ("1GiB", "ntfs", "--filesystem 'ntfs': known are ext4, xfs"),
    ],
)
def test_a_drive_that_cannot_be_is_refused(size: str, filesystem: str, message: str) -> None:
    """Before anything is started."""
    with pytest.raises(PlanError, match=message):
        commands.up("kafka", drive=size, filesystem=filesystem)


@pytest.mark.long
def test_the_keeper_needs_a_folder_that_it_may_write(home: Home) -> None:
    """The reason is one line, no traceback."""
    home.path.mkdir()
    home.files.touch()

    with pytest.raises(LabError, match=r"Not a directory|File exists"):
        standing.up(home, asked(home))


@pytest.mark.long
def test_the_command_line_lists_what_can_be_done() -> None:
    """Each as a command of `soak lab`."""
    shown = subprocess.run(
        [sys.executable, "-m", "soak.cli.main", "lab", "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout

    assert all(word in shown for word in ("up", "down", "status", "logs", "kill", "restart"))
