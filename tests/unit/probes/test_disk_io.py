"""The disk probe: recorded kernels in, exact rates out."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes import disk_io
from probes.common.block_device import SystemPaths
from probes.common.counters import Deltas
from probes.disk_io import Config, DiskIo
from soak.core.errors import NotAvailableError, ProbeError, SoakError
from tests.support.fakes import FakeClock
from tests.support.paths import RECORDED
from tests.support.probes.sys_tree import on, sys_tree

SDA2, SDA = (8, 2), (8, 0)
CAPACITY_SECTORS = 8_192_000
TEXT = (RECORDED / "linux-6.18/before/diskstats").read_text()

LEVELS = {
    "node_disk_io_now",
    "disk_capacity_bytes",
    "disk_turnover_ratio",
    "disk_device_turnover_ratio",
}
_MEMBER = "259 {minor} nvme{at}n1 0 0 0 0 10 0 {sectors} 20 0 20 20 0 0 0 0 {flushes} {ms}\n"
_ARRAY = "9 127 md127 0 0 0 0 {writes} 0 0 {ms} 0 {ms} {ms} 0 0 0 0 0 0\n"
ARRAY_BEFORE = (
    _ARRAY.format(writes=10, ms=20)
    + _MEMBER.format(minor=0, at=0, sectors=500, flushes=1, ms=1)
    + _MEMBER.format(minor=3, at=1, sectors=1000, flushes=1, ms=1)
)
ARRAY_AFTER = (
    _ARRAY.format(writes=20, ms=40)
    + _MEMBER.format(minor=0, at=0, sectors=2500, flushes=11, ms=11)
    + _MEMBER.format(minor=3, at=1, sectors=3000, flushes=11, ms=41)
)

BASE = {
    "node_disk_io_now": 3.0,
    "node_disk_reads_completed": 11.5,
    "node_disk_reads_merged": 1.0,
    "node_disk_read_bytes": 4096 * 512 / 2,
    "node_disk_read_time_seconds": 0.023,
    "node_disk_writes_completed": 50.0,
    "node_disk_writes_merged": 25.0,
    "node_disk_written_bytes": 8192 * 512 / 2,
    "node_disk_write_time_seconds": 0.115,
    "node_disk_io_time_seconds": 0.65,
    "node_disk_io_time_weighted_seconds": 1.38,
    "disk_queue_length": 1.38,
    "disk_read_await_seconds": 0.002,
    "disk_write_await_seconds": 0.0023,
    "disk_capacity_bytes": CAPACITY_SECTORS * 512,
    "disk_turnover_ratio": 8192 / CAPACITY_SECTORS,
}
DISCARDS = {
    "node_disk_discards_completed": 2.0,
    "node_disk_discards_merged": 0.0,
    "node_disk_discarded_sectors": 1024.0,
    "node_disk_discard_time_seconds": 0.004,
    "disk_discard_await_seconds": 0.002,
}
FLUSHES = {
    "node_disk_flush_requests": 10.0,
    "node_disk_flush_requests_time_seconds": 0.023,
    "disk_flush_await_seconds": 0.0023,
}


def since_boot(kernel: str) -> dict[str, float]:
    """Return the drive's turn-over since the kernel knows it, as the later recording has it."""
    lines = (RECORDED / kernel / "after/diskstats").read_text().splitlines()
    (written,) = (line.split()[9] for line in lines if line.split()[2] == "sda")
    return {"disk_device_turnover_ratio": int(written) / CAPACITY_SECTORS}


