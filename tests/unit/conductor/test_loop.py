from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from soak.conductor.catch_up import WindowSchedule, cron_error, never_begins
from soak.conductor.load_records import Backlog
from soak.conductor.loop import append_decisions, run, write_planned
from soak.core.clock import Grid
from soak.core.model import Column, Record
from soak.core.plan.load import Consumers
from soak.core.plan.phases import CatchUp, Decision, Phases, Window, parse_phases, planned_phases
from soak.core.units import SECOND_NS
from soak.store.run_folder import Run, RunFolder, write_run
from tests.support.conduct_world import BROKER, World, plan_of
from tests.support.fakes import FakeClock

FINAL = """{warm_up: 5s, soak: 20s, cool_down: 5s, drain: 60s,
  catch_up: {backlog_age: 20s, drain_limit: 100s, settle: 6s}}"""
WINDOWS = """{warm_up: 5s, soak: 200s, drain: 60s, windows: [
  {every: 60s, catch_up: {backlog_age: 10s, drain_limit: 60s, settle: 6s}}]}"""
RAMP = """{warm_up: 5s, soak: 20s, drain: 60s,
  ramp: {start: 100/s, step: 9s, precision: 0.1, soak_share: 0.5}}"""


def fast(_: int) -> float:
    return 400.0


def test_a_run_without_surprises_follows_its_plan(tmp_path: Path) -> None:
    world = World(tmp_path, plan_of("{warm_up: 5s, soak: 20s, cool_down: 5s, drain: 60s}"), fast)

    lived = world.live(100)

    assert lived == [
        (0, "warm-up", ""), (5, "soak", ""), (25, "cool-down", ""), (30, "drain", ""), (38, "end", ""),
    ]  # fmt: skip


def test_a_catch_up_after_the_soak_builds_drains_and_is_told(tmp_path: Path) -> None:
    """20 s at 100/s wait; at 400/s read, of which 100/s are new, less than 2 s of load are left after 6 s."""
    world = World(tmp_path, plan_of(FINAL), fast)

    lived = world.live(200)

    assert [one[1:] for one in lived] == [
        ("warm-up", ""), ("soak", ""), ("catch-up", "build"), ("catch-up", "drain"),
        ("cool-down", ""), ("drain", ""), ("end", ""),
    ]  # fmt: skip
    told = next(one for one in world.phases.decisions if "outcome" in one.fields)
    assert (told.phase, told.fields["outcome"]) == ("cool-down", "drained")
    assert (told.fields["messages"], told.fields["seconds"]) == (2000, 6)
    assert told.reason == "2000 messages were read in 6 s"


def test_a_backlog_of_a_size_is_drained_when_it_has_it(tmp_path: Path) -> None:
    """5,000 messages of 1 KiB are there after 50 s: decided five seconds ahead."""
    phases = FINAL.replace("backlog_age: 20s", "backlog_size: 5000KiB")
    world = World(tmp_path, plan_of(phases), fast)

    lived = world.live(200)

    build, drain = (one[0] for one in lived if one[1] == "catch-up")
    assert (build, drain) == (25, 25 + 50)


def test_a_backlog_that_never_drains_is_recognised_long_before_the_limit(tmp_path: Path) -> None:
    """Read at 101/s and written at 100/s, 1,500 messages would take 1,300 s: said after 45 s, of 300."""
    phases = FINAL.replace("drain_limit: 100s", "drain_limit: 300s")
    world = World(tmp_path, plan_of(phases), lambda _: 101.0)

    world.live(400)

    told = next(one for one in world.phases.decisions if "outcome" in one.fields)
    assert told.fields["outcome"] == "never drains"
    assert int(told.fields["seconds"]) < 50
    assert "reduce the rate" in told.reason
    assert world.phases.at(world.k) == "end"


def test_a_slow_begin_is_no_verdict(tmp_path: Path) -> None:
    """Nothing is read for the first 20 s of the drain, then it goes fast."""
    phases = FINAL.replace("drain_limit: 100s", "drain_limit: 300s")
    world = World(tmp_path, plan_of(phases), lambda k: 400.0 if k < 45 or k > 65 else 90.0)

    world.live(400)

    told = next(one for one in world.phases.decisions if "outcome" in one.fields)
    assert told.fields["outcome"] == "drained"


