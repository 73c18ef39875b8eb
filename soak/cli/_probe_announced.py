"""A host that only probes and was told no run: it waits until one of its plan is announced, and joins it.

It ends with that run. Who starts it again, as its unit does, has it wait for the next.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from soak.cli import _no_room
from soak.cli._probe_folder import new_run, probe_in
from soak.core.errors import RunFolderError
from soak.core.phases import to_line
from soak.core.plan_probe import ProbePlan
from soak.core.plan_records import Ship
from soak.core.ports import Clock
from soak.daemons.await_run import await_run
from soak.daemons.beside import Beside
from soak.daemons.context import host_name
from soak.daemons.host_runs import HostRuns
from soak.daemons.listening import Listening
from soak.daemons.ship import has_unsent
from soak.service.journal_lines import is_journal
from soak.service.notify import notifier
from soak.store.announced_runs import AnnouncedRuns
from soak.store.home import Home
from soak.store.run_folder import Run, exclusive, write_atomically, write_run

NEEDS = "a few MiB"


def run_announced(
    plan: ProbePlan, ship: Ship, home: Path, stop: threading.Event, clock: Clock
) -> int:
    """Go on with the run that was cut short here, or join the next; return the exit code.

    Raises:
        SoakError: another process probes by this plan here, the folder cannot be made, or there is no room.
    """
    runs = HostRuns(home.absolute(), plan.name)
    _make(runs.home)
    with (
        _no_room.told(runs.home, NEEDS),
        exclusive(runs.home / f"{plan.name}.lock", "this plan's probing"),
    ):
        run = runs.unfinished(clock.wall_ns()) or _awaited(plan, ship, runs, stop, clock)
        if run is None:
            return 0
        runs.trim(ship.buffer, keep=run.id)
        folder = runs.folder_of(run.id)
        Home(runs.home).point_to(folder)  # where a Prometheus finds the page
        notifier().status(f"run {run.id}")
        return probe_in(
            folder,
            plan,
            run,
            stop,
            clock,
            is_joining=True,
            ship_options=("--follow",),
            state_when_stopped="interrupted",
        )


def _make(home: Path) -> None:
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"--run-dir {home} cannot be used: {error.strerror}") from error


def _awaited(
    plan: ProbePlan, ship: Ship, runs: HostRuns, stop: threading.Event, clock: Clock
) -> Run | None:
    """Return the run that was joined, its folder made; None when told to stop before."""
    where = f"topic {ship.topic} at {ship.bootstrap_servers}"
    print(f"waiting until a run of plan {plan.name} is announced on {where}", flush=True)
    manager = notifier()
    manager.ready()
    manager.status(f"waits for a run of plan {plan.name} on {where}")
    listening = Listening(AnnouncedRuns(ship, clock), plan.name, clock)
    with _sending_the_rest(runs, clock) as poll:
        found = await_run(listening, runs.may_join, stop, manager, clock, poll)
        listening.close()
    if found is None:
        return None
    folder = runs.folder_of(found.run_id)
    run = new_run(found.run_id, found.start_wall_ns, plan)
    end = "" if found.end_k is None else to_line("end", found.end_k, "announced")
    write_run(folder, run)
    write_atomically(folder.phases, end)
    return run


@contextlib.contextmanager
def _sending_the_rest(runs: HostRuns, clock: Clock) -> Iterator[Callable[[], None]]:
    """Have sent meanwhile what the cluster did not take before the last run was over."""
    left = [folder for folder, _ in runs.joined()[-1:] if has_unsent(folder, host_name())]
    if not left:
        yield lambda: None
        return
    arguments = ("ship", "--run-dir", str(left[0].path))
    log = None if is_journal() else left[0].logs / "ship.log"
    beside = Beside(arguments, log, clock)
    try:
        yield beside.poll
    finally:
        beside.close()
