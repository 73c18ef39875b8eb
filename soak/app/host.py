"""What this host has: drives and their speed, free space, how its clock is kept, what each probe can read."""

from __future__ import annotations

import errno
import logging
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from probes import clock
from probes.clock import Timex
from soak.conductor.free_space import broker_folders
from soak.core import plugins
from soak.core.clock import SystemClock
from soak.core.cluster.drives import DriveState, Measured, Moment, warnings
from soak.core.errors import NotAvailableError, PlanError, ProbeError, RunFolderError, SoakError
from soak.core.model import Column
from soak.core.plan.plan import AnyPlan, Plan
from soak.core.ports import Clock, Probe
from soak.core.units import SECOND_NS, duration_ns, format_duration, format_size
from soak.core.wording import amount
from soak.runtime.context import host_name
from soak.sampling.drive_check import DEFAULT_LIMITS, drive_state, group_by_filesystem, measure
from soak.sampling.scheduler import ProbeAnswer, ProbeReader
from soak.store import run_folder
from soak.store.run_folder import Run, RunFolder, read_run

LOG = logging.getLogger("soak.cli.drives")
DEFAULT_DRIVE_CHECK_NS = duration_ns("30s")

Note = Callable[[str], None]


def drive_folders(plan: AnyPlan) -> list[str]:
    """Return the folders before a run began: a lab's brokers will keep their data below that for runs."""
    is_lab = isinstance(plan, Plan) and plan.lab is not None
    return [nearest_existing(Path(plan.run_directory))] if is_lab else broker_folders(plan)


def measure_drives(
    plan: AnyPlan,
    folders: Sequence[str],
    moment: Moment,
    length_ns: int,
    say: Note,
    injected: Sequence[Path] = (),
) -> list[Measured]:
    """Measure one drive after the other: side by side they would disturb each other.

    On none is less left than the plan's `free_space_floor`, at which a run may have ended; but drives that
    are `injected` at these mount points are there to be filled, and may be smaller than that.
    """
    clock, host = SystemClock(), host_name()
    floored = replace(
        DEFAULT_LIMITS, floor_bytes=max(DEFAULT_LIMITS.floor_bytes, plan.free_space_floor)
    )
    found = []
    for directories in group_by_filesystem(folders):
        is_injected = any(Path(directories[0]).is_relative_to(mount) for mount in injected)
        limits = DEFAULT_LIMITS if is_injected else floored
        say(f"measuring the drive of {directories[0]} for {format_duration(length_ns)}")
        found.append(measure(directories, moment, length_ns, host, clock, limits=limits))
        say(drive_line(found[-1]))
    return found


def check_drives(plan: AnyPlan, run_dir: Path | None) -> None:
    """Measure the drives that a plan names, print what was found, and keep it where a run is named.

    Raises:
        PlanError: the plan names none.
    """
    folders = drive_folders(plan)
    if not folders:
        raise PlanError("--drives: no probe of the plan names a folder on a broker's drive")
    length_ns = (plan.drive_check if isinstance(plan, Plan) else 0) or DEFAULT_DRIVE_CHECK_NS
    if run_dir is None:
        found = measure_drives(plan, folders, "before", length_ns, print)
        for warning in warnings(found):
            print(f"Warning: {warning}.")
        return
    folder = RunFolder(run_dir.absolute())
    moment = moment_of(read_run(folder), SystemClock().wall_ns())
    record_drives(folder, plan, folders, moment, length_ns, print)


def record_drives(
    folder: RunFolder,
    plan: AnyPlan,
    folders: Sequence[str],
    moment: Moment,
    length_ns: int,
    say: Note,
    injected: Sequence[Path] = (),
) -> None:
    """Measure, and keep what was found in a run's folder; a drive that cannot be measured ends no run."""
    run_folder.append_drive_checks(
        folder, measure_drives(plan, folders, moment, length_ns, say, injected)
    )
    for warning in warnings(run_folder.read_drive_checks(folder)):
        LOG.warning("drive_check warning=%r", warning)
        say(f"Warning: {warning}.")


def moment_of(run: Run, wall_ns: int) -> Moment:
    """Return where an instant lies in a run."""
    if run.state == "beginning":
        return "before"
    if run.state != "running":
        return "after"
    return "before" if wall_ns < run.start_wall_ns else "during"


