"""Messages to and from a service manager, log priorities, and the niceness of a service."""

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

from soak.core.plan import text as plan_text
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
from soak.supervisor.run import roles_of
from tests.support.fakes import FakeClock


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket like that of a service manager."""
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
def test_the_watchdog_is_answered_by_the_watched_process(
    manager: socket.socket, environment: dict[str, str], expected: list[str]
) -> None:
    """A child inherits the variables of its parent, which is the one that is watched."""
    notify = notifier({**environment, "NOTIFY_SOCKET": str(manager.getsockname())})

    notify.ready()
    notify.alive()
    notify.stopping()

    assert heard(manager) == expected


def test_without_a_listening_manager_nothing_happens(tmp_path: Path) -> None:
    """A daemon runs the same in a terminal."""
    notifier({}).ready()
    notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()
    notifier({"NOTIFY_SOCKET": "@soak-nobody-listens"}).ready()


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


@pytest.mark.long
def test_a_child_is_identified_by_the_kernel(watch: ChildWatchdog) -> None:
    """The process id in a message does not count."""
    script = "from soak.service.systemd import notifier; notifier().ready()"
    child = subprocess.Popen(
        [sys.executable, "-c", script], env=watch.environment(os.environ, LIMIT_NS)
    )
    child.wait(30)
    watch.receive()

    assert watch.ready == {child.pid}


def test_a_readiness_message_waits_for_a_full_queue(watch: ChildWatchdog) -> None:
    """The kernel drops what a full queue does not take; a heartbeat is repeated, this is not."""
    own = notifier(watch.environment({}, LIMIT_NS))
    for _ in range(int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text()) + 1):
        own.alive()
    speaker = threading.Thread(target=own.ready)
    speaker.start()
    speaker.join(0.1)  # if it does not wait it is through by then
    watch.receive()
    speaker.join(30)
    watch.receive()

    assert watch.ready == {os.getpid()}


def test_silence_for_longer_than_the_limit_is_a_hang(watch: ChildWatchdog) -> None:
    """For a child that was ready; a heartbeat restarts the time."""
    own = notifier(watch.environment({}, LIMIT_NS))
    seen = []
    for say in (own.ready, own.alive, lambda: None):
        say()
        watch.receive()
        advance(watch, 20)
        seen.append(watch.hanging(OWN))

    assert seen == [[], [], [os.getpid()]]


def test_each_child_has_its_own_limit(watch: ChildWatchdog) -> None:
    """A detector is silent while Spark starts; a producer sends all the time."""
    notifier(watch.environment({}, LIMIT_NS)).ready()
    watch.receive()
    advance(watch, 100)

    assert watch.hanging({os.getpid(): 180 * SECOND_NS}) == []
    assert watch.hanging(OWN) == [os.getpid()]


def test_a_detector_that_starts_slowly_is_awaited_while_it_makes_progress(
    watch: ChildWatchdog,
) -> None:
    """Half an hour on a busy host, a step of its start every ten minutes; then one that never ends."""
    plan = plan_text.load("name: p\nbroker: {kafka: {}}\n", "p").plan
    (limit_ns,) = (role.silence_ns for role in roles_of(plan) if role.name == "detect-stream")
    own, limits = notifier(watch.environment({}, limit_ns)), {os.getpid(): limit_ns}
    own.ready()
    watch.receive()
    seen = []
    for _ in range(3):
        advance(watch, START_LIMIT_NS / SECOND_NS - 1)
        seen.append(watch.hanging(limits))
        own.alive()
        watch.receive()
    advance(watch, START_LIMIT_NS / SECOND_NS + 1)

    assert (seen, watch.hanging(limits)) == ([[], [], []], [os.getpid()])


def test_a_child_that_starts_or_stops_may_be_silent(watch: ChildWatchdog) -> None:
    """Starting and stopping have limits of their own."""
    own = notifier(watch.environment({}, LIMIT_NS))
    own.alive()
    watch.receive()
    advance(watch, 100)
    starting = watch.hanging(OWN)
    own.ready()
    own.stopping()
    watch.receive()
    advance(watch, 100)

    assert (starting, watch.hanging(OWN)) == ([], [])


def test_a_child_that_never_becomes_ready_hangs(watch: ChildWatchdog) -> None:
    """Its time counts from when it was first seen."""
    begun = watch.hanging(OWN)
    advance(watch, START_LIMIT_NS / SECOND_NS + 1)

    assert (begun, watch.hanging(OWN)) == ([], [os.getpid()])


def test_a_process_that_has_ended_is_forgotten(watch: ChildWatchdog) -> None:
    """The kernel may reuse its id."""
    notifier(watch.environment({}, LIMIT_NS)).ready()
    watch.receive()
    advance(watch, 100)
    watch.hanging({})

    assert watch.ready == set()


def test_children_have_the_limit_of_their_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where systemd watches the parent; otherwise they have the usual one."""
    monkeypatch.setenv("WATCHDOG_USEC", "5000000")
    asked = watchdog_limit_ns(LIMIT_NS)
    monkeypatch.delenv("WATCHDOG_USEC")

    assert (asked, watchdog_limit_ns(LIMIT_NS)) == (5 * SECOND_NS, LIMIT_NS)


LOGGING_PROGRAM = """
import logging
from soak.service.systemd import print_error, print_warning, set_up_logging

set_up_logging()
logging.getLogger("soak.x").warning("late seconds=3")
{then}
"""


