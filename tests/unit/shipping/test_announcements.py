"""Announcements of a run: their form, when they are sent, and when a probe host ends with its run."""

from __future__ import annotations

import json
from collections.abc import Callable
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
from soak.store.run_announcements import MAX_PHASES, Announcement, parse_announcement
from soak.store.run_folder import Run, RunFolder
from tests.support.fakes import FakeClock
from tests.support.shipping.announced_runs import START_NS, FakeAnnouncements, announcement


def test_an_announcement_survives_the_topic() -> None:
    """Keys of later versions are ignored, and the keys of earlier ones are still the same."""
    sent = announcement(end_k=23)
    body = json.loads(sent.to_json())

    assert parse_announcement(json.dumps({**body, "colour": "red"}).encode()) == sent
    assert list(body) == ["plan", "run_id", "start_wall_ns", "end_k", "is_over", "said_wall_ns"]


def test_an_announcement_has_phases_and_detection_where_they_are_known() -> None:
    """A detector of many runs reads them; earlier programs neither send nor miss them."""
    sent = announcement(phases=((0, "warm-up"), (60, "soak")), detection='{"trigger": "5s"}')

    assert parse_announcement(sent.to_json().encode()) == sent


@pytest.mark.parametrize(
    "changed",
    [
        {"phases": 23},
        {"phases": [[0, "nap"]]},
        {"phases": [["0", "soak"]]},
        {"phases": [[0, "soak", 1]]},
        {"phases": [[9, "soak"], [0, "end"]]},
        {"phases": [[k, "soak"] for k in range(MAX_PHASES + 1)]},
        {"detection": {}},
        {"detection": "x" * 100_001},
        {"run_id": "../../etc"},
        {"run_id": ""},
        {"run_id": 23},
        {"plan": None},
        {"start_wall_ns": "23"},
        {"start_wall_ns": True},
        {"said_wall_ns": 10**4000},
        {"end_k": -(2**63)},
        {"end_k": ""},
        {"end_k": 2.5},
        {"is_over": 1},
    ],
)
def test_a_message_of_another_form_is_refused(changed: dict[str, object]) -> None:
    """Anybody may write to a topic, and an id becomes the name of a folder."""
    text = json.dumps({**json.loads(announcement().to_json()), **changed}).encode()

    with pytest.raises(ValueError, match="no announcement"):
        parse_announcement(text)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"23", b"{}", b"\xff", b'{"plan": "x"', b"[" * 100_000]
)
def test_other_messages_are_refused(text: bytes) -> None:
    """Such as a line of a journal, or a part of one."""
    with pytest.raises(ValueError, match=r"\w"):
        parse_announcement(text)


@pytest.mark.parametrize(
    ("start_k", "end_k", "is_over", "is_ongoing"),
    [
        (0, None, False, True),
        (-23, 24, False, True),
        (-23, 23, False, False),  # the end is past
        (-23, 99, True, False),
        (60, None, False, True),  # begins in a minute
        (61, None, False, False),
    ],
)
def test_a_run_is_ongoing_from_a_minute_before_its_start_to_its_end(
    start_k: int, end_k: int | None, *, is_over: bool, is_ongoing: bool
) -> None:
    """A run of tomorrow must end none of today."""
    sent = announcement(start_k=start_k, end_k=end_k, is_over=is_over)

    assert sent.is_ongoing(START_NS) is is_ongoing
    assert sent.order == (START_NS + start_k * SECOND_NS, "r1")


class SentAnnouncements:
    """Keeps the announcements that were sent."""

    def __init__(self) -> None:
        self.sent: list[Announcement] = []
        self.is_closed = False

    def send(self, announcement: Announcement) -> None:
        self.sent.append(announcement)

    def close(self) -> None:
        self.is_closed = True


def test_a_run_is_announced_every_five_seconds_with_its_end_and_when_it_is_over(
    tmp_path: Path,
) -> None:
    """A host that comes later joins soon, and one that has joined learns the end."""
    clock, target, phases = FakeClock(), SentAnnouncements(), tmp_path / "phases.jsonl"
    run = Run("r1", START_NS, "a", {}, "running", "x")
    grid = Grid.anchored(START_NS, clock)
    announcer = RunAnnouncer(target, run, PhaseFile(phases), grid, clock, "{}")

    for second in range(13):
        if second == 7:
            write_atomically(phases, decision_line("soak", 0) + decision_line("end", 12))
        announcer.poll()
        clock.advance(1)
    announcer.close()

    phases_sent = ((0, "soak"), (12, "end"))
    assert target.sent == [
        announcement(sent_k=0, detection="{}"),
        announcement(sent_k=5, detection="{}"),
        announcement(sent_k=10, detection="{}", end_k=12, phases=phases_sent),
        announcement(sent_k=13, detection="{}", end_k=12, phases=phases_sent, is_over=True),
    ]
    assert target.is_closed


