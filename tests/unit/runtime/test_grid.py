"""Where a run's start lies on a host's clocks, however the wall clock is moved afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.core.clock import Grid, RunClock
from soak.core.header import boot_of
from soak.core.units import SECOND_NS
from soak.runtime.grid import anchored_grid, boot_id, boot_id_for_messages, is_anchored
from tests.support.fakes import FakeClock

START = 1_790_000_000 * SECOND_NS


def test_a_daemon_that_starts_after_a_clock_step_counts_the_same_seconds(tmp_path: Path) -> None:
    """Two hours ahead on the wall are no two hours of the run."""
    clock = FakeClock(mono_ns=7 * SECOND_NS, wall_ns=START)
    first = anchored_grid(tmp_path / "a.json", "boot", START, clock)
    clock.advance(60)
    clock.step_wall(7200)
    again = anchored_grid(tmp_path / "a.json", "boot", START, clock)

    assert again == first
    assert again.interval_index_at(clock.mono_ns()) == 60


def test_a_suspend_is_time_of_the_run(tmp_path: Path) -> None:
    """The monotonic clock stood still: an epoch that begins after it must not be behind."""
    clock = FakeClock(wall_ns=START)
    anchored_grid(tmp_path / "a.json", "boot", START, clock)
    clock.advance(10)
    clock.suspend(300)

    assert (
        anchored_grid(tmp_path / "a.json", "boot", START, clock).interval_index_at(clock.mono_ns())
        == 310
    )


def test_who_decides_counts_on_over_a_suspend_and_a_clock_step() -> None:
    clock = FakeClock(mono_ns=7 * SECOND_NS, wall_ns=START)
    seconds = RunClock.on(Grid.anchored(START, clock), clock)
    clock.advance(10)
    clock.step_wall(3600)
    clock.suspend(300)

    assert seconds.interval_index() == 310


@pytest.mark.parametrize(
    ("boot", "start_ns", "text"),
    [
        ("other", START, ""),
        ("boot", START + SECOND_NS, ""),
        ("boot", START, "{"),
        ("boot", START, "[]"),
    ],
)
def test_another_boot_goes_by_the_wall_clock(
    tmp_path: Path, boot: str, start_ns: int, text: str
) -> None:
    """As does another run's file, or one that is damaged; what is found is kept."""
    path = tmp_path / "a.json"
    anchored_grid(path, "boot", START, FakeClock(wall_ns=START))
    if text:
        path.write_text(text)
    clock = FakeClock(mono_ns=5 * SECOND_NS, wall_ns=START + 90 * SECOND_NS)
    grid = anchored_grid(path, boot, start_ns, clock)
    clock.step_wall(-3600)

    assert grid.interval_index_at(clock.mono_ns()) == 90 - (start_ns - START) // SECOND_NS
    assert anchored_grid(path, boot, start_ns, clock) == grid


def test_a_full_drive_keeps_no_daemon_from_starting(tmp_path: Path) -> None:
    """It counts by the wall clock, as it would have."""
    (tmp_path / "anchors").write_text("a file where the folder is to be")
    clock = FakeClock(wall_ns=START + 20 * SECOND_NS)

    assert (
        anchored_grid(tmp_path / "anchors/a.json", "boot", START, clock).interval_index_at(
            clock.mono_ns()
        )
        == 20
    )


def test_of_another_boot_or_run_it_is_not_known(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    before = is_anchored(path, "boot", START)
    anchored_grid(path, "boot", START, FakeClock(wall_ns=START))

    assert not before
    assert is_anchored(path, "boot", START)
    assert not is_anchored(path, "next boot", START)
    assert not is_anchored(path, "boot", START + 1)


@pytest.mark.parametrize("content", [None, "", "\n"])
def test_an_unknown_boot_equals_no_other(tmp_path: Path, content: str | None) -> None:
    """Two machines without a boot id must not take each other's monotonic clock for their own."""
    path = tmp_path / "boot_id"
    if content is not None:
        path.write_text(content)

    assert boot_of(boot_id_for_messages(path)) != boot_of(boot_id_for_messages(path))
    assert boot_id(path) == boot_id(path) != ""  # in files of this host, which only it reads


def test_a_boot_has_one_id(tmp_path: Path) -> None:
    path = tmp_path / "boot_id"
    path.write_text("0f5c\n")

    assert boot_id(path) == boot_id_for_messages(path) == "0f5c"


def test_the_anchor_of_version_0_1_0_is_recognised(tmp_path: Path) -> None:
    """It stored the boot id with a newline."""
    path = tmp_path / "a.json"
    anchored_grid(path, "boot\n", START, FakeClock(wall_ns=START))

    assert is_anchored(path, "boot", START)
