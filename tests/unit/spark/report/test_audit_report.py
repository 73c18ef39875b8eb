from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from soak.app.outcome import show_outcome
from soak.core.journal_format import decode, encode
from soak.core.model import Record
from spark.batch.coverage import coverage
from spark.batch.timeline import assemble
from spark.report import job
from spark.report.page import Page
from spark.report.sections import audit, verdict
from spark.report.summary import audit_json
from tests.support.spark.report_run import read, timeline
from tests.support.spark.synthetic_run import Shape, write_synthetic_run

WHY = "the journals count 8,000 acknowledged messages of the soak, but do not say which they are"


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


def _trimmed(path: Path) -> Page:
    """Return the page of a run whose records say how many messages came through, and not which."""
    folder = write_synthetic_run(path / "run", Shape(seconds=30, warm_up=5))
    for journal in folder.journal.glob("*/*.jsonl"):
        lines = [decode(line) for line in journal.read_bytes().splitlines()]
        kept = [
            replace(one, acknowledged={}, received={}, histograms={})
            if isinstance(one, Record)
            else one
            for one in lines
        ]
        journal.write_bytes(b"".join(map(encode, kept)))
    found = assemble(folder, read)
    return Page(found, [], coverage(found), "clean", None)


def test_without_sequence_numbers_nothing_is_said_of_losses(tmp_path: Path) -> None:
    """The clients counted acknowledgements, so that none were lost of none would be false."""
    page = _trimmed(tmp_path)

    first_screen, section = str(verdict.render(page)), str(audit.render(page))

    said = f"<p><b>Not audited</b>: {WHY}. Nothing is known of losses.</p>"
    assert said in first_screen
    assert said in section
    assert "<dt>Lost</dt><dd>not audited</dd>" in first_screen
    assert (
        "Latency of the whole soak is not known: the journals have no histograms." in first_screen
    )
    assert section.count('<td class="number">not known</td>') == 6
    body = audit_json(page.timeline)
    assert (body["sent"], body["acked"], body["lost"], body["not_audited"]) == (
        10_000,
        None,
        None,
        WHY,
    )


def test_the_terminal_says_that_a_run_was_not_audited(tmp_path: Path) -> None:
    page = _trimmed(tmp_path)
    job.write(page.timeline, [], None)
    out = io.StringIO()

    show_outcome(Console(file=out, width=300), page.timeline.folder)

    lines = out.getvalue().splitlines()
    assert "audit: sent 10,000, acked not known, failed 0" in out.getvalue()
    assert f"not audited: {WHY}" in lines


def test_a_run_with_sequence_numbers_is_audited(tmp_path: Path) -> None:
    page = _page(tmp_path)

    assert "not_audited" not in audit_json(page.timeline)
    assert "udited" not in verdict.render(page) + audit.render(page)
