"""How a probe host finds a run: which one it joins, and which folders it keeps."""

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
from tests.support.shipping.announced_runs import START_NS, FakeAnnouncements, announcement

Sent = Callable[[int], list[Announcement]]


def joined(
    clock: FakeClock,
    runs: FakeAnnouncements,
    *,
    may_join: Callable[[Announcement], bool] = lambda _: True,
    until_s: int = 600,
    meanwhile: Callable[[], None] = lambda: None,
) -> str:
    """Return the id of the joined run, or "" when none was joined within `until_s`."""
    stop = threading.Event()

    def look() -> None:
        meanwhile()
        if clock.mono_ns() >= until_s * SECOND_NS:
            stop.set()

    listener = AnnouncementListener(runs, "x", clock)
    found = wait_for_run(listener, may_join, stop, notifier({}), clock, look)
    return found.run_id if found else ""


def every_five(*sent: Announcement, begin_s: int = 0) -> Sent:
    return lambda second: list(sent) if second >= begin_s and second % 5 == 0 else []


def test_a_run_that_begins_later_is_joined_once_all_runs_were_announced() -> None:
    """Only new announcements count, so no old one can be mistaken for a new one."""
    clock = FakeClock()
    runs = FakeAnnouncements(clock, every_five(announcement(start_k=330), begin_s=300))

    assert joined(clock, runs) == "r1"
    assert clock.mono_ns() <= 302 * SECOND_NS + GATHER_NS


@pytest.mark.parametrize(
    "sent",
    [
        announcement(is_over=True),
        announcement(start_k=-23, end_k=23),
        announcement(plan="y"),
        announcement(start_k=3 * 3600),
    ],
)
def test_a_run_that_is_over_or_far_off_or_of_another_plan_is_not_joined(
    sent: Announcement,
) -> None:
    """The host goes on waiting."""
    clock = FakeClock()

    assert joined(clock, FakeAnnouncements(clock, every_five(sent))) == ""


