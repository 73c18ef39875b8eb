"""Check a plan, this machine and the cluster before the first side effect; errors name file, line and key.

`..._faults` return every fault, for `soak check`; `check_...` raise them as one error.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

from soak.alerting.calendar import find_bad_cron
from soak.app.host import nearest_existing
from soak.app.plan_files import named_addresses, profile_path, profile_table
from soak.app.topics import own_topics, why_not_own
from soak.brokers.kafka import topics
from soak.clients import client_settings
from soak.conductor.catch_up import cron_error
from soak.conductor.free_space import broker_folders
from soak.core.clock import SystemClock
from soak.core.errors import BrokerError, NotNowError, PlanError, SettingError, combined
from soak.core.plan import plugins
from soak.core.plan.plan import (
    OUTAGE_DETECTOR,
    STREAM_DETECTOR,
    AnyPlan,
    Lab,
    Plan,
    Ship,
    plugins_without,
    with_measured_cluster,
    with_ship_target,
)
from soak.core.plan.rates import check_lab_limits, exceeded_limits
from soak.core.plan.text import Document, PlanFile, load_fleet, parse_yaml
from soak.core.ports import Broker, Clock
from soak.core.units import format_duration, format_size
from soak.lab.drive.drive import MIN_BYTES
from soak.runtime.context import connect
from soak.store.run_folder import RunFolder, read_profile
from soak.supervisor.run import MAX_TRIGGER_NS

YES_HINT = "; start it anyway with `soak run --yes`"
"""An addition to an error for a person at a terminal; a service cannot answer."""


def found_by(*checks: Callable[[], None]) -> list[PlanError]:
    """Return the faults that these checks raise."""
    faults = []
    for check in checks:
        try:
            check()
        except PlanError as error:
            faults.append(error)
    return faults


def _raise(faults: Sequence[PlanError]) -> None:
    if faults:
        raise combined(faults)


def check_runs_folder(plan: AnyPlan, document: Document, runs: Path) -> None:
    """Check that the folder for runs can be written and has the free space that the plan requires.

    Raises:
        PlanError: with file, line and key.
    """
    nearest = Path(nearest_existing(runs))
    _check_writable(document, nearest)
    check_free_space(plan, document, nearest)


def check_free_space(plan: AnyPlan, document: Document, folder: Path) -> None:
    """Check that a folder has the free space that the plan requires.

    Raises:
        NotNowError: with file, line and key.
    """
    free, floor = shutil.disk_usage(folder).free, plan.free_space_floor
    if free < floor:
        have = format_size(free // 2**20 * 2**20)
        why = f"{folder} has {have} free, less than the floor of {format_size(floor)}"
        raise _not_now(document.error(("free_space_floor",), why))


def _check_writable(document: Document, folder: Path) -> None:
    """Check that files can be created in a folder; lack of space is left to `check_free_space`."""
    try:
        if not folder.is_dir():
            raise NotADirectoryError(f"{folder} is not a folder")
        with tempfile.TemporaryFile(dir=folder) as file:
            os.write(file.fileno(), b"soakd")
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return
        reason = error.strerror or str(error)
        raise document.error(("run_directory",), f"cannot write in {folder}: {reason}") from error


def check_load(plan_file: PlanFile) -> None:
    """Check the file of the load profile and the cron expressions of the windows.

    Raises:
        PlanError: with file and line of the profile or of the plan.
    """
    path = profile_path(plan_file)
    if path is not None:
        try:
            read_profile(path)
        except PlanError as error:
            raise plan_file.document.error(("load", "profile", "file"), str(error)) from error
    for number, window in enumerate(plan_file.plan.phases.windows):
        why = cron_error(window)
        if why:
            raise plan_file.document.error(("phases", "windows", number, "cron"), why)


def check_limits(plan_file: PlanFile, *, hint: str = "") -> None:
    """Check that the load stays within the plan's `limits`; `hint` is added to the error.

    Raises:
        PlanError: with file, line and key.
    """
    for place, why in exceeded_limits(plan_file.plan, profile_table(plan_file)):
        raise plan_file.document.error(place, why + hint)


def limit_warnings(plan_file: PlanFile) -> list[str]:
    """Return a warning for each of the plan's `limits` that the load exceeds."""
    found = exceeded_limits(plan_file.plan, profile_table(plan_file))
    return [f"{'.'.join(map(str, place))}: {why}{YES_HINT}" for place, why in found]


