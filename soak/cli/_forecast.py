"""Looks up what a plan's target keeps, and forecasts when a run reaches that limit."""

from __future__ import annotations

import importlib
import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from soak.core import forecast_text, plugins
from soak.core.errors import BrokerError
from soak.core.forecast import Forecast, Limits, Stored
from soak.core.forecast_text import Drive
from soak.core.plan import Plan
from soak.core.plan_forecast import doubts, foreseen
from soak.core.profile import Point
from soak.store.run_folder import RunFolder, write_atomically

LOG = logging.getLogger("soak.cli.forecast")


@dataclass(frozen=True, slots=True)
class Foreseen:
    """A forecast and what it was made from; `doubts` are why there is none."""

    found: Forecast | None
    limits: Limits
    stored: Stored
    drive: Drive | None
    doubts: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        if self.found is None:
            return [forecast_text.not_foreseen("; ".join(self.doubts))]
        return forecast_text.lines(self.found, self.drive)

    @property
    def warnings(self) -> list[str]:
        return [] if self.found is None else forecast_text.warnings(self.found, self.drive)

    @property
    def body(self) -> dict[str, object]:
        """Return what `forecast.json` holds."""
        if self.found is None:
            return forecast_text.unknown("; ".join(self.doubts))
        return forecast_text.to_json(self.found, self.limits, self.stored, self.drive)


def look(plan: Plan, table: Sequence[Point], near: Path) -> Foreseen:
    """Return the forecast of a plan; `table` are the rates of its profile's file, a lab's data lies `near`.

    Raises:
        BrokerError: the cluster does not answer, or with limits that are none.
    """
    module = importlib.import_module(f"soak.brokers._{plan.broker_kind}_retention")
    try:
        limits = _limits(plan, module)
    except ValueError as error:
        raise BrokerError(f"the cluster's retention settings make no sense: {error}") from error
    stored, unsure = module.stored(plan, limits), tuple(doubts(plan, limits))
    found = None if unsure else foreseen(plan, limits, stored, table)
    return Foreseen(found, limits, stored, _drive(plan, near), unsure)


def record(folder: RunFolder, plan: Plan, table: Sequence[Point]) -> None:
    """Write `forecast.json` for a run whose topics are there; a cluster that does not tell ends no run."""
    try:
        body = look(plan, table, folder.path).body
    except BrokerError as error:
        LOG.warning("the retention forecast is unknown: %s", error)
        body = forecast_text.unknown(str(error))
    write_atomically(folder.forecast, json.dumps(body, indent=2, allow_nan=False) + "\n")


def _limits(plan: Plan, module: ModuleType) -> Limits:
    """Return what the cluster says, or, of a lab that is not started yet, what its settings will be."""
    is_there = any(plan.broker_config.addresses.values())
    if plan.lab is None or is_there:
        limits: Limits = module.read(plan.broker_config, plan.topic)
    else:
        lab = plugins.load("soak.lab.brokers", plan.lab.broker)
        limits = module.assumed(plan.topic, lab.broker_settings(plan.lab.settings))
    return limits


def _drive(plan: Plan, near: Path) -> Drive | None:
    """Return the drive of a lab, which holds all copies; that of a cluster is not seen from here."""
    if plan.lab is None:
        return None
    existing = near.absolute()
    while not existing.exists():
        existing = existing.parent
    usage = shutil.disk_usage(existing)
    return Drive(usage.total, usage.free)
