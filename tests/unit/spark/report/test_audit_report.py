from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from spark.batch.coverage import coverage
from spark.report.page import Page
from spark.report.sections import audit
from tests.support.spark.report_run import timeline
from tests.support.spark.synthetic_run import Shape


def _page(path: Path) -> Page:
    found = timeline(path, Shape(seconds=30, warm_up=5, lost=23))
    return Page(found, [], coverage(found), "clean", None)


def test_one_subscription_is_shown_in_one_table(tmp_path: Path) -> None:
    shown = audit.render(_page(tmp_path))

    assert shown.count("<table>") == 1
    assert '<td class="number">23</td>' in shown
    names = ("acknowledged", "read again", "failed, yet received", "skipped")
    assert [name for name in names if f'<td class="text">{name}</td>' not in shown] == []
    assert "_" not in re.sub(r"<[^>]*>", "", shown)


def test_several_subscriptions_are_shown_apart(tmp_path: Path) -> None:
    """A second one, of which nobody can say what it lost."""
    page = _page(tmp_path)
    each = page.timeline.audit_by_subscription
    two = (*each, {**each[0], "lost": None, "unknown": 17})

    shown = audit.render(replace(page, timeline=replace(page.timeline, audit_by_subscription=two)))

    assert shown.count("<table>") == 2
    second = shown[shown.rindex("<tr>") :]
    assert '<td class="text">1</td>' in second
    assert "not known" in second
    assert '<td class="number">17</td>' in second
