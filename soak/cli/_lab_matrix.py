"""`soak lab matrix`: many drills over seeds, stopped and gone on with as one likes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parents[2]
STOP_SECONDS = 300


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
    """Run drills over seeds and write what came out; what is there already is not run again."""
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
            _run(wanted, state, page, run_dir)


def _wanted(text: str, runs: int) -> tuple[str, int]:
    from soak.core.errors import PlanError

    name, mark, count = text.partition("=")
    if mark and not (count.isdecimal() and int(count)):
        raise PlanError(f"{text!r}: write NAME or NAME=RUNS, such as drive_gc=5")
    return name, int(count) if mark else runs


def _run(wanted: dict[str, int], state: Path, page: Path, run_dir: Path) -> None:
    """Run what is missing until it is there or somebody interrupts; then the run in hand does not count."""
    import shutil
    import signal
    import sys

    from soak.cli import _lab_drill
    from soak.lab import drill_result, matrix
    from soak.service import children
    from soak.service.signals import exit_on_sigterm

    missing = matrix.left(wanted, matrix.read(state))
    if missing:
        exit_on_sigterm()
    for name, seed in missing:
        folder = run_dir / f"{name}-{seed}"
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was interrupted
        folder.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "soak.cli.main", "lab", "drill", name]
        log = run_dir / f"{name}-{seed}.log"
        log.unlink(missing_ok=True)
        process = children.spawn(
            [*command, "--seed", str(seed), "--run-dir", str(folder)],
            log_path=log,
            death_signal=signal.SIGTERM,  # it ends its run in order, and all that it injected
        )
        try:
            process.wait()
        finally:
            children.stop(process, STOP_SECONDS)
        result = _lab_drill.result_of(folder)
        if result is None:
            print(f"{name} {seed}: no result, see {log}", flush=True)
            continue
        print(f"{name} {seed}: {' | '.join(drill_result.row(result)[1:])}", flush=True)
        if not result.is_judged:
            continue
        with state.open("a", encoding="utf-8") as file:
            file.write(drill_result.line(result))
        _write(state, page)


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
