"""`soak check`: check a plan, then print what the run will do, and warn of likely surprises."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from soak.app import guarantees, host, plan_files
from soak.app.multi_host import load_probe_plan
from soak.app.plan_files import profile_table
from soak.app.preflight.cluster import (
    LOAD_CLIENTS,
    cluster_faults,
    cluster_warnings,
    topic_warnings,
    unchecked_rights,
    unused_lab_faults,
)
from soak.app.preflight.host import (
    host_faults,
    limit_warnings,
    runs_folder_faults,
    sink_warnings,
    soak_warnings,
)
from soak.app.preflight.probes import probe_folder_faults, probe_setting_faults, probe_warnings
from soak.clients.client_settings import is_secret_reference
from soak.conductor.catch_up import never_begins
from soak.conductor.free_space import broker_folders, free_bytes, watched_folders
from soak.core.clock import SystemClock
from soak.core.cluster import durability
from soak.core.errors import BrokerError, PlanError, combined, raise_combined
from soak.core.plan import text
from soak.core.plan.objectives import budget_text, is_budget_below_one
from soak.core.plan.plan import AnyPlan, Plan, ProbePlan, Ship, with_ship_target, with_store_client
from soak.core.plan.rates import soak_rate_text
from soak.core.plan.text import Document, KeyPath, PlanFile, is_consequence
from soak.core.ports import Clock, LeaderSource
from soak.core.units import format_duration
from soak.core.wording import OTHERS_NAME, amount
from soak.load.leaders import MAX_LEADERS
from soak.runtime.context import connect
from soak.sampling.drive_check import device_of, group_by_filesystem
from soak.service.files import read_small_text
from soak.store.admission import signer_of
from soak.store.findings.topic_log import check_store
from soak.store.samples_topic import SamplesClients

SECRET_KEY = re.compile(r"password|passphrase|secret|jaas|(^|[._])token$|(^|\.)key(\.pem)?$")
_FORECAST_KEYS = (
    "broker",
    "lab",
    "load.profile",
    "topic.name",
    "topic.replication",
    "topic.settings",
    "topic.use_existing",
    "phases",
    "run_directory",
)
"""What the forecast of retention and of full drives follows from."""
_BROKER_ID = re.compile(r"^(?:node|broker)\.id=(\d+)\s*$", re.MULTILINE)


def run_check(
    plan: Path, show: bool, scale: str, duration: str, drives: bool, run_dir: Path | None
) -> None:
    """Check a plan, this machine and the cluster, and print the result.

    Raises:
        PlanError: with file, line and key of every fault.
    """
    with without_client_logs():
        _run_check(plan, show, scale, duration, drives, run_dir)


def _run_check(
    plan: Path, show: bool, scale: str, duration: str, drives: bool, run_dir: Path | None
) -> None:
    if run_dir is not None and not drives:
        raise PlanError("--run-dir needs --drives, whose result it stores")
    probe_plan = load_probe_plan(plan)
    if probe_plan is not None:
        for option, value in {"--scale": scale, "--duration": duration}.items():
            if value:
                raise PlanError(f"{option}: the plan of a probe host has no load")
        with _after_plan(probe_plan[0] if show else None):
            if drives:
                host.check_drives(probe_plan[0], run_dir)
            else:
                check_probe_host(plan, *probe_plan)
        return
    found, faults = plan_files.load_plan_with_faults(plan)
    if found is None:
        raise combined(faults)
    try:
        plan_file = plan_files.scaled_plan(found, scale, duration)
    except PlanError as error:
        raise combined([*faults, error]) from error
    _refuse_faults(plan_file, faults)
    with _after_plan(plan_file.plan if show else None):
        _print_summary(plan_file, drives, run_dir)


def _refuse_faults(plan_file: PlanFile, of_text: Sequence[PlanError]) -> None:
    """Raise `PlanError` for every fault of a plan, after its warnings; `of_text` are those of its text."""
    left_out = [fault.place for fault in of_text if fault.place is not None]
    faults = [*of_text, *unused_lab_faults(plan_file)]
    if len(faults) > len(of_text):  # the cluster is checked
        plan_file = replace(plan_file, plan=replace(plan_file.plan, lab=None))
    of_host = host_faults(plan_file, Path(plan_file.plan.run_directory))
    faults += [fault for fault in of_host if not is_consequence(fault, left_out)]
    notes: list[str] = []
    if plan_file.plan.lab is None and _concern_connection(faults):
        notes = ["the cluster is not checked before the faults of `broker` are corrected"]
    elif plan_file.plan.lab is None:
        faults += cluster_faults(plan_file, known=faults)
    if faults:
        _print_warnings(*_warnings_beside(plan_file, faults, left_out), *notes)
        raise combined(faults)


def _concern_connection(faults: Sequence[PlanError]) -> bool:
    """Return whether a fault lies in `broker`, but for the settings of the load's own clients."""
    return any(
        fault.place and fault.place[0] == "broker" and not set(fault.place[2:3]) & set(LOAD_CLIENTS)
        for fault in faults
    )


