"""What is said of a run on the topic: whole or refused, and when it is a run that one can join."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from soak.core.clock import Grid
from soak.core.plan.phases import decision_line
from soak.core.units import SECOND_NS
from soak.runtime.context import PhaseFile
from soak.service.files import write_atomically
from soak.shipping.announcements import (
    ABANDONED_NS,
    AnnouncementListener,
    RunAnnouncer,
    RunFollower,
)
from soak.store.run_announcements import Announcement, parse_announcement
from soak.store.run_folder import Run, RunFolder
from tests.support.fakes import FakeClock
from tests.support.spoken_runs import START_NS, SpokenRuns, word


def test_what_is_said_comes_back() -> None:
    """A key of a later program is no reason to refuse the rest."""
    said = word(end_k=23)

    assert parse_announcement(said.to_text().encode()) == said
    assert parse_announcement(json.dumps({**asdict(said), "colour": "red"}).encode()) == said


@pytest.mark.parametrize(
    "changed",
    [
        {"run_id": "../../etc"},
        {"run_id": ""},
        {"run_id": 23},
        {"plan": None},
        {"start_wall_ns": "23"},
        {"start_wall_ns": True},
        {"end_k": ""},
        {"end_k": 2.5},
        {"is_over": 1},
    ],
)
def test_what_is_of_no_such_form_is_refused(changed: dict[str, object]) -> None:
    """Anybody may write to a topic, and an id becomes a folder's name."""
    text = json.dumps({**asdict(word()), **changed}).encode()

    with pytest.raises(ValueError, match="no announcement"):
        parse_announcement(text)


@pytest.mark.parametrize("text", [b"", b"[]", b"23", b"{}", b"\xff", b'{"plan": "x"'])
def test_what_is_no_announcement_is_refused(text: bytes) -> None:
    """As a line of a journal, or a half of one."""
    with pytest.raises(ValueError, match=r"\w"):
        parse_announcement(text)


@pytest.mark.parametrize(
    ("start_k", "end_k", "is_over", "goes_on"),
    [
        (0, None, False, True),
        (-23, 24, False, True),
        (-23, 23, False, False),  # the end is past
        (-23, 99, True, False),
        (60, None, False, True),  # begins in a minute
        (61, None, False, False),
    ],
)
def test_a_run_goes_on_from_a_minute_before_it_to_its_end(
    start_k: int, end_k: int | None, *, is_over: bool, goes_on: bool
) -> None:
    """One that is planned for tomorrow must end none of today."""
    said = word(start_k=start_k, end_k=end_k, is_over=is_over)

    assert said.goes_on(START_NS) is goes_on
    assert said.order == (START_NS + start_k * SECOND_NS, "r1")


# --- What the host that receives says of its run, and how often.


class Heard:
    """Keeps what was said."""

    def __init__(self) -> None:
        self.words: list[Announcement] = []
        self.is_closed = False

    def say(self, announcement: Announcement) -> None:
        self.words.append(announcement)

    def close(self) -> None:
        self.is_closed = True


def test_a_run_is_announced_every_five_seconds_with_its_end_and_when_it_is_over(
    tmp_path: Path,
) -> None:
    """A host that comes later hears it soon; one that is in the run hears where it ends."""
    clock, heard, phases = FakeClock(), Heard(), tmp_path / "phases.jsonl"
    run = Run("r1", START_NS, "a", {}, "running", "x")
    grid = Grid.anchored(START_NS, clock)
    announcing = RunAnnouncer(heard, run, PhaseFile(phases), grid, clock)

    for second in range(13):
        if second == 7:
            write_atomically(phases, decision_line("soak", 0) + decision_line("end", 12))
        announcing.poll()
        clock.advance(1)
    announcing.close()

    assert heard.words == [
        word(said_k=0),
        word(said_k=5),
        word(said_k=10, end_k=12),
        word(said_k=13, end_k=12, is_over=True),
    ]
    assert heard.is_closed


# --- A host in a run that was announced: when it ends there, and that it does not when it should not.

LOST_S = ABANDONED_NS // SECOND_NS


