"""What a run is put through, a function each: in force while its block lasts, over when it ends."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from tests.chaos.post import Mood
from tests.chaos.schedule import BROKER
from tests.chaos.storm import Storm, own_sources

Trouble = Callable[[Storm], AbstractContextManager[None]]
_HEADER_BYTES = 100  # of an SQLite file: without it the file is none


@contextmanager
def stopped(storm: Storm) -> Iterator[None]:
    """A daemon is stopped, as by a debugger or a host that pages."""
    pid = storm.pid(storm.rng.choice(storm.daemons))
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def broker_stopped(storm: Storm) -> Iterator[None]:
    """The broker is stopped, connections stay."""
    with storm.touched():
        os.kill(storm.broker.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(storm.broker.pid, signal.SIGCONT)


@contextmanager
def broker_restarted(storm: Storm) -> Iterator[None]:
    """The broker is restarted in order, as for a new version."""
    with storm.touched():
        storm.broker.restart()
    yield


@contextmanager
def broker_away(storm: Storm) -> Iterator[None]:
    """The broker is killed and stays away for a while."""
    with storm.touched():
        storm.kills[BROKER] += 1
        storm.broker.kill()
        try:
            yield
        finally:
            storm.broker.restart()


@contextmanager
def drive_full(storm: Storm) -> Iterator[None]:
    """No byte fits on the run folder's drive any more, and a daemon dies meanwhile."""
    with storm.around.full():
        storm.kill(storm.rng.choice(storm.daemons))
        yield


@contextmanager
def read_only(storm: Storm) -> Iterator[None]:
    """The run folder's drive is mounted read-only, and a daemon dies meanwhile."""
    with storm.around.read_only():
        storm.watch(3.0)
        storm.kill(storm.rng.choice(storm.daemons))
        yield


@contextmanager
def journal_torn(storm: Storm) -> Iterator[None]:
    """A power cut: half of the last line is not there."""
    _cut(storm, storm.rng.choice(storm.measuring), 0)
    yield


@contextmanager
def journal_truncated(storm: Storm) -> Iterator[None]:
    """A power cut on a drive that lied: the last seconds are not there."""
    _cut(storm, storm.rng.choice(storm.measuring), 5)
    yield


@contextmanager
def journal_overwritten(storm: Storm) -> Iterator[None]:
    """A byte in the middle of a journal is another one."""
    storm.kept.overwrite(_source(storm, storm.rng.choice(storm.measuring)))
    yield


@contextmanager
def findings_busy(storm: Storm) -> Iterator[None]:
    """Somebody holds `findings.db` for longer than anybody waits."""
    connection = sqlite3.connect(storm.folder.findings, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
    finally:
        connection.close()


@contextmanager
def findings_corrupt(storm: Storm) -> Iterator[None]:
    """The head of `findings.db` is overwritten, until somebody puts the file back."""
    connection = sqlite3.connect(storm.folder.findings, isolation_level=None)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    with storm.folder.findings.open("r+b") as file:
        head = file.read(_HEADER_BYTES)
        file.seek(0)
        file.write(b"\x5a" * _HEADER_BYTES)
        file.flush()
        try:
            yield
        finally:
            file.seek(0)
            file.write(head)


@contextmanager
def mail_down(storm: Storm) -> Iterator[None]:
    """Nobody listens where the mail server was."""
    storm.post.close()
    try:
        yield
    finally:
        storm.post.open()


def _mail(mood: Mood) -> Trouble:
    @contextmanager
    def trouble(storm: Storm) -> Iterator[None]:
        storm.post.mood = mood
        try:
            yield
        finally:
            storm.post.mood = "well"

    return trouble


@contextmanager
def names_gone(storm: Storm) -> Iterator[None]:
    """No name is known any more, of broker or mail server, and a load daemon dies meanwhile.

    The one that takes its place finds no broker: nothing of it is acknowledged, or received.
    """
    with storm.touched(), storm.around.nameless():
        storm.kill(storm.rng.choice(_loading(storm)))
        yield


def _clock(seconds: float) -> Trouble:
    @contextmanager
    def trouble(storm: Storm) -> Iterator[None]:
        storm.step_wall(seconds)
        storm.watch(3.0)
        storm.kill(storm.rng.choice(_loading(storm)))
        try:
            yield
        finally:
            storm.step_wall(0.0)

    return trouble


def _limit(number: int, allowed: Callable[[int], int]) -> Trouble:
    """A daemon gets no more of something: it has more already than it may have."""

    @contextmanager
    def trouble(storm: Storm) -> Iterator[None]:
        pid = storm.pid(storm.rng.choice(storm.daemons))
        before = resource.prlimit(pid, number)
        resource.prlimit(pid, number, (allowed(pid), before[1]))
        try:
            yield
        finally:
            with suppress(ProcessLookupError):  # it died of that
                resource.prlimit(pid, number, before)

    return trouble


def _half_its_memory_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    return pages * resource.getpagesize() // 2


def _loading(storm: Storm) -> list[str]:
    return [name for name in storm.daemons if "." in name]


def _source(storm: Storm, daemon: str) -> str:
    (found,) = [name for name in own_sources(storm.folder) if name.startswith(f"{daemon}@")]
    return found


def _cut(storm: Storm, daemon: str, lines: int) -> None:
    storm.kill(daemon)
    # nobody writes there until the supervisor looks again
    storm.kept.truncate(_source(storm, daemon), lines)


TROUBLES: dict[str, Trouble] = {
    "stopped": stopped,
    "broker_stopped": broker_stopped,
    "broker_restarted": broker_restarted,
    "broker_away": broker_away,
    "drive_full": drive_full,
    "read_only": read_only,
    "journal_torn": journal_torn,
    "journal_truncated": journal_truncated,
    "journal_overwritten": journal_overwritten,
    "findings_busy": findings_busy,
    "findings_corrupt": findings_corrupt,
    "mail_down": mail_down,
    "mail_slow": _mail("slow"),
    "mail_refusing": _mail("refusing"),
    "mail_greylisting": _mail("greylisting"),
    "names_gone": names_gone,
    "clock_ahead": _clock(7200.0),
    "clock_back": _clock(-7200.0),
    "no_descriptors": _limit(resource.RLIMIT_NOFILE, lambda _: 3),
    "no_memory": _limit(resource.RLIMIT_AS, _half_its_memory_bytes),
}
