"""One run from the plan to the verdict: lab, topic, daemons, live view, report."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from soak.cli import _checks
from soak.cli._snapshot import Watcher
from soak.cli._view import View, open_view
from soak.core import plan_text, plugins
from soak.core.clock import Grid, SystemClock
from soak.core.errors import BrokerError, SoakError
from soak.core.plan import Plan
from soak.core.plan_fill import filled
from soak.core.plan_text import PlanFile
from soak.core.units import SECOND_NS
from soak.daemons.context import host_name
from soak.daemons.supervise import Supervisor
from soak.lab.lab import Lab, start_lab
from soak.lab.mailbox import render
from soak.store.run_folder import Run, RunFolder, exclusive, write_atomically, write_run

EXIT_INTERRUPTED = 130
LEAD_NS = 4 * SECOND_NS
"""The first message is due this long after the daemons are started: all of them are ready by then."""
POLL_NS = SECOND_NS
REPORT_LIMIT_SECONDS = 900

OnStarted = Callable[[Lab | None, ExitStack], Callable[[RunFolder], None]]
"""Called when the load is about to begin; returns what to do once the detector has ended."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """How a run went: `code` as the report says it, before any drill is judged."""

    code: int
    folder: RunFolder


def new_run(plan: Plan, clock: SystemClock) -> Run:
    """Return a run with an id of its own, which its topic's name and its folder carry."""
    now = datetime.fromtimestamp(clock.wall_ns() / SECOND_NS, UTC)
    run_id = f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    versions = {"python": sys.version.split()[0]}
    return Run(run_id, 0, host_name(), versions, "running", plan.name)


def execute(
    plan_file: PlanFile,
    run_dir: Path | None,
    stop: threading.Event,
    console: Console,
    on_started: OnStarted | None = None,
) -> Ended:
    """Run a plan to its end, or to `stop`, and report on it.

    Raises:
        PlanError: before the first side effect, or when the cluster refuses what the plan asks.
        SoakError: the lab, a daemon or the report failed.
    """
    clock = SystemClock()
    run = new_run(plan_file.plan, clock)
    runs = run_dir.parent if run_dir else Path(plan_file.plan.run_directory)
    _checks.check_here(plan_file, runs)
    if plan_file.plan.lab is None:
        _checks.check_cluster(plan_file)
    folder = _checks.check_run_folder(plan_file, run_dir or runs / f"{run.name}-{run.id}")
    folder.logs.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        filename=folder.logs / "run.log",
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        level=logging.INFO,
        force=True,  # the terminal belongs to the view
    )
    with ExitStack() as stack:
        stack.enter_context(exclusive(folder.path / "run.lock", "this run folder"))
        view = open_view(console, f"soak {run.name}  {folder.path}")
        stack.callback(view.close)
        return _execute(plan_file, folder, run, stop, view, stack, on_started)


def _execute(
    plan_file: PlanFile,
    folder: RunFolder,
    run: Run,
    stop: threading.Event,
    view: View,
    stack: ExitStack,
    on_started: OnStarted | None,
) -> Ended:
    clock = SystemClock()
    plan = plan_file.plan
    lab = None
    if plan.lab is not None:
        view.note(f"starting a {plan.lab.broker} broker below {folder.lab}")
        folder.lab.mkdir(exist_ok=True)
        lab = start_lab(
            folder.lab,
            plan.lab.settings,
            kind=plan.lab.broker,
            with_mailbox=plan.lab.mailbox,
            on_mail=lambda raw: view.note(f"mail arrived:\n{render(raw)}"),
        )
        stack.callback(lab.stop)
    plan = _resolved(plan, lab, run)
    _make_topic(plan_file, plan)
    run = dataclasses.replace(run, start_wall_ns=clock.wall_ns() + LEAD_NS)
    write_atomically(folder.plan, plan_text.dump(plan))
    write_run(folder, run)
    supervisor = Supervisor(
        folder, clock, on_death=lambda name, how: view.note(f"{name} died ({how}), started again")
    )
    stack.callback(supervisor.close)
    supervisor.start()
    after = on_started(lab, stack) if on_started else None
    watcher = Watcher(folder, plan, run.id, Grid.anchored(run.start_wall_ns, clock), clock)
    is_interrupted = _until_over(supervisor, watcher, view, stop, clock)
    view.note("the load has ended; the detector reads what is left")
    with _showing(watcher, view):
        supervisor.finish()
    supervisor.close()
    if after is not None:
        after(folder)
    if lab is not None:
        lab.stop()
    state = "interrupted" if is_interrupted else "ended"
    write_run(folder, dataclasses.replace(run, state=state))
    view.show(watcher.look())
    view.note("making the report")
    code = _report(folder)
    return Ended(EXIT_INTERRUPTED if is_interrupted else code, folder)


def _until_over(
    supervisor: Supervisor,
    watcher: Watcher,
    view: View,
    stop: threading.Event,
    clock: SystemClock,
) -> bool:
    """Watch over the daemons until the load is over; return True when it was stopped early."""
    while not stop.is_set():
        if supervisor.poll():
            return False
        view.show(watcher.look())
        stop.wait((POLL_NS - clock.mono_ns() % POLL_NS) / SECOND_NS)
    view.note("stopping: the report will tell what there is")
    supervisor.stop()
    return True


@contextlib.contextmanager
def _showing(watcher: Watcher, view: View) -> Iterator[None]:
    yield
    view.show(watcher.look())


def _resolved(plan: Plan, lab: Lab | None, run: Run) -> Plan:
    """Return the plan as the daemons will read it: no name or address left open."""
    topic = plan.topic.name or f"soak-{run.id}"
    plan = dataclasses.replace(plan, topic=dataclasses.replace(plan.topic, name=topic))
    if lab is not None:
        address = lab.broker.bootstrap_servers
        plan = filled(plan, "broker", {"bootstrap_servers": address})
        plan = filled(plan, "probes", {"directory": str(lab.broker.data_directory)})
        if lab.mailbox is not None:
            server = {"host": lab.mailbox.host, "port": lab.mailbox.port}
            plan = filled(plan, "sinks", server)
    address = getattr(plan.broker_config, "bootstrap_servers", "")
    plan = filled(plan, "probes", {"bootstrap_servers": address})
    return filled(plan, "probes", {"topics": (topic,)})


def _make_topic(plan_file: PlanFile, plan: Plan) -> None:
    if plan.topic.use_existing:
        return
    module = plugins.load("soak.brokers", plan.broker_kind)
    broker = module.connect(plan.broker_config, SystemClock())
    try:
        topic = plan.topic
        broker.create_topic(topic.name, topic.partitions, topic.replication, topic.settings)
    except BrokerError as error:
        raise plan_file.error("topic", str(error)) from error


def _report(folder: RunFolder) -> int:
    """Make the report in a process of its own; return its exit code, which is the verdict."""
    log = folder.logs / "report.log"
    with log.open("ab") as output:
        done = subprocess.run(
            [sys.executable, "-m", "soak.cli.main", "report", str(folder.path)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=REPORT_LIMIT_SECONDS,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
    if not folder.summary.exists():
        raise SoakError(f"the report failed with exit code {done.returncode}; see {log}")
    return done.returncode