def test_windows_come_again_and_leave_the_soak_as_long_as_it_was(tmp_path: Path) -> None:
    world = World(tmp_path, plan_of(WINDOWS), fast)

    lived = world.live(400)

    builds = [k for k, _, part in lived if part == "build"]
    assert builds == [65, 125]  # the one at 185 would leave 10 s of 30
    assert next(k for k, phase, _ in lived if phase == "drain") == 205
    soaks = world.phases.spans("soak", 205)
    assert [begin for begin, _ in soaks] == [5, 89, 149]


def test_a_window_by_size_alone_needs_the_time_in_which_it_grows(tmp_path: Path) -> None:
    """1,000 messages wait after 10 s, whatever the limit of half an hour: as with an age of 10 s."""
    size = WINDOWS.replace("backlog_age: 10s, drain_limit: 60s", "backlog_size: 1000KiB")
    world = World(tmp_path, plan_of(size), fast)

    lived = world.live(400)

    assert [k for k, _, part in lived if part == "build"] == [65, 125]
    assert [k for k, _, part in lived if part == "drain"] == [75, 135]
    assert next(k for k, phase, _ in lived if phase == "drain") == 205


@pytest.mark.parametrize(
    ("every", "backlog", "is_never"),
    [
        (
            "174s",
            "backlog_age: 10s",
            False,
        ),  # then 10 s to grow, 10 s to read, 6 s to settle: 200 s
        ("175s", "backlog_age: 10s", True),
        ("174s", "backlog_size: 1000KiB", False),
        ("175s", "backlog_size: 1000KiB", True),
        ("60s", "backlog_age: 125s", True),
    ],
)
def test_a_window_for_which_the_soak_is_too_short_is_known_beforehand(
    every: str, backlog: str, *, is_never: bool
) -> None:
    plan = plan_of(
        f"{{soak: 200s, windows: [{{every: {every}, catch_up: {{{backlog}, settle: 6s}}}}]}}"
    )

    assert never_begins(plan, plan.phases.windows[0]) == is_never


def test_a_window_whose_backlog_grows_too_slowly_is_read_before_the_soak_ends(
    tmp_path: Path,
) -> None:
    """It should have 6,000 messages after 60 s, but only half of the load is sent."""
    size = WINDOWS.replace("backlog_age: 10s, drain_limit: 60s", "backlog_size: 6000KiB")
    world = World(tmp_path, plan_of(size.replace("every: 60s", "every: 110s")), fast)
    world.send_most = 50.0

    lived = world.live(400)

    assert [(k, part) for k, _, part in lived if part] == [(115, "build"), (189, "drain")]
    told = next(one for one in world.phases.decisions if "outcome" in one.fields)
    assert told.fields["outcome"] == "drained"


def test_a_window_that_falls_into_another_is_passed_over(tmp_path: Path) -> None:
    both = WINDOWS.replace("windows: [", "windows: [{every: 70s, catch_up: {backlog_age: 5s}},")
    world = World(tmp_path, plan_of(both), fast)

    lived = world.live(400)

    assert [k for k, _, part in lived if part == "build"] == [65, 125]


def test_a_window_that_was_due_long_ago_in_a_sleep_is_not_made_up_for(tmp_path: Path) -> None:
    """As without a conductor: one more than a minute late is passed over, one that is not begins."""
    long = WINDOWS.replace("200s", "2000s").replace("every: 60s", "every: 600s")
    world = World(tmp_path, plan_of(long), fast)
    world.live(100)
    world.k += 700

    lived = world.live(350)
    world.k += 100
    lived += world.live(20)

    assert [k for k, _, part in lived if part == "build"] == [1256]


def test_a_window_is_cut_short_by_the_end_of_the_soak(tmp_path: Path) -> None:
    late = WINDOWS.replace("every: 60s", "every: 150s").replace("limit: 60s", "limit: 10min")
    world = World(tmp_path, plan_of(late), lambda _: 110.0)

    lived = world.live(400)

    told = next(one for one in world.phases.decisions if "outcome" in one.fields)
    assert next(k for k, phase, _ in lived if phase == "drain") == 205
    assert (told.from_k, told.phase, told.fields["outcome"]) == (205, "drain", "cut short")


