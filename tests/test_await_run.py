"""A host without a run: which one it joins, and how long it waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from soak.core.announcement import Announcement
from soak.core.units import SECOND_NS
from soak.daemons.await_run import ALL_HEARD_NS, await_run
from soak.daemons.listening import LONGEST_WAIT_NS, Listening
from soak.service.notify import notifier
from tests.fakes import FakeClock
from tests.spoken_runs import SpokenRuns, word

Said = Callable[[int], list[Announcement]]


def joined(
    clock: FakeClock,
    runs: SpokenRuns,
    *,
    may_join: Callable[[Announcement], bool] = lambda _: True,
    until_s: int = 600,
    meanwhile: Callable[[], None] = lambda: None,
) -> str:
    """Return the id of the run that is joined, or nothing when `until_s` comes first."""
    stop = threading.Event()

    def look() -> None:
        meanwhile()
        if clock.mono_ns() >= until_s * SECOND_NS:
            stop.set()

    listening = Listening(runs, "x", clock)
    found = await_run(listening, may_join, stop, notifier({}), clock, look)
    return found.run_id if found else ""


def every_five(*words: Announcement, begin_s: int = 0) -> Said:
    return lambda second: list(words) if second >= begin_s and second % 5 == 0 else []


def test_a_run_that_begins_later_is_joined_once_all_were_heard() -> None:
    """Nothing but what is said from now on counts, so there is no old word to be taken for a new one."""
    clock = FakeClock()
    runs = SpokenRuns(clock, every_five(word(start_k=330), begin_s=300))

    assert joined(clock, runs) == "r1"
    assert clock.mono_ns() <= 302 * SECOND_NS + ALL_HEARD_NS


@pytest.mark.parametrize(
    "said",
    [
        word(is_over=True),
        word(start_k=-23, end_k=23),
        word(plan="y"),
        word(start_k=3 * 3600),
    ],
)
def test_what_is_over_or_far_off_or_of_another_plan_is_not_joined(said: Announcement) -> None:
    """It goes on waiting."""
    clock = FakeClock()

    assert joined(clock, SpokenRuns(clock, every_five(said))) == ""


def test_a_run_of_another_name_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Who misspelt the plan's name would wait for ever without a word."""
    caplog.set_level("INFO")
    clock = FakeClock()

    joined(clock, SpokenRuns(clock, every_five(word(plan="kafka-36h"))))

    assert caplog.text.count("other_plan_announced plan=kafka-36h waiting_for=x") == 1


def test_a_run_that_ends_while_others_are_waited_for_is_not_joined() -> None:
    """The last word on it counts, not the first."""
    clock = FakeClock()
    runs = SpokenRuns(clock, lambda second: [word(is_over=second > 2)] if second < 6 else [])

    assert joined(clock, runs) == ""


@pytest.mark.parametrize("order", [("r1", "r2"), ("r2", "r1")])
def test_of_two_runs_of_one_plan_the_newer_is_joined(
    order: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Two hosts may have begun one each: whoever is heard first, all take the same, and say so."""
    clock = FakeClock()
    starts = {"r1": -60, "r2": -30}
    words = [word(name, start_k=starts[name]) for name in order]
    runs = SpokenRuns(clock, lambda second: [words[second // 4 % 2]] if second % 4 == 0 else [])

    assert joined(clock, runs) == "r2"
    assert "many_runs_of_one_plan runs=['r1', 'r2'] joined=r2" in caplog.text


def test_a_run_whose_folder_holds_another_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """It is said once, and the next run is joined."""
    clock = FakeClock()
    runs = SpokenRuns(
        clock, lambda second: [word("old"), *([word()] if second > 60 else [])][: second + 1]
    )

    assert joined(clock, runs, may_join=lambda one: one.run_id != "old") == "r1"
    assert caplog.text.count("run_not_joined run=old") == 1


def test_clocks_that_differ_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """The run's seconds are counted by this host's clock: people must know how wrong it is."""
    clock = FakeClock()
    clock.step_wall(-90)

    assert joined(clock, SpokenRuns(clock, every_five(word(start_k=-60)))) == "r1"
    assert caplog.text.count("clocks_differ run=r1 seconds=-89") == 1


def test_a_cluster_that_is_away_is_asked_until_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    """Ever more seldom, said once; what was announced meanwhile is not needed."""
    clock = FakeClock()
    runs = SpokenRuns(clock, every_five(word()))
    runs.is_away = True

    def come_back() -> None:
        runs.is_away = clock.mono_ns() < 300 * SECOND_NS

    assert joined(clock, runs, meanwhile=come_back) == "r1"
    assert 300 <= runs.opened_s[0] <= 300 + LONGEST_WAIT_NS // SECOND_NS
    assert caplog.text.count("runs_not_heard error=no broker answered at h:9") == 1


def test_a_silent_topic_is_opened_anew_every_minute() -> None:
    """It may have been deleted and made again, of which the client says nothing."""
    clock = FakeClock()
    runs = SpokenRuns(clock, lambda _: [])

    assert joined(clock, runs, until_s=185) == ""
    assert runs.opened_s == [0, 60, 120, 180]