def probe_folder_faults(plan: AnyPlan, document: Document) -> list[PlanError]:
    """Return a fault for each probe of a broker's drive or log that names no folder or log."""
    faults = [
        document.error(
            ("probes", name, "directory"),
            "names no folder on the broker's drive, and the plan has no lab that would set it",
        )
        for name in plugins_without(plan, "probes", "directory")
    ]
    why = "names no log of the broker, and the plan has no lab that would set it"
    return faults + [
        document.error(("probes", name, "log"), why)
        for name in plugins_without(plan, "probes", "log")
        if not getattr(plan.probes[name], "more_logs", ())
    ]


def check_probe_folders(plan: AnyPlan, document: Document) -> None:
    """Raise `PlanError` for `probe_folder_faults`."""
    _raise(probe_folder_faults(plan, document))


def _probe_cluster_faults(plan: Plan, document: Document) -> list[PlanError]:
    """Return a fault for each probe of another kind of cluster than the plan's that names none."""
    why = f"names no cluster, and {plan.broker_kind} has no such address"
    return [
        document.error(("probes", name, key), why)
        for key in ("bootstrap_servers", "admin_url")
        if key not in plan.broker_config.addresses
        for name in plugins_without(plan, "probes", key)
    ]


def probe_warnings(plan: AnyPlan, clock: Clock, faults: Sequence[PlanError] = ()) -> list[str]:
    """Return the warnings of each probe that can read its sources in advance, and has none of the faults."""
    if isinstance(plan, Plan):  # as the run resolves it
        plan = with_measured_cluster(plan)
    warnings: list[str] = []
    wrong = {fault.place[:2] for fault in faults if fault.place is not None}
    for name, config in plan.probes.items():
        if ("probes", name) in wrong:
            continue
        preflight = getattr(plugins.load("probes", name), "preflight", None)
        warnings += preflight(config, clock) if preflight is not None else []
    return warnings


def sink_warnings(plan_file: PlanFile) -> list[str]:
    """Return a warning for each sink that could not send now, with file, line and key."""
    found = []
    for name, config in plan_file.plan.sinks.items():
        look = getattr(plugins.load("soak.sinks", name), "preflight", None)
        key, troubles = look(config) if look is not None else ("", [])
        found += [str(plan_file.error(f"sinks.{name}.{key}", trouble)) for trouble in troubles]
    return found


def cluster_warnings(plan_file: PlanFile) -> list[str]:
    """Return what is wrong with a cluster that answers; empty if it does not say."""
    try:
        return connect(plan_file.plan, SystemClock()).cluster_warnings()
    except BrokerError:
        return []


def topic_warnings(plan: Plan) -> list[str]:
    """Return the warnings about the topic's settings that the kind of broker has."""
    found = getattr(plugins.load("soak.brokers", plan.broker_kind), "topic_warnings", None)
    return found(plan.topic) if found is not None else []


def soak_warnings(plan: Plan) -> list[str]:
    """Return a warning if the soak is too short for a verdict."""
    if plan.phases.soak >= plan.least_soak:
        return []
    soak, least = format_duration(plan.phases.soak), format_duration(plan.least_soak)
    why = f"{soak} are too short to call a run clean: at least {least} are needed"
    keys = "`baseline` and `confirm` of detection.detectors.level_shift"
    return [f"phases.soak: {why} ({keys}), ten minutes are better"]


