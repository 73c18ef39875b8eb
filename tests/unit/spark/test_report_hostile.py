"""What others can write into a run, such as topic names and log lines, as a report shows it: as text."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from soak.core.clock import Grid
from soak.core.model import Column, Event, Evidence, Explanation
from soak.core.plan.phases import Decision
from soak.core.units import SECOND_NS
from soak.runtime.recorder import Recorder
from soak.store.journal.writer import JournalWriter
from soak.store.run_folder import RunFolder, read_run, write_run
from spark.batch.timeline import assemble
from spark.report import job as report
from tests.support.fakes import FakeClock
from tests.support.spark.report_run import read, summary
from tests.support.spark.synthetic_run import Shape, write_synthetic_run
from tests.unit.spark.test_report import SERIES, finding_of

EVIL = "<b onclick='x'>\"evil\"</b></script><script>alert(1)</script>{{7*7}}"
SHAPE = Shape(seconds=120, warm_up=5, deletions_k=None, fault_k=None)
KINDS = ("log_error", "retention_deletion", "probe_failed", "leader_changed", EVIL)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report in which every text that comes from outside is hostile."""
    folder = write_synthetic_run(tmp_path_factory.mktemp("hostile") / "run", SHAPE)
    run = read_run(folder)
    write_run(folder, replace(run, host=EVIL, versions={"python": EVIL}))
    _probe(folder, run.start_wall_ns)
    told = Decision("cool-down", 100, EVIL, fields={"outcome": EVIL})
    folder.phases.write_text(folder.phases.read_text() + told.to_line())
    side = {"state": EVIL, "reason": EVIL}
    side = {"state": EVIL, "reason": EVIL}
    setting = {"decides": [EVIL]} | dict.fromkeys(("name", "value", "where", "change"), EVIL)
    sides = {"replication": side, "local": side}
    promised = {"level": 1, "notes": [EVIL], "settings": [setting], **sides}
    folder.durability.write_text(json.dumps(promised))
    (folder.path / "restarts.jsonl").write_text(
        json.dumps({"daemon": EVIL, "how": EVIL, "at_ns": run.start_wall_ns}) + "\n"
    )
    cause = Explanation("retention_cliff", 0.9, (Evidence(EVIL),))
    found = finding_of(causes=(cause,), series=SERIES.replace("0.99", EVIL.replace('"', "'")))
    report.write(assemble(folder, read), [found], lambda _: {"name": EVIL, "fault": {"kind": EVIL}})
    assert summary(folder)["run"] == run.id
    return folder.report.read_text()


def _probe(folder: RunFolder, start_wall_ns: int) -> None:
    """Record a topic, a broker and log lines that want to be more than text."""
    clock = FakeClock(wall_ns=start_wall_ns)
    writer = JournalWriter(folder.journal / "probe@other", clock).open()
    recorder = Recorder(writer, Grid.anchored(start_wall_ns, clock), clock)
    for k in range(SHAPE.seconds):
        clock.advance(1)
        labels = (("topic", EVIL), ("leader", EVIL))
        columns = [
            (Column(metric, labels, unit), float(k % 3))
            for metric, unit in (
                ("retention_deletions", "deletions"),
                ("fsync_latency_seconds", "seconds"),
                ("broker_errors", EVIL),
            )
        ]
        fields = {"line": EVIL, "reason": EVIL, "topic": EVIL, "name": EVIL}
        at_ns = start_wall_ns + k * SECOND_NS
        events = [Event(kind, at_ns, at_ns - SECOND_NS, fields) for kind in KINDS]
        recorder.append(k, columns, events=events, validity={"reason": EVIL if k > 60 else ""})
    writer.close(is_end=True)


@pytest.mark.long
def test_no_text_of_a_run_becomes_a_tag(page: str) -> None:
    """Nor an attribute, nor a template; where it is shown, its letters are."""
    tags = {match.lower() for match in re.findall(r"<\s*/?\s*([a-zA-Z][\w-]*)", page)}

    assert "script" not in tags
    assert "onclick='x'" not in page
    assert "onclick=&#39;x&#39;" in page
    assert "{{7*7}}" in page


def test_no_attribute_is_ended_by_a_text(page: str) -> None:
    """Every tag is whole: its quotes come in pairs, and none holds a bracket."""
    for tag in re.findall(r"<[a-zA-Z][^>]*>", page):
        assert tag.count('"') % 2 == 0, tag
        assert "evil" not in tag or "&#34;evil&#34;" in tag, tag
