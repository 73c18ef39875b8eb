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

from soak.app import plan_files
from soak.app.host import nearest_existing
from soak.app.preflight.cluster import check_target, errors_at, retention_limits
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
from soak.lab.lab import start_lab
from soak.runtime.context import connect
from soak.service.files import write_atomically
from soak.service.signals import exit_on_sigterm
from soak.store.run_folder import RunFolder

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlanForecast:
    """A forecast of retention and its inputs; `obstacles` are the reasons why there is none."""

    found: Forecast | None
    limits: Limits
    stored: Stored
    drive: Drive | None
    obstacles: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        if self.found is None:
            return [forecast.no_forecast_line("; ".join(self.obstacles))]
        notes = [f"  note: {note}" for note in self.limits.notes]
        return [*forecast.forecast_lines(self.found, self.drive), *notes]

    @property
    def warnings(self) -> list[str]:
        return [] if self.found is None else forecast.forecast_warnings(self.found, self.drive)

    @property
    def body(self) -> dict[str, object]:
        """Return what `forecast.json` holds."""
        if self.found is None:
            return forecast.unknown_forecast_json("; ".join(self.obstacles))
        return forecast.forecast_json(self.found, self.limits, self.stored, self.drive)


def forecast_plan(plan: Plan, table: Sequence[Point], near: Path) -> PlanForecast:
    """Return the retention forecast of a plan.

    `table` has the rates of its load profile; a lab keeps its data on the drive of the path `near`.

    Raises:
        BrokerError: the cluster does not answer, or its limits make no sense.
    """
    guarantees = connect(plan, SystemClock()).guarantees
    limits = retention_limits(plan, guarantees)
    stored = guarantees.stored_size(plan.load, plan.topic, limits)
    obstacles = tuple(forecast_obstacles(plan, limits))
    found = None if obstacles else forecast_from_limits(plan, limits, stored, table)
    return PlanForecast(found, limits, stored, _lab_drive(plan, near), obstacles)


def record_forecast(folder: RunFolder, plan: Plan, table: Sequence[Point]) -> None:
    """Write `forecast.json` of a run with its topics; the run continues if the cluster does not answer."""
    try:
        body = forecast_plan(plan, table, folder.path).body
    except BrokerError as error:
        LOG.warning("retention_forecast_unknown error=%s", error)
        body = forecast.unknown_forecast_json(str(error))
    write_atomically(folder.forecast, json.dumps(body, indent=2, allow_nan=False) + "\n")


def _lab_drive(plan: Plan, near: Path) -> Drive | None:
    """Return the drive of a lab, which stores all replicas; the drives of a cluster are not visible here."""
    if plan.lab is None:
        return None
    usage = shutil.disk_usage(nearest_existing(near))
    return Drive(usage.total, usage.free)


def read_durability(plan: Plan, document: Document) -> Durability:
    """Return the durability level that the cluster of a plan and its settings give.

    `document` is the plan as written: it shows which settings are defaults of soakd.

    Raises:
        BrokerError: the cluster does not answer.
    """
    broker = connect(plan, SystemClock())
    return broker.guarantees.durability(plan.topic, keys_of_broker(plan, document))


def keys_of_broker(plan: Plan, document: Document) -> frozenset[KeyPath]:
    """Return the keys that a plan sets in its broker's section, such as `("producer", "acks")`."""
    section = ("broker", plan.broker_kind)
    return frozenset(place[2:] for place in document.lines if place[:2] == section)


def record_durability(folder: RunFolder, plan: Plan, document: Document) -> None:
    """Write `durability.json` of a run with its topics; the run continues if the cluster does not answer."""
    try:
        found = read_durability(plan, document)
    except BrokerError as error:
        LOG.warning("durability_unknown error=%s", error)
        found = durability.unknown(plan.broker_kind, str(error))
    write_atomically(
        folder.durability, json.dumps(durability.to_json(found), indent=2, allow_nan=False) + "\n"
    )


def audit_plans(
    plan: Path, other: Path | None, scale: str, *, is_json: bool
) -> tuple[list[str], bool]:
    """Return the output of `soak audit` for one or two plans, and whether the two are comparable."""
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
    """Return the durability of a plan; a lab is started for the duration of the check."""
    plan_file = plan_files.scaled_plan(plan_files.load_plan(path), scale, "")
    check_target(plan_file)
    found = plan_file.plan
    with ExitStack() as stack:
        stack.enter_context(errors_at(plan_file, "broker", found.broker_kind))
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
    """Return a line for the level, for each axis, setting and note."""
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
    value = durability.value_text(one.value_read.value)
    return f"{one.name} {value} ({one.value_read.where}): {part}{change}"
