"""What this host has: drives and their speed, free space, how its clock is kept, what each probe can read."""

from __future__ import annotations

import errno
import logging
import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from probes import clock
from probes.clock import Timex
from soak.conductor.free_space import broker_folders
from soak.core.clock import SystemClock
from soak.core.cluster.drives import DriveState, Measured, Moment, warnings
from soak.core.errors import (
    NotAvailableError,
    PartialReadingError,
    PlanError,
    ProbeError,
    RunFolderError,
    SoakError,
)
from soak.core.model import Column
from soak.core.plan import plugins
from soak.core.plan.plan import AnyPlan, Plan
from soak.core.ports import Clock, Probe
from soak.core.units import SECOND_NS, duration_ns, format_duration, format_size
from soak.core.wording import amount, escaped
from soak.runtime.grid import host_name
from soak.sampling.drive_check import (
    DEFAULT_LIMITS,
    Limits,
    drive_state,
    group_by_filesystem,
    measure,
)
from soak.sampling.scheduler import ProbeAnswer, ProbeReader
from soak.store import run_folder
from soak.store.run_folder import Run, RunFolder, read_run

LOG = logging.getLogger(__name__)
DEFAULT_DRIVE_CHECK_NS = duration_ns("30s")
READINGS = 3  # a second apart: rates need two, a probe with its own thread one more
ANSWER_TIMEOUT_SECONDS = 3.0
PLAIN_WIDTH = 100  # columns where there is no terminal
_FULL_DRIVE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_PORT = re.compile(r"(:\d+)?/?$")

Note = Callable[[str], None]


def own_addresses(addresses: str) -> tuple[str, ...]:
    """Return which of these addresses, with commas between them, are of this host: `b1:9092`, `http://b1`."""
    listed = dict.fromkeys(one.strip() for one in addresses.split(","))
    return tuple(one for one in listed if is_own_address(_PORT.sub("", one.rpartition("//")[2])))


