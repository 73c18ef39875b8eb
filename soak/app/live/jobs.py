"""The two things that take long for `soak serve`, each in a process of its own: comparisons and reports.

One at a time runs at the lowest priority, so that a load on the same host goes on as it did; comparisons that
are asked for wait in a short queue, and a report is renewed at most as often as the one who serves allows.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen

from soak.core import wording
from soak.core.errors import SoakError
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.service import children
from soak.store.run_folder import RunFolder, read_run

COMPARE_LIMIT_NS = 600 * SECOND_NS
REPORT_LIMIT_NS = 1800 * SECOND_NS
MAX_WAITING = 4
WATCHED_NS = 60 * SECOND_NS
"""A report is renewed while its run was viewed so recently."""
_MAX_KEPT = 8
_MAX_ERROR_BYTES = 4000
_LOWEST = 19
_VERDICT_CODES = (0, 3, 4)

Pair = tuple[Path, Path]


@dataclass(frozen=True, slots=True)
class Compared:
    """What became of a comparison: its page, or why there is none."""

    page: bytes = b""
    why: str = ""
    is_passing: bool = False  # another try may succeed


@dataclass(slots=True)
class _Running:
    process: Popen[bytes]
    end_by_ns: int
    log: Path
    pair: tuple[Pair, object] | None = None  # a comparison, with what the runs were; else a report
    page: Path | None = None
    run: Path | None = None


@dataclass(slots=True)
class Jobs:
    """Any thread may ask; `step` is called by the main thread alone, which starts and ends the processes."""

    root: Path
    clock: Clock
    renew_ns: int  # between two reports of a run that goes on; 0: none is made
    spawn: Callable[[list[str], Path, Path], Popen[bytes]] = field(
        default_factory=lambda: spawn_command
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _waiting: OrderedDict[Pair, object] = field(default_factory=OrderedDict)
    _compared: OrderedDict[Pair, tuple[object, Compared]] = field(default_factory=OrderedDict)
    _watched: dict[Path, int] = field(default_factory=dict)
    _tried: dict[Path, tuple[int, str]] = field(default_factory=dict)  # when, and why it failed
    _running: _Running | None = None
    _place: tempfile.TemporaryDirectory[str] | None = None

    # --- For the threads that answer.

    def comparison(self, before: RunFolder, after: RunFolder) -> Compared | None:
        """Return a comparison; None while it is made, which this call asks for."""
        pair, stamp = (before.path, after.path), (_stamp(before), _stamp(after))
        with self._lock:
            known = self._compared.get(pair)
            if known is not None and known[0] == stamp:
                self._compared.move_to_end(pair)
                if known[1].is_passing:
                    del self._compared[pair]
                return known[1]
            current = self._running
            if current is not None and current.pair is not None and current.pair[0] == pair:
                return None
            if pair not in self._waiting and len(self._waiting) >= MAX_WAITING:
                return Compared(why="Several comparisons are being made. Try again in a minute.")
            self._waiting[pair] = stamp
            return None

    def watch(self, run: RunFolder) -> None:
        """Note that a run is being viewed."""
        with self._lock:
            self._watched[run.path] = self.clock.mono_ns()
            if len(self._watched) > 1000:  # noqa: PLR2004  # a bound, no setting
                self._watched.pop(min(self._watched, key=self._watched.__getitem__))

    def renewal_text(self, run: RunFolder) -> str:
        """Return how the report of a run that goes on is renewed."""
        by_hand = "`soak report` with the folder of the run renews it"
        if not self.renew_ns:
            return f"The report is made when it is asked for: {by_hand}."
        with self._lock:
            is_made = self._running is not None and self._running.run == run.path
            why = self._tried.get(run.path, (0, ""))[1]
        if is_made:
            return "The report is being renewed."
        every = wording.span(self.renew_ns / SECOND_NS)
        text = f"While this page is open and the run goes on, the report is renewed every {every}."
        return f"{text} The last time that failed: {why}" if why else text

    # --- For the main thread.

    def step(self) -> None:
        """Start what is due, and take in what has ended."""
        if self._running is not None:
            self._take_in(self._running)
        if self._running is None:
            with self._lock:
                pair, stamp = self._waiting.popitem(last=False) if self._waiting else (None, None)
            try:
                self._begin(pair, stamp)
            except OSError as error:  # no room for the page, or for another process
                if pair is not None:
                    with self._lock:
                        self._compared[pair] = (
                            stamp,
                            Compared(why=f"cannot begin: {error}", is_passing=True),
                        )

    def close(self) -> None:
        """End what runs."""
        if self._running is not None:
            children.kill(self._running.process)
        if self._place is not None:
            self._place.cleanup()

    def _begin(self, pair: Pair | None, stamp: object) -> None:
        now_ns = self.clock.mono_ns()
        run = self._due(now_ns) if pair is None else None
        if pair is None and run is None:
            return
        if self._place is None:
            self._place = tempfile.TemporaryDirectory(prefix="soak-serve-")
        log, page = (Path(self._place.name) / name for name in ("log", "page.html"))
        for path in (log, page):
            path.unlink(missing_ok=True)
        if pair is not None:
            # Names may begin with a dash.
            names = [f"./{path.relative_to(self.root.parent)}" for path in pair]
            arguments = ["compare", "--no-cache", "--page", str(page), "--", *names]
            process = self.spawn(arguments, log, self.root.parent)
            begun = _Running(process, now_ns + COMPARE_LIMIT_NS, log, (pair, stamp), page)
        else:
            process = self.spawn(["report", "--", str(run)], log, self.root.parent)
            begun = _Running(process, now_ns + REPORT_LIMIT_NS, log, run=run)
        with self._lock:
            self._running = begun

    def _due(self, now_ns: int) -> Path | None:
        """Return a run whose report is to be renewed."""
        if not self.renew_ns:
            return None
        with self._lock:
            watched = [run for run, at in self._watched.items() if now_ns - at < WATCHED_NS]
            tried = dict(self._tried)
        for run in watched:
            if run in tried and now_ns - tried[run][0] < self.renew_ns:
                continue
            folder = RunFolder(run)
            try:
                age_ns = self.clock.wall_ns() - folder.summary.stat().st_mtime_ns
            except FileNotFoundError:
                age_ns = self.renew_ns
            except OSError:
                continue
            if age_ns >= self.renew_ns and _goes_on(run):
                return run
        return None

    def _take_in(self, running: _Running) -> None:
        code = running.process.poll()
        if code is None:
            has_ended = running.run is not None and not _goes_on(running.run)
            if self.clock.mono_ns() < running.end_by_ns and not has_ended:
                return
            children.kill(running.process)  # of a run that has ended, the last report is made now
        why = "" if code in _VERDICT_CODES else _reason(code, running.log)
        with self._lock:
            self._running = None
            if running.pair is not None:
                pair, stamp = running.pair
                self._waiting.pop(pair, None)  # asked for between its start and now
                self._compared[pair] = (stamp, _compared(running.page, why, code))
                if len(self._compared) > _MAX_KEPT:
                    self._compared.popitem(last=False)
            elif running.run is not None:
                self._tried[running.run] = (self.clock.mono_ns(), why)


def _goes_on(run: Path) -> bool:
    try:
        return read_run(RunFolder(run)).state == "running"
    except (SoakError, OSError):
        return False


def spawn_command(arguments: list[str], log: Path, folder: Path) -> Popen[bytes]:
    """Start a command of soak in a folder at the lowest priority; call it from the main thread."""
    # Without -P a file in the folder could take the place of a module.
    command = [sys.executable, "-P", "-m", "soak.cli.main", *arguments]
    process = children.spawn(command, log_path=log, cwd=folder)
    children.set_niceness(process, _LOWEST)
    return process


def _compared(page: Path | None, why: str, code: int | None) -> Compared:
    if why or page is None:
        return Compared(why=why, is_passing=code is None or code < 0)  # out of time, or killed
    try:
        return Compared(page.read_bytes())
    except OSError as error:
        return Compared(why=f"the page cannot be read: {error.strerror}", is_passing=True)


def _reason(code: int | None, log: Path) -> str:
    """Return why a process failed: the end of what it printed."""
    if code is None:
        return "it took too long"
    try:
        raw = log.read_bytes()[-_MAX_ERROR_BYTES:]
    except OSError:
        raw = b""
    lines = [one for one in raw.decode(errors="replace").splitlines() if one.startswith("soak: ")]
    return lines[-1].removeprefix("soak: ") if lines else f"exit code {code}"


def _stamp(folder: RunFolder) -> object:
    found = []
    for path in (folder.run_json, folder.summary, folder.acknowledged):
        try:
            about = path.stat()
            found.append((about.st_mtime_ns, about.st_size))
        except OSError:
            found.append((0, 0))
    return tuple(found)
