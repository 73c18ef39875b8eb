"""A drill's fault in its run: begun and lifted by the run's time, and undone on every way out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from soak.core.errors import LabError
from soak.core.units import SECOND_NS
from soak.lab.drills.drill import Drill, Expectation
from soak.lab.drills.injection import FaultLog, Injection
from soak.lab.drills.verdict import Moments, judge
from soak.lab.faults import find_fault
from soak.lab.faults.active import Fault, activating
from soak.lab.faults.clients import ConsumerPauseConfig, QuietConfig
from soak.lab.ports import Target
from soak.service import children
from tests.support.fakes import FakeClock
from tests.support.lab.faults import Stuck, giving
from tests.support.lab.sleeping_broker import SleepingBroker, is_stopped

DRILL = Drill(
    "mine",
    "",
    Path("plan.yaml"),
    "quiet",
    QuietConfig(),
    Expectation(cause="nothing"),
    begin_ns=10 * SECOND_NS,
    length_ns=5 * SECOND_NS,
)
AT_ONCE = replace(DRILL, begin_ns=0)
GIVEN = (("consumer_pause", ConsumerPauseConfig()),)


@pytest.fixture
def lines() -> list[Mapping[str, object]]:
    return []


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[int]:
    """A daemon that the fault may kill."""
    process = children.spawn(["sleep", "600"], log_path=tmp_path / "log")
    yield process.pid
    children.kill(process)


def asleep_broker() -> SleepingBroker:
    return SleepingBroker.__new__(SleepingBroker)  # no fault here does anything with it


def injection(
    drill: Drill,
    clock: FakeClock,
    lines: list[Mapping[str, object]],
    daemon: int,
    find: Callable[[str], Fault] = find_fault,
) -> Injection:
    target = Target(asleep_broker(), lines.append, clock, daemons=lambda: {"consume.0": daemon})
    return Injection(drill, target, clock.wall_ns(), find)


def test_it_begins_and_is_lifted_at_its_time(
    lines: list[Mapping[str, object]], daemon: int
) -> None:
    """After 10 s of the run, for 5 s; once each."""
    clock = FakeClock()
    begun_ns = clock.wall_ns()
    made = injection(DRILL, clock, lines, daemon)
    seen = []
    for _ in range(20):
        made.poll()
        seen.append(len(lines))
        clock.advance(1)

    assert seen == [0] * 10 + [1] * 5 + [2] * 5
    assert made.onset_wall_ns == begun_ns + 10 * SECOND_NS
    assert made.lifted_wall_ns == begun_ns + 15 * SECOND_NS


def test_without_a_begin_it_is_there_before_the_load(
    lines: list[Mapping[str, object]], daemon: int
) -> None:
    """And without a length until somebody lifts it."""
    clock = FakeClock()
    made = injection(replace(DRILL, begin_ns=0, length_ns=0), clock, lines, daemon)
    made.poll()
    clock.advance(600)
    made.poll()
    before = len(lines)

    made.lift()
    made.lift()

    assert (before, len(lines)) == (1, 2)


def test_a_run_that_ends_early_lifts_what_never_began(
    lines: list[Mapping[str, object]], daemon: int
) -> None:
    """Nothing happens then, and nothing is injected afterwards."""
    clock = FakeClock()
    made = injection(DRILL, clock, lines, daemon)

    made.lift()
    clock.advance(60)
    made.poll()

    assert lines == []
    assert made.onset_wall_ns is None


def test_what_is_given_is_there_from_the_start_and_outlasts_the_fault(
    lines: list[Mapping[str, object]], daemon: int
) -> None:
    """Here the consumer stands still; whatever is lifted, it does until the run is over."""
    made = injection(replace(DRILL, given=GIVEN), FakeClock(), lines, daemon)
    made.poll()
    os.waitid(os.P_PID, daemon, os.WSTOPPED | os.WNOWAIT)  # a signal takes a moment
    made.poll()
    made.lift()
    was_stopped = is_stopped(daemon)

    made.close()

    assert [line.get("paused") for line in lines] == [["consume.0"]]
    assert (was_stopped, is_stopped(daemon)) == (True, False)
    assert made.onset_wall_ns is None


def test_what_the_machine_refuses_is_an_error_of_ours(
    lines: list[Mapping[str, object]], tmp_path: Path
) -> None:
    """The daemon that would be killed has ended just before."""
    gone = children.spawn(["true"], log_path=tmp_path / "log")
    gone.wait()
    made = injection(replace(DRILL, begin_ns=0), FakeClock(), lines, gone.pid)

    with pytest.raises(LabError, match=r"cannot inject the fault quiet: .*No such process"):
        made.poll()

    assert made.onset_wall_ns is None


def test_what_is_felt_after_the_lifting_is_undone_when_the_run_is_over(
    lines: list[Mapping[str, object]], daemon: int
) -> None:
    """As a drive that reads slowly while somebody catches up."""
    undone: list[str] = []
    with activating(Target(asleep_broker(), lines.append, FakeClock())) as active:
        active.on_close(undone.append, "at the end")
        active.on_lift(undone.append, "when lifted")
    made = injection(AT_ONCE, FakeClock(), lines, daemon, giving(active))
    made.poll()

    made.lift()
    lifted = list(undone)
    made.close()
    made.close()

    assert lifted == ["when lifted"]
    assert undone == ["when lifted", "at the end"]


def test_a_fault_that_cannot_be_undone_ends_no_run(
    lines: list[Mapping[str, object]], daemon: int
) -> None:
    """It is noted in the log, and the drill's verdict has a line of it."""
    stuck = Stuck("the broker did not come back")
    made = injection(AT_ONCE, FakeClock(), lines, daemon, giving(stuck))
    made.poll()

    made.lift()

    assert made.failure == "the broker did not come back"
    assert lines[-2]["not_undone"] == "the broker did not come back"
    assert lines[-1]["lifted"] is False
    quiet_run = Expectation(cause="nothing")
    checks = judge(quiet_run, {}, Moments(23, 24, failure=made.failure))
    assert [(one.found, one.is_met) for one in checks if one.subject == "lifted"] == [
        ("the broker did not come back", False)
    ]


