"""Check a plan on this machine, without asking the cluster: load, limits, folders, free space, detection."""

from __future__ import annotations

import dataclasses
import errno
import functools
import os
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from soak.alerting.calendar import bad_crons
from soak.app.host import nearest_existing
from soak.app.plan_files import profile_table
from soak.app.preflight.cluster import distinct, target_faults
from soak.app.preflight.probes import (
    probe_cluster_faults,
    probe_folder_faults,
    probe_setting_faults,
)
from soak.clients import client_settings
from soak.conductor.catch_up import cron_error
from soak.conductor.free_space import broker_folders
from soak.core.errors import (
    BrokerError,
    PlanError,
    RunFolderError,
    found_by,
    not_now,
    raise_combined,
)
from soak.core.plan import plugins
from soak.core.plan.plan import OUTAGE_DETECTOR, STREAM_DETECTOR, AnyPlan, Plan, plugins_without
from soak.core.plan.rates import exceeded_limits
from soak.core.plan.text import Document, PlanFile
from soak.core.units import format_duration, format_size
from soak.store.run_folder import RunFolder, read_run
from soak.supervisor.run import MAX_TRIGGER_NS

YES_HINT = "; start it anyway with `soak run --yes`"
"""An addition to an error for a person at a terminal; a service cannot answer."""


def check_host(plan_file: PlanFile, runs: Path) -> None:
    """Check this machine: the folder for runs, free space, and the needs of probes and sinks.

    Raises:
        PlanError: with file, line and key of every fault.
    """
    raise_combined(host_faults(plan_file, runs))


def host_faults(plan_file: PlanFile, runs: Path) -> list[PlanError]:
    """Return every fault of a plan on this machine, without asking the cluster."""
    plan, document = plan_file.plan, plan_file.document
    faults = runs_folder_faults(plan, document, runs)
    faults += found_by(lambda: _check_shipping_cluster(plan_file))
    if plan.lab is None:
        faults += _faults_without_lab(plan_file)
    found = [
        *faults,
        *_alert_faults(plan_file),
        *load_faults(plan_file),
        *_detection_faults(plan_file),
        *target_faults(plan_file),
        *probe_cluster_faults(plan, document),
        *probe_setting_faults(plan, document),
    ]
    return distinct(found)


def runs_folder_faults(plan: AnyPlan, document: Document, runs: Path) -> list[PlanError]:
    """Return a fault if the folder for runs cannot be written, and one if it lacks the plan's free space."""
    nearest = Path(nearest_existing(runs))
    return found_by(
        lambda: _check_writable(document, nearest),
        lambda: check_free_space(plan, document, nearest),
    )


