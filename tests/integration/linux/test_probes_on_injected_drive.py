"""Probes on a drive with injected faults: their values change when the drive does, and only then.

Needs root and FUSE; Debian: nbdkit nbdkit-plugin-python libnbd-bin fuse3.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan
from pathlib import Path
from statistics import median

import pytest

from soak.core.clock import SystemClock
from soak.core.cluster.drives import warnings
from soak.core.units import SECOND_NS
from soak.lab.drive import drive
from soak.lab.drive.throttle import Throttle
from soak.sampling.drive_check import measure
from tests.support.probes.probe_daemon import ProbeDaemon, Second

pytestmark = pytest.mark.slow

FLUSH, AWAIT = "fsync_latency_seconds 0.5", "disk_write_await_seconds"
WRITE_TIME, HANGING = "node_disk_write_time_seconds", "fsync_hanging_seconds"
DELAY = 0.01
HANG_SECONDS = 30


@pytest.fixture
def injected(tmp_path: Path) -> Iterator[drive.Drive]:
    lack = drive.missing_drive_tools()
    if lack:
        pytest.skip(lack)
    made = drive.start_drive(tmp_path / "drive")
    yield made
    made.close()


@pytest.fixture
def daemon(tmp_path: Path, injected: drive.Drive) -> Iterator[ProbeDaemon]:
    where = f"directory: {injected.mount_point}"
    probes = f"  fsync: {{{where}, period: 50ms}}\n  disk_io: {{{where}}}\n  host: {{}}\n"
    made = ProbeDaemon(tmp_path / "run", probes)
    yield made
    injected.answer()
    made.stop()


def typical(seconds: list[Second], metric: str) -> float:
    return median(second.values[metric] for second in seconds)


def test_a_slower_drive_changes_flush_await_and_write_time_within_two_seconds(
    injected: drive.Drive, daemon: ProbeDaemon
) -> None:
    """The first whole second with 10 ms more shows all three."""
    daemon.until(lambda found: len(found) > 2 and FLUSH in found[-1].values)
    before = daemon.whole_seconds(3)
    injected.answer(delay_seconds=DELAY)
    slow = daemon.whole_seconds(1)[0].values
    injected.answer()
    after = daemon.whole_seconds(3)[1:]

    for metric in (FLUSH, AWAIT):
        assert slow[metric] > typical(before, metric) + 0.8 * DELAY
        assert typical(after, metric) < slow[metric]
    assert slow[WRITE_TIME] > 1.5 * typical(before, WRITE_TIME)


def test_a_throttle_above_the_drive_changes_the_flush_and_not_the_device(
    injected: drive.Drive, daemon: ProbeDaemon
) -> None:
    """The flush waits above the device, whose latency stays the same."""
    throttle = Throttle(injected.device, writes_per_second=5)
    if throttle.missing:
        pytest.skip(throttle.missing)
    daemon.until(lambda found: len(found) > 2 and FLUSH in found[-1].values)
    before = daemon.whole_seconds(3)
    try:
        throttle.add(daemon.process.pid)
        slow = daemon.whole_seconds(4)[1:]
    finally:
        throttle.lift()

    moved = typical(slow, FLUSH) - typical(before, FLUSH)
    assert moved > 0.1
    assert typical(slow, AWAIT) - typical(before, AWAIT) < moved / 4


def values_of(seconds: list[Second], metric: str) -> list[float]:
    """Return the values that came in time: on a busy host a reading may miss its row."""
    return [value for one in seconds if not isnan(value := one.values[metric])]


def test_a_hanging_drive_blocks_no_other_probe(injected: drive.Drive, daemon: ProbeDaemon) -> None:
    """Seconds are recorded with the age of the hanging call, and the watchdog is fed.

    A busy host may miss a few.
    """
    daemon.until(lambda found: len(found) > 2 and FLUSH in found[-1].values)
    injected.stop_answering()
    daemon.until(lambda found: found[-1].values[HANGING] > 1.0)
    answers = daemon.watchdog_answers
    hung = daemon.whole_seconds(HANG_SECONDS)
    answers = daemon.watchdog_answers - answers
    injected.answer()
    after = daemon.until(
        lambda found: any(second.values[FLUSH] < 1.0 for second in found), hung[-1].k + 1
    )

    ages = values_of(hung, HANGING)
    assert hung[-1].k - hung[0].k < 1.2 * len(hung)
    assert ages == sorted(ages)
    assert ages[-1] - ages[0] > 0.8 * HANG_SECONDS
    assert answers >= HANG_SECONDS
    for metric in ("host_cpu_ratio", "node_disk_io_now"):
        assert len(values_of(hung, metric)) > len(hung) / 2
    assert min(values_of(hung, "node_disk_io_now")) > 0
    assert values_of(after, HANGING)[-1] < ages[0]


def test_the_drive_check_reports_that_a_drive_became_slower(injected: drive.Drive) -> None:
    """Measured without and with 10 ms a request: p99 more than doubles."""
    folder, clock = (str(injected.mount_point),), SystemClock()
    before = measure(folder, "before", 2 * SECOND_NS, "a", clock)
    injected.answer(delay_seconds=DELAY)
    after = measure(folder, "after", 2 * SECOND_NS, "a", clock)
    injected.answer()

    assert (before.trouble, after.trouble) == ("", "")
    assert before.state is not None
    assert before.state.devices == (injected.device,)
    assert (after.fsync_p50_seconds or 0) > (before.fsync_p50_seconds or 0) + DELAY
    assert any(f"fsync p99 of a:{folder[0]}" in warning for warning in warnings([before, after]))