def test_whatever_cannot_be_undone_is_in_the_log(
    lines: list[Mapping[str, object]], daemon: int
) -> None:
    """Each failure is logged, of further faults too; the first is kept."""
    faults = giving(Stuck("what is given"), Stuck("the fault"))
    made = injection(replace(AT_ONCE, given=GIVEN), FakeClock(), lines, daemon, faults)
    made.poll()

    made.close()

    reported = [line["not_undone"] for line in lines if "not_undone" in line]
    assert reported == ["the fault", "the fault", "what is given"]
    assert made.failure == "the fault"


def test_a_log_that_takes_nothing_keeps_nothing_from_being_undone() -> None:
    """As when the drive of the run is full."""
    undone: list[str] = []

    def refuse(_: Mapping[str, object]) -> None:
        raise OSError(28, "No space left on device")

    target = Target(asleep_broker(), refuse, FakeClock())
    with activating(target) as given:
        given.on_lift(undone.append, "what is given")
    faults = giving(given, Stuck("the fault"))
    made = Injection(replace(AT_ONCE, given=GIVEN), target, 0, faults)
    made.poll()

    with pytest.raises(OSError, match="No space left"):
        made.close()

    assert undone == ["what is given"]


def test_nothing_is_visible_before_it_is_published(tmp_path: Path) -> None:
    """The folder is empty while lines are written; afterwards they are all there, in order."""
    log = FaultLog(tmp_path)
    for number in range(23):
        log.record({"burst": number})
    assert list(tmp_path.iterdir()) == []

    log.publish(tmp_path / "faults.jsonl")
    log.close()

    lines = (tmp_path / "faults.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"burst": number} for number in range(23)]


def test_a_filesystem_without_nameless_files_gets_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linking fails there; the content is the same."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("os.link", refuse)
    log = FaultLog(tmp_path)
    log.record({"burst": 1})

    log.publish(tmp_path / "faults.jsonl")
    log.close()

    assert [path.name for path in tmp_path.iterdir()] == ["faults.jsonl"]
    assert (tmp_path / "faults.jsonl").read_text() == '{"burst":1}\n'


def test_an_earlier_log_is_never_overwritten(tmp_path: Path) -> None:
    """The run was resumed, or the folder is not this run's."""
    path = tmp_path / "faults.jsonl"
    path.write_text("earlier\n")
    log = FaultLog(tmp_path)

    with pytest.raises(LabError, match="exists already"):
        log.publish(path)
    log.close()

    assert path.read_text() == "earlier\n"


def test_a_log_that_is_full_says_so_and_grows_no_more(tmp_path: Path) -> None:
    """A fault that runs for days must not fill the drive."""
    log = FaultLog(tmp_path, limit_lines=3)
    for number in range(10):
        log.record({"n": number})

    log.publish(tmp_path / "f")
    log.close()

    assert (tmp_path / "f").read_text() == '{"n":0}\n{"n":1}\n{"truncated":true}\n'
