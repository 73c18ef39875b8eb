"""Everything that can be known of a plan before its first side effect."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

from soak.cli._folder_checks import check_free, check_runs
from soak.cli._load_checks import check_load, table_of
from soak.cli._probe_checks import check_clusters, check_folders, check_settings
from soak.cli._topics import own_topics, why_strange
from soak.core import plan_scale, plan_text, plugins
from soak.core.clock import SystemClock
from soak.core.errors import BrokerError, NotNowError, PlanError, SettingError
from soak.core.lab_limits import refuse_too_much
from soak.core.plan import STREAM_DETECTOR, Lab, Plan
from soak.core.plan_fill import lacking
from soak.core.plan_text import PlanFile
from soak.core.ports import Broker
from soak.core.units import duration_ns, format_duration, format_size
from soak.daemons.alert_calendar import refusal
from soak.daemons.context import connect
from soak.daemons.free_space import folders_of
from soak.daemons.supervise import MOST_TRIGGER_NS
from soak.lab.drive import LEAST_BYTES
from soak.store.run_folder import RunFolder

_SCALE = re.compile(r"[+-]?[\d.]{1,30}(/\d{1,30}|[eE][+-]?\d{1,2})?", re.ASCII)
"""A number of few digits: those of 1e999999999 would fill any memory."""


def load_plan(path: Path) -> PlanFile:
    """Return the plan; without a broker's address it gets the lab's broker.

    Raises:
        PlanError: it cannot be read, or something in it is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: cannot read the plan: {error}") from error
    loaded = plan_text.load(text, str(path))
    if loaded.plan.lab is None and not _named(loaded):
        plan = dataclasses.replace(loaded.plan, lab=Lab())
        return dataclasses.replace(loaded, plan=plan)
    return loaded


def cut(plan_file: PlanFile, scale: str, duration: str) -> PlanFile:
    """Return the plan at a part of its rate and time; "" leaves either as it is.

    Raises:
        PlanError: an option is no number or duration, or the plan cannot be cut so far.
    """
    plan = plan_file.plan
    if duration:
        try:
            length_ns = duration_ns(duration)
        except ValueError as error:
            raise PlanError(f"--duration: {error}") from error
        plan = plan_scale.shortened(plan, length_ns)
    if scale:
        plan = plan_scale.scaled(plan, _factor(scale))
    return dataclasses.replace(plan_file, plan=plan)


def _factor(text: str) -> Fraction:
    match = _SCALE.fullmatch(text)
    try:
        return Fraction(match[0] if match else "")
    except (ValueError, ZeroDivisionError) as error:
        what = "no number that a plan can be cut by; write 0.01 or 1/100"
        raise PlanError(f"--scale {text[:40]!r} is {what}") from error


def check_here(plan_file: PlanFile, runs: Path) -> None:
    """Check this machine: the folder for runs, free space, what probes and sinks need.

    Raises:
        PlanError: with file, line and key.
    """
    plan = plan_file.plan
    check_load(plan_file)
    check_runs(plan, plan_file.document, runs)
    if plan.lab is None:
        check_folders(plan, plan_file.document)
        for directory in folders_of(plan):  # the load fills it, and the fsync probe writes there
            if Path(directory).is_dir():
                check_free(plan, plan_file.document, Path(directory))
        if plan.drive_check and not folders_of(plan):
            raise plan_file.error(
                "drive_check", "no probe names a folder on a broker's drive, and this is no lab"
            )
        for name in lacking(plan, "sinks", "host"):
            raise plan_file.error(f"sinks.{name}.host", "names no server, and this is no lab")
    wrong = refusal(plan.alerts)
    if wrong:
        raise plan_file.document.error(("alerts", *wrong[0]), wrong[1])
    check_target(plan_file)
    check_clusters(plan, plan_file.document)
    check_settings(plan, plan_file.document)
    if plan.ship and not plan.ship.bootstrap_servers and not _is_kafka(plan):
        raise plan_file.error(
            "ship.bootstrap_servers", f"names no Kafka cluster, and {plan.broker_kind} is none"
        )
    _check_detection(plan_file)


def _check_detection(plan_file: PlanFile) -> None:
    """Check what is refused here alone: a run of an earlier version, which had it, is still read."""
    detection = plan_file.plan.detection
    if detection.trigger > MOST_TRIGGER_NS:
        most = format_duration(MOST_TRIGGER_NS)
        raise plan_file.error("detection.trigger", f"must be at most {most}")
    for name in detection.detectors:
        if name != STREAM_DETECTOR:
            raise plan_file.error(
                f"detection.detectors.{name}", "does not work on a running stream"
            )


def check_target(plan_file: PlanFile) -> None:
    """Check what the plan says of its broker: the lab can be had, and the client knows its settings.

    Raises:
        PlanError: with file, line and key.
    """
    lab, kind = plan_file.plan.lab, plan_file.plan.broker_kind
    if lab is not None:
        _check_lab(plan_file, lab)
        most = plugins.load("soak.lab.brokers", lab.broker).MOST_NODES
        if lab.nodes > most:
            nodes = "node" if most == 1 else "nodes"
            raise plan_file.error(
                "lab.nodes", f"a lab's {lab.broker} has at most {most} {nodes}, not {lab.nodes}"
            )
        _check_drive(plan_file, lab)
    refuse_too_much(plan_file, table_of(plan_file))
    check_topic = getattr(plugins.load("soak.brokers", kind), "check_topic", None)
    if check_topic is not None:
        with faults_at(plan_file, "topic"):
            check_topic(plan_file.plan.topic)
    with faults_at(plan_file, "broker", kind):
        broker = connect(plan_file.plan, SystemClock())
        broker.check_settings()
        if plan_file.plan.load.keys.kind != "none":
            broker.partition_of(b"", plan_file.plan.topic.partitions)


