"""The streaming daemon as a process: its findings, its end, its death, and what it may not read."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from soak.alerting.daemon import AlertDaemon
from soak.core.clock import SystemClock
from soak.core.errors import RunFolderError
from soak.core.model import Finding
from soak.service import children
from soak.service.files import file_lock
from soak.store.findings.store import FindingsStore
from soak.store.run_folder import RunFolder, read_plan, read_run
from spark.streaming.checkpoint import await_predecessor, committed, end_predecessor
from spark.streaming.job import run
from tests.support.alerting.daemon import DELIVERED, FakeSink
from tests.support.fakes import FakeClock
from tests.support.spark.growing_run import begun, end, grow
from tests.support.spark.synthetic_run import Shape, write_synthetic_run

RUN = "synthetic-1"
SHAPE = Shape(
    seconds=320,
    deletions_k=200,
    fault_k=202,
    is_drill=True,
    sinks="{mail: {to: [oncall@example.org]}}",
)
PATIENCE_SECONDS = 180.0

# Every Python that belongs to the daemon, workers too, notes what it opens below the run folder.
HOOK = """
import os, sys
def _note(event, arguments):
    if event == "open" and str(arguments[0]).startswith(os.environ["NOTED_RUN"]):
        line = f"{os.getpid()} {arguments[0]}\\n".encode()
        descriptor = _open(os.environ["NOTED_IN"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, line)
        os.close(descriptor)
_open = os.open
sys.addaudithook(_note)
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return write_synthetic_run(tmp_path_factory.mktemp("whole") / "r", SHAPE)


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start daemons; whatever is left of them at the end is killed."""
    running: list[subprocess.Popen[bytes]] = []

    def start(folder: RunFolder, **env: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "soak.cli.main", "detect-stream"]
        with (folder.path / "out").open("ab") as output:
            process = subprocess.Popen(
                children.with_death_signal([*command, "--run-dir", str(folder.path)]),
                stdout=output,
                stderr=output,
                env={**os.environ, **env},
                start_new_session=True,
            )
        running.append(process)
        return process

    yield start
    for process in running:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the driver and its JVM, as a machine that runs out of memory might."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait(10)


def stopped_jvm(process: subprocess.Popen[bytes]) -> psutil.Process:
    """Stop the JVM of a driver, so that it does not end with it."""
    (jvm,) = [one for one in psutil.Process(process.pid).children() if one.name() == "java"]
    jvm.suspend()
    return jvm


def wait_for(condition: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > limit:
            pytest.fail(f"waited in vain for {what}")
        time.sleep(0.05)


def findings(folder: RunFolder) -> list[Finding]:
    with FindingsStore(folder.findings) as store:
        return store.findings(RUN)


def k_of(folder: RunFolder) -> int:
    """Return the newest second that the daemon says it has seen."""
    try:
        return int(json.loads((folder.spark / "progress.json").read_text())["k"] or -1)
    except FileNotFoundError:
        return -1


def send_pending(folder: RunFolder, mail: FakeSink) -> None:
    """Do what an alert daemon does in one round."""
    AlertDaemon(
        folder, read_plan(folder), read_run(folder), {"mail": mail}, SystemClock()
    ).deliver()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(4 * PATIENCE_SECONDS)
def test_a_killed_daemon_goes_on_to_one_finding_and_the_lab_is_not_looked_at(
    whole: RunFolder, tmp_path: Path, started: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """Killed at the confirmation, ended by SIGTERM in the open incident, and run to the end: one mail.

    The JVM of the killed one is stopped and stays, until the next daemon ends it. A new alert daemon sends
    what is pending after each death. The last daemon ends by itself when all sources have. No Python of any
    opens what was injected. The folder has a name that Spark has to take as it is.
    """
    folder = begun(whole, tmp_path / "prüf 1+2@x")
    shutil.copytree(whole.path / "lab", folder.path / "lab")
    hook, noted = tmp_path / "hook", tmp_path / "noted"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(HOOK)
    env = {"PYTHONPATH": str(hook), "NOTED_IN": str(noted), "NOTED_RUN": str(folder.path)}
    drivers: set[str] = set()
    mail = FakeSink(FakeClock(), DELIVERED)
    for k, death in ((212, signal.SIGKILL), (250, signal.SIGTERM)):
        grow(whole, folder, k)
        process = started(folder, **env)
        drivers.add(str(process.pid))
        wait_for(lambda k=k: k_of(folder) == k - 1, f"second {k - 1}")  # type: ignore[misc]  # bound here
        grow(whole, folder, k + 3)  # so that the death falls into work
        if death is signal.SIGKILL:
            jvm = stopped_jvm(process)
            process.kill()
            process.wait(10)
            assert jvm.is_running()
        else:
            assert not jvm.is_running()
            process.send_signal(death)
            assert process.wait(PATIENCE_SECONDS) == 0
        send_pending(folder, mail)
    early = findings(folder)
    end(whole, folder)
    last = started(folder, **env)
    drivers.add(str(last.pid))
    status = last.wait(PATIENCE_SECONDS)
    (finding,) = findings(folder)
    opened = {tuple(line.split(" ", 1)) for line in noted.read_text().splitlines()}
    places = {Path(path).relative_to(folder.path).parts[0] for _, path in opened}

    assert status == 0
    assert [(f.state, f.cause) for f in early] == [("confirmed", "retention_cliff")]
    assert (finding.key, finding.state, finding.cause) == (
        early[0].key,
        "confirmed",
        "retention_cliff",
    )
    assert abs(finding.onset_k - 202) <= 2
    send_pending(folder, mail)
    assert [message.key for message in mail.messages] == [f"{early[0].key}.confirmed"]
    assert "lab" not in places
    assert {"journal", "phases.jsonl", "plan.yaml"} <= places
    assert {pid for pid, path in opened if "/journal/" in path} - drivers  # a worker is among them


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(4 * PATIENCE_SECONDS)
def test_a_run_that_was_killed_has_the_findings_of_one_read_at_once(
    whole: RunFolder, tmp_path: Path, started: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """Causes and evidence are equal: one saw the run grow, the other had all of it from the start."""
    grown, at_once = begun(whole, tmp_path / "grown"), begun(whole, tmp_path / "once")
    for k in (212, 222, 260):
        grow(whole, grown, k)
        process = started(grown)
        wait_for(lambda k=k: k_of(grown) == k - 1, f"second {k - 1}")  # type: ignore[misc]  # bound here
        kill(process)
    end(whole, grown)
    end(whole, at_once)
    statuses = [started(folder).wait(PATIENCE_SECONDS) for folder in (grown, at_once)]

    assert statuses == [0, 0]
    assert findings(grown) == findings(at_once)
    assert [one.cause for one in findings(grown)] == ["retention_cliff"]


@pytest.mark.long
def test_a_second_daemon_is_refused(whole: RunFolder) -> None:
    """Before it starts a JVM."""
    with (
        file_lock(whole.spark / "lock", "the checkpoint"),
        pytest.raises(RunFolderError, match="in use by process"),
    ):
        run(whole.path, threading.Event(), SystemClock())


@contextmanager
def holding(lock: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Have a process with such arguments hold the JVM's lock while the block runs."""
    script = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); "
        "print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(lock), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield holder
        holder.kill()