@pytest.mark.parametrize("phases", [FINAL, WINDOWS.replace("200s", "100s"), RAMP])
def test_a_conductor_that_is_killed_in_any_second_changes_nothing(
    tmp_path: Path, phases: str
) -> None:
    steady = World(tmp_path / "a", plan_of(phases), fast)
    killed = World(tmp_path / "b", plan_of(phases), fast)
    steady.send_most = killed.send_most = 333.0
    expected = steady.live(400)
    lived: list[tuple[int, str, str]] = []
    while not lived or lived[-1][1] != "end":
        killed.start_conductor()
        lived += [one for one in killed.live(1) if not lived or one[1:] != lived[-1][1:]]

    assert lived == expected
    assert killed.phases == steady.phases


@pytest.mark.parametrize("folder", ["", BROKER], ids=["ours", "a broker's"])
def test_little_space_ends_every_phase_with_a_drain(tmp_path: Path, folder: str) -> None:
    """On our drive or on a broker's, which the load fills."""
    world = World(tmp_path, plan_of(FINAL), fast)
    world.live(30)
    world.free[folder or str(tmp_path)] = 100 * 2**20

    lived = world.live(100)

    told = f"100MiB free in {folder or tmp_path}, less than free_space_floor"
    assert [one[1] for one in lived] == ["catch-up", "drain", "end"]
    assert told in [one.reason for one in world.phases.decisions]


def test_a_stop_request_ends_the_load_with_a_drain(tmp_path: Path) -> None:
    """What was sent is received first, so the audit of a run that is stopped is exact."""
    world = World(tmp_path, plan_of(FINAL), fast)
    world.live(30)
    world.folder.stop_request.touch()

    lived = world.live(100)

    assert [one[1] for one in lived][-2:] == ["drain", "end"]
    assert "stopped" in [one.reason for one in world.phases.decisions]


