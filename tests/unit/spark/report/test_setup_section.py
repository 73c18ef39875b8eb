"""The plan on the page of a report: it can be saved and run again."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest

from soak.app.preflight.cluster import check_target
from soak.core.plan import text as plan_text
from soak.core.plan.plan import with_measured_cluster, with_plugin_values, with_ship_target
from soak.core.plan.text import PlanFile
from spark.batch.coverage import coverage
from spark.batch.timeline import Timeline
from spark.report.page import Page
from spark.report.sections import setup
from tests.support.spark.report_run import timeline

pytestmark = pytest.mark.long

LAB = """
name: p
broker: {kafka: {}}
lab: {broker: kafka}
topic: {name: t}
ship: {}
probes: {fsync: {}, disk_io: {}, broker_log: {}, retention_kafka: {}, round_trip: {}}
sinks: {mail: {to: [a@example.org]}}
"""


def shown_plan(found: Timeline) -> PlanFile:
    page = Page(found, [], coverage(found), "clean", None)
    (text,) = re.findall(r"</summary><pre[^>]*>(.*?)</pre>", setup.render(page), re.DOTALL)
    return plan_text.load(html.unescape(text), "plan.yaml")


def test_the_plan_of_a_lab_run_can_be_run_again(tmp_path: Path) -> None:
    """Its broker, data folders, logs and mail server were the lab's: the next lab has its own."""
    found = timeline(tmp_path)
    asked, lab = plan_text.load(LAB, "p.yaml").plan, found.folder.lab.resolve()
    plan = with_plugin_values(asked, "broker", {"bootstrap_servers": "127.0.0.1:4711"})
    plan = with_plugin_values(plan, "probes", {"directory": f"{lab}/data,{lab}/data-2"})
    logs = {"log": f"{lab}/server.log", "more_logs": (f"{lab}/gc.log",)}
    plan = with_plugin_values(plan, "probes", logs)
    plan = with_plugin_values(plan, "sinks", {"host": "127.0.0.1", "port": 4025})
    plan = with_ship_target(with_measured_cluster(plan))

    again = shown_plan(replace(found, plan=plan))

    check_target(again)
    assert again.plan.sinks == asked.sinks
    assert again.plan.ship == asked.ship
    assert "127.0.0.1:4711" not in plan_text.dump(again.plan)
    assert str(lab) not in plan_text.dump(again.plan)


def test_the_plan_of_a_cluster_keeps_its_addresses(tmp_path: Path) -> None:
    found = timeline(tmp_path)

    assert shown_plan(found).plan.broker_config == found.plan.broker_config
