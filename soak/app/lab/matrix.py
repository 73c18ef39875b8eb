"""`soak lab matrix`: run drills over seeds, keep every result, write the tables, judge them by the limits."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from soak.app.lab import drills
from soak.core.clock import SystemClock
from soak.core.errors import LabError, PlanError
from soak.core.plan import plugins
from soak.lab.drills import drill as drill_files
from soak.lab.drills import matrix
from soak.lab.drills import result as drill_result
from soak.lab.drills.result import Result
from soak.lab.standing import end_holder
from soak.service.files import is_locked, write_atomically
from soak.service.signals import exit_on_sigterm

STOP_SECONDS = drills.STOP_SECONDS + 30.0
_POLL_NS = 200_000_000


def wanted_runs(texts: Iterable[str], runs: int) -> dict[str, int]:
    """Return the number of runs of each drill, from texts such as `drive_gc=5`; all drills if none is named.

    Raises:
        PlanError: a text is malformed, or there is no such drill.
    """
    known = drills.drill_names()
    wanted = dict(_parse_wanted(text, runs) for text in texts) or dict.fromkeys(known, runs)
    for name in wanted:
        if name not in known:
            raise PlanError(f"no drill {name!r}{plugins.nearest(name, known)}")
    return wanted


def _parse_wanted(text: str, runs: int) -> tuple[str, int]:
    name, mark, count = text.partition("=")
    if mark and not (count.isdecimal() and int(count)):
        raise PlanError(f"{text!r}: write NAME or NAME=RUNS, such as drive_gc=5")
    return name, int(count) if mark else runs


def run_missing(wanted: dict[str, int], state: Path, page: Path, run_dir: Path) -> bool:
    """Run the drills that have no result yet; an interrupted run does not count.

    Returns:
        True if every run that this machine can make has a result.
    """
    missing = matrix.remaining_runs(wanted, matrix.read_results(state))
    if missing:
        exit_on_sigterm()
        state.parent.mkdir(parents=True, exist_ok=True)  # otherwise the first result would be lost
    lacks = {
        name: drills.missing_for_drill(drills.find_drill(name))
        for name in {name for name, _ in missing}
    }
    is_complete = True
    for name, seed in missing:
        if lacks[name]:
            print(f"{name} {seed}: not here: {lacks[name]}", flush=True)
            continue
        folder = run_dir / f"{name}-{seed}"
        why = f"no result, see {drills.log_path(folder)}"
        result: Result | None = None
        try:
            drills.clear_folder(folder)
            result = drills.run_drill_process(name, seed, folder)
        except LabError as error:
            why = str(error)
        if result is None:
            result = _failed_result(name, seed, why)
        print(f"{name} {seed}: {' | '.join(drill_result.table_row(result)[1:])}", flush=True)
        is_complete &= result.is_judged
        matrix.append_result(state, result)
        write_tables(state, page)
    return is_complete


def _failed_result(name: str, seed: int, why: str) -> Result:
    found = drills.find_drill(name)
    here = drill_result.current_origin(SystemClock().wall_ns())
    result = drill_result.failed_result(found, seed, why)
    return drill_result.stamped(
        result, drills.broker_of(found), drill_files.fingerprint(found), here
    )


def keeps_limits(wanted: dict[str, int], state: Path) -> bool:
    """Print each limit with its result, and return whether these drills meet all of them."""
    asked = [one for one in matrix.read_results(state) if one.drill in wanted]
    for limit in matrix.limits(asked):
        print(limit, flush=True)
    return matrix.is_kept(asked)


def write_tables(state: Path, page: Path) -> None:
    """Write the tables of all stored results into the page."""
    text = page.read_text(encoding="utf-8") if page.exists() else "# Drills\n"
    results = matrix.read_results(state)
    forms = {}
    for name in {one.drill for one in results} & set(drills.drill_names()):
        with suppress(PlanError):  # its file is being edited
            forms[name] = drill_files.fingerprint(drills.find_drill(name))
    tables = matrix.tables([_with_broker(one) for one in results], forms)
    write_atomically(page, matrix.with_tables(text, tables), 0o644)


def _with_broker(one: Result) -> Result:
    """Return a result with the current broker of its drill if the result has none."""
    if one.broker or one.drill not in drills.drill_names():
        return one
    return replace(one, broker=drills.broker_of(drills.find_drill(one.drill)))


def start_in_background(wanted: dict[str, int], state: Path, page: Path, run_dir: Path) -> None:
    """Run the same matrix in a process that does not need this terminal."""
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


def stop_matrix(lock: Path, limit_seconds: float = STOP_SECONDS) -> None:
    """End a running matrix, and wait until its drill has undone its fault.

    Raises:
        LabError: no matrix is running, or it does not end.
    """
    if not is_locked(lock):
        raise LabError(f"no matrix is running below {lock.parent}")
    process = end_holder(lock)
    print(f"process {process} is ending; its drill undoes its fault first", flush=True)
    clock = SystemClock()
    deadline_ns = clock.mono_ns() + int(limit_seconds * 10**9)
    while is_locked(lock):
        if clock.mono_ns() > deadline_ns:
            raise LabError(f"process {process} does not end; see {lock.parent / 'matrix.log'}")
        clock.sleep_until(clock.mono_ns() + _POLL_NS)
    print("it has ended")