class Machine:
    """A probe whose /proc can be swapped between readings."""

    def __init__(
        self, tmp_path: Path, kernel: str, number: tuple[int, int] = SDA2, tree: str = "lvm"
    ) -> None:
        self.clock = FakeClock()
        self.proc = tmp_path / "proc"
        self.proc.mkdir()
        self.kernel = kernel
        self.boot("before")
        self.paths = SystemPaths(self.proc, sys_tree(tmp_path / "sys", tree), lambda _: on(*number))
        self.probe = DiskIo(
            Config(directory="/data"),
            self.clock,
            paths=self.paths,
        )

    def boot(self, moment: str) -> None:
        self.show((RECORDED / self.kernel / moment / "diskstats").read_text())

    def show(self, text: str) -> None:
        (self.proc / "diskstats").write_text(text)

    def read(self) -> dict[str, float]:
        return {column.metric: value for column, value in self.probe.read().samples}


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("linux-3.10", BASE),
        ("linux-5.4", BASE | DISCARDS),
        ("linux-6.18", BASE | DISCARDS | FLUSHES),
    ],
)
def test_each_kernel_format_has_its_exact_rates(
    tmp_path: Path, kernel: str, expected: dict[str, float]
) -> None:
    """Two seconds lie between the recorded readings; counters that the kernel lacks are absent."""
    machine = Machine(tmp_path, kernel)
    machine.read()
    machine.clock.advance(2)
    machine.boot("after")

    assert machine.read() == pytest.approx(expected | since_boot(kernel), rel=1e-12)


def test_a_volume_has_its_own_counters_and_the_flushes_of_its_drive(tmp_path: Path) -> None:
    """The kernel counts flushes for whole drives only."""
    machine = Machine(tmp_path, "linux-6.18", (254, 0))
    machine.probe.read()
    machine.clock.advance(2)
    machine.boot("after")

    found = {column.name: value for column, value in machine.probe.read().samples}

    assert found['disk_write_await_seconds{device="dm-0"}'] == pytest.approx(0.0046)
    assert found['disk_flush_await_seconds{device="sda"}'] == pytest.approx(0.0023)
    assert found['disk_turnover_ratio{device="sda"}'] == 8192 / CAPACITY_SECTORS


def test_the_first_reading_has_no_rates(tmp_path: Path) -> None:
    """There is nothing to compare with yet."""
    assert set(Machine(tmp_path, "linux-6.18").read()) == LEVELS


def test_a_counter_that_falls_is_missing_and_not_negative(tmp_path: Path) -> None:
    """A wrap or a re-created device must not look like a rate; the next second is right again."""
    machine = Machine(tmp_path, "linux-6.18")
    machine.boot("after")
    machine.read()
    machine.clock.advance(2)
    machine.boot("before")
    fallen = machine.read()
    machine.clock.advance(2)
    machine.boot("after")
    again = machine.read()

    assert all(value >= 0 for value in fallen.values())
    assert "node_disk_written_bytes" not in fallen
    assert again == pytest.approx(BASE | DISCARDS | FLUSHES | since_boot("linux-6.18"))


def test_drive_writes_grow_with_the_written_bytes(tmp_path: Path) -> None:
    """They count from the start of the probe and survive a reset of the counters."""
    machine = Machine(tmp_path, "linux-6.18")
    found = []
    for moment in ("before", "after", "before", "after"):
        machine.boot(moment)
        found.append(machine.read()["disk_turnover_ratio"] * CAPACITY_SECTORS)
        machine.clock.advance(1)

    assert found == pytest.approx([0, 8192, 8192, 16384])


def test_without_requests_there_is_no_latency(tmp_path: Path) -> None:
    """An idle drive has no await; zero would look perfect."""
    machine = Machine(tmp_path, "linux-6.18")
    machine.read()
    machine.clock.advance(1)

    idle = machine.read()

    assert not any("await" in metric for metric in idle)
    assert idle["node_disk_io_time_seconds"] == 0.0


def test_two_readings_at_one_instant_have_no_rates(tmp_path: Path) -> None:
    """Nothing is divided by zero."""
    machine = Machine(tmp_path, "linux-6.18")
    machine.read()

    assert set(machine.read()) == LEVELS


