"""A message to each sink of a plan, before there is anything to tell: does it arrive?"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from soak.cli import _checks
from soak.core.errors import PlanError
from soak.core.plan_fill import lacking
from soak.core.ports import Clock, Message, Sink
from soak.core.units import SECOND_NS
from soak.core.wording import moment
from soak.daemons.alert import build_sinks
from soak.daemons.alert_attempt import attempt
from soak.daemons.context import host_name
from soak.store.run_folder import RunFolder, read_plan

_OVER_NS = 300 * SECOND_NS
"""An alert of a test ends by itself so long after it."""


def sinks_of(path: Path | None, run_dir: Path | None) -> tuple[str, Mapping[str, Sink]]:
    """Return the name and the sinks of a plan, or of the plan of a run.

    Raises:
        PlanError: neither is given, the plan is wrong, or it tells nobody.
        SoakError: no run folder.
    """
    if path is not None:
        plan = _checks.load_plan(path).plan
    elif run_dir is not None:
        plan = read_plan(RunFolder(run_dir))
    else:
        raise PlanError("soak alert --test needs a PLAN or --run-dir DIR")
    for name in lacking(plan, "sinks", "host"):
        raise PlanError(f"sinks.{name}.host: names no server; the lab's comes up with a run")
    if not plan.sinks:
        raise PlanError(f"plan {plan.name} has no sinks: nobody would be told")
    return plan.name, build_sinks(plan)


def try_all(plan: str, sinks: Mapping[str, Sink], clock: Clock) -> bool:
    """Send a message, print what became of it, and return True when every sink took it."""
    message = trial_message(plan, host_name(), clock.wall_ns())
    outcomes = {name: attempt(partial(sink.send, message)) for name, sink in sinks.items()}
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
        end_wall_ns=now_wall_ns + _OVER_NS,
    )
