"""How long a process waited for a processor, as the kernel counts it: the thread that waited longest."""

from __future__ import annotations

import math
from pathlib import Path

from soak.core.clock import SystemClock
from soak.core.units import SECOND_NS
from soak.daemons.cpu_wait import WaitMeter
from tests.fakes import FakeClock


def waited(tasks: Path, thread: int, waited_ns: int) -> None:
    (tasks / str(thread)).mkdir(parents=True, exist_ok=True)
    (tasks / str(thread) / "schedstat").write_text(f"7 {waited_ns} 3\n")


def test_the_thread_that_waited_longest_since_the_last_call_counts(tmp_path: Path) -> None:
    """One that is new counts from its start, one that has ended is gone; nothing passes the whole time."""
    clock = FakeClock()
    waited(tmp_path, 1, 10 * SECOND_NS)
    waited(tmp_path, 2, 0)
    meter = WaitMeter(clock, tmp_path)

    clock.advance(2)
    waited(tmp_path, 1, 10 * SECOND_NS + SECOND_NS // 2)
    waited(tmp_path, 3, SECOND_NS)
    first = meter.ratio()
    clock.advance(1)
    (tmp_path / "3" / "schedstat").unlink()
    waited(tmp_path, 2, 5 * SECOND_NS)

    assert (first, meter.ratio()) == (0.5, 1.0)


def test_a_kernel_that_counts_nothing_gives_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    (tmp_path / "1").mkdir()
    meters = WaitMeter(clock, tmp_path), WaitMeter(clock, tmp_path / "none")
    clock.advance(1)

    assert all(math.isnan(meter.ratio()) for meter in meters)


def test_this_kernel_counts() -> None:
    assert 0.0 <= WaitMeter(SystemClock()).ratio() <= 1.0