def test_a_drive_that_is_mounted_later_is_measured(tmp_path: Path) -> None:
    """The device is looked up once a minute; its counters start with its first reading."""
    machine = Machine(tmp_path, "linux-6.18", (254, 0))
    number = [(254, 0)]
    machine.probe = DiskIo(
        Config(directory="/data"),
        machine.clock,
        paths=SystemPaths(machine.proc, machine.paths.sys, lambda _: on(*number[0])),
    )
    machine.probe.read()
    number[0] = (8, 2)
    machine.clock.advance(61)
    for _ in range(2000):
        found = {column.name for column, _ in machine.probe.read().samples}
        if 'node_disk_io_now{device="sda2"}' in found:
            break
        threading.Event().wait(0.01)

    assert 'node_disk_io_now{device="sda2"}' in found
    assert not any('device="dm-0"' in name for name in found)
    assert not any("await" in name for name in found)


def test_a_missing_directory_is_not_available(tmp_path: Path) -> None:
    """The message names it."""
    probe = DiskIo(Config(directory=str(tmp_path / "nowhere")), FakeClock())

    with pytest.raises(NotAvailableError, match="nowhere"):
        probe.read()


def test_an_array_has_flushes_and_writes_of_each_drive(tmp_path: Path) -> None:
    """Its own counters are those of its level; wear belongs to the drives."""
    machine = Machine(tmp_path, "linux-6.18", (9, 127), "md-raid1")
    machine.show(ARRAY_BEFORE)
    machine.read()
    machine.clock.advance(2)
    machine.show(ARRAY_AFTER)

    found = {column.name: value for column, value in machine.probe.read().samples}

    assert found['disk_write_await_seconds{device="md127"}'] == pytest.approx(0.002)
    assert found['disk_flush_await_seconds{device="nvme0n1"}'] == pytest.approx(0.001)
    assert found['disk_flush_await_seconds{device="nvme1n1"}'] == pytest.approx(0.004)
    assert found['disk_turnover_ratio{device="nvme1n1"}'] == 2000 / 1_875_385_008
    assert found['disk_device_turnover_ratio{device="nvme1n1"}'] == 3000 / 1_875_385_008


def test_a_device_without_a_line_is_not_available() -> None:
    """The kernel keeps no statistics for some."""
    with pytest.raises(NotAvailableError, match="9:127"):
        disk_io.find_line(TEXT, (9, 127))


def test_newer_kernels_may_add_fields_at_the_end() -> None:
    """They are ignored."""
    longer = TEXT.replace(" 7421 458\n", " 7421 458 23 42\n")

    assert disk_io.find_line(longer, SDA) == disk_io.find_line(TEXT, SDA)


@settings(max_examples=300)
@given(cut=st.integers(0, len(TEXT)))
def test_a_cut_text_is_an_error_or_the_same_number(cut: int) -> None:
    """A cut last number must not be taken for a smaller one."""
    whole = disk_io.find_line(TEXT, SDA)
    try:
        found = disk_io.find_line(TEXT[:cut], SDA)
    except (ProbeError, NotAvailableError):
        return

    assert found == whole


@settings(max_examples=300)
@given(at=st.integers(0, len(TEXT) - 1), junk=st.text(max_size=8))
def test_damaged_text_is_parsed_or_an_error(at: int, junk: str) -> None:
    """A line of whole numbers, or one of our errors."""
    try:
        found = disk_io.find_line(TEXT[:at] + junk + TEXT[at + len(junk) :], SDA)
    except SoakError:
        return

    assert all(value >= 0 for value in found.fields.values())


@given(
    counters=st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 2**64)), max_size=8),
    steps=st.lists(st.integers(0, 3), min_size=8, max_size=8),
)
def test_no_history_of_counters_has_a_negative_rate(
    counters: list[dict[str, int]], steps: list[int]
) -> None:
    """Counters may vanish, come back, fall, and be read twice at once."""
    deltas: Deltas[str] = Deltas()
    now = 0
    for values, step in zip(counters, steps, strict=False):
        now += step * 10**9
        grown = deltas.take(values, now)
        rates = [grown.per_second(key) for key in "abc"]

        assert all(rate is None or rate >= 0 for rate in rates)
