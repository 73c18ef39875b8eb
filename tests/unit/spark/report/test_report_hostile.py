"""What others can write into a run, such as topic names and log lines, as a report shows it: as text."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser

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
from spark.report.page import shown_name
from tests.support.fakes import FakeClock
from tests.support.spark.report_run import SERIES, finding_of, read, summary
from tests.support.spark.synthetic_run import Shape, write_synthetic_run

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
    decision = Decision("cool-down", 100, EVIL, fields={"outcome": EVIL})
    folder.phases.write_text(folder.phases.read_text() + decision.to_line())
    side = {"state": EVIL, "reason": EVIL}
    side = {"state": EVIL, "reason": EVIL}
    setting = {"decides": [EVIL]} | dict.fromkeys(("name", "value", "where", "change"), EVIL)
    sides = {"replication": side, "local": side}
    guarantees = {"level": 1, "notes": [EVIL], "settings": [setting], **sides}
    folder.durability.write_text(json.dumps(guarantees))
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


class _Elements(HTMLParser):
    """The start tags of a page with their attributes, as a browser has them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def _elements(page: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = _Elements()
    parser.feed(page)
    return parser.found


@pytest.mark.long
def test_no_text_of_a_run_becomes_a_tag(page: str) -> None:
    """Of scripts there are ours, the numbers and their blocks; where a text is shown, its letters are."""
    scripts = [attributes for tag, attributes in _elements(page) if tag == "script"]
    named = [one["id"] or "" for one in scripts if "id" in one]

    assert len(scripts) - len(named) == 3
    assert all(one == "numbers" or one.startswith("block-") for one in named)
    assert "onclick=&#39;x&#39;" in page
    assert "{{7*7}}" in page


@pytest.mark.long
def test_no_attribute_is_ended_by_a_text(page: str) -> None:
    """No element listens to anything, has a style of its own or fetches something."""
    names = {name for _, attributes in _elements(page) for name in attributes}

    assert not {name for name in names if name.startswith("on") or name in {"style", "src"}}
    assert not [attributes for tag, attributes in _elements(page) if tag == "b" and not attributes]


def test_marks_of_direction_are_spelled_out_and_long_names_are_cut() -> None:
    assert shown_name("orders\u202egnp.exe", 60) == "orders\u2039U+202E\u203agnp.exe"
    cut = shown_name("n" * 10_240, 60)
    assert (len(cut) < 90, cut.endswith("(10,240 characters)")) == (True, True)