class Host:
    """Listens once a second, in run r1 that began with the clock."""

    def __init__(self, path: Path, said: Callable[[int], list[Announcement]]) -> None:
        self.clock = FakeClock()
        self.runs = SpokenRuns(self.clock, said)
        self.folder = RunFolder(path)
        self.refused: set[str] = set()
        self._following = RunFollower(
            self.folder,
            Run("r1", START_NS, "b", {}, "running", "x"),
            AnnouncementListener(self.runs, "x", self.clock),
            lambda one: one.run_id not in self.refused,
            Grid.anchored(START_NS, self.clock),
            self.clock,
        )

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self._following.poll()
            self.clock.advance(1)

    def listen(self, seconds: int) -> int | None:
        """Return the second in which the run ends here, as far as is known by then."""
        self.wait(seconds)
        return PhaseFile(self.folder.phases).poll().end_k


def often(*words: Announcement) -> Callable[[int], list[Announcement]]:
    return lambda second: list(words) if second % 5 == 0 else []


def test_it_ends_where_the_run_does(tmp_path: Path) -> None:
    """In the same second as every daemon of the run."""
    assert Host(tmp_path, often(word(end_k=100))).listen(23) == 100


def test_an_end_that_is_decided_anew_holds(tmp_path: Path) -> None:
    """Sooner by `soak stop`, or later where a backlog has to drain: the last word counts."""

    def said(second: int) -> list[Announcement]:
        return [word(end_k=100 if second < 10 else 60 if second < 20 else 300)]

    host = Host(tmp_path, said)

    assert [host.listen(10), host.listen(10), host.listen(10)] == [100, 60, 300]


def test_a_run_that_is_over_ends_now_whatever_this_clock_says(tmp_path: Path) -> None:
    """A clock that is behind would record for hours what nobody takes."""
    host = Host(tmp_path, lambda second: [word(end_k=1000, is_over=second >= 20)])

    assert host.listen(30) == 21


def test_a_newer_run_of_the_plan_ends_the_older(tmp_path: Path) -> None:
    """As of a run whose host died: nobody ever says that it is over."""
    host = Host(
        tmp_path, lambda second: [word(end_k=1000), *([word("r2", start_k=40)] * (second > 20))]
    )

    assert host.listen(30) == 22


@pytest.mark.parametrize(
    "other",
    [
        word("r0", start_k=-60),  # older
        word("r2", start_k=7200),  # of later
        word("r2", start_k=5, is_over=True),
        word("r2", start_k=5, plan="y"),
        word("mine", start_k=5),  # whose folder here is another run's
        word("r1", start_k=5),  # an id that two runs have
    ],
)
def test_no_other_run_ends_it(tmp_path: Path, other: Announcement) -> None:
    """Only one that this host would join instead."""
    host = Host(tmp_path, often(word(), other))
    host.refused.add("mine")

    assert host.listen(60) is None


def test_a_run_of_which_nothing_is_said_is_left_after_an_hour(tmp_path: Path) -> None:
    """A pause or a reboot over there is shorter; who died for good is not waited for."""
    host = Host(tmp_path, lambda second: [word()] if second < 23 else [])

    assert host.listen(LOST_S) is None
    assert host.listen(60) == 23 + LOST_S


def test_no_run_is_left_because_the_cluster_is_away(tmp_path: Path) -> None:
    """Records wait on the disk; silence tells something only where one can hear."""
    host = Host(tmp_path, lambda second: [word()] if second < 23 else [])
    host.listen(60)
    host.runs.is_away = True

    assert host.listen(3 * LOST_S) is None
    host.runs.is_away = False
    assert host.listen(LOST_S) is None
    assert host.listen(60) is not None


def test_an_end_that_the_disk_does_not_take_is_written_with_the_next_word(tmp_path: Path) -> None:
    """Nothing else ends this host's part."""
    host = Host(tmp_path / "b", often(word(end_k=100)))
    host.folder.path.write_text("")  # no folder, so nothing can be written into it

    host.wait(10)
    host.folder.path.unlink()

    assert host.listen(10) == 100
