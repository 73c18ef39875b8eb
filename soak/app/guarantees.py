"""What the cluster guarantees for a plan's topics: the durability level, and when retention deletes data."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from soak.app import preflight
from soak.core import plugins
from soak.core.clock import SystemClock
from soak.core.cluster import durability, forecast
from soak.core.cluster.durability import Durability, Setting
from soak.core.cluster.forecast import (
    Drive,
    Forecast,
    Limits,
    Stored,
    forecast_obstacles,
)
from soak.core.cluster.forecast import (
    forecast_plan as forecast_from_limits,
)
from soak.core.errors import BrokerError
from soak.core.plan.plan import Plan, with_plugin_values
from soak.core.plan.rates import Point
from soak.core.plan.text import Document, KeyPath
from soak.core.ports import Guarantees
from soak.lab.lab import start_lab
from soak.runtime.context import connect
from soak.service.files import write_atomically
from soak.service.signals import exit_on_sigterm
from soak.store.run_folder import RunFolder

FORECAST_LOG = logging.getLogger("soak.cli.forecast")


@dataclass(frozen=True, slots=True)
class PlanForecast:
    """A forecast and what it was made from; `doubts` are why there is none."""

    found: Forecast | None
    limits: Limits
    stored: Stored
    drive: Drive | None
    doubts: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        if self.found is None:
            return [forecast.no_forecast_line("; ".join(self.doubts))]
        return forecast.forecast_lines(self.found, self.drive)

    @property
    def warnings(self) -> list[str]:
        return [] if self.found is None else forecast.forecast_warnings(self.found, self.drive)

    @property
    def body(self) -> dict[str, object]:
        """Return what `forecast.json` holds."""
        if self.found is None:
            return forecast.unknown_forecast_json("; ".join(self.doubts))
        return forecast.forecast_json(self.found, self.limits, self.stored, self.drive)


def forecast_plan(plan: Plan, table: Sequence[Point], near: Path) -> PlanForecast:
    """Return the forecast of a plan; `table` are the rates of its profile's file, a lab's data lies `near`.

    Raises:
        BrokerError: the cluster does not answer, or with limits that are none.
    """
    guarantees = connect(plan, SystemClock()).guarantees
    try:
        limits = _retention_limits(plan, guarantees)
    except ValueError as error:
        raise BrokerError(f"the cluster's retention settings make no sense: {error}") from error
    stored = guarantees.stored_size(plan.load, plan.topic, limits)
    unsure = tuple(forecast_obstacles(plan, limits))
    found = None if unsure else forecast_from_limits(plan, limits, stored, table)
    return PlanForecast(found, limits, stored, _lab_drive(plan, near), unsure)


def record_forecast(folder: RunFolder, plan: Plan, table: Sequence[Point]) -> None:
    """Write `forecast.json` for a run whose topics are there; a cluster that does not tell ends no run."""
    try:
        body = forecast_plan(plan, table, folder.path).body
    except BrokerError as error:
        FORECAST_LOG.warning("the retention forecast is unknown: %s", error)
        body = forecast.unknown_forecast_json(str(error))
    write_atomically(folder.forecast, json.dumps(body, indent=2, allow_nan=False) + "\n")


def _retention_limits(plan: Plan, guarantees: Guarantees) -> Limits:
    """Return what the cluster says, or, of a lab that is not started yet, what its settings will be."""
    is_there = any(plan.broker_config.addresses.values())
    if plan.lab is None or is_there:
        return guarantees.retention(plan.topic)
    lab = plugins.load("soak.lab.brokers", plan.lab.broker)
    return guarantees.assumed_retention(plan.topic, lab.broker_settings(plan.lab.settings))


def _lab_drive(plan: Plan, near: Path) -> Drive | None:
    """Return the drive of a lab, which holds all copies; that of a cluster is not seen from here."""
    if plan.lab is None:
        return None
    existing = near.absolute()
    while not existing.exists():
        existing = existing.parent
    usage = shutil.disk_usage(existing)
    return Drive(usage.total, usage.free)


# --- Looks up what a plan's target promises, for `soak audit` and for the report of a run.

DURABILITY_LOG = logging.getLogger("soak.cli.durability")


def read_durability(plan: Plan, document: Document) -> Durability:
    """Ask the cluster that a plan names; the broker's file `_<name>_durability.py` knows what.

    `document` is the plan as it was written: what it leaves out is nobody's but our own word.

    Raises:
        BrokerError: the cluster does not answer.
    """
    broker = connect(plan, SystemClock())
    return broker.guarantees.durability(plan.topic, keys_of_broker(plan, document))


def keys_of_broker(plan: Plan, document: Document) -> frozenset[KeyPath]:
    """Return which keys a plan's text has in its broker's section, such as `("producer", "acks")`."""
    section = ("broker", plan.broker_kind)
    return frozenset(place[2:] for place in document.lines if place[:2] == section)


def record_durability(folder: RunFolder, plan: Plan, document: Document) -> None:
    """Write `durability.json` for a run whose topics are there; a cluster that does not tell ends no run."""
    try:
        found = read_durability(plan, document)
    except BrokerError as error:
        DURABILITY_LOG.warning("durability is unknown: %s", error)
        found = durability.unknown(plan.broker_kind, str(error))
    write_atomically(
        folder.durability, json.dumps(durability.to_json(found), indent=2, allow_nan=False) + "\n"
    )


def audit_plans(
    plan: Path, other: Path | None, scale: str, *, is_json: bool
) -> tuple[list[str], bool]:
    """Return what `soak audit` prints of one plan or two, and whether the two are comparable."""
    found = [(str(path), audit_plan(path, scale)) for path in (plan, other) if path is not None]
    bodies = [{"plan": name, **durability.to_json(one)} for name, one in found]
    if other is None:
        text = json.dumps(bodies[0], indent=2) if is_json else durability_text(*found[0])
        return [text], True
    may_compare, because = durability.comparability(found[0], found[1])
    if is_json:
        body = {"plans": bodies, "comparable": may_compare, "because": because}
        return [json.dumps(body, indent=2)], may_compare
    return [*(durability_text(*one) for one in found), because], may_compare


def audit_plan(path: Path, scale: str) -> Durability:
    """Ask the plan's cluster; a lab's is started before and stopped after."""
    plan_file = preflight.scaled_plan(preflight.load_plan(path), scale, "")
    preflight.check_target(plan_file)
    found = plan_file.plan
    with ExitStack() as stack:
        stack.enter_context(preflight.errors_at(plan_file, "broker", found.broker_kind))
        if found.lab is not None:
            exit_on_sigterm()
            folder = stack.enter_context(TemporaryDirectory(prefix="soak-audit-"))
            lab = start_lab(
                Path(folder),
                found.lab.settings,
                kind=found.lab.broker,
                nodes=found.lab.nodes,
                with_mailbox=False,
                on_mail=lambda _: None,
            )
            stack.callback(lab.stop)
            found = with_plugin_values(found, "broker", lab.broker.addresses)
        return read_durability(found, plan_file.document)


def durability_text(name: str, found: Durability) -> str:
    """Return lines that each stand alone in a log."""
    lines = [
        f"{name}: {found.system}, {durability.level_text(found)}",
        f"  replication {found.replication}: {durability.replication_reason(found)}",
        f"  local {found.local}: {durability.local_reason(found)}",
        *(f"  {_setting_text(one, found)}" for one in found.settings),
        *(f"  note: {note}" for note in found.notes),
    ]
    return "\n".join(lines)


def _setting_text(one: Setting, found: Durability) -> str:
    part = f"decides {' and '.join(one.decides)}" if one.decides else "decides nothing"
    weak = [axis for axis in one.decides if getattr(found, axis) != "sync"]
    change = f"; `{one.change}` would help {' and '.join(weak)}" if one.change and weak else ""
    return f"{one.name} {durability.value_text(one.value_read.value)} ({one.value_read.where}): {part}{change}"
