"""Messages that skip the findings store: test messages, failed systemd units, a crashing alert daemon."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from soak.alerting.daemon import build_sinks
from soak.alerting.delivery import try_send
from soak.app import plan_files
from soak.core import json_text
from soak.core.errors import PlanError, SoakError
from soak.core.plan.plan import plugins_without
from soak.core.ports import Clock, Message, Sink
from soak.core.units import SECOND_NS, duration_ns
from soak.core.wording import day, moment
from soak.runtime.grid import host_name
from soak.service.files import write_atomically
from soak.service.restart_backoff import quick_starts
from soak.service.systemd import notifier
from soak.store.run_folder import RunFolder, read_plan

LOG = logging.getLogger(__name__)
TEST_RESOLVE_AFTER_NS = 300 * SECOND_NS
FAILURE_RESOLVE_AFTER_NS = duration_ns("1d")
CRASH_LIMIT = 8
"""This many quick starts in a row take about four minutes; later ones are a minute apart."""
FINDINGS_ARE_KEPT = (
    "The load continues. Findings are kept, and sent as soon as the alert daemon stays up."
)
_SEND_SECONDS = 120
"""Time for the sinks, in addition to the start of the daemon."""
_ALERT_UNIT = "soak-alert@"
_BAD_PLAN_STATUS = "2"
"""The exit status of `soak` for a bad plan."""


def load_sinks(path: Path | None, run_dir: Path | None) -> tuple[str, Mapping[str, Sink]]:
    """Return the name and the sinks of a plan, or of the plan of a run.

    Raises:
        PlanError: neither is given, the plan is wrong, or it has no sinks.
        SoakError: no run folder.
    """
    if path is not None:
        plan = plan_files.load_plan(path).plan
    elif run_dir is not None:
        plan = read_plan(RunFolder(run_dir))
    else:
        raise PlanError("soak alert --test needs a PLAN or --run-dir DIR")
    for name in plugins_without(plan, "sinks", "host"):
        raise PlanError(
            f"sinks.{name}.host: names no mail server; the lab's server starts with a run"
        )
    if not plan.sinks:
        raise PlanError(f"plan {plan.name} has no sinks: add one under `sinks`")
    return plan.name, build_sinks(plan)


def send_test_message(plan: str, sinks: Mapping[str, Sink], clock: Clock) -> bool:
    """Send a test message, print the result of each sink, and return whether every sink accepted it."""
    message = _test_message(plan, host_name(), clock.wall_ns())
    outcomes = {name: try_send(partial(sink.send, message)) for name, sink in sinks.items()}
    for name, outcome in outcomes.items():
        print(f"{name}: {outcome.result} {outcome.detail}".rstrip())
    return all(outcome.result == "delivered" for outcome in outcomes.values())


def _test_message(plan: str, host: str, now_wall_ns: int) -> Message:
    key = f"test-{plan}-{host}-{now_wall_ns // SECOND_NS}"
    return Message(
        key=key,
        subject=f"[soakd] test message from {host}, nothing was found - {plan}",
        text=f"Sent by `soak alert --test` on {host} at {moment(now_wall_ns)}.\n"
        f"Findings of the plan {plan} arrive the same way.\n",
        at_wall_ns=now_wall_ns,
        labels={"finding": key, "plan": plan, "source": host, "severity": "none"},
        begin_wall_ns=now_wall_ns,
        end_wall_ns=now_wall_ns + TEST_RESOLVE_AFTER_NS,
    )


def should_notify(unit: str, environment: Mapping[str, str]) -> bool:
    """Return whether a failed unit needs a message.

    A person starts a run and sees when its plan is rejected. systemd restarts the alert daemon after every
    failure except a bad plan (since version 254 it calls OnFailure= at each of them), and the alert daemon
    also fails when no run could start, for which another message is sent.
    """
    is_bad_plan = environment.get("MONITOR_EXIT_STATUS") == _BAD_PLAN_STATUS
    if unit.startswith(("soak-start@", "soak-begin@")):  # the second is of version 0.1.0
        return not is_bad_plan
    return is_bad_plan or not unit.startswith(_ALERT_UNIT)


def notify_of_failed_unit(
    unit: str, plans: Path, state: Path, clock: Clock, environment: Mapping[str, str]
) -> bool:
    """Send to each sink of a unit's plan that the unit failed; return False when a sink needs another try.

    Raises:
        PlanError: the plan is wrong, or has no sinks.
    """
    if not should_notify(unit, environment):
        print(f"{unit}: no message needed")
        return True
    name, sinks = load_sinks(plans / f"{unit.partition('@')[2]}.yaml", None)
    now_ns, path = clock.wall_ns(), state / f".{unit}.sent.json"
    deliveries = read_deliveries(path, failure_key(name, environment, now_ns), now_ns)
    message = failure_message(name, unit, host_name(), environment, deliveries.since_wall_ns)
    return send_to_each(message, sinks, deliveries, path)


def failure_key(plan: str, environment: Mapping[str, str], now_wall_ns: int) -> str:
    """Return the key of one failure: systemd gives each start of a unit an invocation id."""
    return f"failed-{plan}-{environment.get('MONITOR_INVOCATION_ID', now_wall_ns)}"


def failure_message(
    plan: str, unit: str, host: str, environment: Mapping[str, str], now_wall_ns: int
) -> Message:
    """Return the message about a failed unit; systemd.exec(5) describes the variables in `environment`."""
    result = environment.get("MONITOR_SERVICE_RESULT", "failed")
    status = environment.get("MONITOR_EXIT_STATUS", "")
    at = f"{day(now_wall_ns)} {moment(now_wall_ns)}"
    is_alert = unit.startswith(_ALERT_UNIT)
    means = FINDINGS_ARE_KEPT if is_alert else "The run may be paused, or its report is missing."
    return _daemon_message(
        key=failure_key(plan, environment, now_wall_ns),
        plan=plan,
        unit=unit,
        host=host,
        problem=f"{'findings are not sent, ' if is_alert else ''}{unit} failed",
        text=f"systemd on {host} stopped restarting {unit} at {at}: {result} {status}".rstrip()
        + f".\nThis says nothing about the cluster. {means}\n",
        at_wall_ns=now_wall_ns,
    )


def notify_crashes(
    run_dir: Path,
    sinks_from: Path | None,
    clock: Clock,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Send each sink one message when this service has crashed at `CRASH_LIMIT` starts in a row.

    The record of deliveries is in RUNTIME_DIRECTORY, in memory: a full drive may be the cause of the crashes.
    """
    if environment is None:
        environment = os.environ
    folder, starts = Path(environment.get("RUNTIME_DIRECTORY", "")), quick_starts(environment)
    path = folder / "sent.json"
    if starts < CRASH_LIMIT:
        if starts == 0 and folder.name:
            for file in (path, _former_path(path)):
                with suppress(OSError):
                    file.unlink()
        return
    notifier(environment).more_time(_SEND_SECONDS)
    try:
        name, sinks = load_sinks(sinks_from, None if sinks_from else run_dir)
    except SoakError as error:
        LOG.warning("sinks_unknown why=%r", str(error))
        return
    deliveries = read_deliveries(path, folder.name, clock.wall_ns())
    message = crash_message(name, folder.name, host_name(), deliveries.since_wall_ns)
    send_to_each(message, sinks, deliveries, path)


