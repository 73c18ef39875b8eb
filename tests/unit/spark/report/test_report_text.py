"""What a report says of findings: the same numbers as a mail, and all of them in its first sentence."""

from __future__ import annotations

import html
from pathlib import Path

import pytest

from soak.app.lifecycle import resolve_plan
from soak.core.model import Evidence, Explanation
from soak.core.plan import text as plan_text
from soak.store.run_folder import Run, read_run
from spark.batch.coverage import coverage
from spark.batch.offline_analysis import Judged
from spark.batch.timeline import assemble
from spark.report import job as report
from spark.report.page import Page, in_microseconds
from spark.report.sections import findings
from tests.support.spark.report_run import finding_of, read, timeline
from tests.support.spark.synthetic_run import Shape, write_synthetic_run


@pytest.mark.long
def test_the_first_sentence_counts_the_findings_below(tmp_path: Path) -> None:
    """The first in time is not always the one that matters."""
    found = timeline(tmp_path, Shape(fault_k=None))
    unknown = Explanation("unknown", 0.0, (Evidence("host CPU went from 0.4 to 1."),))
    later = finding_of(key="synthetic-1-160", raised_k=160, onset_k=155, causes=(unknown,))

    report.write(found, [finding_of(), later], None)

    page = found.folder.report.read_text()
    assert (
        "at 14:15:12Z for 2 min 8 s, not over, cause retention cliff; 1 more incident below."
        in page
    )
    assert "The cause is unknown; other changes:" in page
    assert "confidence 99.90%" not in page


def test_microseconds_have_their_sign_on_the_page_and_not_in_the_plan() -> None:
    text = "<p>900 us before 12 us</p><pre>5 us</pre><li>7 uses, 0.5 us</li>"

    shown = "<p>900 µs before 12 µs</p><pre>5 us</pre><li>7 uses, 0.5 µs</li>"
    assert in_microseconds(text) == shown


def test_the_plan_on_the_page_can_be_run_again(tmp_path: Path) -> None:
    """References to secrets stay, secrets do not, and the topic of the old run is not written to again."""
    folder = write_synthetic_run(tmp_path / "run", Shape(fault_k=None))
    written = plan_text.load(
        "name: synthetic\n"
        "broker: {kafka: {bootstrap_servers: 'h:1', common: {sasl.password: '${env:PASSWORD}',"
        " ssl.key.password: hunter2}}}\n"
        "probes: {round_trip: {}, retention_kafka: {directory: null}}\n",
        "plan.yaml",
    ).plan
    folder.plan.write_text(plan_text.dump(resolve_plan(written, None, read_run(folder))))

    report.write(assemble(folder, read), [], None)

    text = folder.report.read_text()
    shown = text.partition("The plan, with every default</summary>")[2].partition("</pre>")[0]
    again = plan_text.load(html.unescape(shown.partition(">")[2]), "plan.yaml").plan
    assert "hunter2" not in text
    assert again.broker_config.common["sasl.password"] == "${env:PASSWORD}"
    assert again.topic == written.topic
    assert resolve_plan(again, None, Run("r2", 0, "h", {}, "running", "p")).topic.name == "soak-r2"


def test_a_rival_cause_is_no_evidence_against_the_first(tmp_path: Path) -> None:
    found = timeline(tmp_path, Shape(fault_k=None, seconds=60, warm_up=10))
    first = Explanation("metadata_storm", 0.88, (Evidence("a topic was created."),))
    pauses = (Evidence("the JVM stood still."),)
    rival = Explanation("gc_pause", 0.73, pauses, (Evidence("it was brief."),), suspect="JVM of b1")
    judged = [Judged(finding_of(onset_k=30, causes=(first, rival)), "both")]

    shown = str(findings.render(Page(found, judged, coverage(found), "regressed", None)))

    assert "<h4>Evidence against</h4><p>Nothing speaks against it.</p></div><div>" in shown
    assert (
        "<div><h4>Rival cause: GC pause (JVM of b1), score 0.73</h4>"
        "<ul><li>the JVM stood still.</li></ul><p>Against it:</p><ul><li>it was brief.</li></ul></div>"
    ) in shown
