"""`soak check`: print what there is to know of a plan that passed the checks, and warn of what may surprise."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from soak.app import guarantees, host, preflight
from soak.app.multi_host import load_probe_plan
from soak.app.preflight import (
    check_probe_folders,
    check_probe_settings,
    check_runs_folder,
    limit_warnings,
    probe_warnings,
    profile_table,
)
from soak.clients.client_settings import is_secret_reference
from soak.conductor.catch_up import never_begins
from soak.conductor.free_space import broker_folders
from soak.core.clock import SystemClock
from soak.core.cluster import durability
from soak.core.errors import BrokerError, PlanError
from soak.core.plan import text
from soak.core.plan.plan import AnyPlan, Plan, ProbePlan, Ship
from soak.core.plan.rates import soak_rate_text
from soak.core.plan.text import Document, PlanFile
from soak.core.ports import Clock, LeaderSource
from soak.core.units import format_duration
from soak.core.wording import OTHERS_NAME
from soak.load.leaders import MAX_LEADERS
from soak.runtime.context import connect
from soak.store.samples_topic import SamplesClients


def leader_warnings(plan: Plan, broker: LeaderSource) -> list[str]:
    """Return that some brokers will share one latency, if so; nothing where the cluster does not tell."""
    try:
        leaders = min(broker.broker_count(), plan.topic.total_partitions)
    except BrokerError:  # Pulsar lists its brokers for superusers alone
        return []
    more = leaders - MAX_LEADERS
    if more <= 0:
        return []
    names = f"the {MAX_LEADERS} that lead most of them; the other {more} share one, {OTHERS_NAME!r}"
    return [
        f"{leaders} brokers may lead the run's partitions, and latency is kept apart for {names}"
    ]


# --- Whether the cluster that a plan ships its records to answers.


def ship_warnings(ship: Ship | None, clock: Clock) -> list[str]:
    """Return that it does not, if so; one that is measured was asked already. No topic is made."""
    if ship is None or not ship.bootstrap_servers:
        return []
    try:
        SamplesClients(ship, "soakd", clock).ask()
    except BrokerError as error:
        return [f"ship: {error}; until one does, records wait on this host's disk"]
    return []


# --- A plan as `soak check --show` prints it: every default, where each secret is, and never a secret itself.

_SECRET_KEY = re.compile(r"password|passphrase|secret|jaas|(^|[._])token$|(^|\.)key(\.pem)?$")


def masked_text(plan: AnyPlan) -> str:
    """Return the text of a plan, which is one again unless a secret stands in it."""
    return text.to_yaml(_masked(text.body(plan)))


def _masked(value: object, key: str = "") -> object:
    if isinstance(value, dict):
        return {name: _masked(item, str(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, key) for item in value]
    is_secret = isinstance(value, str) and value and not is_secret_reference(value)
    return "***" if is_secret and _SECRET_KEY.search(key) else value


# --- `soak check` of a host that only probes: its plan, what it asks and where it ships, clock and drives.


def check_probe_host(path: Path, plan: ProbePlan, document: Document) -> None:
    """Refuse what is wrong, and print what there is to know.

    Raises:
        PlanError: with file, line and key.
    """
    check_runs_folder(plan, document, Path(plan.run_directory))
    check_probe_folders(plan, document)
    check_probe_settings(plan, document)
    print(f"{path}: good. A host that only probes: {', '.join(plan.probes)}.")
    clock = SystemClock()
    for lacking in (*probe_warnings(plan, clock), *ship_warnings(plan.ship, clock)):
        print(f"Warning: {lacking}.")
    print("\n".join(host.host_lines(broker_folders(plan))))


def run_check(
    plan: Path, show: bool, scale: str, duration: str, drives: bool, run_dir: Path | None
) -> None:
    """Check a plan, this machine and the cluster, and print the result.

    Raises:
        PlanError: with file, line and key of the first error.
    """
    with _without_client_logs():
        _run_check(plan, show, scale, duration, drives, run_dir)


def _run_check(
    plan: Path, show: bool, scale: str, duration: str, drives: bool, run_dir: Path | None
) -> None:
    if run_dir is not None and not drives:
        raise PlanError("--run-dir: is where --drives keeps what it finds, and goes with it")
    probe_plan = load_probe_plan(plan)
    if probe_plan is not None:  # it knows no more of the run
        for option, value in {"--scale": scale, "--duration": duration}.items():
            if value:
                raise PlanError(f"{option}: a host that only probes has no load to cut")
        with _after_plan(probe_plan[0] if show else None):
            if drives:
                host.check_drives(probe_plan[0], run_dir)
            else:
                check_probe_host(plan, *probe_plan)
        return
    plan_file = preflight.scaled_plan(preflight.load_plan(plan), scale, duration)
    preflight.check_host(plan_file, Path(plan_file.plan.run_directory))
    if plan_file.plan.lab is None:
        preflight.check_cluster(plan_file)
    with _after_plan(plan_file.plan if show else None):
        _print_summary(plan_file, drives, run_dir)


@contextlib.contextmanager
def _without_client_logs() -> Iterator[None]:
    """Keep what clients log of themselves from the terminal: a message names the cause, once."""
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextlib.contextmanager
def _after_plan(plan: AnyPlan | None) -> Iterator[None]:
    """Print the plan, if any, and leave stdout to it alone: what is told of it goes to stderr then."""
    if plan is None:
        yield
        return
    print(masked_text(plan), end="", flush=True)
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _print_summary(plan_file: PlanFile, drives: bool, run_dir: Path | None) -> None:
    """Print what there is to know of a plan that was not refused."""
    clock = SystemClock()
    found, name = plan_file.plan, plan_file.document.name
    where = "a lab broker on this machine" if found.lab else "the cluster that it names"
    lengths, table = found.phases, profile_table(plan_file)
    print(
        f"{name}: good. {soak_rate_text(found, table)} against {where}, "
        f"warm-up {format_duration(lengths.warm_up)}, soak {format_duration(lengths.soak)}."
    )
    _print_windows(found)
    if found.lab is None:
        promised = durability.level_text(guarantees.read_durability(found, plan_file.document))
        print(f"Durability: {promised}; `soak audit {name}` says why.")
        for lacking in (
            *probe_warnings(found, clock),
            *leader_warnings(found, connect(found, clock)),
        ):
            print(f"Warning: {lacking}.")
    foreseen = guarantees.forecast_plan(found, table, Path(found.run_directory))
    print("\n".join(foreseen.lines))
    beyond = (
        *foreseen.warnings,
        *limit_warnings(plan_file),
        *_unused_settings(found),
        *_no_sinks(found),
    )
    for warning in (*beyond, *ship_warnings(found.ship, clock)):
        print(f"Warning: {warning}.")
    print("\n".join(host.host_lines([] if drives else host.drive_folders(found))))
    if drives:
        host.check_drives(found, run_dir)


def _unused_settings(plan: Plan) -> list[str]:
    """Return what of the plan will change nothing."""
    if not (plan.topic.use_existing and plan.topic.settings):
        return []
    names = ", ".join(plan.topic.settings)
    return [f"topic.settings ({names}) are not set: a topic that is there keeps its own"]


def _no_sinks(plan: Plan) -> list[str]:
    """Return that nobody will be told, if so: a soak runs while its people sleep."""
    if plan.sinks:
        return []
    return ["sinks is empty: nobody is told of what is found, which stands in the run folder alone"]


def _print_windows(plan: Plan) -> None:
    for number, window in enumerate(plan.phases.windows):
        if never_begins(plan, window):
            print(f"phases.windows.{number} never begins: the soak is too short for it.")