def crash_message(plan: str, unit: str, host: str, since_wall_ns: int) -> Message:
    """Return the message about an alert daemon that keeps crashing, first tried at `since_wall_ns`."""
    return _daemon_message(
        key=f"dying-{plan}-{host}-{since_wall_ns // SECOND_NS}",
        plan=plan,
        unit=unit,
        host=host,
        problem=f"findings are not sent, {unit} keeps crashing",
        text=f"By {day(since_wall_ns)} {moment(since_wall_ns)} {unit} on {host} had crashed at {CRASH_LIMIT} "
        f"starts in a row; systemd restarts it once a minute.\n"
        f"This says nothing about the cluster. {FINDINGS_ARE_KEPT}\n",
        at_wall_ns=since_wall_ns,
    )


def _daemon_message(
    *, key: str, plan: str, unit: str, host: str, problem: str, text: str, at_wall_ns: int
) -> Message:
    """Return a message about a daemon of soakd, not about the cluster."""
    return Message(
        key=key,
        subject=f"[soakd] {problem} on {host} - {plan}",
        text=f"{text}Its last log lines: journalctl -u {unit} -n 50\n",
        at_wall_ns=at_wall_ns,
        labels={"finding": key, "plan": plan, "source": host, "severity": "warning"},
        begin_wall_ns=at_wall_ns,
        end_wall_ns=at_wall_ns + FAILURE_RESOLVE_AFTER_NS,
    )


@dataclass(slots=True)
class Deliveries:
    """Which sinks have the message about one failure; kept in a file so that no sink gets it twice."""

    key: str
    since_wall_ns: int  # of the first try: the message says when it failed
    settled: list[str] = field(default_factory=list)  # sinks that accepted it, or never will
    so_far: dict[str, str] = field(default_factory=dict)  # by sink: its note of the last try


def read_deliveries(path: Path, key: str, now_wall_ns: int) -> Deliveries:
    """Return the deliveries of one failure; an empty record if the file is about another, or is damaged."""
    with suppress(OSError, ValueError, TypeError):
        file = path if path.exists() else _former_path(path)
        stored = Deliveries(**json_text.loads(file.read_text()))
        if stored.key == key:
            return stored
    return Deliveries(key, now_wall_ns)


def _former_path(path: Path) -> Path:
    """Return the name that version 0.1.0 gave the file."""
    return path.with_name(path.name.replace("sent.json", "told.json"))


def send_to_each(
    message: Message, sinks: Mapping[str, Sink], deliveries: Deliveries, path: Path
) -> bool:
    """Send to the sinks that are not settled, print and store the results; return whether all are settled."""
    for name, sink in sinks.items():
        if name in deliveries.settled:
            continue
        before = deliveries.so_far.get(name, "")
        outcome = try_send(partial(sink.send, replace(message, progress=before)))
        print(f"{name}: {outcome.result} {outcome.detail}".rstrip())
        if outcome.result == "retry":
            deliveries.so_far[name] = outcome.progress or before
        else:
            deliveries.settled.append(name)
        with suppress(
            OSError
        ):  # a full drive may be the failure: then a sink gets a second message
            write_atomically(path, json.dumps(asdict(deliveries)) + "\n")
    return all(name in deliveries.settled for name in sinks)
