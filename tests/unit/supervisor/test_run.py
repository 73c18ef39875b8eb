"""Starting, restarting and stopping the daemons of a run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from soak.core.clock import SystemClock
from soak.core.plan.phases import decision_line
from soak.core.retry import Restarts
from soak.core.units import SECOND_NS
from soak.service.systemd import ChildWatchdog
from soak.store.run_folder import RunFolder
from soak.supervisor.run import WATCHING, GaveUpError, Role, Supervisor
from tests.support.fakes import FakeClock
from tests.support.paths import ROOT

LIMIT_SECONDS = 30

FAKE_DAEMON = """
import os, signal, socket, subprocess, sys, time
role, folder = sys.argv[1], sys.argv[3]
if role == "dies":
    sys.exit("out of luck")
if role == "parent":
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    print(child.pid, file=open(folder + "/grandchild", "w"), flush=True)
if role == "hangs":
    manager = "\\0" + os.environ["NOTIFY_SOCKET"][1:]
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"READY=1", manager)
if role == "ends":
    open(folder + "/phases.jsonl", "w").write(%r)
    sys.exit(0)
def end(*_):
    if role == "lingers":
        time.sleep(0.5)
        open(folder + "/finished", "w")
    sys.exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if role == "refuses" else end)
print(os.getpid(), file=open(folder + "/up." + role, "w"), flush=True)
signal.pause()
""" % decision_line("end", 0)  # noqa: UP031  # braces are the program's own


@pytest.fixture
def program(tmp_path: Path) -> tuple[str, str]:
    path = tmp_path / "daemon.py"
    path.write_text(FAKE_DAEMON)
    return sys.executable, str(path)


@pytest.fixture
def deaths() -> list[str]:
    return []


@pytest.fixture
def make() -> Iterator[list[Supervisor]]:
    made: list[Supervisor] = []
    yield made
    for supervisor in made:
        supervisor.close()


class HastyClock(SystemClock):
    """A clock that runs 20 times as fast."""

    def mono_ns(self) -> int:
        return 20 * super().mono_ns()


def _supervisor(
    tmp_path: Path,
    program: tuple[str, str],
    deaths: list[str],
    *roles: Role,
    watchdog: ChildWatchdog | None = None,
) -> Supervisor:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    return Supervisor(
        folder,
        HastyClock(),
        on_death=lambda name, how: deaths.append(f"{name} {how}"),
        roles=roles,
        program=program,
        watchdog=watchdog,
    )


def _until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds, up to a limit."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never held"
        time.sleep(0.01)


def test_a_daemon_that_dies_is_restarted_and_recorded_for_the_report(
    tmp_path: Path, program: tuple[str, str], deaths: list[str], make: list[Supervisor]
) -> None:
    supervisor = _supervisor(
        tmp_path, program, deaths, Role("waits", ("waits",), is_measuring=True)
    )
    make.append(supervisor)
    supervisor.start()
    _until((tmp_path / "run" / "up.waits").exists)
    first = supervisor.pids()["waits"]
    os.kill(first, signal.SIGKILL)
    _until(lambda: supervisor.poll() or deaths)

    line = json.loads((tmp_path / "run" / "restarts.jsonl").read_text())
    assert deaths == ["waits signal SIGKILL"]
    assert supervisor.pids()["waits"] != first
    assert (line["daemon"], line["how"]) == ("waits", "signal SIGKILL")


def test_a_daemon_that_hangs_is_killed_and_restarted(
    tmp_path: Path, program: tuple[str, str], deaths: list[str], make: list[Supervisor]
) -> None:
    """It was ready and then silent; the other one may still take its time to start."""
    roles = [
        Role(name, (name,), is_measuring=True, silence_ns=SECOND_NS) for name in ("hangs", "waits")
    ]
    with ChildWatchdog(HastyClock(), 10**6 * SECOND_NS) as watchdog:
        supervisor = _supervisor(tmp_path, program, deaths, *roles, watchdog=watchdog)
        make.append(supervisor)
        supervisor.start()
        first = supervisor.pids()
        _until(lambda: supervisor.poll() or deaths)
        second = supervisor.pids()

    line = json.loads((tmp_path / "run" / "restarts.jsonl").read_text())
    assert deaths == ["hangs no sign of life, killed"]
    assert (line["daemon"], line["how"]) == ("hangs", "no sign of life, killed")
    assert first["waits"] == second["waits"]
    assert first["hangs"] != second["hangs"]


def _producer_and_consumer(
    tmp_path: Path,
    program: tuple[str, str],
    consumer: str,
    watchdog: ChildWatchdog,
    lead_seconds: int = 7,
) -> Supervisor:
    """Return a supervisor of a producer and a consumer; `consumer` is the behaviour of the latter."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    return Supervisor(
        folder,
        watchdog.clock,
        roles=[
            Role("produce.0", ("waits",), is_measuring=True, after="consume."),
            Role("consume.0", (consumer,), is_measuring=True),
        ],
        on_death=print,
        program=program,
        watchdog=watchdog,
        load_from_wall_ns=watchdog.clock.wall_ns() + lead_seconds * SECOND_NS,
    )


