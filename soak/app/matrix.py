"""`soak lab matrix`: run drills over seeds, keep every result, write the tables, judge them by the limits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # a command imports what it needs when it is called
    from soak.lab.drills.result import Result

_STOP_MARGIN_SECONDS = 30.0  # beyond what a drill may take to end
_POLL_NS = 200_000_000
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

    Exit 1 when a run that this machine can make has no result that proves anything, when nothing has one, and
    when those of the drills that are asked for break a limit: found in 95 %, named right in 90 % of these,
    named wrong in 5 %; dated and told in time in 95 %, seen to go in time in 90 %; no alarm before a fault;
    all as it should be where nothing may be found.
    """
    from soak.app import drills as _lab_drill
    from soak.core import plugins
    from soak.core.errors import PlanError
    from soak.store.run_folder import file_lock

    known = _lab_drill.drill_names()
    wanted = dict(_wanted(text, runs) for text in drills or known)
    for name in wanted:
        if name not in known:
            raise PlanError(f"no drill {name!r}{plugins.nearest(name, known)}")
    lock = run_dir / "matrix.lock"
    if stop:
        _stop(lock)
    elif show:
        _write_tables(state, page)
    elif background:
        with file_lock(lock, "this matrix"):
            pass  # else only the log would tell that another one runs
        _start_in_background(wanted, state, page, run_dir)
    else:
        with file_lock(lock, "this matrix"):
            is_complete = _run_missing(wanted, state, page, run_dir)
        raise typer.Exit(0 if _keeps_limits(wanted, state) and is_complete else 1)


def _wanted(text: str, runs: int) -> tuple[str, int]:
    from soak.core.errors import PlanError

    name, mark, count = text.partition("=")
    if mark and not (count.isdecimal() and int(count)):
        raise PlanError(f"{text!r}: write NAME or NAME=RUNS, such as drive_gc=5")
    return name, int(count) if mark else runs


def _run_missing(wanted: dict[str, int], state: Path, page: Path, run_dir: Path) -> bool:
    """Run what is missing until it is there or somebody interrupts; then the run in hand does not count.

    Returns:
        True when every run that this machine can make has a result.
    """
    from soak.app import drills as _lab_drill
    from soak.core.errors import LabError
    from soak.lab.drills import matrix
    from soak.lab.drills import result as drill_result
    from soak.service.signals import exit_on_sigterm

    missing = matrix.remaining_runs(wanted, matrix.read_results(state))
    if missing:
        exit_on_sigterm()
        state.parent.mkdir(parents=True, exist_ok=True)  # else the first result would be lost
    lacks = {
        name: _lab_drill.missing_for_drill(_lab_drill.find_drill(name))
        for name in {name for name, _ in missing}
    }
    is_complete = True
    for name, seed in missing:
        if lacks[name]:
            print(f"{name} {seed}: not here: {lacks[name]}", flush=True)
            continue
        folder = run_dir / f"{name}-{seed}"
        why = f"no result, see {_lab_drill.log_path(folder)}"
        result: Result | None = None
        try:
            _lab_drill.clear_folder(folder)
            result = _lab_drill.run_drill_process(name, seed, folder)
        except LabError as error:
            why = str(error)
        if result is None:
            result = _failed_result(name, seed, why)
        print(f"{name} {seed}: {' | '.join(drill_result.table_row(result)[1:])}", flush=True)
        is_complete &= result.is_judged
        matrix.append_result(state, result)
        _write_tables(state, page)
    return is_complete


def _failed_result(name: str, seed: int, why: str) -> Result:
    from soak.app import drills as _lab_drill
    from soak.core.clock import SystemClock
    from soak.lab.drills import drill as drills
    from soak.lab.drills import result as drill_result

    found = _lab_drill.find_drill(name)
    here = drill_result.current_origin(SystemClock().wall_ns())
    result = drill_result.failed_result(found, seed, why)
    return drill_result.stamped(
        result, _lab_drill.broker_of(found), drills.fingerprint(found), here
    )


def _keeps_limits(wanted: dict[str, int], state: Path) -> bool:
    """Return whether the drills that were asked for keep the limits, and say of each whether it does."""
    from soak.lab.drills import matrix

    asked = [one for one in matrix.read_results(state) if one.drill in wanted]
    for limit in matrix.limits(asked):
        print(limit, flush=True)
    return matrix.is_kept(asked)


def _write_tables(state: Path, page: Path) -> None:
    from contextlib import suppress

    from soak.app import drills as _lab_drill
    from soak.core.errors import PlanError
    from soak.lab.drills import drill as drills
    from soak.lab.drills import matrix
    from soak.store.run_folder import write_atomically

    text = page.read_text(encoding="utf-8") if page.exists() else "# Drills\n"
    results = matrix.read_results(state)
    forms = {}
    for name in {one.drill for one in results} & set(_lab_drill.drill_names()):
        with suppress(PlanError):  # somebody is at it
            forms[name] = drills.fingerprint(_lab_drill.find_drill(name))
    tables = matrix.tables([_with_broker(one) for one in results], forms)
    write_atomically(page, matrix.with_tables(text, tables), 0o644)


def _with_broker(one: Result) -> Result:
    """Return a result with the broker that its drill has by now, where nobody noted it."""
    from dataclasses import replace

    from soak.app import drills as _lab_drill

    if one.broker or one.drill not in _lab_drill.drill_names():
        return one
    return replace(one, broker=_lab_drill.broker_of(_lab_drill.find_drill(one.drill)))


def _start_in_background(wanted: dict[str, int], state: Path, page: Path, run_dir: Path) -> None:
    import shlex
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
    ends = f"soak lab matrix --stop --run-dir {shlex.quote(str(run_dir.absolute()))}"
    print(f"process {process.pid}, log {run_dir / 'matrix.log'}; `{ends}` ends it")


def _stop(lock: Path) -> None:
    """Have a matrix end, and wait until its drill has undone its fault.

    Raises:
        LabError: none runs there, or it does not end.
    """
    from soak.app import drills as _lab_drill
    from soak.core.clock import SystemClock
    from soak.core.errors import LabError
    from soak.lab.standing import end_holder
    from soak.store.run_folder import is_locked

    if not is_locked(lock):
        raise LabError(f"no matrix runs below {lock.parent}")
    process = end_holder(lock)
    print(f"process {process} ends its run, which undoes its fault first", flush=True)
    clock = SystemClock()
    deadline_ns = clock.mono_ns() + int(_lab_drill.STOP_SECONDS + _STOP_MARGIN_SECONDS) * 10**9
    while is_locked(lock):
        if clock.mono_ns() > deadline_ns:
            raise LabError(f"process {process} does not end")
        clock.sleep_until(clock.mono_ns() + _POLL_NS)
    print("it has ended")