def test_the_spark_of_a_killed_driver_is_waited_for(tmp_path: Path) -> None:
    """It may still be writing into the checkpoint; in the end it is an error that says where."""
    with holding(tmp_path / "jvm.lock") as holder:
        with pytest.raises(RunFolderError, match=r"jvm\.lock"):
            await_predecessor(tmp_path, SystemClock(), patience_ns=0)
        holder.kill()
        holder.wait(10)
        await_predecessor(tmp_path, SystemClock(), patience_ns=0)


def test_the_spark_of_a_killed_driver_that_does_not_end_is_killed(tmp_path: Path) -> None:
    """Not what holds the checkpoint otherwise: it may belong to anybody."""
    temporary = tmp_path / "tmp"
    with holding(tmp_path / "jvm.lock", f"-Djava.io.tmpdir={temporary}") as holder:
        with pytest.raises(RunFolderError, match=r"jvm\.lock"):
            end_predecessor(tmp_path, tmp_path / "other", FakeClock(), patience_ns=0)
        was_there = holder.poll() is None
        end_predecessor(tmp_path, temporary, SystemClock(), patience_ns=0)

        assert was_there
        assert holder.wait(10) == -signal.SIGKILL


def test_what_is_committed_is_read_from_sparks_log(tmp_path: Path) -> None:
    """A batch that was begun and not finished does not count."""
    before = committed(tmp_path)
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
    for batch in ("9", "10", "11"):
        (tmp_path / "offsets" / batch).write_text(f'v1\n{{}}\n{{"a@h": [0, {batch}]}}')
    for batch in ("9", "10", ".10.crc"):
        (tmp_path / "commits" / batch).write_text("v1\n{}")

    assert (before, committed(tmp_path)) == (None, {"a@h": [0, 10]})