def _check_lab(plan_file: PlanFile, lab: Lab) -> None:
    """Check that the lab's broker is one that the plan speaks to."""
    kind, known = plan_file.plan.broker_kind, plugins.names("soak.lab.brokers")
    address = f"broker.{kind}.{next(iter(plan_file.plan.broker_config.addresses))}"
    named = _named(plan_file)
    if named:
        unused = f"would stand unused beside the cluster that broker.{kind}.{named[0]} names"
        raise plan_file.error("lab", unused)
    if lab.broker not in known and lab.broker == kind:
        raise plan_file.error(address, f"names no cluster, and the lab has no {kind}")
    if lab.broker not in known:
        hint = plugins.nearest(lab.broker, known)
        raise plan_file.error("lab.broker", f"unknown lab broker {lab.broker!r}{hint}")
    if lab.broker != kind:
        raise plan_file.error("lab.broker", f"is {lab.broker}, and the plan's broker is {kind}")


def _check_drive(plan_file: PlanFile, lab: Lab) -> None:
    least = LEAST_BYTES[lab.drive.filesystem] if lab.drive else 0
    if lab.drive and lab.drive.capacity < least:
        raise plan_file.error("lab.drive.capacity", f"must be at least {format_size(least)}")


@contextmanager
def faults_at(plan_file: PlanFile, *place: str) -> Iterator[None]:
    """Tell what a client refuses with file, line and key; its section of the plan is at `place`."""
    try:
        yield
    except SettingError as error:
        raise plan_file.document.error((*place, *error.place), str(error)) from error
    except BrokerError as error:
        raise plan_file.document.error(place, str(error)) from error


def check_cluster(plan_file: PlanFile, half: RunFolder | None = None) -> None:
    """Check the cluster that the plan names: it answers, and the topic is not somebody else's.

    `half` is the run whose beginning was cut short and goes on: what it made is its own.

    Raises:
        PlanError: with file, line and key.
    """
    check_answer(plan_file)
    if plan_file.plan.topic.name:
        check_topics(plan_file, connect(plan_file.plan, SystemClock()), half)


def check_answer(plan_file: PlanFile) -> None:
    """Check that the cluster answers: another host makes the topics, or has made them.

    Raises:
        PlanError: with file, line and key.
    """
    with _unanswered_at_address(plan_file):
        connect(plan_file.plan, SystemClock()).check()


def check_topics(plan_file: PlanFile, broker: Broker, half: RunFolder | None = None) -> None:
    """Check that the topics which the plan names are there to be used, or that none is, but our own.

    Raises:
        PlanError: with file, line and key.
    """
    names, use_existing = plan_file.plan.topic.names, plan_file.plan.topic.use_existing
    with _unanswered_at_address(plan_file):
        exists = broker.existing(names)
        own = own_topics(half, broker, exists) if half and not use_existing else ()
    missing = [name for name in names if name not in exists]
    if use_existing and missing:
        raise plan_file.error("topic.use_existing", f"there is no topic {missing[0]!r}")
    strange = [name for name in exists if name not in own]
    if strange and not use_existing:
        raise plan_file.error("topic.name", _strange(strange[0], half))


def _strange(name: str, half: RunFolder | None) -> str:
    why = why_strange(half, name) if half else ""
    if half and why:
        return (
            f"topic {name} exists, and nothing shows that the run in {half.path} made it ({why}). If it "
            "is nobody else's, delete it and start again; else take another name, or say "
            "`topic.use_existing: true`"
        )
    return (
        f"topic {name} exists already; soakd writes into no topic that it did not "
        "make unless `topic.use_existing: true` says so"
    )


@contextmanager
def _unanswered_at_address(plan_file: PlanFile) -> Iterator[None]:
    """Tell what the cluster says at the key of its address."""
    plan = plan_file.plan
    try:
        yield
    except BrokerError as error:
        key = f"broker.{plan.broker_kind}.{next(iter(plan.broker_config.addresses))}"
        said = plan_file.error(key, str(error))
        if isinstance(error, SettingError):
            raise said from error
        raise NotNowError(str(said)) from error


def check_run_folder(plan_file: PlanFile, run_dir: Path) -> RunFolder:
    """Return the folder if a run may begin in it: it is new or empty.

    Raises:
        PlanError: there is something in it.
    """
    name = plan_file.document.name
    if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        raise PlanError(f"{name}: --run-dir {run_dir} exists and is not empty")
    if run_dir.exists() and not os.access(run_dir, os.W_OK | os.X_OK):
        raise PlanError(f"{name}: --run-dir {run_dir} cannot be written")
    return RunFolder(run_dir.absolute())


def _is_kafka(plan: Plan) -> bool:
    return "bootstrap_servers" in plan.broker_config.addresses


def _named(plan_file: PlanFile) -> list[str]:
    """Return the keys of the broker's section by which the plan names a cluster."""
    return [key for key, value in plan_file.plan.broker_config.addresses.items() if value]