def _warnings_beside(
    plan_file: PlanFile, faults: Sequence[PlanError], left_out: Sequence[KeyPath]
) -> list[str]:
    """Return the warnings that no fault makes doubtful.

    Of a section in which a key was left out none is certain, of others those that depend on no wrong key.
    """
    plan, clock = plan_file.plan, SystemClock()

    def is_known(*keys: str) -> bool:
        needed = [tuple(key.split(".")) for key in keys]
        return not any(
            key[0] == place[0] for key in needed for place in left_out if place
        ) and not any(
            fault.place[: len(key)] == key for key in needed for fault in faults if fault.place
        )

    found = [*_environment_warnings(plan_file, clock, faults), *_host_warnings(plan)]
    if plan.lab is None and not _concern_connection(faults):
        found += cluster_warnings(plan_file)
        if is_known("topic.partitions", "topic.count"):
            found += leader_warnings(plan, connect(plan, clock))
    if is_known(*_FORECAST_KEYS):
        with contextlib.suppress(BrokerError):
            forecast = guarantees.forecast_plan(
                plan, profile_table(plan_file), Path(plan.run_directory)
            )
            found += [*forecast.warnings, *_small_drives(plan, forecast)]
    found += [
        warning
        for keys, find in _plan_warnings(plan_file, clock)
        if is_known(*keys)
        for warning in find()
    ]
    return found


def _plan_warnings(
    plan_file: PlanFile, clock: Clock
) -> list[tuple[tuple[str, ...], Callable[[], list[str]]]]:
    """Return what finds the other warnings about a plan, each with the keys on which these depend."""
    plan = plan_file.plan
    of_measured = () if plan.ship is None or plan.ship.bootstrap_servers else ("broker",)
    return [
        (
            ("load.profile", "topic.count", "limits", "phases.ramp"),
            lambda: limit_warnings(plan_file),
        ),
        (("phases.soak", "detection.detectors"), lambda: soak_warnings(plan)),
        ((), lambda: topic_warnings(plan)),
        (("topic.use_existing",), lambda: _unused_settings(plan)),
        (("objectives", "phases.soak"), lambda: _small_budgets(plan)),
        (("sinks",), lambda: _no_sinks(plan)),
        (("ship", *of_measured), lambda: ship_warnings(with_ship_target(plan).ship, clock)),
        (("store", "broker"), lambda: store_warnings(plan, clock)),
    ]


def _environment_warnings(
    plan_file: PlanFile, clock: Clock, faults: Sequence[PlanError] = ()
) -> list[str]:
    """Return warnings about the logs and pages of brokers, and about the servers for notifications."""
    plan = plan_file.plan
    of_probes = [] if plan.lab is not None else probe_warnings(plan, clock, faults)
    return [*of_probes, *sink_warnings(plan_file, faults)]


def _host_warnings(plan: Plan) -> list[str]:
    """Return the warnings about the clock and the drives of this host."""
    mark = "Warning: "
    lines = host.host_lines(host.drive_folders(plan))
    return [line.removeprefix(mark).removesuffix(".") for line in lines if line.startswith(mark)]


