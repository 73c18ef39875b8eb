"""A host without a run: which one it joins, and how long it waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from soak.core.plan.phases import decision_line
from soak.core.units import SECOND_NS
from soak.service.files import write_atomically
from soak.service.systemd import notifier
from soak.shipping.announcements import OPEN_BACKOFF, AnnouncementListener
from soak.shipping.discovery import GATHER_NS, JoinedRuns, wait_for_run
from soak.store.run_announcements import Announcement
from soak.store.run_folder import Run, RunFolder, write_run
from tests.support.fakes import FakeClock
from tests.support.spoken_runs import START_NS, SpokenRuns, word

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

    listening = AnnouncementListener(runs, "x", clock)
    found = wait_for_run(listening, may_join, stop, notifier({}), clock, look)
    return found.run_id if found else ""


def every_five(*words: Announcement, begin_s: int = 0) -> Said:
    return lambda second: list(words) if second >= begin_s and second % 5 == 0 else []


def test_a_run_that_begins_later_is_joined_once_all_were_heard() -> None:
    """Nothing but what is said from now on counts, so there is no old word to be taken for a new one."""
    clock = FakeClock()
    runs = SpokenRuns(clock, every_five(word(start_k=330), begin_s=300))

    assert joined(clock, runs) == "r1"
    assert clock.mono_ns() <= 302 * SECOND_NS + GATHER_NS


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
    assert 300 <= runs.opened_s[0] <= 300 + OPEN_BACKOFF.max_ns // SECOND_NS
    assert caplog.text.count("runs_not_heard error=no broker answered at h:9") == 1


def test_a_silent_topic_is_opened_anew_every_minute() -> None:
    """It may have been deleted and made again, of which the client says nothing."""
    clock = FakeClock()
    runs = SpokenRuns(clock, lambda _: [])

    assert joined(clock, runs, until_s=185) == ""
    assert runs.opened_s == [0, 60, 120, 180]


# --- The folders of the runs that a host joined: which goes on after a reboot, and how much they may hold.


def made(
    home: Path, run_id: str, *, start_k: int = 0, state: str = "ended", end_k: int | None = None
) -> RunFolder:
    """Make a folder as a host leaves it, with 23 bytes of journal."""
    folder = JoinedRuns(home, "x").folder_of(run_id)
    start_ns = START_NS + start_k * SECOND_NS
    write_run(folder, Run(run_id, start_ns, "b", {}, state, "x"))
    write_atomically(folder.phases, "" if end_k is None else decision_line("end", end_k))
    write_atomically(folder.journal / "probe@b" / "000001.jsonl", "x" * 23)
    return folder


def ids(runs: JoinedRuns) -> list[str]:
    return [run.id for _, run in runs.joined()]


@pytest.mark.parametrize(
    ("state", "end_k", "goes_on"),
    [
        ("running", None, True),  # as after a power cut
        ("interrupted", 100, True),
        ("failed", 100, True),
        ("running", 50, False),  # it ended meanwhile
        ("ended", None, False),
    ],
)
def test_a_run_that_was_cut_short_goes_on_without_a_word(
    tmp_path: Path, state: str, end_k: int | None, *, goes_on: bool
) -> None:
    """A broker's host that boots may find its cluster away: the run's grid is on its disk."""
    made(tmp_path, "r0", start_k=-99, state="running")
    made(tmp_path, "r1", state=state, end_k=end_k)

    found = JoinedRuns(tmp_path, "x").unfinished(START_NS + 50 * SECOND_NS)

    assert (found is not None and found.id == "r1") is goes_on
    assert found is None or found.id != "r0"


def test_folders_that_were_not_joined_here_are_nothing_to_go_on_with(tmp_path: Path) -> None:
    """Those of `--run-id`, of another plan, damaged ones, and what somebody renamed."""
    write_run(RunFolder(tmp_path / "x-r1"), Run("r1", START_NS, "b", {}, "running", "x"))
    damaged = made(tmp_path, "r2", state="running")
    damaged.run_json.write_text("{")
    made(tmp_path, "r3", state="running").path.rename(tmp_path / "x-old")
    other = made(tmp_path, "r4", state="running")
    write_run(other, Run("r4", START_NS, "b", {}, "running", "x-y"))

    assert JoinedRuns(tmp_path, "x").unfinished(START_NS) is None


def test_a_folder_is_joined_again_by_its_own_run_alone(tmp_path: Path) -> None:
    """An id with another start would be another grid of seconds."""
    made(tmp_path, "r1")
    runs = JoinedRuns(tmp_path, "x")

    assert runs.may_join(word("r1"))
    assert runs.may_join(word("r2", start_k=5))
    assert not runs.may_join(word("r1", start_k=5))


def test_old_runs_make_room_the_oldest_first(tmp_path: Path) -> None:
    """A host stands for weeks; what it keeps of ended runs has a bound, and the run in hand stays."""
    for at, run_id in enumerate(["r3", "r1", "r4", "r2"]):
        made(tmp_path, run_id, start_k=at)
    runs = JoinedRuns(tmp_path, "x")
    size = sum(file.stat().st_size for file in (tmp_path / "x-r1").rglob("*") if file.is_file())

    runs.trim(4 * size + 100, keep="r3")
    before = ids(runs)
    runs.trim(2 * size + 50, keep="r3")

    assert (before, ids(runs)) == (["r3", "r1", "r4", "r2"], ["r3", "r4", "r2"])
