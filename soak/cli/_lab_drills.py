"""Drills as processes of their own: `soak lab drill all`, and each run of `soak lab matrix`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from soak.cli import _lab_drill

if TYPE_CHECKING:  # a command imports what it needs when it is called
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from soak.lab.drill_result import Result

    Run = Callable[[str, int, Path], Result | None]

STOP_SECONDS = 300.0  # a drill that is told to end undoes its fault and makes its report
LIMIT_SECONDS = 2400.0  # for a whole one, on a machine that has other things to do
_FREE_NS = 200_000_000  # between two looks at a folder that is in use


def run_all(run_dir: Path | None, run: Run | None = None) -> int:
    """Run every drill that this machine can; show each one's row, and one table, also when interrupted.

    Raises:
        LabError: the folder has something in it, which could be taken for a result.
    """
    from rich.console import Console

    from soak.cli import _lab_drill_list
    from soak.core.clock import SystemClock
    from soak.core.errors import LabError
    from soak.service.signals import exit_on_sigterm

    root = run_dir or Path("runs") / f"drills-{SystemClock().wall_ns() // 10**9}"
    if root.exists() and any(root.iterdir()):
        raise LabError(f"{root} is not empty: name a new folder for the drills")
    exit_on_sigterm()
    console = Console()
    rows: list[Sequence[str]] = []
    codes: list[int] = []
    try:
        for name in _lab_drill.known():
            code, row = _one_of_all(name, root / name, console, run or run_one)
            codes += [] if code == _lab_drill.NOT_HERE else [code]
            rows.append(row)
    finally:  # an interrupt too leaves what came out so far
        console.print(_lab_drill_list.outcome(rows, console.width))
    return exit_code_of_all(codes)


def exit_code_of_all(codes: Sequence[int]) -> int:
    """Return the worst of those that ran: a miss before a run that proves nothing."""
    if not codes:
        return _lab_drill.NOT_HERE
    return _lab_drill.MISSED if _lab_drill.MISSED in codes else max(codes)


def _one_of_all(name: str, folder: Path, console: Console, run: Run) -> tuple[int, Sequence[str]]:
    """Run a drill if this machine can, and show its row; return its exit code and that."""
    from soak.lab import drill_result

    found = _lab_drill.find(name)
    lack = _lab_drill.missing(found)
    if lack:
        return _lab_drill.NOT_HERE, (name, found.fault_kind, "", "", lack, "not here")
    console.print(f"{name}: {found.description}", markup=False, highlight=False)
    result = run(name, 0, folder)
    if result is None:
        why = f"see {log_of(folder)}"
        return _lab_drill.MISSED, (name, found.fault_kind, "the run failed", "", why, "FAILED")
    row = drill_result.row(result)
    console.print(" | ".join(row[1:]), markup=False, highlight=False)
    return _lab_drill.exit_code(result), row


def run_one(name: str, seed: int, folder: Path) -> Result | None:
    """Run a drill into a new folder, with its output beside it; None when it did not come to its end.

    Should this process end first, the drill is told to, so that it undoes what it injected.
    """
    import signal
    import subprocess
    import sys

    from soak.lab import drill_result
    from soak.service import children

    folder.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "soak.cli.main", "lab", "drill", name]
    process = children.spawn(
        [*command, "--seed", str(seed), "--run-dir", str(folder)],
        log_path=log_of(folder),
        death_signal=signal.SIGTERM,
    )
    try:
        process.wait(LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    finally:
        children.stop(process, STOP_SECONDS)
    path = folder / "lab" / "drill.json"
    ends = (_lab_drill.PASSED, _lab_drill.MISSED, _lab_drill.INCONCLUSIVE)
    if process.returncode not in ends or not path.exists():
        return None
    return drill_result.parse(path.read_text())


def log_of(folder: Path) -> Path:
    """Return the file with what a drill printed."""
    return folder.with_name(f"{folder.name}.log")


def clear(folder: Path) -> None:
    """Remove the folder of a drill that was cut short, once nobody is at work in it.

    Raises:
        LabError: somebody still is, or a drive below it cannot be taken apart.
    """
    import shutil

    from soak.core.clock import SystemClock
    from soak.core.errors import LabError
    from soak.lab import drive_mounts
    from soak.store.run_folder import is_held

    clock = SystemClock()
    deadline_ns = clock.mono_ns() + int(STOP_SECONDS * 10**9)
    while is_held(folder / "run.lock"):  # a drill whose starter was killed still undoes its fault
        if clock.mono_ns() > deadline_ns:
            raise LabError(f"{folder} is still in use")
        clock.sleep_until(clock.mono_ns() + _FREE_NS)
    drive_mounts.clear_left()
    for mount in folder.glob("lab/drive-*/mount"):
        if mount.is_mount():
            raise LabError(f"{mount} is still mounted")
    shutil.rmtree(folder, ignore_errors=True)
    log_of(folder).unlink(missing_ok=True)