def test_decisions_are_added_whole_behind_a_torn_line(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.phases.write_text(Decision("soak", 0).to_line() + '{"phase": "dr')

    append_decisions(folder, Decision("catch-up", 9, part="build"), Decision("drain", 20))

    assert parse_phases(folder.phases.read_text()).names == ("soak", "catch-up", "drain")


GRID = Grid(1_790_000_000 * SECOND_NS + 123_456_789, 0)  # 2026-09-21T14:13:20.123Z
ANY = CatchUp(backlog_age=10 * SECOND_NS)


def test_windows_are_counted_from_the_start_of_the_soak() -> None:
    windows = WindowSchedule([Window(catch_up=ANY, every=600 * SECOND_NS)], GRID, 100)

    assert windows.due(0, 1900) == [(700, 0), (1300, 0), (1900, 0)]
    assert windows.due(700, 1299) == []


def test_windows_of_the_calendar_are_due_on_the_hour_in_utc() -> None:
    """From 14:13:20.12 it is 2,799.88 s to 15:00: due in the second that begins after it."""
    windows = WindowSchedule([Window(catch_up=ANY, cron="0 * * * *")], GRID, 0)

    assert windows.due(0, 8000) == [(2800, 0), (6400, 0)]


def test_asking_second_by_second_finds_each_window_once() -> None:
    plans = [Window(catch_up=ANY, every=37 * SECOND_NS), Window(catch_up=ANY, cron="* * * * *")]
    windows = WindowSchedule(plans, GRID, 3)

    piecewise = [found for k in range(1000) for found in windows.due(k - 1, k)]

    assert piecewise == windows.due(-1, 999)
    assert len(piecewise) == 996 // 37 + 16


def test_a_cron_expression_that_nobody_understands_is_told() -> None:
    assert cron_error(Window(catch_up=ANY, cron="0 */6 * * *")) == ""
    assert "'hourly' is not a cron expression" in cron_error(Window(catch_up=ANY, cron="hourly"))


def test_a_consumer_that_the_plan_does_not_have_changes_no_backlog() -> None:
    columns = (Column("received_messages", (), "messages"), Column("lag_messages", (), "messages"))
    backlog = Backlog(Consumers(), build_k=1)

    for k in range(2):
        backlog.add("consume.3@h", Record(k, 1, 0, 0, "", (5.0, 7.0)), columns, is_building=False)

    assert backlog.remaining() == 0.0


def _backlog(lefts: NDArray[np.floating[Any]]) -> Backlog:
    backlog = Backlog(Consumers())
    for k, left in enumerate(lefts.tolist()):
        backlog.note(k, left)
    return backlog


@pytest.mark.parametrize("seed", range(20))
def test_a_noisy_drain_that_will_be_done_in_time_is_never_given_up(seed: int) -> None:
    """100,000 messages at 250 a second less, in 400 s of 600, with a tenth of noise."""
    rng = np.random.default_rng(seed)
    k = np.arange(380)
    lefts = 100_000 - 250.0 * k + rng.normal(0, 1000, k.size)
    backlog = Backlog(Consumers())
    given_up = []
    for at, left in enumerate(lefts.tolist()):
        backlog.note(at, left)
        given_up.append(backlog.never_drains(2000.0, 600))

    assert not any(given_up)


def test_a_trend_needs_its_time_and_must_agree() -> None:
    growing = 1000 + 10.0 * np.arange(60)

    assert not _backlog(growing[:40]).never_drains(10, 600)
    assert _backlog(growing[:41]).never_drains(10, 600)
    assert not _backlog(5000 - 10.0 * np.arange(60)).never_drains(10, 600)
    assert _backlog(5000 - 1.0 * np.arange(60)).never_drains(10, 600)


def test_what_retention_took_is_not_waited_for() -> None:
    """3,000 were acknowledged and 1,000 received, but the consumer, which reads, sees 50 to come."""
    backlog = Backlog(Consumers())
    columns = (Column("received_messages"), Column("lag_messages"))
    sent = Record(20, 1, 0, 0, "", (3000.0,))
    read = Record(20, 1, 0, 0, "", (1000.0, 50.0))
    backlog.add("produce.0@h", sent, (Column("acked_messages"),), is_building=True)
    backlog.add("consume.0@h", read, columns, is_building=False)

    assert (backlog.built, backlog.remaining()) == (3000, 2000)
    assert (backlog.remaining(drain_k=16), backlog.remaining(drain_k=15)) == (2000, 50)


def test_what_an_earlier_window_left_is_still_to_be_read() -> None:
    """50,000 were left before second 20; then 30,000 were built, and 300 a second more read than written."""
    backlog = Backlog(Consumers(), build_k=20)
    acked, columns = (
        (Column("acked_messages"),),
        (Column("received_messages"), Column("lag_messages")),
    )
    truth, built = 50_000.0, 0.0
    for k in range(15, 100):
        is_building = 20 <= k < 50
        received = 0.0 if is_building else 1000.0 if k < 20 else 1300.0
        truth += 1000.0 - received
        lag = math.nan if is_building else truth
        backlog.add(
            "produce.0@h", Record(k, 1, 0, 0, "", (1000.0,)), acked, is_building=is_building
        )
        read = Record(k, 1, 0, 0, "", (received, lag))
        backlog.add("consume.0@h", read, columns, is_building=is_building)
        if k == 49:
            built = backlog.remaining()
        if k == 52:
            assert backlog.remaining(drain_k=50) == truth

    assert (built, backlog.built, backlog.remaining(drain_k=50)) == (80_000, 80_000, truth)


def test_a_lag_that_is_more_than_was_counted_is_believed() -> None:
    """Nobody knew what was left before: the consumer was silent until it read on."""
    backlog = Backlog(Consumers(), build_k=20)
    columns = (Column("received_messages"), Column("lag_messages"))
    backlog.add("consume.0@h", Record(30, 1, 0, 0, "", (1.0, 777.0)), columns, is_building=False)

    assert backlog.remaining(drain_k=20) == 777


def test_a_consumer_that_died_with_its_backlog_is_waited_for() -> None:
    """Two share a subscription; one is through with its part, the other was last heard of long ago."""
    backlog = Backlog(Consumers(per_subscription=2))
    columns = (Column("received_messages"), Column("lag_messages"))
    for k, name in ((20, "consume.1@h"), (30, "consume.0@h")):
        read = Record(k, 1, 0, 0, "", (1000.0, 0.0))
        backlog.add(name, read, columns, is_building=False)
    sent = Record(30, 1, 0, 0, "", (3000.0,))
    backlog.add("produce.0@h", sent, (Column("acked_messages"),), is_building=False)

    assert backlog.remaining(drain_k=10) == 1000


def test_each_decision_is_written_once(tmp_path: Path) -> None:
    world = World(tmp_path, plan_of(FINAL), fast)
    world.live(200)

    lines = [one for one in world.folder.phases.read_text().splitlines() if "planned" not in one]
    assert len(lines) == len(set(lines)) == 3


def test_a_ramp_is_judged_by_the_journals_and_the_soak_gets_its_share(tmp_path: Path) -> None:
    """At most 333 a second: 100, 200, then 400 is refused, 300 held, 350 refused, 320 held."""
    world = World(tmp_path, plan_of(RAMP), lambda _: 10_000.0)
    world.send_most = 333.0

    lived = world.live(300)

    tried = [int(one.rate) for one in world.phases.decisions if one.phase == "ramp" and one.rate]
    soak = next(one for one in world.phases.decisions if one.phase == "soak")
    assert tried == [100, 200, 400, 300, 350, 320]
    assert (soak.fields["sustained"], soak.fields["refused"]) == ("320/s", "350/s")
    assert soak.rate == Fraction(160)
    assert lived[-1][1] == "end"


class Life(threading.Event):
    """A conductor's wait for the next half second; what is to happen in the meantime does."""

    def __init__(self, clock: FakeClock, events: dict[int, Callable[[], object]]) -> None:
        super().__init__()
        self._clock, self._events, self._waits = clock, events, 0

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.advance(timeout or 0)
        self._waits += 1
        self._events.get(self._waits, lambda: None)()
        return self.is_set()


def test_a_drive_of_a_broker_is_looked_at_while_the_load_lasts(tmp_path: Path) -> None:
    """There is never space in /proc: the first look ends the load, and nothing else would."""
    folder, clock = RunFolder(tmp_path), FakeClock()
    folder.plan.write_text(
        "name: w\nbroker: {kafka: {}}\nphases: {soak: 100h, drain: 20s}\n"
        "probes: {disk_io: {directory: /proc}}\nfree_space_floor: 1MiB\n"
    )
    write_run(folder, Run("r", clock.wall_ns(), "h", {}, "running", "w"))

    code = run(folder.path, Life(clock, {}), clock)

    assert code == 0
    assert "0B free in /proc, less than free_space_floor" in [
        one.reason for one in phases_in(folder).decisions
    ]


def test_a_run_that_was_asleep_ends_by_the_clock(tmp_path: Path) -> None:
    """Its daemons start again in the second that it is; what is decided lies ahead of that."""
    folder, clock = RunFolder(tmp_path), FakeClock()
    folder.plan.write_text("name: w\nbroker: {kafka: {}}\nphases: {soak: 2h, drain: 20s}\n")
    write_run(folder, Run("r", clock.wall_ns(), "h", {}, "running", "w"))
    life = Life(clock, {6: lambda: clock.suspend(3600), 9: folder.stop_request.touch})

    code = run(folder.path, life, clock)

    drain = next(one for one in phases_in(folder).decisions if one.phase == "drain" and one.reason)
    assert code == 0
    assert 3609 < drain.from_k < 3640
    assert clock.mono_ns() < 60 * SECOND_NS


def test_a_conductor_outlives_a_drive_that_takes_nothing(tmp_path: Path) -> None:
    """What it could not write it decides again: a run whose conductor is gone would never end."""
    folder, clock = RunFolder(tmp_path), FakeClock()
    folder.plan.write_text("name: w\nbroker: {kafka: {}}\nphases: {soak: 1h, drain: 20s}\n")
    write_run(folder, Run("r", clock.wall_ns(), "h", {}, "running", "w"))
    folder.stop_request.touch()
    write_planned(folder, planned_phases(plan_of("{soak: 1h, drain: 20s}").phases))
    in_the_way = folder.phases.with_name(f".{folder.phases.name}.{os.getpid()}")
    in_the_way.mkdir()  # where it writes first
    seen: list[tuple[str, ...]] = []
    life = Life(clock, {6: lambda: seen.append(phases_in(folder).names), 7: in_the_way.rmdir})

    code = run(folder.path, life, clock)

    decided = phases_in(folder)
    assert code == 0
    assert seen == [("warm-up", "soak", "drain")]
    assert (decided.at(8), decided.at(3)) == ("drain", "warm-up")


def phases_in(folder: RunFolder) -> Phases:
    return parse_phases(folder.phases.read_text())