def test_a_run_of_another_plan_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A host with a misspelt name would otherwise wait for ever without a hint."""
    caplog.set_level("INFO")
    clock = FakeClock()

    joined(clock, FakeAnnouncements(clock, every_five(announcement(plan="kafka-36h"))))

    assert caplog.text.count("other_plan_announced plan=kafka-36h waiting_for=x") == 1


def test_a_run_that_ends_during_the_wait_for_others_is_not_joined() -> None:
    """Its last announcement counts, not the first."""
    clock = FakeClock()
    runs = FakeAnnouncements(
        clock, lambda second: [announcement(is_over=second > 2)] if second < 6 else []
    )

    assert joined(clock, runs) == ""


@pytest.mark.parametrize("order", [("r1", "r2"), ("r2", "r1")])
def test_of_two_runs_of_one_plan_the_newer_is_joined(
    order: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Two hosts may have begun one each: in whatever order they are announced, all hosts join the same."""
    clock = FakeClock()
    starts = {"r1": -60, "r2": -30}
    sent = [announcement(name, start_k=starts[name]) for name in order]
    runs = FakeAnnouncements(
        clock, lambda second: [sent[second // 4 % 2]] if second % 4 == 0 else []
    )

    assert joined(clock, runs) == "r2"
    assert "many_runs_of_one_plan runs=['r1', 'r2'] joined=r2" in caplog.text


def test_a_run_whose_folder_holds_another_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    """That is logged once, and the next run is joined."""
    clock = FakeClock()
    runs = FakeAnnouncements(
        clock,
        lambda second: [announcement("old"), *([announcement()] if second > 60 else [])][
            : second + 1
        ],
    )

    assert joined(clock, runs, may_join=lambda one: one.run_id != "old") == "r1"
    assert caplog.text.count("run_not_joined run=old") == 1


def test_clocks_that_differ_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """This host counts the intervals of the run by its own clock: people must know how wrong it is."""
    clock = FakeClock()
    clock.step_wall(-90)

    assert joined(clock, FakeAnnouncements(clock, every_five(announcement(start_k=-60)))) == "r1"
    assert caplog.text.count("clocks_differ run=r1 seconds=-89") == 1


def test_an_unreachable_cluster_is_retried_until_it_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With back-off, and logged once; announcements in between are not needed."""
    clock = FakeClock()
    runs = FakeAnnouncements(clock, every_five(announcement()))
    runs.is_away = True

    def come_back() -> None:
        runs.is_away = clock.mono_ns() < 300 * SECOND_NS

    assert joined(clock, runs, meanwhile=come_back) == "r1"
    assert 300 <= runs.opened_s[0] <= 300 + OPEN_BACKOFF.max_ns // SECOND_NS
    assert caplog.text.count("announcements_not_read error=no broker answered at h:9") == 1


def test_a_silent_topic_is_opened_again_every_minute() -> None:
    """It may have been deleted and created again, which the client does not report."""
    clock = FakeClock()
    runs = FakeAnnouncements(clock, lambda _: [])

    assert joined(clock, runs, until_s=185) == ""
    assert runs.opened_s == [0, 60, 120, 180]


def joined_folder(
    home: Path, run_id: str, *, start_k: int = 0, state: str = "ended", end_k: int | None = None
) -> RunFolder:
    """Create the folder of a joined run, with 23 bytes of journal."""
    folder = JoinedRuns(home, "x").folder_of(run_id)
    start_ns = START_NS + start_k * SECOND_NS
    write_run(folder, Run(run_id, start_ns, "b", {}, state, "x"))
    write_atomically(folder.phases, "" if end_k is None else decision_line("end", end_k))
    write_atomically(folder.journal / "probe@b" / "000001.jsonl", "x" * 23)
    return folder


def ids(runs: JoinedRuns) -> list[str]:
    return [run.id for _, run in runs.joined()]


@pytest.mark.parametrize(
    ("state", "end_k", "is_resumed"),
    [
        ("running", None, True),  # as after a power cut
        ("interrupted", 100, True),
        ("failed", 100, True),
        ("running", 50, False),  # it ended meanwhile
        ("ended", None, False),
    ],
)
def test_an_interrupted_run_is_resumed_without_an_announcement(
    tmp_path: Path, state: str, end_k: int | None, *, is_resumed: bool
) -> None:
    """The cluster may be unreachable while a broker host boots; the grid of the run is on its disk."""
    joined_folder(tmp_path, "r0", start_k=-99, state="running")
    joined_folder(tmp_path, "r1", state=state, end_k=end_k)

    found = JoinedRuns(tmp_path, "x").unfinished(START_NS + 50 * SECOND_NS)

    assert (found is not None and found.id == "r1") is is_resumed
    assert found is None or found.id != "r0"


def test_folders_of_other_runs_are_not_resumed(tmp_path: Path) -> None:
    """Those of `--run-id`, of another plan, damaged ones, and renamed ones."""
    write_run(RunFolder(tmp_path / "x-r1"), Run("r1", START_NS, "b", {}, "running", "x"))
    damaged = joined_folder(tmp_path, "r2", state="running")
    damaged.run_json.write_text("{")
    joined_folder(tmp_path, "r3", state="running").path.rename(tmp_path / "x-old")
    other = joined_folder(tmp_path, "r4", state="running")
    write_run(other, Run("r4", START_NS, "b", {}, "running", "x-y"))

    assert JoinedRuns(tmp_path, "x").unfinished(START_NS) is None


def test_a_folder_is_joined_again_by_its_own_run_only(tmp_path: Path) -> None:
    """The same id with another start means other intervals."""
    joined_folder(tmp_path, "r1")
    runs = JoinedRuns(tmp_path, "x")

    assert runs.may_join(announcement("r1"))
    assert runs.may_join(announcement("r2", start_k=5))
    assert not runs.may_join(announcement("r1", start_k=5))


def test_the_oldest_runs_are_removed_first(tmp_path: Path) -> None:
    """A host runs for weeks: the folders of ended runs have a limit, and the present run stays."""
    for at, run_id in enumerate(["r3", "r1", "r4", "r2"]):
        joined_folder(tmp_path, run_id, start_k=at)
    runs = JoinedRuns(tmp_path, "x")
    size = sum(file.stat().st_size for file in (tmp_path / "x-r1").rglob("*") if file.is_file())

    runs.trim(4 * size + 100, keep="r3")
    before = ids(runs)
    runs.trim(2 * size + 50, keep="r3")

    assert (before, ids(runs)) == (["r3", "r1", "r4", "r2"], ["r3", "r4", "r2"])