def unchecked_rights(plan: Plan) -> str:
    """Return what the user of a plan must be allowed and no check can see in advance, or ""."""
    found = getattr(plugins.load("soak.brokers", plan.broker_kind), "unchecked_rights", None)
    return "" if found is None or plan.lab is not None else found(plan.broker_config, plan.topic)


def probe_setting_faults(plan: AnyPlan, document: Document) -> list[PlanError]:
    """Return the faults in the settings of the probes, of the metrics page and of shipping."""
    metrics, ship = plan.metrics, plan.ship
    checks = [
        functools.partial(_check_probe, name, config, document)
        for name, config in plan.probes.items()
    ]
    if metrics is not None:
        checks.append(functools.partial(_check_metrics_address, metrics.address, document))
    if ship is not None:
        target = with_ship_target(plan).ship if isinstance(plan, Plan) else None
        servers = (target or ship).bootstrap_servers
        checks.append(functools.partial(_check_ship_settings, ship, servers, document))
    if isinstance(plan, Plan) and plan.store is not None:
        checks.append(functools.partial(_check_client, ("store",), plan.store.client, document))
    return found_by(*checks)


def check_fleet_plan(path: Path) -> None:
    """Raise `PlanError` for every fault in a fleet's plan: settings of clients, and the right to write.

    Raises:
        PlanError: with file, line and key of every fault.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: cannot read the plan: {error}") from error
    plan, document = load_fleet(text, str(path)), parse_yaml(text, str(path))
    ship = functools.partial(_check_ship_settings, plan.ship, plan.ship.bootstrap_servers, document)
    _raise(
        found_by(ship, functools.partial(_check_client, ("store",), plan.store.client, document))
    )


def check_probe_settings(plan: AnyPlan, document: Document) -> None:
    """Raise `PlanError` for `probe_setting_faults`."""
    _raise(probe_setting_faults(plan, document))


def _check_probe(name: str, config: object, document: Document) -> None:
    check = getattr(plugins.load("probes", name), "check_settings", None)
    if check is None:
        return
    try:
        check(config)
    except SettingError as error:
        raise document.error(("probes", name, *error.place), str(error)) from error
    except BrokerError as error:
        raise document.error(("probes", name), str(error)) from error


def _check_ship_settings(ship: Ship, servers: str, document: Document) -> None:
    """Check a `ship` section; `servers` are those of its topic."""
    if not topics.is_topic_name(ship.topic):
        why = f"{ship.topic!r} {topics.TOPIC_NAME_RULE}"
        raise document.error(("ship", "topic"), why)
    try:
        client_settings.refuse_secrets_in_addresses("bootstrap_servers", [ship.bootstrap_servers])
    except ValueError as error:
        why = str(error).removeprefix("bootstrap_servers ")
        raise document.error(("ship", "bootstrap_servers"), why) from error
    _check_client(("ship",), ship.client, document)
    _check_signing(ship, servers, document)


def _check_signing(ship: Ship, servers: str, document: Document) -> None:
    """Refuse a topic that needs no signature, unless all of it is this host or the plan asks for it."""
    if ship.key and not client_settings.is_secret_reference(ship.key):
        why = f"a secret must not stand in a plan: {client_settings.SECRET_HELP}"
        raise document.error(("ship", "key"), why)
    if not (ship.key or ship.unsigned or all(map(_is_this_host, servers.split(",")))):
        raise document.error(
            ("ship",),
            "records of other hosts would be taken from any client that may write there: name the secret "
            "that the hosts share, as key: ${credential:NAME}, or say unsigned: true",
        )


def _is_this_host(server: str) -> bool:
    name, _, port = server.strip().rpartition(":")
    host = (name if name and port.isdigit() else server.strip()).strip(
        "[]"
    )  # the port may be left out
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _check_client(section: tuple[str], client: Mapping[str, str], document: Document) -> None:
    """Refuse client settings of a section that a plan must not have."""
    try:
        client_settings.check_librdkafka("client", client)
    except SettingError as error:
        raise document.error((*section, *error.place), str(error)) from error


def _check_metrics_address(address: str, document: Document) -> None:
    """Check that the address is not a name, which a daemon might be unable to resolve at its start."""
    try:
        ip_address(address)
    except ValueError as error:
        why = "must be an IP address, such as 127.0.0.1 or ::1"
        raise document.error(("metrics", "address"), why) from error


def check_host(plan_file: PlanFile, runs: Path) -> None:
    """Check this machine: the folder for runs, free space, and the needs of probes and sinks.

    Raises:
        PlanError: with file, line and key of every fault.
    """
    _raise(host_faults(plan_file, runs))


def host_faults(plan_file: PlanFile, runs: Path) -> list[PlanError]:
    """Return every fault of a plan on this machine, without asking the cluster."""
    plan, document = plan_file.plan, plan_file.document
    faults = found_by(
        functools.partial(check_load, plan_file),
        functools.partial(check_runs_folder, plan, document, runs),
        functools.partial(_check_alert_times, plan_file),
        functools.partial(_check_shipping_cluster, plan_file),
        functools.partial(_check_detection, plan_file),
    )
    if plan.lab is None:
        faults += _faults_without_lab(plan_file)
    return [
        *faults,
        *_target_faults(plan_file),
        *_probe_cluster_faults(plan, document),
        *probe_setting_faults(plan, document),
    ]


def _check_alert_times(plan_file: PlanFile) -> None:
    wrong = find_bad_cron(plan_file.plan.alerts)
    if wrong:
        raise plan_file.document.error(("alerts", *wrong[0]), wrong[1])


def _check_shipping_cluster(plan_file: PlanFile) -> None:
    plan = plan_file.plan
    if plan.ship and not plan.ship.bootstrap_servers and not _is_kafka(plan):
        raise plan_file.error(
            "ship.bootstrap_servers", f"names no Kafka cluster, and {plan.broker_kind} is not one"
        )


def _faults_without_lab(plan_file: PlanFile) -> list[PlanError]:
    """Return a fault for each folder, log or server that a lab would otherwise set."""
    plan = plan_file.plan
    folders = broker_folders(plan)
    faults = probe_folder_faults(plan, plan_file.document)
    faults += found_by(
        *(  # the load fills their drives, and the fsync probe writes there
            functools.partial(check_free_space, plan, plan_file.document, Path(folder))
            for folder in folders
            if Path(folder).is_dir()
        )
    )
    if plan.drive_check and not folders:
        why = "no probe names a folder on a broker's drive, and the plan has no lab"
        faults.append(plan_file.error("drive_check", why))
    return faults + [
        plan_file.error(
            f"sinks.{name}.host", "names no mail server, and the plan has no lab that would set it"
        )
        for name in plugins_without(plan, "sinks", "host")
    ]


def _check_detection(plan_file: PlanFile) -> None:
    """Check what only a new run must satisfy: runs of earlier versions are still read."""
    detection = plan_file.plan.detection
    if detection.trigger > MAX_TRIGGER_NS:
        most = format_duration(MAX_TRIGGER_NS)
        raise plan_file.error("detection.trigger", f"must be at most {most}")
    for name in detection.detectors:
        if name not in {STREAM_DETECTOR, OUTAGE_DETECTOR}:
            raise plan_file.error(
                f"detection.detectors.{name}", "does not work on a running stream"
            )


def check_target(plan_file: PlanFile) -> None:
    """Check the lab and the settings of broker and topic, without asking the cluster.

    Raises:
        PlanError: with file, line and key of every fault.
    """
    _raise(_target_faults(plan_file))


def _target_faults(plan_file: PlanFile) -> list[PlanError]:
    lab_faults = found_by(lambda: _check_lab(plan_file))
    return lab_faults or found_by(
        lambda: check_lab_limits(plan_file, profile_table(plan_file)),
        lambda: _check_topic(plan_file),
        lambda: _check_broker(plan_file),
    )


def _check_topic(plan_file: PlanFile) -> None:
    check_topic = getattr(
        plugins.load("soak.brokers", plan_file.plan.broker_kind), "check_topic", None
    )
    if check_topic is not None:
        with errors_at(plan_file, "topic"):
            check_topic(plan_file.plan.topic)


def _check_broker(plan_file: PlanFile) -> None:
    with errors_at(plan_file, "broker", plan_file.plan.broker_kind):
        broker = connect(plan_file.plan, SystemClock())
        broker.check_settings()
        if plan_file.plan.load.keys.kind != "none":
            broker.partition_of(b"", plan_file.plan.topic.partitions)


def _check_lab(plan_file: PlanFile) -> None:
    lab = plan_file.plan.lab
    if lab is None:
        return
    _check_lab_broker(plan_file, lab)
    most = plugins.load("soak.lab.brokers", lab.broker).MAX_NODES
    if lab.nodes > most:
        nodes = "node" if most == 1 else "nodes"
        raise plan_file.error(
            "lab.nodes", f"a lab's {lab.broker} has at most {most} {nodes}, not {lab.nodes}"
        )
    _check_lab_drive(plan_file, lab)


def _check_lab_broker(plan_file: PlanFile, lab: Lab) -> None:
    """Check that the lab can start the kind of broker that the plan uses."""
    kind, known = plan_file.plan.broker_kind, plugins.names("soak.lab.brokers")
    address = f"broker.{kind}.{next(iter(plan_file.plan.broker_config.addresses))}"
    named = named_addresses(plan_file)
    if named:
        unused = f"would not be used: broker.{kind}.{named[0]} names a cluster"
        raise plan_file.error("lab", unused)
    if lab.broker not in known and lab.broker == kind:
        raise plan_file.error(address, f"names no cluster, and the lab cannot start {kind}")
    if lab.broker not in known:
        hint = plugins.nearest(lab.broker, known)
        raise plan_file.error("lab.broker", f"unknown lab broker {lab.broker!r}{hint}")
    if lab.broker != kind:
        raise plan_file.error("lab.broker", f"is {lab.broker}, and the plan's broker is {kind}")


def _check_lab_drive(plan_file: PlanFile, lab: Lab) -> None:
    least = MIN_BYTES[lab.drive.filesystem] if lab.drive else 0
    if lab.drive and lab.drive.capacity < least:
        raise plan_file.error("lab.drive.capacity", f"must be at least {format_size(least)}")


@contextmanager
def errors_at(plan_file: PlanFile, *place: str) -> Iterator[None]:
    """Add file, line and key to the errors of a client whose section of the plan is at `place`."""
    try:
        yield
    except SettingError as error:
        raise plan_file.document.error((*place, *error.place), str(error)) from error
    except BrokerError as error:
        raise plan_file.document.error(place, str(error)) from error


def check_cluster(plan_file: PlanFile, partial: RunFolder | None = None) -> None:
    """Check that the cluster of the plan answers, can hold the topics, and that they are not someone else's.

    `partial` is a run whose start was interrupted and is resumed: the topics that it created are its own.

    Raises:
        PlanError: with file, line and key of every fault.
    """
    _raise(cluster_faults(plan_file, partial))


def cluster_faults(plan_file: PlanFile, partial: RunFolder | None = None) -> list[PlanError]:
    """Return the faults of a plan on its cluster; as `check_cluster`."""
    faults = found_by(lambda: check_cluster_answers(plan_file))
    if faults:
        return faults
    broker = connect(plan_file.plan, SystemClock())
    checks = [lambda: check_replication(plan_file, broker)]
    if plan_file.plan.topic.name:
        checks.append(lambda: check_topics(plan_file, broker, partial))
    return found_by(*checks) or found_by(lambda: check_rights(plan_file, broker))


def check_replication(plan_file: PlanFile, broker: Broker) -> None:
    """Check that the cluster has enough nodes for the copies of new topics.

    Raises:
        PlanError: with file, line and key.
    """
    topic = plan_file.plan.topic
    with _broker_errors_at_address(plan_file):
        why = "" if topic.use_existing else broker.replication_error(topic)
    if why:
        raise plan_file.error("topic.replication", why)


def check_rights(plan_file: PlanFile, broker: Broker) -> None:
    """Check that the cluster would let the run create its topics, or use existing ones.

    Raises:
        PlanError: with file, line and key.
    """
    topic = plan_file.plan.topic
    with _broker_errors_at_address(plan_file):
        why = broker.topic_error(dataclasses.replace(topic, name=topic.name or "soak-check"))
    if why:
        raise plan_file.error("topic", why)


def check_cluster_answers(plan_file: PlanFile) -> None:
    """Check that the cluster of the plan answers.

    Raises:
        PlanError: with file, line and key.
    """
    with _broker_errors_at_address(plan_file):
        connect(plan_file.plan, SystemClock()).check()


def check_topics(plan_file: PlanFile, broker: Broker, partial: RunFolder | None = None) -> None:
    """Check that the topics exist if the plan uses existing ones, and otherwise that only own ones do.

    Raises:
        PlanError: with file, line and key.
    """
    names, use_existing = plan_file.plan.topic.names, plan_file.plan.topic.use_existing
    with _broker_errors_at_address(plan_file):
        existing = broker.existing(names)
        own = own_topics(partial, broker, existing) if partial and not use_existing else ()
    missing = [name for name in names if name not in existing]
    if use_existing and missing:
        with _broker_errors_at_address(plan_file):
            why = broker.topic_error(plan_file.plan.topic)  # it may exist, and not be seen
        raise plan_file.error("topic.use_existing", why or f"there is no topic {missing[0]!r}")
    foreign = [name for name in existing if name not in own]
    if foreign and not use_existing:
        raise plan_file.error("topic.name", _foreign_topic_error(foreign[0], partial))


def _foreign_topic_error(name: str, partial: RunFolder | None) -> str:
    why = why_not_own(partial, name) if partial else ""
    if partial and why:
        return (
            f"topic {name} exists, and nothing shows that the run in {partial.path} created it ({why}). "
            "If it is in use by no one, delete it and start again; otherwise choose another name or set "
            "`topic.use_existing: true`"
        )
    return (
        f"topic {name} exists already; soakd writes to a topic that it did not create only with "
        "`topic.use_existing: true`"
    )


@contextmanager
def _broker_errors_at_address(plan_file: PlanFile) -> Iterator[None]:
    """Add file, line and key of the cluster's address to its errors."""
    plan = plan_file.plan
    try:
        yield
    except BrokerError as error:
        address = error.address or next(iter(plan.broker_config.addresses))
        located = plan_file.error(f"broker.{plan.broker_kind}.{address}", str(error))
        if isinstance(error, SettingError):
            raise located from error
        raise _not_now(located) from error


def _not_now(error: PlanError) -> NotNowError:
    """Return the same error as one that may be over later."""
    found = NotNowError(str(error))
    found.place = error.place
    return found


def check_run_folder(plan_file: PlanFile, run_dir: Path) -> RunFolder:
    """Return the folder of a new run, which must be missing or empty.

    Raises:
        PlanError: it is not empty, or cannot be written.
    """
    name = plan_file.document.name
    if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        raise PlanError(f"{name}: --run-dir {run_dir} exists and is not empty")
    if run_dir.exists() and not os.access(run_dir, os.W_OK | os.X_OK):
        raise PlanError(f"{name}: --run-dir {run_dir} cannot be written")
    return RunFolder(run_dir.absolute())


def _is_kafka(plan: Plan) -> bool:
    return "bootstrap_servers" in plan.broker_config.addresses
