"""What is found, when and why follows from the journals: not from batches, the host's speed or restarts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.panel import Panel
from soak.core.model import Change, Finding
from soak.core.plan.plan import OUTAGE_DETECTOR, STREAM_DETECTOR
from soak.core.series import source_of
from soak.store.findings.port import FindingsPlace
from soak.store.journal.reader import read_source
from soak.store.run_folder import RunFolder, read_plan
from spark.sources.journals import rows
from spark.sources.offsets import ColumnsIndex, newest, spans
from spark.streaming.attribution import Attribution
from spark.streaming.discoveries import Discoveries
from spark.streaming.panel_state import ordered
from spark.streaming.stored_panel import LivePanel
from tests.support.fakes import FakeClock
from tests.support.spark.growing_run import begun
from tests.support.spark.synthetic_run import CONSUMER, PROBE, PRODUCER, Shape, write_synthetic_run

pytestmark = pytest.mark.long

RUN = "synthetic-1"
SOURCES = (PRODUCER, CONSUMER, PROBE)
SECONDS = 560
SHAPE = Shape(
    seconds=SECONDS,
    deletions_k=200,
    fault_k=202,
    lifted_k=330,
    busy=range(420, 440),
    gaps=((CONSUMER, range(206, 213)), (PROBE, range(300, 325))),
    sinks="{mail: {to: [oncall@example.org]}}",
)


@dataclass
class Saved:
    """A store that notes each finding that is saved in it."""

    store: Any
    saved: list[Finding]

    def save_finding(self, finding: Finding, sinks: Sequence[str], now_wall_ns: int) -> None:
        self.saved.append(finding)
        self.store.save_finding(finding, sinks, now_wall_ns)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


@dataclass
class NotedPlace:
    """A place of findings whose stores note what is saved."""

    place: FindingsPlace
    saved: list[Finding]

    @contextmanager
    def open(self) -> Iterator[Saved]:
        with self.place.open() as store:
            yield Saved(store, self.saved)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.place, name)


@dataclass
class Recorded:
    """A whole run: the lines of its journals by source, their intervals, and all that a panel finds."""

    folder: RunFolder
    lines: dict[str, list[bytes]] = field(default_factory=dict)
    ks: dict[str, list[int]] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)

    def __post_init__(self) -> None:
        journal, detectors = self.folder.journal, read_plan(self.folder).detection.detectors
        for source in SOURCES:
            raw = (journal / source / "000000.jsonl").read_bytes()
            self.lines[source] = raw.splitlines(keepends=True)
            self.ks[source] = [record.k for record, _ in read_source(journal, source)]
        listed = spans(journal, {}, newest(journal, {}, None), ColumnsIndex())
        panel = Panel(detectors[STREAM_DETECTOR], outages=detectors[OUTAGE_DETECTOR])
        found: list[Any] = list(rows(self.folder.path, RUN, listed))
        self.changes = LivePanel(panel).take(*ordered(found))

    def found_in(self, source: str, after_k: int, k: int) -> list[Change]:
        return [
            one
            for one in self.changes
            if source_of(one.series) == source and after_k < (one.discovered_k or 0) <= k
        ]


@dataclass(frozen=True)
class Course:
    """How a run is taken in: by batch, the intervals that each source gains in turn.

    `is_live`: the journals grow with the batches, else all of them are there from the start. `looks`: whether
    attribution has time after a batch; `deaths`: the batches after which its process is killed.
    """

    gains: tuple[tuple[int, int, int], ...] = ((5, 5, 5),)
    is_live: bool = False
    looks: tuple[bool, ...] = (True,)
    deaths: frozenset[int] = frozenset()


def judged(recorded: Recorded, path: Path, course: Course) -> tuple[list[Finding], list[Any]]:
    """Return each finding as it was saved, in order, and the messages that were queued."""
    folder, saved = begun(recorded.folder, path), list[Finding]()
    for source in SOURCES:
        (folder.journal / source).mkdir(parents=True)
    append(recorded, folder, dict.fromkeys(SOURCES, 0 if course.is_live else SECONDS))
    judge = started(folder, saved)
    at = dict.fromkeys(SOURCES, -1)
    batch = 0
    while min(at.values()) < SECONDS - 1:
        gains = course.gains[batch % len(course.gains)]
        before = dict(at)
        at = {s: min(SECONDS - 1, at[s] + gain) for s, gain in zip(SOURCES, gains, strict=True)}
        if course.is_live:
            append(recorded, folder, {source: k + 1 for source, k in at.items()})
        changes = [one for s in SOURCES for one in recorded.found_in(s, before[s], at[s])]
        come_to = {s: k for s in SOURCES if (k := reached(recorded, s, at[s])) >= 0}
        judge.record(changes, come_to)
        while course.looks[batch % len(course.looks)] and judge.judge():
            pass
        if batch in course.deaths:
            judge = started(folder, saved)
            judge.record(changes, come_to)  # the batch was not committed, and is delivered again
        batch += 1
    folder.phases.write_text(recorded.folder.phases.read_text())
    judge.conclude()
    with judge.findings.open() as store:
        queued = [(row.subject, row.kind, row.occurrence) for row in store.notifications(RUN)]
    return saved, sorted(queued)


def started(folder: RunFolder, saved: list[Finding]) -> Attribution:
    judge = Attribution(folder, RUN, read_plan(folder), FakeClock())
    judge.findings = NotedPlace(judge.findings, saved)
    return judge


def reached(recorded: Recorded, source: str, k: int) -> int:
    """Return the last interval of a source up to `k`, -1 where it has none."""
    at = bisect_right(recorded.ks[source], k)
    return recorded.ks[source][at - 1] if at else -1


def append(recorded: Recorded, folder: RunFolder, ends: dict[str, int]) -> None:
    """Append what each source wrote before an interval; the columns line is the first."""
    for source, end in ends.items():
        path = folder.journal / source / "000000.jsonl"
        count = bisect_right(recorded.ks[source], end - 1)
        path.write_bytes(b"".join(recorded.lines[source][: count + 1]))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(write_synthetic_run(tmp_path_factory.mktemp("whole") / "r", SHAPE))


@pytest.fixture(scope="module")
def live(
    recorded: Recorded, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Finding], list[Any]]:
    """What a run in batches of five seconds finds that attribution keeps up with."""
    return judged(recorded, tmp_path_factory.mktemp("live") / "r", Course(is_live=True))


def test_a_run_has_findings_with_causes_and_messages(
    live: tuple[list[Finding], list[Any]],
) -> None:
    saved, queued = live

    assert {finding.cause for finding in saved if finding.is_settled} >= {"retention_cliff"}
    assert {kind for _, kind, _ in queued} >= {"opened", "resolved"}


@pytest.mark.parametrize(
    "course",
    [
        Course(((SECONDS,) * 3,)),
        Course(((1, 1, 1),), is_live=True),
        Course(((7, 3, 40), (40, 2, 1))),
        Course(((13, 13, 13),), looks=(False,)),
        Course(((4, 4, 4),), is_live=True, deaths=frozenset({51, 53, 54, 58, 90})),
    ],
    ids=["at once", "by second", "sources apart", "attribution behind", "killed"],
)
def test_the_same_words_in_the_same_order(
    recorded: Recorded, live: tuple[list[Finding], list[Any]], tmp_path: Path, course: Course
) -> None:
    assert judged(recorded, tmp_path / "r", course) == live


GAINS = st.tuples(*[st.integers(1, 90)] * 3)
COURSES = st.builds(
    Course,
    gains=st.lists(GAINS, min_size=1, max_size=6).map(tuple),
    is_live=st.just(False),
    looks=st.lists(st.booleans(), min_size=1, max_size=5).map(tuple),
    deaths=st.frozensets(st.integers(0, 60), max_size=6),
)


@given(COURSES)
@settings(max_examples=6, deadline=None)
def test_no_course_of_a_backlog_changes_a_word(
    recorded: Recorded,
    live: tuple[list[Finding], list[Any]],
    tmp_path_factory: pytest.TempPathFactory,
    course: Course,
) -> None:
    assert judged(recorded, tmp_path_factory.mktemp("course") / "r", course) == live


# --- what one source or one incident must not hold up


def test_a_source_that_lags_or_returns_holds_up_nothing(recorded: Recorded, tmp_path: Path) -> None:
    """A host that was cut off sends what it has kept, while the others go on."""
    folder, saved = begun(recorded.folder, tmp_path / "r"), list[Finding]()
    for source in (*SOURCES, "probe@far"):
        (folder.journal / source).mkdir(parents=True)
    append(recorded, folder, dict.fromkeys(SOURCES, 401))
    late = recorded.lines[PROBE][: bisect_right(recorded.ks[PROBE], 150) + 1]
    (folder.journal / "probe@far" / "000000.jsonl").write_bytes(b"".join(late))
    changes = [one for source in SOURCES for one in recorded.found_in(source, -1, 400)]

    judge = started(folder, saved)
    judge.record(changes, {**{s: reached(recorded, s, 400) for s in SOURCES}, "probe@far": 100})
    while judge.judge():
        pass

    assert "retention_cliff" in {finding.cause for finding in saved}


def test_an_incident_whose_cause_cannot_be_looked_for_holds_up_no_other(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("spark.streaming.attribution.attribute", fails)

    saved, queued = judged(recorded, tmp_path / "r", Course(((60, 60, 60),)))

    assert {finding.cause for finding in saved if finding.is_settled} == {"unknown"}
    assert {kind for _, kind, _ in queued} >= {"opened", "resolved"}


def test_after_a_clock_was_set_back_causes_are_looked_for_as_before(
    recorded: Recorded, tmp_path: Path
) -> None:
    """The last moment lies in the future then, from which all that is found would be long ago."""
    folder, saved = begun(recorded.folder, tmp_path / "r"), list[Finding]()
    for source in SOURCES:
        (folder.journal / source).mkdir(parents=True)
    append(recorded, folder, dict.fromkeys(SOURCES, 221))
    Discoveries(folder.attribution).settle(3_800, ())
    changes = [one for source in SOURCES for one in recorded.found_in(source, -1, 220)]

    judge = started(folder, saved)
    judge.record(changes, {s: reached(recorded, s, 220) for s in SOURCES})
    while judge.judge():
        pass

    assert saved
    assert not any(finding.is_settled for finding in saved)