@contextlib.contextmanager
def without_client_logs() -> Iterator[None]:
    """Keep the log lines of clients from the terminal: an error names the cause once."""
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextlib.contextmanager
def _after_plan(plan: AnyPlan | None) -> Iterator[None]:
    """Print the plan, if given, and send everything else to stderr."""
    if plan is None:
        yield
        return
    print(masked_text(plan), end="", flush=True)
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _print_summary(plan_file: PlanFile, drives: bool, run_dir: Path | None) -> None:
    """Print load, durability, forecast, warnings and the state of this host."""
    clock = SystemClock()
    plan, name = plan_file.plan, plan_file.document.name
    where = "a lab broker on this machine" if plan.lab else "the cluster that it names"
    lengths, table = plan.phases, profile_table(plan_file)
    print(
        f"{name}: good. {soak_rate_text(plan, table)} against {where}, "
        f"warm-up {format_duration(lengths.warm_up)}, soak {format_duration(lengths.soak)}."
    )
    _print_windows(plan)
    for objective in plan.service_objectives:
        print(f"Objective {budget_text(objective, lengths.soak)}.")
    if plan.lab is None:
        level = durability.level_text(guarantees.read_durability(plan, plan_file.document))
        print(f"Durability: {level}; `soak audit {name}` gives the reasons.")
        unchecked = unchecked_rights(plan)
        if unchecked:
            print(f"Rights: {unchecked}.")
        _print_warnings(*cluster_warnings(plan_file), *leader_warnings(plan, connect(plan, clock)))
    _print_warnings(*_environment_warnings(plan_file, clock))
    forecast = guarantees.forecast_plan(plan, table, Path(plan.run_directory))
    print("\n".join(forecast.lines))
    _print_warnings(
        *forecast.warnings,
        *_small_drives(plan, forecast),
        *(warning for _, find in _plan_warnings(plan_file, clock) for warning in find()),
    )
    print("\n".join(host.host_lines([] if drives else host.drive_folders(plan))))
    if drives:
        host.check_drives(plan, run_dir)


def _print_warnings(*warnings: str) -> None:
    for warning in warnings:
        print(f"Warning: {warning}.")


def _small_drives(plan: Plan, forecast: guarantees.PlanForecast) -> list[str]:
    if forecast.found is None:
        return []
    broker = connect(plan, SystemClock())
    return small_drive_warnings(plan, forecast.found.most_held_bytes, broker)


def leader_warnings(plan: Plan, broker: LeaderSource) -> list[str]:
    """Return a warning if some brokers share a latency series; empty if brokers are not listed."""
    try:
        leaders = min(broker.broker_count(), plan.topic.total_partitions)
    except BrokerError:  # Pulsar lists its brokers for superusers alone
        return []
    more = leaders - MAX_LEADERS
    if more <= 0:
        return []
    return [
        (
            f"latency is recorded separately only for the {MAX_LEADERS} of {leaders} brokers that lead "
            f"most of the run's partitions; the other {more} share the series {OTHERS_NAME!r}"
        )
    ]


def small_drive_warnings(
    plan: Plan,
    held_bytes: float,
    broker: LeaderSource,
    *,
    device: Callable[[str], int] = device_of,
    free: Callable[[str], int] = free_bytes,
) -> list[str]:
    """Return a warning for each drive of brokers on this host that has no room for its part of the data.

    `held_bytes` are those of all brokers at most, all copies together. `device` and `free` replace the system
    calls in tests.
    """
    folders = [one for one in _innermost(watched_folders(plan)) if not _is_journal(one)]
    if not folders:
        return []
    try:
        brokers = max(1, broker.broker_count())
    except BrokerError:  # Pulsar lists its brokers for superusers alone
        return []
    parts, found = _parts_of_brokers(plan, folders), []
    for directories in group_by_filesystem(folders, find=device):
        with contextlib.suppress(OSError):  # the probe that names the folder reports it
            room = free(directories[0])
            held = held_bytes / brokers * sum(parts[one] for one in directories)
            if held > room:
                found.append(
                    f"{amount(held, 'bytes')} of the run's data are to be held on the drive of"
                    f" {' and '.join(directories)}, which has {amount(room, 'bytes')} free: lower the rate or"
                    " the retention"
                )
    return found


def _innermost(folders: Sequence[str]) -> list[str]:
    """Return the folders without those that others lie in: probes may name a drive and the data on it."""
    inner = {parent for one in folders for parent in Path(one).parents}
    return [one for one in folders if Path(one) not in inner]


def _is_journal(folder: str) -> bool:
    """True for the journal of a bookie: what it holds is deleted once the ledgers are flushed.

    A folder may be journal and ledgers in one, as that of a standalone Pulsar.
    """
    try:
        suffixes = {one.suffix for one in Path(folder, "current").iterdir()}
    except OSError:  # there is none, or the probe that names the folder reports it
        return False
    return ".txn" in suffixes and ".log" not in suffixes


def _parts_of_brokers(plan: Plan, folders: Sequence[str]) -> dict[str, float]:
    """Return which part of one broker's data each folder holds: a broker spreads it evenly over its folders.

    Where it is not known which broker has which, they are shared by the brokers of the plan that are on this
    host, of which there is one at least.
    """
    owners = [_broker_of(one) for one in folders]
    if all(owners):
        counts = Counter(owners)
        return {one: 1 / counts[owner] for one, owner in zip(folders, owners, strict=True)}
    servers = next(iter(plan.broker_config.addresses.values()), "")
    here = max(1, len(host.own_addresses(servers)))
    return dict.fromkeys(folders, min(1.0, here / len(folders)))


