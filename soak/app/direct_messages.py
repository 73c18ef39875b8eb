"""Messages sent straight to the sinks of a plan: a test message, a failed systemd unit, an alert daemon that keeps crashing."""

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
from soak.app import preflight
from soak.core.errors import PlanError, SoakError
from soak.core.plan.plan import plugins_without
from soak.core.ports import Clock, Message, Sink
from soak.core.units import SECOND_NS, duration_ns
from soak.core.wording import day, moment
from soak.runtime.context import host_name
from soak.service.files import write_atomically
from soak.service.restart_backoff import in_a_row
from soak.service.systemd import notifier
from soak.store.run_folder import RunFolder, read_plan

_TEST_RESOLVE_AFTER_NS = 300 * SECOND_NS
"""An alert of a test ends by itself so long after it."""


def load_sinks(path: Path | None, run_dir: Path | None) -> tuple[str, Mapping[str, Sink]]:
    """Return the name and the sinks of a plan, or of the plan of a run.

    Raises:
        PlanError: neither is given, the plan is wrong, or it tells nobody.
        SoakError: no run folder.
    """
    if path is not None:
        plan = preflight.load_plan(path).plan
    elif run_dir is not None:
        plan = read_plan(RunFolder(run_dir))
    else:
        raise PlanError("soak alert --test needs a PLAN or --run-dir DIR")
    for name in plugins_without(plan, "sinks", "host"):
        raise PlanError(f"sinks.{name}.host: names no server; the lab's comes up with a run")
    if not plan.sinks:
        raise PlanError(f"plan {plan.name} has no sinks: nobody would be told")
    return plan.name, build_sinks(plan)


def send_trial(plan: str, sinks: Mapping[str, Sink], clock: Clock) -> bool:
    """Send a message, print what became of it, and return True when every sink took it."""
    message = trial_message(plan, host_name(), clock.wall_ns())
    outcomes = {name: try_send(partial(sink.send, message)) for name, sink in sinks.items()}
    for name, outcome in outcomes.items():
        print(f"{name}: {outcome.result} {outcome.detail}".rstrip())
    return all(outcome.result == "delivered" for outcome in outcomes.values())


def trial_message(plan: str, host: str, now_wall_ns: int) -> Message:
    """Return a message that nobody takes for a finding."""
    key = f"test-{plan}-{host}-{now_wall_ns // SECOND_NS}"
    return Message(
        key=key,
        subject=f"[soakd] {plan}: a test from {host}, nothing was found",
        text=f"Sent by `soak alert --test` on {host} at {moment(now_wall_ns)}.\n"
        f"Findings of the plan {plan} will come the same way.\n",
        at_wall_ns=now_wall_ns,
        labels={"finding": key, "plan": plan, "source": host, "severity": "none"},
        begin_wall_ns=now_wall_ns,
        end_wall_ns=now_wall_ns + _TEST_RESOLVE_AFTER_NS,
    )


# --- The message about a unit that systemd has given up: it is about us, and not about the cluster.
# Who has it is kept in a file from one try to the next: a sink that is away has nobody told twice.

FAILURE_RESOLVE_AFTER_NS = duration_ns("1d")
"""An alert about it ends by itself so long after it."""
FINDINGS_ARE_KEPT = "The load is measured on; what is found meanwhile is kept, and told as soon as the service stays."
"""What becomes of findings without the alert daemon."""
_ALERT_UNIT = "soak-alert@"
_BAD_PLAN_STATUS = "2"
"""The exit status of `soak` for a bad plan."""


def should_notify(unit: str, environment: Mapping[str, str]) -> bool:
    """False where somebody knows, or hears of it otherwise.

    A run is begun by a person, who waits for it and sees that it was refused. An alert daemon is started
    again however it ends but for a bad plan (from 254 on systemd asks at each such end), and fails too when
    no run begins, which is told already.
    """
    is_refused = environment.get("MONITOR_EXIT_STATUS") == _BAD_PLAN_STATUS
    if unit.startswith("soak-start@"):
        return not is_refused
    return is_refused or not unit.startswith(_ALERT_UNIT)


def notify_of_failed_unit(
    unit: str, plans: Path, state: Path, clock: Clock, environment: Mapping[str, str]
) -> bool:
    """Send to each sink of a unit's plan that it failed; return False when a sink needs another try.

    Raises:
        PlanError: the plan is wrong, or has no sinks.
    """
    if not should_notify(unit, environment):
        print(f"{unit}: not told, as somebody knows or hears of it otherwise")
        return True
    name, sinks = load_sinks(plans / f"{unit.partition('@')[2]}.yaml", None)
    now_ns, path = clock.wall_ns(), state / f".{unit}.told.json"
    told = read_deliveries(path, failure_key(name, environment, now_ns), now_ns)
    said = failure_message(name, unit, host_name(), environment, told.since_wall_ns)
    return send_to_each(said, sinks, told, path)


@dataclass(slots=True)
class Deliveries:
    """How far people have been told of one failure; `tell` goes on with it."""

    key: str
    since_wall_ns: int  # of the first try: the message says when it failed
    settled: list[str] = field(default_factory=list)  # sinks that took it, or never will
    so_far: dict[str, str] = field(default_factory=dict)  # by sink: what it noted at its last try


