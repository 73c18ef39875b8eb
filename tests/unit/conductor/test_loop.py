"""The conductor against a simulated cluster of a known speed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from soak.conductor.loop import append_decisions, is_drained, run, write_planned
from soak.core.journal_format import columns_line
from soak.core.model import Record
from soak.core.plan.load import Consumers
from soak.core.plan.phases import Decision, Phases, decision_line, parse_phases, planned_phases
from soak.core.units import SECOND_NS
from soak.store.journal.writer import JournalWriter
from soak.store.run_folder import Run, RunFolder, write_run
from tests.support.fakes import FakeClock
from tests.support.load.conductor_run import BROKER, CONSUMED, SimulatedRun, plan_of

FINAL = """{warm_up: 5s, soak: 20s, cool_down: 5s, drain: 60s,
  catch_up: {backlog_age: 20s, drain_limit: 100s, settle: 6s}}"""
WINDOWS = """{warm_up: 5s, soak: 200s, drain: 60s, windows: [
  {every: 60s, catch_up: {backlog_age: 10s, drain_limit: 60s, settle: 6s}}]}"""
RAMP = """{warm_up: 5s, soak: 20s, drain: 60s,
  ramp: {start: 100/s, step: 9s, precision: 0.1, soak_share: 0.5}}"""


def fast(_: int) -> float:
    return 400.0


def test_a_run_without_a_ramp_or_catch_up_follows_its_plan(tmp_path: Path) -> None:
    run_ = SimulatedRun(
        tmp_path, plan_of("{warm_up: 5s, soak: 20s, cool_down: 5s, drain: 60s}"), fast
    )

    seen_phases = run_.advance_by(100)

    assert seen_phases == [
        (0, "warm-up", ""), (5, "soak", ""), (25, "cool-down", ""), (30, "drain", ""), (38, "end", ""),
    ]  # fmt: skip


def test_a_catch_up_after_the_soak_builds_and_drains_a_backlog(tmp_path: Path) -> None:
    """The backlog of 20 s at 100/s, read at 400/s while 100/s are added, is below 2 s of load after 6 s."""
    run_ = SimulatedRun(tmp_path, plan_of(FINAL), fast)

    seen_phases = run_.advance_by(200)

    assert [one[1:] for one in seen_phases] == [
        ("warm-up", ""), ("soak", ""), ("catch-up", "build"), ("catch-up", "drain"),
        ("cool-down", ""), ("drain", ""), ("end", ""),
    ]  # fmt: skip
    decision = next(one for one in run_.phases.decisions if "outcome" in one.fields)
    assert (decision.phase, decision.fields["outcome"]) == ("cool-down", "drained")
    assert (decision.fields["messages"], decision.fields["seconds"]) == (2000, 6)
    assert decision.reason == "2000 messages were read in 6 s"


def test_a_backlog_is_drained_once_it_has_its_size(tmp_path: Path) -> None:
    """5,000 messages of 1 KiB are unread after 50 s; the decision is made five seconds ahead."""
    phases = FINAL.replace("backlog_age: 20s", "backlog_size: 5000KiB")
    run_ = SimulatedRun(tmp_path, plan_of(phases), fast)

    seen_phases = run_.advance_by(200)

    build, drain = (one[0] for one in seen_phases if one[1] == "catch-up")
    assert (build, drain) == (25, 25 + 50)


@pytest.mark.long
def test_a_backlog_that_never_drains_is_recognised_before_the_limit(tmp_path: Path) -> None:
    """Read at 101/s and written at 100/s, 1,500 messages would take 1,300 s: recognised after 45 of 300 s."""
    phases = FINAL.replace("drain_limit: 100s", "drain_limit: 300s")
    run_ = SimulatedRun(tmp_path, plan_of(phases), lambda _: 101.0)

    run_.advance_by(400)

    decision = next(one for one in run_.phases.decisions if "outcome" in one.fields)
    assert decision.fields["outcome"] == "never drains"
    assert int(decision.fields["seconds"]) < 50
    assert "reduce the rate" in decision.reason
    assert run_.phases.at(run_.k) == "end"


@pytest.mark.long
def test_a_slow_start_of_a_drain_does_not_end_it(tmp_path: Path) -> None:
    """Consumers read almost nothing for the first 20 s of the drain, then fast."""
    phases = FINAL.replace("drain_limit: 100s", "drain_limit: 300s")
    run_ = SimulatedRun(tmp_path, plan_of(phases), lambda k: 400.0 if k < 45 or k > 65 else 90.0)

    run_.advance_by(400)

    decision = next(one for one in run_.phases.decisions if "outcome" in one.fields)
    assert decision.fields["outcome"] == "drained"


@pytest.mark.long
def test_windows_recur_and_do_not_make_the_soak_longer(tmp_path: Path) -> None:
    run_ = SimulatedRun(tmp_path, plan_of(WINDOWS), fast)

    seen_phases = run_.advance_by(400)

    builds = [k for k, _, part in seen_phases if part == "build"]
    assert builds == [65, 125]  # the one at 185 would leave 10 s of 30
    assert next(k for k, phase, _ in seen_phases if phase == "drain") == 205
    soaks = run_.phases.spans("soak", 205)
    assert [begin for begin, _ in soaks] == [5, 89, 149]


@pytest.mark.long
def test_a_window_with_a_backlog_size_needs_the_time_to_reach_it(tmp_path: Path) -> None:
    """1,000 messages are unread after 10 s, as with an age of 10 s, whatever the drain limit."""
    size = WINDOWS.replace("backlog_age: 10s, drain_limit: 60s", "backlog_size: 1000KiB")
    run_ = SimulatedRun(tmp_path, plan_of(size), fast)

    seen_phases = run_.advance_by(400)

    assert [k for k, _, part in seen_phases if part == "build"] == [65, 125]
    assert [k for k, _, part in seen_phases if part == "drain"] == [75, 135]
    assert next(k for k, phase, _ in seen_phases if phase == "drain") == 205


@pytest.mark.long
def test_a_window_whose_backlog_grows_too_slowly_drains_before_the_soak_ends(
    tmp_path: Path,
) -> None:
    """It should have 6,000 messages after 60 s, but only half of the load is sent."""
    size = WINDOWS.replace("backlog_age: 10s, drain_limit: 60s", "backlog_size: 6000KiB")
    run_ = SimulatedRun(tmp_path, plan_of(size.replace("every: 60s", "every: 110s")), fast)
    run_.max_sent = 50.0

    seen_phases = run_.advance_by(400)

    assert [(k, part) for k, _, part in seen_phases if part] == [(115, "build"), (189, "drain")]
    decision = next(one for one in run_.phases.decisions if "outcome" in one.fields)
    assert decision.fields["outcome"] == "drained"


@pytest.mark.long
def test_a_window_that_falls_into_another_is_skipped(tmp_path: Path) -> None:
    both = WINDOWS.replace("windows: [", "windows: [{every: 70s, catch_up: {backlog_age: 5s}},")
    run_ = SimulatedRun(tmp_path, plan_of(both), fast)

    seen_phases = run_.advance_by(400)

    assert [k for k, _, part in seen_phases if part == "build"] == [65, 125]


@pytest.mark.long
def test_a_window_that_was_due_during_a_long_suspend_is_skipped(tmp_path: Path) -> None:
    """More than a minute late it is skipped; less late it begins."""
    long = WINDOWS.replace("200s", "2000s").replace("every: 60s", "every: 600s")
    run_ = SimulatedRun(tmp_path, plan_of(long), fast)
    run_.advance_by(100)
    run_.k += 700

    seen_phases = run_.advance_by(350)
    run_.k += 100
    seen_phases += run_.advance_by(20)

    assert [k for k, _, part in seen_phases if part == "build"] == [1256]


@pytest.mark.long
def test_the_end_of_the_soak_cuts_a_window_short(tmp_path: Path) -> None:
    late = WINDOWS.replace("every: 60s", "every: 150s").replace("limit: 60s", "limit: 10min")
    run_ = SimulatedRun(tmp_path, plan_of(late), lambda _: 110.0)

    seen_phases = run_.advance_by(400)

    decision = next(one for one in run_.phases.decisions if "outcome" in one.fields)
    assert next(k for k, phase, _ in seen_phases if phase == "drain") == 205
    assert (decision.from_k, decision.phase, decision.fields["outcome"]) == (
        205,
        "drain",
        "cut short",
    )


@pytest.mark.long
@pytest.mark.parametrize("phases", [FINAL, WINDOWS.replace("200s", "100s"), RAMP])
def test_a_conductor_that_restarts_every_second_decides_the_same(
    tmp_path: Path, phases: str
) -> None:
    steady = SimulatedRun(tmp_path / "a", plan_of(phases), fast)
    killed = SimulatedRun(tmp_path / "b", plan_of(phases), fast)
    steady.max_sent = killed.max_sent = 333.0
    expected = steady.advance_by(400)
    seen_phases: list[tuple[int, str, str]] = []
    while not seen_phases or seen_phases[-1][1] != "end":
        killed.start_conductor()
        seen_phases += [
            one for one in killed.advance_by(1) if not seen_phases or one[1:] != seen_phases[-1][1:]
        ]

    assert seen_phases == expected
    assert killed.phases == steady.phases


@pytest.mark.parametrize("folder", ["", BROKER], ids=["ours", "a broker's"])
def test_too_little_free_space_ends_the_load_with_a_drain(tmp_path: Path, folder: str) -> None:
    """In the run folder or on the drive of a broker."""
    run_ = SimulatedRun(tmp_path, plan_of(FINAL), fast)
    run_.advance_by(30)
    run_.free[folder or str(tmp_path)] = 100 * 2**20

    seen_phases = run_.advance_by(100)

    reason = f"100MiB free in {folder or tmp_path}, less than free_space_floor"
    assert [one[1] for one in seen_phases] == ["catch-up", "drain", "end"]
    assert reason in [one.reason for one in run_.phases.decisions]


def test_a_stop_request_ends_the_load_with_a_drain(tmp_path: Path) -> None:
    """All sent messages are received first, so that the audit of a stopped run is exact."""
    run_ = SimulatedRun(tmp_path, plan_of(FINAL), fast)
    run_.advance_by(30)
    run_.folder.stop_request.touch()

    seen_phases = run_.advance_by(100)

    assert [one[1] for one in seen_phases][-2:] == ["drain", "end"]
    assert "stopped" in [one.reason for one in run_.phases.decisions]


def test_decisions_replace_an_incomplete_last_line(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.phases.write_text(Decision("soak", 0).to_line() + '{"phase": "dr')

    append_decisions(folder, Decision("catch-up", 9, part="build"), Decision("drain", 20))

    assert parse_phases(folder.phases.read_text()).names == ("soak", "catch-up", "drain")


def test_each_decision_is_written_once(tmp_path: Path) -> None:
    run_ = SimulatedRun(tmp_path, plan_of(FINAL), fast)
    run_.advance_by(200)

    lines = [one for one in run_.folder.phases.read_text().splitlines() if "planned" not in one]
    assert len(lines) == len(set(lines)) == 3


@pytest.mark.long
def test_a_ramp_is_judged_by_the_journals_and_the_soak_gets_its_share(tmp_path: Path) -> None:
    """Capacity 333/s: 100 and 200 hold, 400 is refused, 300 holds, 350 is refused, 320 holds."""
    run_ = SimulatedRun(tmp_path, plan_of(RAMP), lambda _: 10_000.0)
    run_.max_sent = 333.0

    seen_phases = run_.advance_by(300)

    tried = [int(one.rate) for one in run_.phases.decisions if one.phase == "ramp" and one.rate]
    soak = next(one for one in run_.phases.decisions if one.phase == "soak")
    assert tried == [100, 200, 400, 300, 350, 320]
    assert (soak.fields["sustained"], soak.fields["refused"]) == ("320/s", "350/s")
    assert soak.rate == Fraction(160)
    assert seen_phases[-1][1] == "end"


class Waits(threading.Event):
    """The stop event of a conductor; each wait advances the clock and runs an event of the test."""

    def __init__(self, clock: FakeClock, events: dict[int, Callable[[], object]]) -> None:
        super().__init__()
        self._clock, self._events, self._waits = clock, events, 0

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.advance(timeout or 0)
        self._waits += 1
        self._events.get(self._waits, lambda: None)()
        return self.is_set()


def started(path: Path, keys: str) -> tuple[RunFolder, FakeClock]:
    """Return a run that has just started, whose plan has these keys, and its clock."""
    folder, clock = RunFolder(path), FakeClock()
    folder.plan.write_text(f"name: w\nbroker: {{kafka: {{}}}}\n{keys}\n")
    write_run(folder, Run("r", clock.wall_ns(), "h", {}, "running", "w"))
    return folder, clock


def test_the_free_space_of_a_brokers_drive_is_watched_during_the_load(tmp_path: Path) -> None:
    """/proc never has free space: the first reading ends the load."""
    folder, clock = started(
        tmp_path,
        "phases: {soak: 100h, drain: 20s}\nprobes: {disk_io: {directory: /proc}}\nfree_space_floor: 1MiB",
    )

    code = run(folder.path, Waits(clock, {}), clock)

    assert code == 0
    assert "0B free in /proc, less than free_space_floor" in [
        one.reason for one in phases_in(folder).decisions
    ]


def test_a_suspend_counts_as_time_of_the_run(tmp_path: Path) -> None:
    """Decisions after it are ahead of the current second."""
    folder, clock = started(tmp_path, "phases: {soak: 2h, drain: 20s}")
    life = Waits(clock, {6: lambda: clock.suspend(3600), 9: folder.stop_request.touch})

    code = run(folder.path, life, clock)

    drain = next(one for one in phases_in(folder).decisions if one.phase == "drain" and one.reason)
    assert code == 0
    assert 3609 < drain.from_k < 3640
    assert clock.mono_ns() < 60 * SECOND_NS


def test_a_decision_that_cannot_be_written_is_made_again(tmp_path: Path) -> None:
    """Without its conductor the run would never end."""
    folder, clock = started(tmp_path, "phases: {soak: 1h, drain: 20s}")
    folder.stop_request.touch()
    write_planned(folder, planned_phases(plan_of("{soak: 1h, drain: 20s}").phases))
    in_the_way = folder.phases.with_name(f".{folder.phases.name}.{os.getpid()}")
    in_the_way.mkdir()  # the name of the temporary file
    seen: list[tuple[str, ...]] = []
    life = Waits(clock, {6: lambda: seen.append(phases_in(folder).names), 7: in_the_way.rmdir})

    code = run(folder.path, life, clock)

    decided = phases_in(folder)
    assert code == 0
    assert seen == [("warm-up", "soak", "drain")]
    assert (decided.at(8), decided.at(3)) == ("drain", "warm-up")


def phases_in(folder: RunFolder) -> Phases:
    return parse_phases(folder.phases.read_text())


def test_a_drain_ends_once_no_message_has_arrived_and_no_lag_is_left(tmp_path: Path) -> None:
    """Two seconds after its begin at the earliest, and not while a producer has messages in flight."""
    run_ = SimulatedRun(tmp_path, plan_of("{warm_up: 0s, soak: 100s, drain: 60s}"), fast)
    run_.advance_by(3)
    phases = parse_phases(decision_line("soak", 0) + decision_line("drain", 3))
    seen = []
    for k, in_flight, received, lag in (
        (3, 0.0, 5.0, 0.0),
        (4, 0.0, 0.0, 0.0),
        (5, 7.0, 0.0, 0.0),
        (6, 0.0, 0.0, 9.0),
        (7, 0.0, 0.0, 0.0),
    ):
        run_.write(k, sent=0.0, in_flight=in_flight, received=received, lag=lag)
        seen.append(is_drained(run_.folder, Consumers(), phases, k + 1))

    assert seen == [False, False, False, False, True]


def test_a_consumer_that_the_plan_does_not_have_does_not_prolong_a_drain(tmp_path: Path) -> None:
    run_ = SimulatedRun(tmp_path, plan_of("{warm_up: 0s, soak: 100s, drain: 60s}"), fast)
    phases = parse_phases(decision_line("soak", 0) + decision_line("drain", 3))
    writer = JournalWriter(run_.folder.journal / "consume.3@h", FakeClock()).open()
    writer.append(Record(7, writer.epoch, 0, 0, columns_line(CONSUMED).id, (5.0, 9.0)), CONSUMED)
    run_.write(7, sent=0.0, received=0.0, lag=0.0)

    assert is_drained(run_.folder, Consumers(), phases, 8)