def _broker_of(folder: str) -> str:
    """Return the id of the broker in Kafka's description of a data folder, "" where that cannot be read."""
    try:
        found = _BROKER_ID.search(read_small_text(Path(folder, "meta.properties")))
    except (OSError, ValueError):
        return ""
    return "" if found is None else found[1]


def ship_warnings(ship: Ship | None, clock: Clock) -> list[str]:
    """Return warnings if the cluster that records are shipped to does not answer, or all may write to it.

    It creates no topic.
    """
    if ship is None or not ship.bootstrap_servers:
        return []
    try:
        signer_of(ship)
    except BrokerError as error:
        return [f"ship: {error}"]
    try:
        return [f"ship: {one}" for one in SamplesClients(ship, "soakd", clock).topic_warnings()]
    except BrokerError as error:
        return [f"ship: {error}; until it answers, records wait on the disk of this host"]


def store_warnings(plan: Plan, clock: Clock) -> list[str]:
    """Return a warning if the cluster that keeps the findings cannot be used; create no topic."""
    store = with_store_client(plan).store
    if store is None:
        return []
    try:
        check_store(store, clock)
    except BrokerError as error:
        return [f"store: {error}; so no finding would be stored and no message sent"]
    return []


def masked_text(plan: AnyPlan) -> str:
    """Return the plan as YAML with every default; secrets that it contains are masked."""
    return text.to_yaml(_masked(text.body(plan)))


def literal_secrets(plan: AnyPlan) -> set[str]:
    """Return the secrets that a plan contains, which `masked_text` masks."""
    return set(_secrets(text.body(plan)))


def _secrets(value: object, key: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _secrets(item, str(name))
    elif isinstance(value, list):
        for item in value:
            yield from _secrets(item, key)
    elif isinstance(value, str) and _is_secret(value, key):
        yield value


def _masked(value: object, key: str = "") -> object:
    if isinstance(value, dict):
        return {name: _masked(item, str(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, key) for item in value]
    return "***" if isinstance(value, str) and _is_secret(value, key) else value


def _is_secret(value: str, key: str) -> bool:
    is_there = bool(value) and not is_secret_reference(value)
    return is_there and SECRET_KEY.search(key) is not None


def check_probe_host(path: Path, plan: ProbePlan, document: Document) -> None:
    """Check the plan of a probe host, and print the result.

    Raises:
        PlanError: with file, line and key.
    """
    faults = [
        *runs_folder_faults(plan, document, Path(plan.run_directory)),
        *probe_folder_faults(plan, document),
        *probe_setting_faults(plan, document),
    ]
    clock = SystemClock()
    warnings = probe_warnings(plan, clock, faults)
    if not any(fault.place and fault.place[0] == "ship" for fault in faults):
        warnings += ship_warnings(plan.ship, clock)
    if not faults:
        print(f"{path}: good. Probe host with {', '.join(plan.probes)}.")
    _print_warnings(*warnings)
    raise_combined(faults)
    print("\n".join(host.host_lines(broker_folders(plan))))


def _unused_settings(plan: Plan) -> list[str]:
    """Return a warning about settings of the plan that have no effect."""
    if not (plan.topic.use_existing and plan.topic.settings):
        return []
    names = ", ".join(plan.topic.settings)
    return [f"topic.settings ({names}) have no effect: an existing topic keeps its own settings"]


def _small_budgets(plan: Plan) -> list[str]:
    """Return a warning about each objective that the first bad minute breaks."""
    soak = format_duration(plan.phases.soak)
    return [
        f"objectives.{number}: in a soak of {soak} the first bad minute breaks it"
        for number, objective in enumerate(plan.service_objectives)
        if is_budget_below_one(objective, plan.phases.soak)
    ]


def _no_sinks(plan: Plan) -> list[str]:
    """Return a warning if the plan has no sinks."""
    if plan.sinks:
        return []
    return [
        "sinks is empty: findings are only written to the run folder, and no notification is sent"
    ]


def _print_windows(plan: Plan) -> None:
    for number, window in enumerate(plan.phases.windows):
        if never_begins(plan, window):
            print(f"phases.windows.{number} never begins: the soak is too short for it.")
