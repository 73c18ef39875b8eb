"""Drills as processes of their own: `soak lab drill all`, and each run of `soak lab matrix`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from soak.cli import _lab_drill

if TYPE_CHECKING:  # a command imports what it needs when it is called
    from soak.lab.drill_result import Result

STOP_SECONDS = 300.0  # a drill that is told to end undoes its fault and makes its report
LIMIT_SECONDS = 2400.0  # for a whole one, on a machine that has other things to do
_FREE_NS = 200_000_000  # between two looks at a folder that is in use


def run_all(run_dir: Path | None) -> int:
    """Run every drill that this machine can; show one table.

    Raises:
        LabError: the folder has something in it, which could be taken for a result.
    """
    from rich.console import Console
    from rich.table import Table

    from soak.core.clock import SystemClock
    from soak.core.errors import LabError
    from soak.lab import drill_result
    from soak.service.signals import exit_on_sigterm

    root = run_dir or Path("runs") / f"drills-{SystemClock().wall_ns() // 10**9}"
    if root.exists() and any(root.iterdir()):
        raise LabError(f"{root} is not empty: name a new folder for the drills")
    exit_on_sigterm()
    console = Console()
    table = Table(title="drills", title_justify="left", box=None, pad_edge=False)
    for heading in ("drill", "injected", "found", "when", "why", ""):
        table.add_column(heading, overflow="fold")
    codes = {_lab_drill.PASSED}
    for name in _lab_drill.known():
        found = _lab_drill.find(name)
        lack = _lab_drill.missing(found)
        if lack:
            table.add_row(name, found.fault_kind, "", "", lack, "not here")
            continue
        console.print(f"{name}: {found.description}", markup=False, highlight=False)
        result = run_one(name, 0, root / name)
        if result is None:
            table.add_row(name, found.fault_kind, "the run failed", "", "", "FAILED")
            codes.add(_lab_drill.MISSED)
            continue
        codes.add(_lab_drill.exit_code(result))
        table.add_row(*drill_result.row(result))
    console.print(table)
    return _lab_drill.MISSED if _lab_drill.MISSED in codes else max(codes)


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
