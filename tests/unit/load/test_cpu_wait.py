"""CPU wait of a process: that of the thread that waited longest, as the kernel counts it."""

from __future__ import annotations

import math
from pathlib import Path

from soak.core.clock import SystemClock
from soak.core.units import SECOND_NS
from soak.load.client_waits import CpuWaitMeter
from tests.support.fakes import FakeClock


def waited(tasks: Path, thread: int, waited_ns: int, ran_ns: int = 7) -> None:
    (tasks / str(thread)).mkdir(parents=True, exist_ok=True)
    (tasks / str(thread) / "schedstat").write_text(f"{ran_ns} {waited_ns} 3\n")


def test_the_thread_that_waited_longest_counts(tmp_path: Path) -> None:
    """NaN before the second call, and at most 1."""
    clock = FakeClock()
    waited(tmp_path, 1, 10 * SECOND_NS)
    waited(tmp_path, 2, 0)
    meter = CpuWaitMeter(clock, tmp_path)

    found = [meter.ratio()]
    for seconds, thread, waited_ns in ((2, 1, 10.5), (1, 2, 5.0), (1, 2, 5.0)):
        clock.advance(seconds)
        waited(tmp_path, thread, round(waited_ns * SECOND_NS))
        found.append(meter.ratio())

    assert math.isnan(found[0])
    assert found[1:] == [0.25, 1.0, 0.0]


def test_a_new_thread_counts_once_it_is_found(tmp_path: Path) -> None:
    """Threads are scanned now and then; threads that have ended are closed."""
    clock = FakeClock()
    waited(tmp_path, 1, 0)
    meter = CpuWaitMeter(clock, tmp_path)
    meter.ratio()
    waited(tmp_path, 2, 0)
    (tmp_path / "1" / "schedstat").write_text("")

    found = []
    for second in range(1, 15):
        clock.advance(1)
        waited(tmp_path, 2, second * SECOND_NS // 2)
        found.append(meter.ratio())

    assert all(map(math.isnan, found[:10]))
    assert found[10:] == [0.5] * 4


def test_a_kernel_that_does_not_count_gives_nan(tmp_path: Path) -> None:
    """No such file, no such folder, or only zeros."""
    clock = FakeClock()
    (tmp_path / "bare" / "1").mkdir(parents=True)
    waited(tmp_path / "zeros", 1, 0, ran_ns=0)
    meters = [CpuWaitMeter(clock, tmp_path / name) for name in ("bare", "zeros", "none")]
    for _ in range(2):
        clock.advance(1)
        assert all(math.isnan(meter.ratio()) for meter in meters)


def test_one_file_descriptor_a_thread_is_open() -> None:
    meter = CpuWaitMeter(SystemClock())
    before = len(list(Path("/proc/self/fd").iterdir()))
    meter.ratio()

    assert 0.0 <= meter.ratio() <= 1.0
    after = len(list(Path("/proc/self/fd").iterdir()))
    assert after - before <= len(list(Path("/proc/self/task").iterdir()))