def nearest_existing(path: Path) -> str:
    """Return the nearest folder at or above a path that is there."""
    found = path.absolute()
    while not found.exists():
        found = found.parent
    return str(found)


def drive_line(one: Measured) -> str:
    """Return what was measured, for a terminal."""
    if one.fsync_p50_seconds is None or one.fsync_p99_seconds is None:
        return f"{one.name}: {one.trouble}"
    rate = (
        "unknown"
        if one.write_bytes_per_second is None
        else amount(one.write_bytes_per_second, "bytes")
    )
    p50, p99 = (
        amount(value, "seconds") for value in (one.fsync_p50_seconds, one.fsync_p99_seconds)
    )
    figures = f"{one.name}: fsync p50 {p50}, p99 {p99} ({one.flushes} flushes), {rate}/s"
    return figures if one.state is None else f"{figures}; {one.state.words}"


# --- A drive that takes no more, told in a line: what was to be written, which drive it is, what is needed.

_FULL_DRIVE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@contextmanager
def full_drive_errors(folder: Path, needed: str) -> Iterator[None]:
    """Tell of what is written below `folder` and not taken; `needed` says how much room there has to be.

    Raises:
        RunFolderError: instead of the system's error.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL_DRIVE_ERRORS:
            raise
        path = Path(error.filename or folder)
        drive = _mount_point(Path(nearest_existing(path)))
        free = format_size(shutil.disk_usage(drive).free // 2**10 * 2**10)
        room = "" if error.errno == errno.EROFS else f" has {free} free; {needed}"
        raise RunFolderError(
            f"cannot write {path}: {error.strerror}: the drive at {drive}{room}"
        ) from error


def _mount_point(path: Path) -> Path:
    """Return where the filesystem that holds a path is mounted."""
    while not path.is_mount():
        path = path.parent
    return path


# --- What `soak check` tells of this machine: how its clock is kept, and how the brokers' drives are set up.


def host_lines(
    folders: Sequence[str],
    kept: Callable[[], Timex] = clock.read_timex,
    look: Callable[[str], DriveState] = drive_state,
) -> list[str]:
    """Return a line each on the clock and on the drives of these folders; nothing is measured."""
    return [
        *_clock_line(kept),
        *(line for several in group_by_filesystem(folders) for line in _drive_lines(several, look)),
    ]


def _clock_line(kept: Callable[[], Timex]) -> Iterator[str]:
    try:
        kernel = kept()
    except NotAvailableError as error:
        yield f"Clock: unknown, {error}."
        return
    if kernel.is_synchronised:
        yield f"Clock: kept, off by at most {amount(kernel.maxerror_seconds, 'seconds')}."
    else:
        yield (
            "Warning: nobody keeps this host's clock (chrony, ntpd): latency between hosts and times "
            "beside other hosts' mean little."
        )


def _drive_lines(directories: tuple[str, ...], look: Callable[[str], DriveState]) -> Iterator[str]:
    try:
        state = look(directories[0])
    except FileNotFoundError:
        yield f"Drive of {directories[0]}: not on this host."
        return
    except (OSError, ProbeError) as error:
        yield f"Drive of {directories[0]}: unknown, {error}."
        return
    yield f"Drive of {', '.join(directories)}: {state.words}."
    here = Measured(host_name(), directories, "before", 0, state=state)
    yield from (f"Warning: {warning}." for warning in warnings([here]))


# --- What this machine can give, for a person: each probe with its numbers, or why it has none.

READINGS = 3  # a second apart: rates need two, and a probe with a thread of its own one more
PATIENCE_SECONDS = 3.0
PLAIN_WIDTH = 100  # where there is no terminal


@dataclass(slots=True)
class ProbeReadings:
    """What one probe gave in all its readings; `trouble` is what it said last."""

    values: dict[Column, float] = field(default_factory=dict)
    trouble: Exception | None = None
    is_hanging: bool = True

    @property
    def word(self) -> str:
        """Return one word for the summary."""
        if self.is_hanging:
            return "hanging"
        if isinstance(self.trouble, NotAvailableError):
            return "not here"
        if self.trouble is not None:
            return "failed"
        return "here" if self.values else "silent"


def read_probes(
    probes: Mapping[str, Probe], clock: Clock, patience_seconds: float = PATIENCE_SECONDS
) -> dict[str, ProbeReadings]:
    """Read every probe a few times, each on a thread of its own.

    A thread that hangs is left behind: end the process by `os._exit`.
    """
    answers: SimpleQueue[ProbeAnswer] = SimpleQueue()
    turn = threading.Lock()
    readers = {
        name: ProbeReader(name, probe, answers, turn, clock) for name, probe in probes.items()
    }
    seen = {name: ProbeReadings() for name in readers}
    out: set[str] = set()
    try:
        _read_rounds(readers, seen, out, answers, clock, patience_seconds)
    finally:  # an interrupt too must leave no file of a probe behind
        for reader in readers.values():
            reader.close()
        for name in readers.keys() - out:
            readers[name].wait(1.0)
    for name, found in seen.items():
        found.is_hanging = name in out
    return seen


def _read_rounds(
    readers: Mapping[str, ProbeReader],
    seen: Mapping[str, ProbeReadings],
    out: set[str],
    answers: SimpleQueue[ProbeAnswer],
    clock: Clock,
    patience_seconds: float,
) -> None:
    """Note what each reader answers; `out` holds the names of those that have not."""
    begin_ns = clock.mono_ns()
    for number in range(READINGS):
        clock.sleep_until(begin_ns + number * SECOND_NS)
        asked = readers.keys() - out
        for name in asked:
            readers[name].ask()
        out |= asked
        while out & asked:  # what hung before is not waited for again
            try:
                answer = answers.get(timeout=patience_seconds)
            except Empty:
                break
            out.discard(answer.name)
            _keep_answer(seen[answer.name], answer)


def _keep_answer(seen: ProbeReadings, answer: ProbeAnswer) -> None:
    """Keep what an answer gave.

    Raises:
        Exception: a bug in the probe.
    """
    if isinstance(answer.result, SoakError):
        seen.trouble = answer.result
    elif isinstance(answer.result, Exception):
        raise answer.result
    else:
        seen.values.update(answer.result.samples)
        if answer.result.samples:
            seen.trouble = None


def show_probes(seen: Mapping[str, ProbeReadings], console: Console) -> None:
    """Print a block a probe, and at the end which of them give something here."""
    columns = [column for one in seen.values() for column in one.values]
    widest = max((len(column.metric) for column in columns), default=0)
    for name, one in seen.items():
        shared = _shared_labels(one)
        about = f"{name}: {_about(name)}"
        console.print(Text(about, style="bold"))
        if shared:
            console.print(Text(f"  {_labels_text(shared)}", style="dim"), soft_wrap=True)
        for line in _troubles(one):
            console.print(Padding(Text(line, style="yellow"), (0, 0, 0, 2), expand=False))
        for column, value in one.values.items():
            labels = _labels_text(label for label in column.labels if label not in shared)
            line = f"  {column.metric:<{widest}}  {_number(value):>16}  {column.unit:<8}  {labels}"
            console.print(Text(line.rstrip()), soft_wrap=True)
        console.print()
    words: dict[str, list[str]] = {"here": []}
    for name, one in seen.items():
        words.setdefault(one.word, []).append(name)
    for word, names in words.items():
        console.print(Text(f"{word}: {', '.join(names) or 'none'}"))


def plain_console() -> Console:
    """Return a console as wide as the terminal, or wide enough for a file."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


def _about(name: str) -> str:
    return (plugins.load("probes", name).__doc__ or "").partition("\n")[0]


def _troubles(one: ProbeReadings) -> list[str]:
    if one.is_hanging:
        return ["it has not answered: something that it reads hangs"]
    if one.trouble is not None:
        return [f"{one.word}: {one.trouble}"]
    return [] if one.values else ["nothing to tell within these seconds"]


def _number(value: float) -> str:
    """Return six digits of a number, or all that stand before the point."""
    return f"{value:,.0f}" if abs(value) >= 10**6 else f"{value:,.6g}"


def _shared_labels(one: ProbeReadings) -> list[tuple[str, str]]:
    """Return the labels that all of a probe's numbers have, such as its folder: said once."""
    every = [column.labels for column in one.values]
    return (
        [label for label in every[0] if all(label in labels for labels in every)] if every else []
    )


def _labels_text(labels: Iterable[tuple[str, str]]) -> str:
    return " ".join(f"{key}={text}" for key, text in labels)