def output_of(tmp_path: Path, then: str, *, to_journal: bool) -> tuple[int, list[str]]:
    """Return the exit code and the standard error of the program, which may be the stream of the journal."""
    ours, theirs = socket.socketpair()
    found = os.fstat(theirs.fileno())
    stream = f"{found.st_dev}:{found.st_ino}" if to_journal else "1:1"
    with ours, theirs, ours.makefile() as reader:
        done = subprocess.run(
            [sys.executable, "-c", LOGGING_PROGRAM.format(then=then)],
            env={**os.environ, "JOURNAL_STREAM": stream},
            cwd=tmp_path,
            stderr=theirs.fileno(),
            check=False,
            timeout=60,
        )
        theirs.close()
        return done.returncode, reader.read().splitlines()


@pytest.mark.long
def test_a_line_for_the_journal_has_a_priority_and_no_time(tmp_path: Path) -> None:
    """The journal adds the time."""
    assert output_of(tmp_path, "pass", to_journal=True) == (0, ["<4>WARNING soak.x late seconds=3"])


@pytest.mark.long
def test_a_line_for_a_file_has_a_time_and_no_priority(tmp_path: Path) -> None:
    """A daemon inherits the variable of the journal, while its output may go to a file."""
    code, (line,) = output_of(tmp_path, "pass", to_journal=False)

    assert code == 0
    assert re.fullmatch(r"\d{4}-[-:, \d]+ WARNING soak.x late seconds=3", line)


@pytest.mark.long
def test_the_reason_of_an_exit_has_the_priority_of_an_error(tmp_path: Path) -> None:
    """So `journalctl -p err` shows it."""
    _, lines = output_of(tmp_path, "print_error('soak: no room')", to_journal=True)

    assert lines[1:] == ["<3>soak: no room"]


@pytest.mark.long
def test_a_warning_of_the_command_line_is_no_error_in_the_journal(tmp_path: Path) -> None:
    _, lines = output_of(tmp_path, "print_warning('soak: old name')", to_journal=True)

    assert lines[1:] == ["<4>soak: old name"]


@pytest.mark.long
def test_each_line_of_a_traceback_has_a_priority(tmp_path: Path) -> None:
    """The journal takes each line as a message, and a filter must show all of them."""
    then = "try: 1 / 0\nexcept Exception: logging.critical('crashed', exc_info=True)"

    _, lines = output_of(tmp_path, then, to_journal=True)

    assert lines[1] == "<2>CRITICAL root crashed"
    assert lines[-1] == "<2>ZeroDivisionError: division by zero"
    assert {line[:3] for line in lines[1:]} == {"<2>"}


@pytest.mark.parametrize(
    ("level", "priority"),
    [(5, 7), (10, 7), (20, 6), (25, 6), (30, 4), (40, 3), (50, 2), (60, 2)],
)
def test_levels_become_priorities_of_syslog(level: int, priority: int) -> None:
    """Unknown levels get that of the next lower one."""
    assert with_priority(level, "a\nb") == f"<{priority}>a\n<{priority}>b"


def test_each_line_of_a_record_has_a_priority() -> None:
    """Those of a traceback; a field with line breaks stays in its line."""
    failure = (ValueError, ValueError("no"), None)
    record = logging.LogRecord("soak.x", logging.ERROR, "", 0, "two\nlines", None, failure)

    assert JournalFormatter().format(record) == "<3>ERROR soak.x two\\nlines\n<3>ValueError: no"


def test_a_closed_stream_is_not_the_journal() -> None:
    """A daemon may close its standard error."""
    first, second = os.pipe()
    os.close(first)
    os.close(second)

    assert not is_journal_stream({"JOURNAL_STREAM": "0:0"}, second)


NICE_PROGRAM = """
import os
from soak.core.clock import SystemClock
from soak.service.systemd import apply_niceness_to_group
os.nice(7)
apply_niceness_to_group(SystemClock(), {"SYSTEMD_EXEC_PID": str(%s)})
print(os.getpriority(os.PRIO_PROCESS, 0), open("/proc/self/autogroup").read())
"""


@pytest.mark.long
@pytest.mark.skipif(
    not systemd.AUTOGROUP_PATH.exists(), reason="this kernel has no groups of sessions"
)
@pytest.mark.parametrize(("pid", "is_set"), [("os.getpid()", True), ("os.getppid()", False)])
def test_the_group_of_a_main_process_gets_its_niceness(pid: str, *, is_set: bool) -> None:
    """Children of a service, and processes that were started by hand, leave the group as it is."""
    done = subprocess.run(
        children.with_death_signal([sys.executable, "-c", NICE_PROGRAM % pid]),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        start_new_session=True,
    )

    own, *_, group = done.stdout.split()
    assert group == (own if is_set else "0")


class Busy:
    """A group that accepts few changes a second."""

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
def test_a_busy_kernel_is_retried(
    monkeypatch: pytest.MonkeyPatch, refusals: int, number: int, taken: list[str]
) -> None:
    """Within two seconds; the service works without if the kernel refuses."""
    monkeypatch.setattr(os, "getpriority", lambda *_: 5)
    group: Any = Busy(refusals, number)
    clock = FakeClock()
    systemd.apply_niceness_to_group(clock, {"SYSTEMD_EXEC_PID": str(os.getpid())}, group)

    assert group.taken == taken
    assert clock.mono_ns() <= 2 * 10**9
