"""What systemd is told, on a socket of its kind."""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from soak.core.units import SECOND_NS
from soak.service import children, systemd
from soak.service.systemd import (
    ChildWatchdog,
    JournalFormatter,
    is_journal_stream,
    notifier,
    watchdog_limit_ns,
    with_priority,
)
from tests.support.fakes import FakeClock


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket that a service manager would listen on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(str(tmp_path / "notify"))
        found.setblocking(False)
        yield found


def heard(manager: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(manager.recv(100).decode())
        except BlockingIOError:
            return found


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"WATCHDOG_USEC": "30000000"}, ["READY=1", "WATCHDOG=1", "STOPPING=1"]),
        (
            {"WATCHDOG_USEC": "1", "WATCHDOG_PID": str(os.getpid())},
            ["READY=1", "WATCHDOG=1", "STOPPING=1"],
        ),
        ({"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}, ["READY=1", "STOPPING=1"]),
        ({}, ["READY=1", "STOPPING=1"]),
    ],
)
def test_the_watchdog_is_answered_where_this_process_is_watched(
    manager: socket.socket, environment: dict[str, str], expected: list[str]
) -> None:
    """A watchdog of another process, as of a parent, is not ours to feed."""
    told = notifier({**environment, "NOTIFY_SOCKET": str(manager.getsockname())})

    told.ready()
    told.alive()
    told.stopping()

    assert heard(manager) == expected


def test_without_a_manager_or_with_one_that_is_gone_nothing_happens(tmp_path: Path) -> None:
    """A daemon runs the same in a terminal."""
    notifier({}).ready()
    notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()
    notifier({"NOTIFY_SOCKET": "@soak-nobody-listens"}).ready()


# --- Child processes under a parent's watch: who is ready, who hangs, and who may take its time.

LIMIT_NS = 30 * SECOND_NS
START_LIMIT_NS = 600 * SECOND_NS
OWN = {os.getpid(): LIMIT_NS}


@pytest.fixture
def watch() -> Iterator[ChildWatchdog]:
    with ChildWatchdog(FakeClock(), START_LIMIT_NS) as found:
        yield found


def advance(watch: ChildWatchdog, seconds: float) -> None:
    assert isinstance(watch.clock, FakeClock)
    watch.clock.advance(seconds)


def test_a_child_is_known_by_its_process_id(watch: ChildWatchdog) -> None:
    """What it says of itself counts for nothing: the kernel names the sender."""
    script = "from soak.service.systemd import notifier; notifier().ready()"
    child = subprocess.Popen(
        [sys.executable, "-c", script], env=watch.environment(os.environ, LIMIT_NS)
    )
    child.wait(30)
    watch.take()

    assert watch.ready == {child.pid}


def test_who_is_ready_is_heard_among_many(watch: ChildWatchdog) -> None:
    """The kernel drops what a full queue does not take; a heartbeat comes again, this does not."""
    own = notifier(watch.environment({}, LIMIT_NS))
    for _ in range(int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text()) + 1):
        own.alive()
    speaker = threading.Thread(target=own.ready)
    speaker.start()
    speaker.join(0.1)  # if it does not wait it is through by then
    watch.take()
    speaker.join(30)
    watch.take()

    assert watch.ready == {os.getpid()}


def test_silence_for_longer_than_the_limit_is_a_hang(watch: ChildWatchdog) -> None:
    """Of one that was ready; a heartbeat begins the time anew."""
    own = notifier(watch.environment({}, LIMIT_NS))
    seen = []
    for say in (own.ready, own.alive, lambda: None):
        say()
        watch.take()
        advance(watch, 20)
        seen.append(watch.hanging(OWN))

    assert seen == [[], [], [os.getpid()]]


def test_each_child_has_a_limit_of_its_own(watch: ChildWatchdog) -> None:
    """A detector is silent while Spark starts; a producer sends all the time."""
    notifier(watch.environment({}, LIMIT_NS)).ready()
    watch.take()
    advance(watch, 100)

    assert watch.hanging({os.getpid(): 180 * SECOND_NS}) == []
    assert watch.hanging(OWN) == [os.getpid()]


def test_one_that_is_not_ready_or_ends_may_take_its_time(watch: ChildWatchdog) -> None:
    """Its start and its last words have limits of their own."""
    own = notifier(watch.environment({}, LIMIT_NS))
    own.alive()
    watch.take()
    advance(watch, 100)
    starting = watch.hanging(OWN)
    own.ready()
    own.stopping()
    watch.take()
    advance(watch, 100)

    assert (starting, watch.hanging(OWN)) == ([], [])


def test_one_that_never_becomes_ready_hangs_too(watch: ChildWatchdog) -> None:
    """Its time counts from when it was first seen; no other manager looks at it after a restart."""
    begun = watch.hanging(OWN)
    advance(watch, START_LIMIT_NS / SECOND_NS + 1)

    assert (begun, watch.hanging(OWN)) == ([], [os.getpid()])


def test_a_process_that_is_gone_is_forgotten(watch: ChildWatchdog) -> None:
    """Its number may come again."""
    notifier(watch.environment({}, LIMIT_NS)).ready()
    watch.take()
    advance(watch, 100)
    watch.hanging({})

    assert watch.ready == set()


def test_children_are_watched_as_closely_as_their_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "5000000")
    asked = watchdog_limit_ns(LIMIT_NS)
    monkeypatch.delenv("WATCHDOG_USEC")

    assert (asked, watchdog_limit_ns(LIMIT_NS)) == (5 * SECOND_NS, LIMIT_NS)