def is_own_address(name: str) -> bool:
    """Return whether a host name or IP address is one of this host: a socket can be bound to it.

    Units may not list the interfaces, which takes a socket of another family.
    """
    if not name:
        return False
    try:
        found = socket.getaddrinfo(name.strip("[]"), None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    return any(_can_bind(family, address[0]) for family, _, _, _, address in found)


def _can_bind(family: socket.AddressFamily, address: str | int) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as own:
            own.bind((address, 0))
    except OSError:
        return False
    return True


def drive_folders(plan: AnyPlan) -> list[str]:
    """Return the folders whose drives are measured; a lab keeps its data below the run folder."""
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
    """Measure one drive after another, because parallel measurements would disturb each other."""
    clock, host = SystemClock(), host_name()
    found = []
    for directories in group_by_filesystem(folders):
        limits = drive_limits(plan, directories[0], injected)
        say(f"measuring the drive of {directories[0]} for {format_duration(length_ns)}")
        found.append(measure(directories, moment, length_ns, host, clock, limits=limits))
        say(drive_line(found[-1]))
    return found


def drive_limits(plan: AnyPlan, directory: str, injected: Sequence[Path]) -> Limits:
    """Return the limits of a measurement, which leaves the plan's `free_space_floor` free.

    Except on drives that are `injected` at these mount points: those exist to be filled, and may be smaller
    than the floor.
    """
    if any(Path(directory).is_relative_to(mount) for mount in injected):
        return DEFAULT_LIMITS
    floor_bytes = max(DEFAULT_LIMITS.floor_bytes, plan.free_space_floor)
    return replace(DEFAULT_LIMITS, floor_bytes=floor_bytes)


def check_drives(plan: AnyPlan, run_dir: Path | None) -> None:
    """Measure the drives that a plan names, print the result, and store it if a run is given.

    Raises:
        PlanError: the plan names no drive.
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
    """Measure drives and store the result in a run folder; a failed measurement stops no run."""
    run_folder.append_drive_checks(
        folder, measure_drives(plan, folders, moment, length_ns, say, injected)
    )
    for warning in warnings(run_folder.read_drive_checks(folder)):
        LOG.warning("drive_check warning=%r", warning)
        say(f"Warning: {warning}.")


def moment_of(run: Run, wall_ns: int) -> Moment:
    """Return whether an instant is before, during or after a run."""
    if run.state == "beginning":
        return "before"
    if run.state != "running":
        return "after"
    return "before" if wall_ns < run.start_wall_ns else "during"


def nearest_existing(path: Path) -> str:
    """Return the nearest existing folder at or above a path."""
    found = path.absolute()
    while not found.exists():
        found = found.parent
    return str(found)


def drive_line(one: Measured) -> str:
    """Return a line for a terminal about one measured drive."""
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


@contextmanager
def full_drive_errors(folder: Path, needed: str) -> Iterator[None]:
    """Name file, drive and free space when a write below `folder` fails; `needed` says how much is required.

    Raises:
        RunFolderError: in place of the system's error.
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
    """Return the mount point of the filesystem that contains a path."""
    while not path.is_mount():
        path = path.parent
    return path


def host_lines(
    folders: Sequence[str],
    read_timex: Callable[[], Timex] = clock.read_timex,
    read_drive: Callable[[str], DriveState] = drive_state,
) -> list[str]:
    """Return a line each about the clock and about the drives of these folders, without measuring."""
    return [
        _clock_line(read_timex),
        *(
            line
            for directories in group_by_filesystem(folders)
            for line in _drive_lines(directories, read_drive)
        ),
    ]


def _clock_line(read_timex: Callable[[], Timex]) -> str:
    try:
        kernel = read_timex()
    except NotAvailableError as error:
        return f"Clock: unknown, {error}."
    bound = kernel.bound_seconds
    if bound is not None:
        return f"Clock: synchronised, off by at most {amount(bound, 'seconds')}."
    if kernel.is_synchronised:
        return "Clock: synchronised; its time daemon does not say by how much it may be off."
    return (
        "Warning: the clock of this host is not synchronised (chrony, ntpd): latencies between hosts are "
        "unreliable, and times differ from those of other hosts."
    )


def _drive_lines(
    directories: tuple[str, ...], read_drive: Callable[[str], DriveState]
) -> Iterator[str]:
    try:
        state = read_drive(directories[0])
    except FileNotFoundError:
        yield f"Drive of {directories[0]}: not on this host."
        return
    except (OSError, ProbeError) as error:
        yield f"Drive of {directories[0]}: unknown, {error}."
        return
    yield f"Drive of {', '.join(directories)}: {state.words}."
    here = Measured(host_name(), directories, "before", 0, state=state)
    yield from (f"Warning: {warning}." for warning in warnings([here]))


@dataclass(slots=True)
class ProbeReadings:
    """The values of all readings of one probe; `error` is that of the last failed reading."""

    values: dict[Column, float] = field(default_factory=dict)
    error: Exception | None = None
    is_hanging: bool = True

    @property
    def status(self) -> str:
        """Return one word for the summary."""
        if self.is_hanging:
            return "no answer"
        if isinstance(self.error, NotAvailableError):
            return "not available"
        if self.error is not None:
            return "failed"
        return "available" if self.values else "no values"


def read_probes(
    probes: Mapping[str, Probe], clock: Clock, timeout_seconds: float = ANSWER_TIMEOUT_SECONDS
) -> dict[str, ProbeReadings]:
    """Read every probe a few times, each on its own thread.

    A thread may hang and stay: end the process with `os._exit`.
    """
    answers: SimpleQueue[ProbeAnswer] = SimpleQueue()
    turn = threading.Lock()
    readers = {
        name: ProbeReader(name, probe, answers, turn, clock) for name, probe in probes.items()
    }
    readings = {name: ProbeReadings() for name in readers}
    unanswered: set[str] = set()
    try:
        _read_rounds(readers, readings, unanswered, answers, clock, timeout_seconds)
    finally:  # an interrupt must not leave files of a probe behind either
        for reader in readers.values():
            reader.close()
        for name in readers.keys() - unanswered:
            readers[name].wait(1.0)
    for name, one in readings.items():
        one.is_hanging = name in unanswered
    return readings


def _read_rounds(
    readers: Mapping[str, ProbeReader],
    readings: Mapping[str, ProbeReadings],
    unanswered: set[str],
    answers: SimpleQueue[ProbeAnswer],
    clock: Clock,
    timeout_seconds: float,
) -> None:
    """Store each reader's answer; `unanswered` has the names of the readers that are still busy."""
    begin_ns = clock.mono_ns()
    for number in range(READINGS):
        clock.sleep_until(begin_ns + number * SECOND_NS)
        asked = readers.keys() - unanswered
        for name in asked:
            readers[name].ask()
        unanswered |= asked
        while unanswered & asked:  # do not wait again for a reader that hung before
            try:
                answer = answers.get(timeout=timeout_seconds)
            except Empty:
                break
            unanswered.discard(answer.name)
            _store_answer(readings[answer.name], answer)


def _store_answer(readings: ProbeReadings, answer: ProbeAnswer) -> None:
    """Store the values or the error of an answer.

    Raises:
        Exception: a bug in the probe.
    """
    if isinstance(answer.result, SoakError):
        readings.error = answer.result
        if isinstance(answer.result, PartialReadingError):
            readings.values.update(answer.result.reading.samples)
    elif isinstance(answer.result, Exception):
        raise answer.result
    else:
        readings.values.update(answer.result.samples)
        if answer.result.samples:
            readings.error = None


def print_probes(readings: Mapping[str, ProbeReadings], console: Console) -> None:
    """Print a block for each probe, and a summary of which are available here."""
    columns = [column for one in readings.values() for column in one.values]
    widest = max((len(column.metric) for column in columns), default=0)
    for name, one in readings.items():
        shared = _shared_labels(one)
        about = f"{name}: {_about(name)}"
        console.print(Text(about, style="bold"))
        if shared:
            console.print(Text(f"  {_labels_text(shared)}", style="dim"), soft_wrap=True)
        for line in _problems(one):
            console.print(Padding(Text(line, style="yellow"), (0, 0, 0, 2), expand=False))
        for column, value in one.values.items():
            labels = _labels_text(label for label in column.labels if label not in shared)
            line = f"  {column.metric:<{widest}}  {_number(value):>16}  {column.unit:<8}  {labels}"
            console.print(Text(line.rstrip()), soft_wrap=True)
        console.print()
    by_status: dict[str, list[str]] = {"available": []}
    for name, one in readings.items():
        by_status.setdefault(one.status, []).append(name)
    for status, names in by_status.items():
        console.print(Text(f"{status}: {', '.join(names) or 'none'}"))


class SafeConsole(Console):
    """A console of Rich whose texts command no terminal: Rich leaves what is within them."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for one in super().render(renderable, options):
            yield one if one.control else Segment(escaped(one.text), one.style)


def plain_console() -> Console:
    """Return a console as wide as the terminal, or wide enough for a file."""
    console = SafeConsole(highlight=False)
    return console if console.is_terminal else SafeConsole(highlight=False, width=PLAIN_WIDTH)


def _about(name: str) -> str:
    return (plugins.load("probes", name).__doc__ or "").partition("\n")[0]


def _problems(one: ProbeReadings) -> list[str]:
    if one.is_hanging:
        return ["no answer: a file or a server that it reads hangs"]
    if one.error is not None:
        return [f"{one.status}: {one.error}"]
    return [] if one.values else ["no values within these seconds"]


def _number(value: float) -> str:
    """Return a number with six significant digits, or all of its integer digits."""
    return f"{value:,.0f}" if abs(value) >= 10**6 else f"{value:,.6g}"


def _shared_labels(one: ProbeReadings) -> list[tuple[str, str]]:
    """Return the labels that all values of a probe share, such as its folder: they are printed once."""
    every = [column.labels for column in one.values]
    return (
        [label for label in every[0] if all(label in labels for labels in every)] if every else []
    )


def _labels_text(labels: Iterable[tuple[str, str]]) -> str:
    return " ".join(f"{key}={text}" for key, text in labels)
