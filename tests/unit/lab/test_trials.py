"""Trials: schedules from a seed, troubles in their run, and what became of each."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tarfile
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.app.lab.trials import RESULT, judged, possible_kinds, trial_of
from soak.core.errors import LabError, PlanError
from soak.core.plan.plan import Lab
from soak.core.plan.text import Document, validated
from soak.core.units import SECOND_NS
from soak.lab.drills.injection import FaultLog
from soak.lab.faults import find_fault
from soak.lab.ports import Target
from soak.lab.trials.figures import Share, confusion, curve, figures
from soak.lab.trials.outcome import Outcome, Trial
from soak.lab.trials.page import page
from soak.lab.trials.schedule import (
    KINDS,
    QUIET_SECONDS,
    RECOVERY_SECONDS,
    Trouble,
    draw,
    quiet_stretches,
)
from soak.lab.trials.side_task import Injected, TrialTask, read_injected
from soak.service import children
from soak.store.findings.store import FindingsStore
from soak.store.journal.reader import read_source, sources
from soak.store.run_folder import RunFolder
from tests.bench.trials import FOLDER, USES, keep
from tests.support.alerting.findings import SERIES, finding
from tests.support.fakes import FakeClock
from tests.support.lab.sleeping_broker import SleepingBroker
from tests.support.spark.synthetic_run import START_WALL_NS, Shape, write_synthetic_run

FOUR_HOURS = 14_400
PAUSE = Trouble(
    kind="consumer",
    fault="consumer_pause",
    config={},
    causes=("catch_up_read",),
    strength=0.5,
    begin_seconds=10,
    length_seconds=5,
)


@given(seed=st.integers(0, 2**32), last=st.integers(600, 36 * 3600))
def test_a_schedule_leaves_time_to_recover_and_is_the_same_for_the_same_seed(
    seed: int, last: int
) -> None:
    found = draw(seed, 90, last)

    assert found == draw(seed, 90, last)
    assert all(one.begin_seconds >= 90 + QUIET_SECONDS for one in found)
    assert all(one.end_seconds + RECOVERY_SECONDS <= last for one in found)
    for before, after in pairwise(found):
        assert after.begin_seconds - before.end_seconds >= RECOVERY_SECONDS


@given(seed=st.integers(0, 2**32))
def test_four_hours_have_sixty_troubles_of_every_kind_and_twenty_quiet_stretches(seed: int) -> None:
    found = draw(seed, 90, FOUR_HOURS)
    stretches = quiet_stretches(
        [(one.begin_seconds, one.end_seconds) for one in found], 90, FOUR_HOURS
    )

    assert {one.kind for one in found} == set(KINDS)
    assert len(found) >= 60
    assert len(stretches) >= 19


@pytest.mark.long
@given(strength=st.floats(0, 1), node=st.integers(1, 3))
def test_every_kind_has_a_configuration_at_any_strength(strength: float, node: int) -> None:
    for kind in KINDS.values():
        fault = find_fault(kind.fault)
        validated(fault.config, dict(kind.config(strength, node)), Document("", None, {}), ())


def test_only_what_the_lab_allows_is_drawn() -> None:
    plain = Lab(broker="kafka", nodes=3)
    found = possible_kinds(plain)

    assert "broker_killed" in found
    assert "drive_delayed" not in found, "there is no injected drive"
    assert "network_cut" not in found, "there is no relay"
    assert set(possible_kinds(plain, ["flood"])) == {"flood"}
    with pytest.raises(PlanError, match="no trouble 'food'"):
        possible_kinds(plain, ["food"])


def test_quiet_stretches_begin_after_the_recovery() -> None:
    assert quiet_stretches([(200, 250), (400, 410)], 0, 1000) == [(0, 200), (470, 1000)]
    assert quiet_stretches([], 0, 100) == []


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[int]:
    process = children.spawn(["sleep", "600"], log_path=tmp_path / "log")
    yield process.pid
    children.kill(process)


def test_troubles_come_and_go_in_order_and_the_log_has_its_name_at_the_end(
    tmp_path: Path, daemon: int
) -> None:
    """One that cannot be injected is noted with the reason, and those after it come as planned."""
    folder = RunFolder(tmp_path / "run")
    folder.lab.mkdir(parents=True)
    clock = FakeClock()
    start_ns = clock.wall_ns()
    impossible = dataclasses.replace(
        PAUSE, fault="consumer_slow", config={"daemon": "consume.7"}, begin_seconds=30
    )
    last = dataclasses.replace(PAUSE, begin_seconds=40)
    log = FaultLog(folder.lab)
    broker = SleepingBroker.__new__(SleepingBroker)  # no trouble here does anything with it
    target = Target(broker, log.record, clock, daemons=lambda: {"consume.0": daemon})
    task = TrialTask([PAUSE, impossible, last], target, start_ns, log)
    for _ in range(43):
        task.poll()
        clock.advance(1)
    before = folder.faults.exists()
    task.end(folder)

    first, missing, cut = read_injected(folder.faults)
    assert not before
    assert first.trouble == PAUSE
    assert first.lifted_wall_ns == start_ns + 15 * SECOND_NS
    assert missing.onset_wall_ns is None
    assert missing.failure.startswith("not injected: ")
    assert cut.lifted_wall_ns == start_ns + 43 * SECOND_NS, "the run ended before"
    assert os.waitid(os.P_PID, daemon, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def test_a_damaged_fault_log_is_an_error_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "faults.jsonl"
    path.write_text('{"trouble": 1}\n')

    with pytest.raises(LabError, match=r"faults\.jsonl: cannot read the troubles"):
        read_injected(path)


def trial_folder(path: Path, shape: Shape, *troubles: tuple[int, int]) -> RunFolder:
    """Write a run with troubles from one second to another."""
    folder = write_synthetic_run(path, shape)
    folder.lab.mkdir()
    injected = [
        Injected(
            dataclasses.replace(PAUSE, causes=("retention_cliff",)),
            START_WALL_NS + begin * SECOND_NS,
            START_WALL_NS + end * SECOND_NS,
        )
        for begin, end in troubles
    ]
    folder.faults.write_text("".join(json.dumps(one.to_json()) + "\n" for one in injected))
    return folder


def save(folder: RunFolder, key: str, onset_k: int, raised_k: int) -> None:
    series = SERIES.replace("@h", "@host")
    found = finding(key=key, run="synthetic-1", series=series, onset_k=onset_k, raised_k=raised_k)
    with FindingsStore(folder.findings) as store:
        store.save_finding(found, ["mail"], START_WALL_NS + 160 * SECOND_NS)


@pytest.mark.long
def test_a_trouble_has_its_true_size_and_the_incident_that_began_in_it(tmp_path: Path) -> None:
    """Here the slow tail is 15 times slower for 100 s; the first incident is named right."""
    shape = Shape(seconds=700, deletions_k=None, fault_k=150, lifted_k=250)
    folder = trial_folder(tmp_path / "r", shape, (150, 250), (600, 640))
    save(folder, "a", onset_k=151, raised_k=158)
    save(folder, "b", onset_k=255, raised_k=262)
    save(folder, "c", onset_k=450, raised_k=458)

    trial = judged(folder)

    first, second = trial.outcomes
    assert first.ratio == pytest.approx(15, rel=0.25)
    assert first.size == "clear"
    assert 90 <= first.doubled_seconds <= 110
    assert (first.cause, first.is_right, first.incidents) == ("retention_cliff", True, 2)
    assert (first.onset_seconds, first.raised_seconds) == (1.0, 8.0)
    assert second.ratio == pytest.approx(1, abs=0.2)
    assert (second.size, second.is_reported, second.cause) == ("faint", False, "")
    assert (trial.quiet_stretches, trial.false_incidents) == (1, 1), "the third incident"
    assert trial_of(folder.path) == trial


@pytest.mark.long
def test_the_size_of_a_trouble_does_not_depend_on_the_one_before(tmp_path: Path) -> None:
    """Of the two minutes before it 40 s belong to a trouble with latencies 15 times as high."""
    shape = Shape(seconds=700, deletions_k=None, fault_k=150, lifted_k=250)
    folder = trial_folder(tmp_path / "r", shape, (150, 250), (330, 370))

    assert judged(folder).outcomes[1].ratio == pytest.approx(1, abs=0.2)


@pytest.mark.long
def test_an_incident_dated_just_before_its_trouble_is_no_false_one(tmp_path: Path) -> None:
    """The stretch between 310 and 600 s is quiet, and ends with a trouble."""
    shape = Shape(seconds=700, deletions_k=None, fault_k=600, lifted_k=640)
    folder = trial_folder(tmp_path / "r", shape, (150, 250), (600, 640))
    save(folder, "a", onset_k=597, raised_k=608)

    trial = judged(folder)

    assert trial.outcomes[1].onset_seconds == -3.0
    assert (trial.quiet_stretches, trial.false_incidents) == (1, 0)


def outcome(**other: object) -> Outcome:
    known: dict[str, object] = {
        "kind": "flood",
        "strength": 0.5,
        "begin_k": 100,
        "length_seconds": 60,
        "ratio": 3.0,
        "doubled_seconds": 40,
        "slower_seconds": 45,
        "causes": ("foreign_load",),
    }
    return Outcome(**{**known, **other})  # type: ignore[arg-type]  # the fields of an outcome


def test_a_trial_in_which_nothing_came_through_is_read_again(tmp_path: Path) -> None:
    """Its ratio is infinite."""
    trial = Trial(
        run="r", outcomes=(outcome(ratio=math.inf),), quiet_stretches=1, false_incidents=0
    )
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / RESULT).write_text(json.dumps(trial.to_json()))

    assert trial_of(tmp_path) == trial


OUTCOMES = (
    outcome(cause="foreign_load", incidents=1, onset_seconds=2.0, notified_seconds=20.0),
    outcome(cause="broker_cpu", incidents=2, onset_seconds=12.0, notified_seconds=40.0),
    outcome(cause="unknown", incidents=1, onset_seconds=1.0, ratio=math.inf),
    outcome(ratio=1.6, doubled_seconds=0),
    outcome(ratio=1.0),
)


@pytest.mark.parametrize(
    ("ratio", "doubled", "slower", "size"),
    [
        (9.0, 30, 40, "clear"),
        (9.0, 29, 30, "moderate"),
        (1.6, 2, 30, "moderate"),
        (9.0, 29, 29, "short"),
        (1.6, 2, 3, "short"),  # a few seconds that are much slower, and the others as ever
        (1.4, 30, 40, "faint"),
    ],
)
def test_a_size_has_lasted_for_half_a_minute(
    ratio: float, doubled: int, slower: int, size: str
) -> None:
    assert outcome(ratio=ratio, doubled_seconds=doubled, slower_seconds=slower).size == size


def test_the_figures_count_what_they_say() -> None:
    trial = Trial(run="r", outcomes=OUTCOMES, quiet_stretches=20, false_incidents=1)
    found = {name: (one.count, one.of) for name, one in figures([trial]).items()}

    assert found == {
        "reported, p99 at least doubled for 30 s": (3, 3),
        "reported, p99 1.5 to 2 times for 30 s": (0, 1),
        "cause right, of the reported": (1, 3),
        "cause wrong, of the reported": (1, 3),
        "dated within 10 s, of the reported": (2, 3),
        "mail within 30 s of the onset, of the visible": (1, 3),
        "one incident, of the reported": (2, 3),
        "quiet stretches with an incident": (1, 20),
    }
    by_size = {name: (one.count, one.of) for name, one in curve(OUTCOMES) if one.of}
    assert by_size == {
        "0 to 1.1": (0, 1),
        "1.5 to 2": (0, 1),
        "3 to 5": (2, 2),
        "10 and more": (1, 1),
    }
    assert confusion(OUTCOMES) == {
        "flood": {"foreign_load": 1, "broker_cpu": 1, "unknown": 1, "": 2}
    }


def test_a_share_has_the_interval_of_wilson() -> None:
    """Figures from a table of that interval."""
    low, high = Share(19, 20).interval

    assert (round(low, 3), round(high, 3)) == (0.764, 0.991)
    assert str(Share(0, 0)) == "0 of 0"


def test_the_page_lists_every_trouble() -> None:
    trial = Trial(
        run="r",
        outcomes=OUTCOMES,
        quiet_stretches=20,
        false_incidents=1,
        failures=("x: not undone",),
    )
    text = page([trial])

    assert text.count("| flood |") == 5
    assert "| broker_cpu (2 incidents) | foreign_load | +12 s | 40 s |" in text
    assert "- x: not undone" in text


def test_the_schedule_is_not_in_the_run_folder_before_its_end(
    tmp_path: Path,
) -> None:
    """The log has no name until it is published."""
    log = FaultLog(tmp_path)
    log.record({"trouble": 1})
    names: list[Mapping[str, object] | str] = [path.name for path in tmp_path.iterdir()]
    log.close()

    assert names == []


@pytest.mark.long
def test_a_kept_trial_has_what_a_replay_needs_and_is_small(tmp_path: Path) -> None:
    """The judge gives its troubles the same size; histograms and spans are gone."""
    shape = Shape(seconds=400, deletions_k=None, fault_k=150, lifted_k=250)
    folder = trial_folder(tmp_path / "r", shape, (150, 250))
    before = judged(folder)
    archive = tmp_path / "kept" / "r.tar.xz"

    keep(folder.path, archive)

    with tarfile.open(archive) as found:
        found.extractall(tmp_path / "again", filter="data")
    again = RunFolder(tmp_path / "again")
    records = [
        one for name in sources(again.journal) for one, _ in read_source(again.journal, name)
    ]
    assert judged(again).outcomes[0].ratio == pytest.approx(before.outcomes[0].ratio, rel=1e-3)
    assert trial_of(again.path).run == before.run
    assert len(records) == sum(
        1 for name in sources(folder.journal) for _ in read_source(folder.journal, name)
    )
    assert not any(one.histograms or one.received or one.acknowledged for one in records)


@pytest.mark.long
@pytest.mark.parametrize(
    "archive",
    [path for use in USES for path in sorted((FOLDER / use).glob("*.tar.xz"))],
    ids=lambda path: path.name,
)
def test_each_trial_in_the_repository_is_whole(archive: Path) -> None:
    with tarfile.open(archive) as found:
        names = found.getnames()

    assert f"./lab/{RESULT}" in names
    assert sum(name.startswith("./journal/") and name.endswith(".jsonl") for name in names) >= 3