# --- What a daemon says in systemd's journal has a priority, so that `journalctl -p warning` finds it.

SPEAKS = """
import logging
from soak.cli import main

def command():
    logging.getLogger("soak.x").warning("late seconds=3")
    {then}

main.build = lambda _: lambda prog_name: command()
main.run()
"""


def said(tmp_path: Path, then: str, *, to_journal: bool) -> tuple[int, list[str]]:
    """Return the exit code and the lines of the program, its errors on a stream as of the journal."""
    ours, theirs = socket.socketpair()
    found = os.fstat(theirs.fileno())
    stream = f"{found.st_dev}:{found.st_ino}" if to_journal else "1:1"
    with ours, theirs, ours.makefile() as reader:
        done = subprocess.run(
            [sys.executable, "-c", SPEAKS.format(then=then)],
            env={**os.environ, "JOURNAL_STREAM": stream},
            cwd=tmp_path,
            stderr=theirs.fileno(),
            check=False,
            timeout=60,
        )
        theirs.close()
        return done.returncode, reader.read().splitlines()


def test_a_line_has_its_priority_and_no_second_stamp(tmp_path: Path) -> None:
    """The journal has the time already."""
    assert said(tmp_path, "pass", to_journal=True) == (0, ["<4>WARNING soak.x late seconds=3"])


def test_elsewhere_a_line_has_a_stamp_and_no_priority(tmp_path: Path) -> None:
    """A daemon inherits the variable, while what it writes may go to a file."""
    code, (line,) = said(tmp_path, "pass", to_journal=False)

    assert code == 0
    assert re.fullmatch(r"\d{4}-[-:, \d]+ WARNING soak.x late seconds=3", line)


def test_why_a_program_ended_is_an_error(tmp_path: Path) -> None:
    then = "from soak.core.errors import SoakError; raise SoakError('no room')"

    code, lines = said(tmp_path, then, to_journal=True)

    assert (code, lines[1:]) == (1, ["<3>soak: no room"])


def test_each_line_of_a_crash_is_found(tmp_path: Path) -> None:
    """The journal takes each line for a message: none of the traceback may be lost to a filter."""
    code, lines = said(tmp_path, "1 / 0", to_journal=True)

    assert code == 1
    assert lines[1] == "<2>CRITICAL soak.cli.main crashed error=ZeroDivisionError"
    assert lines[-1] == "<2>ZeroDivisionError: division by zero"
    assert {line[:3] for line in lines[1:]} == {"<2>"}


@pytest.mark.parametrize(
    ("level", "priority"),
    [(5, 7), (10, 7), (20, 6), (25, 6), (30, 4), (40, 3), (50, 2), (60, 2)],
)
def test_levels_become_priorities_of_syslog(level: int, priority: int) -> None:
    assert with_priority(level, "a\nb") == f"<{priority}>a\n<{priority}>b"


def test_a_record_of_many_lines_has_one_on_each() -> None:
    record = logging.LogRecord("soak.x", logging.ERROR, "", 0, "two\nlines", None, None)

    assert JournalFormatter().format(record) == "<3>ERROR soak.x two\n<3>lines"


def test_a_closed_stream_is_no_journal() -> None:
    first, second = os.pipe()
    os.close(first)
    os.close(second)

    assert not is_journal_stream({"JOURNAL_STREAM": "0:0"}, second)


# --- The niceness of a service counts beside other services: its group has it too.

SPREAD = """
import os
from soak.core.clock import SystemClock
from soak.service.systemd import apply_niceness_to_group
os.nice(7)
apply_niceness_to_group(SystemClock(), {"SYSTEMD_EXEC_PID": str(%s)})
print(os.getpriority(os.PRIO_PROCESS, 0), open("/proc/self/autogroup").read())
"""


@pytest.mark.skipif(
    not systemd.AUTOGROUP_PATH.exists(), reason="this kernel has no groups of sessions"
)
@pytest.mark.parametrize(("pid", "is_told"), [("os.getpid()", True), ("os.getppid()", False)])
def test_the_group_of_a_main_process_gets_its_niceness(pid: str, *, is_told: bool) -> None:
    """What a service starts, and what runs by hand, leaves the group as it is."""
    done = subprocess.run(
        children.with_death_signal([sys.executable, "-c", SPREAD % pid]),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        start_new_session=True,
    )

    own, *_, group = done.stdout.split()
    assert group == (own if is_told else "0")


class Busy:
    """A group that takes a word only so often."""

    def __init__(self, refusals: int, number: int) -> None:
        self.left, self.number, self.taken = refusals, number, list[str]()

    def write_text(self, text: str) -> None:
        if self.left:
            self.left -= 1
            raise OSError(self.number, os.strerror(self.number))
        self.taken.append(text)


@pytest.mark.parametrize(
    ("refusals", "number", "taken"),
    [(0, 0, ["5"]), (3, errno.EAGAIN, ["5"]), (99, errno.EAGAIN, []), (1, errno.EACCES, [])],
)
def test_a_busy_kernel_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, refusals: int, number: int, taken: list[str]
) -> None:
    """Within two seconds; a refusal for good is let be, as the service works without."""
    monkeypatch.setattr(os, "getpriority", lambda *_: 5)
    group: Any = Busy(refusals, number)
    clock = FakeClock()
    systemd.apply_niceness_to_group(clock, {"SYSTEMD_EXEC_PID": str(os.getpid())}, group)

    assert group.taken == taken
    assert clock.mono_ns() <= 2 * 10**9
