"""`soak lab matrix`: many drills over seeds, stopped and gone on with as one likes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parents[2]


def matrix(
    drills: Annotated[
        list[str] | None, typer.Argument(help="Names of drills, as NAME or NAME=RUNS.")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs of each drill that names none.")] = 2,
    state: Annotated[Path, typer.Option(help="Where results are kept, a line a run.")] = ROOT
    / "docs"
    / "drills.jsonl",
    page: Annotated[Path, typer.Option(help="The page that gets the tables.")] = ROOT
    / "docs"
    / "drills.md",
    run_dir: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs/matrix"),
    background: Annotated[bool, typer.Option(help="Go on without this terminal.")] = False,
    stop: Annotated[bool, typer.Option(help="End one in the background.")] = False,
    show: Annotated[bool, typer.Option(help="Only write the tables anew.")] = False,
) -> None:
    """Run drills over seeds and write what came out; what is there already is not run again.

    Exit 1 when a run that this machine can make has no result that proves anything.
    """
    from soak.cli import _lab_drill
    from soak.core import plugins
    from soak.core.errors import PlanError
    from soak.store.run_folder import exclusive

    known = _lab_drill.known()
    wanted = dict(_wanted(text, runs) for text in drills or known)
    for name in wanted:
        if name not in known:
            raise PlanError(f"no drill {name!r}{plugins.nearest(name, known)}")
    lock = run_dir / "matrix.lock"
    if stop:
        _stop(lock)
    elif show:
        _write(state, page)
    elif background:
        _go_on_alone(wanted, state, page, run_dir)
    else:
        with exclusive(lock, "this matrix"):
            is_complete = _run(wanted, state, page, run_dir)
        raise typer.Exit(0 if is_complete else 1)


def _wanted(text: str, runs: int) -> tuple[str, int]:
    from soak.core.errors import PlanError

    name, mark, count = text.partition("=")
    if mark and not (count.isdecimal() and int(count)):
        raise PlanError(f"{text!r}: write NAME or NAME=RUNS, such as drive_gc=5")
    return name, int(count) if mark else runs


def _run(wanted: dict[str, int], state: Path, page: Path, run_dir: Path) -> bool:
    """Run what is missing until it is there or somebody interrupts; then the run in hand does not count.

    Returns:
        True when every run that this machine can make has a result.
    """
    from soak.cli import _lab_drill, _lab_drills
    from soak.core.errors import LabError
    from soak.lab import drill_result, matrix
    from soak.service.signals import exit_on_sigterm

    missing = matrix.left(wanted, matrix.read(state))
    if missing:
        exit_on_sigterm()
    lacks = {
        name: _lab_drill.missing(_lab_drill.find(name)) for name in {name for name, _ in missing}
    }
    is_complete = True
    for name, seed in missing:
        if lacks[name]:
            print(f"{name} {seed}: not here: {lacks[name]}", flush=True)
            continue
        folder = run_dir / f"{name}-{seed}"
        try:
            _lab_drills.clear(folder)
            result = _lab_drills.run_one(name, seed, folder)
        except LabError as error:
            print(f"{name} {seed}: {error}", flush=True)
            result = None
        if result is None:
            print(f"{name} {seed}: no result, see {_lab_drills.log_of(folder)}", flush=True)
        else:
            print(f"{name} {seed}: {' | '.join(drill_result.row(result)[1:])}", flush=True)
        if result is None or not result.is_judged:
            is_complete = False
            continue
        with state.open("a", encoding="utf-8") as file:
            file.write(drill_result.line(result))
        _write(state, page)
    return is_complete


def _write(state: Path, page: Path) -> None:
    from soak.lab import matrix

    text = page.read_text(encoding="utf-8") if page.exists() else "# Drills\n"
    page.write_text(matrix.with_tables(text, matrix.tables(matrix.read(state))), encoding="utf-8")


def _go_on_alone(wanted: dict[str, int], state: Path, page: Path, run_dir: Path) -> None:
    import subprocess
    import sys

    run_dir.mkdir(parents=True, exist_ok=True)
    names = [f"{name}={count}" for name, count in wanted.items()]
    options = ["--state", str(state), "--page", str(page), "--run-dir", str(run_dir)]
    with (run_dir / "matrix.log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "soak.cli.main", "lab", "matrix", *names, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    print(f"process {process.pid}, log {run_dir / 'matrix.log'}; `soak lab matrix --stop` ends it")


def _stop(lock: Path) -> None:
    import os
    import signal

    from soak.core.errors import LabError, RunFolderError
    from soak.store.run_folder import exclusive

    try:
        with exclusive(lock, "this matrix"):
            raise LabError(f"no matrix runs below {lock.parent}")
    except RunFolderError:
        pid = int(lock.read_text())
        os.kill(pid, signal.SIGTERM)
        print(f"process {pid} ends its run")