def read_deliveries(path: Path, key: str, now_wall_ns: int) -> Deliveries:
    """Return what `path` has of this failure; of another one, or where it is damaged, nothing."""
    with suppress(OSError, ValueError, TypeError):
        kept = Deliveries(**json.loads(path.read_text()))
        if kept.key == key:
            return kept
    return Deliveries(key, now_wall_ns)


def send_to_each(message: Message, sinks: Mapping[str, Sink], told: Deliveries, path: Path) -> bool:
    """Send to those who wait for it, print and keep what became of it; True when nobody waits any more."""
    for name, sink in sinks.items():
        if name in told.settled:
            continue
        before = told.so_far.get(name, "")
        outcome = try_send(partial(sink.send, replace(message, progress=before)))
        print(f"{name}: {outcome.result} {outcome.detail}".rstrip())
        if outcome.result == "retry":
            told.so_far[name] = outcome.progress or before
        else:
            told.settled.append(name)
        with suppress(OSError):  # a full drive may be what failed: then somebody is told twice
            write_atomically(path, json.dumps(asdict(told)) + "\n")
    return all(name in told.settled for name in sinks)


def failure_key(plan: str, environment: Mapping[str, str], now_wall_ns: int) -> str:
    """Return what one failure has and no other: each life of a unit has an id of systemd's."""
    return f"failed-{plan}-{environment.get('MONITOR_INVOCATION_ID', now_wall_ns)}"


def failure_message(
    plan: str, unit: str, host: str, environment: Mapping[str, str], now_wall_ns: int
) -> Message:
    """Return what people are told; `environment` has systemd's words on the unit, see systemd.exec(5)."""
    result = environment.get("MONITOR_SERVICE_RESULT", "failed")
    status = environment.get("MONITOR_EXIT_STATUS", "")
    key, at = (
        failure_key(plan, environment, now_wall_ns),
        f"{day(now_wall_ns)} {moment(now_wall_ns)}",
    )
    is_alert = unit.startswith(_ALERT_UNIT)
    means = FINDINGS_ARE_KEPT if is_alert else "A run may not go on, or have no report."
    return Message(
        key=key,
        subject=f"[soakd] {plan}: {'findings reach nobody, ' if is_alert else ''}{unit} failed on {host}",
        text=f"systemd on {host} gave {unit} up at {at}: {result} {status}".rstrip()
        + f".\nThis says nothing about the cluster. {means}\n"
        f"What it said last: journalctl -u {unit} -n 50\n",
        at_wall_ns=now_wall_ns,
        labels={"finding": key, "plan": plan, "source": host, "severity": "warning"},
        begin_wall_ns=now_wall_ns,
        end_wall_ns=now_wall_ns + FAILURE_RESOLVE_AFTER_NS,
    )


# --- The alert daemon that dies again and again says so itself, before it tries once more: nobody else would.

LOG = logging.getLogger("soak.cli.dying")
CRASH_LIMIT = 8
"""So many quick starts in a row take some four minutes; each later one is a minute apart."""
_SEND_SECONDS = 120
"""What the sinks may take beside the start itself."""
_DELIVERIES_FILE = "told.json"


def notify_crashes(
    run_dir: Path, telling: Path | None, clock: Clock, environment: Mapping[str, str] | None = None
) -> None:
    """Tell each sink once that this service has died at its start `MANY` times; do nothing before that.

    Who has it is kept beside the note of the starts, in memory: a full drive may be what it dies of.
    """
    if environment is None:
        environment = os.environ
    folder, starts = Path(environment.get("RUNTIME_DIRECTORY", "")), in_a_row(environment)
    if starts < CRASH_LIMIT:
        if starts == 0 and folder.name:
            with suppress(OSError):
                (folder / _DELIVERIES_FILE).unlink()
        return
    notifier(environment).more_time(_SEND_SECONDS)
    try:
        name, sinks = load_sinks(telling, None if telling else run_dir)
    except SoakError as error:
        LOG.warning("sinks_unknown why=%r", str(error))
        return
    told = read_deliveries(folder / _DELIVERIES_FILE, folder.name, clock.wall_ns())
    said = crash_message(name, folder.name, host_name(), told.since_wall_ns)
    send_to_each(said, sinks, told, folder / _DELIVERIES_FILE)


def crash_message(plan: str, unit: str, host: str, since: int) -> Message:
    """Return what people are told: that findings are kept, and reach nobody; `since` is of the first try."""
    key = f"dying-{plan}-{host}-{since // SECOND_NS}"
    return Message(
        key=key,
        subject=f"[soakd] {plan}: findings reach nobody, {unit} dies again and again on {host}",
        text=f"At {day(since)} {moment(since)} {unit} on {host} had died at {CRASH_LIMIT} starts in a row; "
        f"it is tried once a minute.\nThis says nothing about the cluster. {FINDINGS_ARE_KEPT}\n"
        f"What it said last: journalctl -u {unit} -n 50\n",
        at_wall_ns=since,
        labels={"finding": key, "plan": plan, "source": host, "severity": "warning"},
        begin_wall_ns=since,
        end_wall_ns=since + FAILURE_RESOLVE_AFTER_NS,
    )