ABANDONED_S = ABANDONED_NS // SECOND_NS


class ProbeHost:
    """Polls once a second, in run r1 that began with the clock."""

    def __init__(self, path: Path, sent: Callable[[int], list[Announcement]]) -> None:
        self.clock = FakeClock()
        self.runs = FakeAnnouncements(self.clock, sent)
        self.folder = RunFolder(path)
        self.refused: set[str] = set()
        self._follower = RunFollower(
            self.folder,
            Run("r1", START_NS, "b", {}, "running", "x"),
            AnnouncementListener(self.runs, "x", self.clock),
            lambda one: one.run_id not in self.refused,
            Grid.anchored(START_NS, self.clock),
            self.clock,
        )

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self._follower.poll()
            self.clock.advance(1)

    def end_after(self, seconds: int) -> int | None:
        """Return the end of the run that this host knows after so many seconds."""
        self.wait(seconds)
        return PhaseFile(self.folder.phases).poll().end_k


def every_five(*sent: Announcement) -> Callable[[int], list[Announcement]]:
    return lambda second: list(sent) if second % 5 == 0 else []


def test_a_host_ends_with_its_run(tmp_path: Path) -> None:
    """In the same interval as every daemon of the run."""
    assert ProbeHost(tmp_path, every_five(announcement(end_k=100))).end_after(23) == 100


def test_the_last_announced_end_counts(tmp_path: Path) -> None:
    """`soak stop` makes it earlier, and a backlog that has to drain makes it later."""

    def sent(second: int) -> list[Announcement]:
        return [announcement(end_k=100 if second < 10 else 60 if second < 20 else 300)]

    host = ProbeHost(tmp_path, sent)

    assert [host.end_after(10), host.end_after(10), host.end_after(10)] == [100, 60, 300]


def test_a_run_that_is_over_ends_now_although_this_clock_is_behind(tmp_path: Path) -> None:
    """Otherwise it would record for hours without a receiver."""
    host = ProbeHost(tmp_path, lambda second: [announcement(end_k=1000, is_over=second >= 20)])

    assert host.end_after(30) == 21


def test_a_newer_run_of_the_plan_ends_the_older(tmp_path: Path) -> None:
    """The host of a run may die, and then no announcement says that it is over."""
    host = ProbeHost(
        tmp_path,
        lambda second: [
            announcement(end_k=1000),
            *([announcement("r2", start_k=40)] * (second > 20)),
        ],
    )

    assert host.end_after(30) == 22


@pytest.mark.parametrize(
    "other",
    [
        announcement("r0", start_k=-60),  # older
        announcement("r2", start_k=7200),  # not yet
        announcement("r2", start_k=5, is_over=True),
        announcement("r2", start_k=5, plan="y"),
        announcement("mine", start_k=5),  # its folder here is that of another run
        announcement("r1", start_k=5),  # two runs with one id
    ],
)
def test_no_other_run_ends_it(tmp_path: Path, other: Announcement) -> None:
    """Only a run that this host would join instead."""
    host = ProbeHost(tmp_path, every_five(announcement(), other))
    host.refused.add("mine")

    assert host.end_after(60) is None


def test_a_run_without_announcements_is_left_after_an_hour(tmp_path: Path) -> None:
    """A pause or a reboot of the other host is shorter."""
    host = ProbeHost(tmp_path, lambda second: [announcement()] if second < 23 else [])

    assert host.end_after(ABANDONED_S) is None
    assert host.end_after(60) == 23 + ABANDONED_S


def test_a_run_is_not_left_while_the_cluster_is_unreachable(tmp_path: Path) -> None:
    """Records wait on disk, and silence means nothing while the topic cannot be read."""
    host = ProbeHost(tmp_path, lambda second: [announcement()] if second < 23 else [])
    host.end_after(60)
    host.runs.is_away = True

    assert host.end_after(3 * ABANDONED_S) is None
    host.runs.is_away = False
    assert host.end_after(ABANDONED_S) is None
    assert host.end_after(60) is not None


def test_an_end_that_was_not_written_is_written_with_the_next_announcement(tmp_path: Path) -> None:
    """Nothing else ends the recording of this host."""
    host = ProbeHost(tmp_path / "b", every_five(announcement(end_k=100)))
    host.folder.path.write_text("")  # no folder, so nothing can be written into it

    host.wait(10)
    host.folder.path.unlink()

    assert host.end_after(10) == 100
