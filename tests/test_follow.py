"""A host in a run that was announced: when it ends there, and that it does not when it should not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from soak.core.announcement import Announcement
from soak.core.clock import Grid
from soak.core.units import SECOND_NS
from soak.daemons.context import PhaseFile
from soak.daemons.follow import LOST_NS, Following
from soak.daemons.listening import Listening
from soak.store.run_folder import Run, RunFolder
from tests.fakes import FakeClock
from tests.spoken_runs import START_NS, SpokenRuns, word

LOST_S = LOST_NS // SECOND_NS


class Host:
    """Listens once a second, in run r1 that began with the clock."""

    def __init__(self, path: Path, said: Callable[[int], list[Announcement]]) -> None:
        self.clock = FakeClock()
        self.runs = SpokenRuns(self.clock, said)
        self.folder = RunFolder(path)
        self.refused: set[str] = set()
        self._following = Following(
            self.folder,
            Run("r1", START_NS, "b", {}, "running", "x"),
            Listening(self.runs, "x", self.clock),
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
