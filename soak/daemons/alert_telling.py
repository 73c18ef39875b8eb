"""Whom the alert daemon tells, and when, by a file that may change while the run goes on."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from soak.core import plan_text
from soak.core.errors import PlanError
from soak.core.plan import Plan
from soak.core.plan_alerts import Telling
from soak.core.plan_fill import lacking
from soak.daemons.alert_calendar import refusal

LOG = logging.getLogger("soak.daemons.alert")


def as_told_by(path: Path | None, plan: Plan) -> Plan:
    """Return the plan of a run with `sinks` and `alerts` of a file, or as it is where that cannot be used."""
    if path is None:
        return plan
    try:
        telling = _read(path, plan)
    except PlanError as error:
        LOG.warning("file_not_used sinks_and_alerts=%r why=%r", "as the run began", str(error))
        return plan
    names = ",".join(telling.sinks)
    LOG.info("file_used sinks_and_alerts=%s sinks=%s", path, names)
    for name in plan.sinks.keys() - telling.sinks.keys():
        LOG.warning("sink_left name=%s its_messages=%r", name, "given up")
    return replace(plan, sinks=telling.sinks, alerts=telling.alerts)


def _read(path: Path, plan: Plan) -> Telling:
    """Return what a file says of telling; raises `PlanError` where it may not be meant for this run."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: cannot read the plan: {error}") from error
    telling, document = plan_text.load_telling(text, str(path))
    if telling.name != plan.name:
        raise document.error(("name",), f"is not {plan.name}, whose run it is")
    if plan.sinks and not telling.sinks:
        raise document.error(("sinks",), "names nobody, and all that is owed would be given up")
    told = replace(plan, sinks=telling.sinks, alerts=telling.alerts)
    for name in lacking(told, "sinks", "host"):
        raise document.error(("sinks", name, "host"), "names no server")
    wrong = refusal(telling.alerts)
    if wrong:
        raise document.error(("alerts", *wrong[0]), wrong[1])
    return telling
