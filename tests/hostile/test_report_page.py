"""A run of others on the page of a report."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from soak.core.plan.plan import with_plugin_values
from spark.batch.coverage import coverage
from spark.report.page import Page
from spark.report.sections import setup
from tests.support.spark.report_run import timeline


@pytest.mark.long
@pytest.mark.timeout(30)
def test_a_plan_of_many_key_words_and_empty_lines_is_shown_at_once(tmp_path: Path) -> None:
    """The search for secrets tried each pair of places: minutes for a plan of 150 kB."""
    found = timeline(tmp_path)
    settings = {
        "client.id": "a" + "\n" * 50_000 + "token" * 20_000,
        "sasl.password": "swordfish",
        "ssl.key.password": "${env:KEY}",
    }
    plan = with_plugin_values(found.plan, "broker", {"common": settings})
    page = Page(replace(found, plan=plan), [], coverage(found), "clean", None)

    shown = setup.render(page)

    assert "swordfish" not in shown
    assert re.findall(r"^ *(sasl\.password|ssl\.key\.password): (.*)$", shown, re.MULTILINE) == [
        ("sasl.password", "(left out)"),
        ("ssl.key.password", "${env:KEY}"),
    ]