def check_free_space(plan: AnyPlan, document: Document, folder: Path) -> None:
    """Check that a folder has the free space that the plan requires.

    Raises:
        NotNowError: with file, line and key.
    """
    free, floor = shutil.disk_usage(folder).free, plan.free_space_floor
    if free < floor:
        have = format_size(free // 2**20 * 2**20)
        why = f"{folder} has {have} free, less than the floor of {format_size(floor)}"
        raise not_now(document.error(("free_space_floor",), why))


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


def load_faults(plan_file: PlanFile) -> list[PlanError]:
    """Return the faults of the file of the load profile and of the cron expressions of the windows."""
    crons = [
        plan_file.document.error(("phases", "windows", number, "cron"), why)
        for number, window in enumerate(plan_file.plan.phases.windows)
        if (why := cron_error(window))
    ]
    return [*found_by(functools.partial(_check_profile, plan_file)), *crons]


def _check_profile(plan_file: PlanFile) -> None:
    """Raise `PlanError` if the file of the load profile cannot be read, or one of its lines is wrong."""
    profile_table(plan_file)


def check_limits(plan_file: PlanFile, *, hint: str = "") -> None:
    """Check that the load stays within the plan's `limits`; `hint` is added to the error.

    Raises:
        PlanError: with file, line and key of every limit that it exceeds.
    """
    found = exceeded_limits(plan_file.plan, profile_table(plan_file))
    raise_combined([plan_file.document.error(place, why + hint) for place, why in found])


def limit_warnings(plan_file: PlanFile) -> list[str]:
    """Return a warning for each of the plan's `limits` that the load exceeds."""
    found = exceeded_limits(plan_file.plan, profile_table(plan_file))
    return [f"{'.'.join(map(str, place))}: {why}{YES_HINT}" for place, why in found]


def _alert_faults(plan_file: PlanFile) -> list[PlanError]:
    """Return the faults of the cron expressions of digests and maintenance windows."""
    wrong = bad_crons(plan_file.plan.alerts)
    return [plan_file.document.error(("alerts", *place), why) for place, why in wrong]


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


def _detection_faults(plan_file: PlanFile) -> list[PlanError]:
    """Return the faults of what only a new run must satisfy: runs of earlier versions are still read."""
    detection, faults = plan_file.plan.detection, []
    if detection.trigger > MAX_TRIGGER_NS:
        most = format_duration(MAX_TRIGGER_NS)
        faults.append(plan_file.error("detection.trigger", f"must be at most {most}"))
    why = "does not work on a running stream"
    return faults + [
        plan_file.error(f"detection.detectors.{name}", why)
        for name in detection.detectors
        if name not in {STREAM_DETECTOR, OUTAGE_DETECTOR}
    ]


def sink_warnings(plan_file: PlanFile, faults: Sequence[PlanError] = ()) -> list[str]:
    """Return a warning for each sink without a fault that could not send now, with file, line and key."""
    found = []
    wrong = {fault.place[:2] for fault in faults if fault.place is not None}
    for name, config in plan_file.plan.sinks.items():
        if ("sinks", name) in wrong:
            continue
        look = getattr(plugins.load("soak.sinks", name), "preflight", None)
        key, troubles = look(config) if look is not None else ("", [])
        of_keys = [*((key, trouble) for trouble in troubles), *_unread_secrets(config)]
        found += [str(plan_file.error(f"sinks.{name}.{at}", why)) for at, why in of_keys]
    return found


def _unread_secrets(config: Any) -> list[tuple[str, str]]:  # noqa: ANN401  # a plug-in's Config
    """Return each key of a sink whose secret cannot be read here, and why; a credential is for a service."""
    found = []
    for key in (item.name for item in dataclasses.fields(config)):
        text = getattr(config, key)
        if not isinstance(text, str) or text.startswith("${credential:"):
            continue
        try:
            client_settings.resolve_secrets({key: text})
        except BrokerError as error:
            why = str(error).removeprefix(f"{key}: ")
            found.append((key, f"{why}; set it for the process that is to send"))
    return found


def soak_warnings(plan: Plan) -> list[str]:
    """Return a warning if the soak is too short for a verdict."""
    if plan.phases.soak >= plan.least_soak:
        return []
    soak, least = format_duration(plan.phases.soak), format_duration(plan.least_soak)
    why = f"{soak} are too short to call a run clean: at least {least} are needed"
    keys = "`baseline` and `confirm` of detection.detectors.level_shift"
    return [f"phases.soak: {why} ({keys}), ten minutes are better"]


def check_run_folder(plan_file: PlanFile, run_dir: Path) -> RunFolder:
    """Return the folder of a new run, which must be missing or empty.

    Raises:
        PlanError: it is not empty, or cannot be written.
    """
    name = plan_file.document.name
    if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        raise PlanError(
            f"{name}: --run-dir {run_dir} exists and is not empty{_held_run(RunFolder(run_dir))}"
        )
    if run_dir.exists() and not os.access(run_dir, os.W_OK | os.X_OK):
        raise PlanError(f"{name}: --run-dir {run_dir} cannot be written")
    return RunFolder(run_dir.absolute())


def _held_run(folder: RunFolder) -> str:
    """Return which run a folder holds and what to do about it, to stand after an error; "" for none."""
    try:
        run = read_run(folder)
    except RunFolderError:
        return ""
    if run.state != "failed" or folder.journal.exists():
        return f": it holds run {run.id}; name another folder"
    return (
        f": the start of run {run.id} failed; `soak clean {shlex.quote(str(folder.path))}` deletes the "
        "topics that it created, then remove the folder or name another"
    )


def _is_kafka(plan: Plan) -> bool:
    return "bootstrap_servers" in plan.broker_config.addresses