def test_producers_start_once_consumers_are_ready(
    tmp_path: Path, program: tuple[str, str], make: list[Supervisor]
) -> None:
    """Without any time having passed."""
    with ChildWatchdog(FakeClock(), LIMIT_SECONDS * SECOND_NS) as watchdog:
        supervisor = _producer_and_consumer(tmp_path, program, "hangs", watchdog)
        make.append(supervisor)
        supervisor.start()
        first = set(supervisor.pids())
        _until(lambda: supervisor.poll() or len(supervisor.pids()) == 2)

    assert first == {"consume.0"}


def test_producers_do_not_wait_for_ever(
    tmp_path: Path,
    program: tuple[str, str],
    make: list[Supervisor],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The consumer never says that it is ready: the load begins without it, and the log says so."""
    clock = FakeClock()
    with ChildWatchdog(clock, LIMIT_SECONDS * SECOND_NS) as watchdog:
        supervisor = _producer_and_consumer(tmp_path, program, "waits", watchdog)
        make.append(supervisor)
        supervisor.start()
        _until((tmp_path / "run" / "up.waits").exists)
        clock.advance(2.9)
        supervisor.poll()
        early = set(supervisor.pids())
        clock.advance(0.1)
        supervisor.poll()

    assert (early, set(supervisor.pids())) == ({"consume.0"}, {"consume.0", "produce.0"})
    assert "started_before_others daemon=produce.0 not_ready=consume.0" in caplog.text


def test_a_load_that_was_due_during_a_suspend_begins_at_once(
    tmp_path: Path, program: tuple[str, str], make: list[Supervisor]
) -> None:
    """A host that was started an hour early was suspended for two, and its consumer is not ready."""
    clock = FakeClock()
    with ChildWatchdog(clock, LIMIT_SECONDS * SECOND_NS) as watchdog:
        supervisor = _producer_and_consumer(tmp_path, program, "waits", watchdog, lead_seconds=3600)
        make.append(supervisor)
        supervisor.start()
        early = set(supervisor.pids())
        clock.suspend(7200)
        supervisor.poll()

    assert (early, set(supervisor.pids())) == ({"consume.0"}, {"consume.0", "produce.0"})


def test_producers_do_not_wait_once_the_load_has_begun(
    tmp_path: Path, program: tuple[str, str], make: list[Supervisor]
) -> None:
    """As after a restart: a consumer may have to read days of its journal before it is ready."""
    with ChildWatchdog(FakeClock(), LIMIT_SECONDS * SECOND_NS) as watchdog:
        supervisor = _producer_and_consumer(
            tmp_path, program, "waits", watchdog, lead_seconds=-3600
        )
        make.append(supervisor)
        supervisor.start()

    assert set(supervisor.pids()) == {"consume.0", "produce.0"}


def test_after_a_stop_no_load_begins(
    tmp_path: Path, program: tuple[str, str], make: list[Supervisor]
) -> None:
    clock = FakeClock()
    with ChildWatchdog(clock, LIMIT_SECONDS * SECOND_NS) as watchdog:
        supervisor = _producer_and_consumer(tmp_path, program, "waits", watchdog)
        make.append(supervisor)
        supervisor.start()
        _until((tmp_path / "run" / "up.waits").exists)
        supervisor.stop()
        clock.advance(10)

        assert supervisor.poll()
    assert supervisor.pids() == {}


def test_each_daemon_has_its_own_time_to_end_before_it_is_killed(
    tmp_path: Path, program: tuple[str, str], make: list[Supervisor]
) -> None:
    """One takes half a second, and may; another one never ends."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    roles = [
        Role("detect-stream", ("lingers",), grace_ns=LIMIT_SECONDS * SECOND_NS),
        Role("alert", ("refuses",), grace_ns=SECOND_NS // 10),
    ]
    supervisor = Supervisor(folder, FakeClock(), roles=roles, on_death=print, program=program)
    make.append(supervisor)
    supervisor.start()
    for role in roles:
        _until((folder.path / f"up.{role.arguments[0]}").exists)
    supervisor.finish()

    assert (folder.path / "finished").exists()
    assert supervisor.pids() == {}


def test_what_a_daemon_said_last_before_it_failed_is_logged(
    tmp_path: Path,
    program: tuple[str, str],
    deaths: list[str],
    make: list[Supervisor],
    caplog: pytest.LogCaptureFixture,
) -> None:
    supervisor = _supervisor(tmp_path, program, deaths, Role("dies", ("dies",), is_measuring=True))
    make.append(supervisor)
    supervisor.start()

    _until(lambda: supervisor.poll() or deaths)

    assert "daemon_died daemon=dies how=exit 1 last_line='out of luck'" in caplog.text


@pytest.mark.long
def test_a_needed_daemon_that_keeps_dying_ends_the_run(
    tmp_path: Path, program: tuple[str, str], deaths: list[str], make: list[Supervisor]
) -> None:
    supervisor = _supervisor(tmp_path, program, deaths, Role("dies", ("dies",), is_measuring=True))
    make.append(supervisor)
    supervisor.start()

    with pytest.raises(GaveUpError, match="dies died 6 times in a minute"):
        _until(supervisor.poll)


def test_a_daemon_that_dies_every_two_minutes_is_restarted_at_once() -> None:
    restarts = Restarts(WATCHING)
    for now_ns in range(0, 600 * SECOND_NS, 120 * SECOND_NS):
        restarts.note_death(now_ns)

        assert restarts.is_due(now_ns)


def test_a_daemon_that_cannot_be_started_is_started_later(
    tmp_path: Path, program: tuple[str, str], deaths: list[str], make: list[Supervisor]
) -> None:
    """A log that cannot be opened does not end the run."""
    supervisor = _supervisor(
        tmp_path, program, deaths, Role("waits", ("waits",), is_measuring=True)
    )
    make.append(supervisor)
    supervisor.start()
    first = supervisor.pids()["waits"]
    logs = tmp_path / "run" / "logs"
    logs.rename(tmp_path / "run" / "away")
    os.kill(first, signal.SIGKILL)
    _until(lambda: supervisor.poll() or deaths)
    meanwhile = supervisor.pids()
    (tmp_path / "run" / "away").rename(logs)
    _until(lambda: supervisor.poll() or supervisor.pids())

    assert meanwhile == {}
    assert supervisor.pids()["waits"] != first


def test_the_run_is_over_when_the_measuring_daemons_have_ended_on_purpose(
    tmp_path: Path, program: tuple[str, str], deaths: list[str], make: list[Supervisor]
) -> None:
    supervisor = _supervisor(
        tmp_path,
        program,
        deaths,
        Role("ends", ("ends",), is_measuring=True),
        Role("waits", ("waits",)),
    )
    make.append(supervisor)
    supervisor.start()

    _until(supervisor.poll)

    assert deaths == []


def _started_by_parent(supervisor: Supervisor, tmp_path: Path) -> int:
    """Start the daemons; return the process that the daemon `parent` has started."""
    supervisor.start()
    _until((tmp_path / "run" / "up.parent").exists)
    return int((tmp_path / "run" / "grandchild").read_text())


def test_processes_that_a_daemon_started_die_with_it(
    tmp_path: Path, program: tuple[str, str], deaths: list[str], make: list[Supervisor]
) -> None:
    supervisor = _supervisor(tmp_path, program, deaths, Role("parent", ("parent",)))
    make.append(supervisor)
    grandchild = _started_by_parent(supervisor, tmp_path)

    supervisor.close()

    _until(lambda: _has_ended(grandchild))


def test_processes_that_a_daemon_started_end_when_it_is_stopped(
    tmp_path: Path, program: tuple[str, str], make: list[Supervisor]
) -> None:
    """At once, and not only on close: its number may belong to another process by then."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    roles = [Role("probe", ("parent",))]
    supervisor = Supervisor(folder, FakeClock(), roles=roles, on_death=print, program=program)
    make.append(supervisor)
    grandchild = _started_by_parent(supervisor, tmp_path)

    supervisor.stop()

    _until(lambda: _has_ended(grandchild))


@pytest.mark.long
def test_a_daemon_that_has_ended_is_not_killed_again(
    tmp_path: Path,
    program: tuple[str, str],
    deaths: list[str],
    make: list[Supervisor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its number may belong to another process; running daemons are killed once."""
    roles = [Role("ends", ("ends",), is_measuring=True), Role("waits", ("waits",))]
    supervisor = _supervisor(tmp_path, program, deaths, *roles)
    make.append(supervisor)
    supervisor.start()
    _until(supervisor.poll)
    running = supervisor.pids()
    killed: list[int] = []
    killpg = os.killpg

    def kill(pid: int, number: int) -> None:
        killed.append(pid)
        killpg(pid, number)

    monkeypatch.setattr(os, "killpg", kill)
    supervisor.close()
    supervisor.close()

    assert killed == list(running.values())


@pytest.mark.long
def test_no_child_outlives_a_killed_supervisor(tmp_path: Path, program: tuple[str, str]) -> None:
    (tmp_path / "run").mkdir()
    code = (
        "import signal; from pathlib import Path; from soak.core.clock import SystemClock\n"
        "from soak.supervisor.run import Role, Supervisor\n"
        "from soak.store.run_folder import RunFolder\n"
        f"s = Supervisor(RunFolder(Path({str(tmp_path / 'run')!r})), SystemClock(), "
        f"on_death=lambda *_: None, roles=[Role('waits', ('waits',))], program={program!r})\n"
        "s.start(); signal.pause()"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    up = tmp_path / "run" / "up.waits"
    _until(lambda: up.exists() and up.read_text().strip())
    child = int(up.read_text())

    supervisor.kill()
    supervisor.wait(LIMIT_SECONDS)

    _until(lambda: _has_ended(child))


def _has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_the_niceness_of_a_daemon_holds_for_its_autogroup_too(
    tmp_path: Path, program: tuple[str, str], deaths: list[str], make: list[Supervisor]
) -> None:
    supervisor = _supervisor(tmp_path, program, deaths, Role("waits", ("waits",), niceness=19))
    make.append(supervisor)
    supervisor.start()
    pid = supervisor.pids()["waits"]
    group = Path(f"/proc/{pid}/autogroup")

    assert os.getpriority(os.PRIO_PROCESS, pid) == 19
    assert not group.exists() or group.read_text().endswith("nice 19\n")
