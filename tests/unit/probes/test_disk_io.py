"""The disk probe: recorded kernels in, exact rates out."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes import disk_io
from probes.common.block_device import PathNumbers, SystemPaths
from probes.common.counters import Deltas
from probes.disk_io import Config, DiskIo
from soak.core.errors import NotAvailableError, ProbeError, SoakError
from tests.support.examples import examples
from tests.support.fakes import FakeClock
from tests.support.paths import RECORDED
from tests.support.probes.sys_tree import on, remove_device, sys_tree

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


def test_a_container_without_statistics_is_not_available(tmp_path: Path) -> None:
    """Virtuozzo's has neither them nor the folder of its device."""
    machine = Machine(tmp_path, "linux-6.18", (182, 1))
    (machine.proc / "diskstats").unlink()

    with pytest.raises(NotAvailableError, match=r"there is no .*/diskstats"):
        machine.probe.read()


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


def lines_of(text: str, *names: str) -> str:
    """Return the lines of these devices."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if line.split()[2] in names)


def test_a_drive_that_is_removed_costs_no_other_its_numbers(tmp_path: Path) -> None:
    """An array goes on without it, and so do its numbers in the second in which it vanishes and later."""
    machine = Machine(tmp_path, "linux-6.18", (9, 127), "md-raid1")
    machine.show(ARRAY_BEFORE)
    machine.read()
    remove_device(machine.paths.sys, "nvme1n1")
    machine.show(lines_of(ARRAY_AFTER, "md127", "nvme0n1"))
    found = []
    for _ in range(3):
        machine.clock.advance(2)
        found.append({column.name: value for column, value in machine.probe.read().samples})

    assert found[0]['disk_write_await_seconds{device="md127"}'] == pytest.approx(0.002)
    assert found[0]['disk_flush_await_seconds{device="nvme0n1"}'] == pytest.approx(0.001)
    assert all('node_disk_writes_completed{device="md127"}' in one for one in found)
    assert all('disk_capacity_bytes{device="nvme0n1"}' in one for one in found)
    assert {
        name for one in found for name in one if "md127" not in name and "nvme0n1" not in name
    } == set()


def test_a_spare_that_replaces_a_removed_drive_is_measured_at_the_next_reading(
    tmp_path: Path,
) -> None:
    """Its rebuild begins at once, long before the device is looked up again anyway."""
    machine = Machine(tmp_path, "linux-6.18", (9, 127), "md-raid1")
    spare = machine.paths.sys / "devices/virtual/block/md127/slaves/nvme0n1p1"
    place = spare.readlink()
    spare.unlink()
    machine.show(ARRAY_BEFORE)
    machine.read()
    remove_device(machine.paths.sys, "nvme1n1")
    spare.symlink_to(place)
    machine.show(lines_of(ARRAY_AFTER, "md127", "nvme0n1"))
    machine.clock.advance(1)
    machine.read()
    machine.clock.advance(1)

    found = {column.name for column, _ in machine.probe.read().samples}

    assert 'disk_capacity_bytes{device="nvme0n1"}' in found


def test_a_drive_that_comes_back_as_another_is_measured_at_the_next_try(tmp_path: Path) -> None:
    """What is not available is read once a minute, so that reading must not ask for the old one again."""
    machine = Machine(tmp_path, "linux-6.18")
    number = [(8, 2)]

    def numbers(_path: str) -> PathNumbers:
        threading.Event().wait(0.01)  # as a system call lets other threads run
        return on(*number[0])

    paths = SystemPaths(machine.proc, machine.paths.sys, numbers)
    machine.probe = DiskIo(Config(directory="/data"), machine.clock, paths=paths)
    machine.read()
    machine.show("")
    machine.clock.advance(1)
    with pytest.raises(NotAvailableError):
        machine.read()
    number[0] = (254, 0)
    machine.boot("after")
    machine.clock.advance(60)

    found = {column.name for column, _ in machine.probe.read().samples}

    assert 'node_disk_io_now{device="dm-0"}' in found


NVME_PATHS = (  # 1,000 writes of 128 KiB by the first path, 500 by the second, in one second
    (
        "   0       0 nvme3c33n1 1000 0 80000 500 67000 100 17000000 58000 0 584 36052 0 0 0 0 900 1800\n"
        " 259      13 nvme3n1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
        "   0       0 nvme3c34n1 10 0 800 5 670 1 170000 580 0 84 636 0 0 0 0 90 180\n"
    ),
    (
        "   0       0 nvme3c33n1 1000 0 80000 500 68000 100 17256000 66000 2 1580 44052 0 0 0 0 950 5800\n"
        " 259      13 nvme3n1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
        "   0       0 nvme3c34n1 10 0 800 5 1170 1 298000 8580 0 94 8636 0 0 0 0 140 1180\n"
    ),
)
MD_WITHOUT_TIMES = (  # a kernel before 5.10: 2,000 writes of 20 ms below an array
    (
        "   9     127 md127 5000 0 400000 0 900000 0 72000000 0 0 0 0 0 0 0 0\n"
        " 259       0 nvme0n1 2500 0 200000 1250 450000 0 36000000 900000 0 800000 901250 0 0 0 0\n"
        " 259       3 nvme1n1 2500 0 200000 1250 450000 0 36000000 900000 0 800000 901250 0 0 0 0\n"
    ),
    (
        "   9     127 md127 5000 0 400000 0 902000 0 72256000 0 0 0 0 0 0 0 0\n"
        " 259       0 nvme0n1 2500 0 200000 1250 451000 0 36128000 920000 0 801000 921250 0 0 0 0\n"
        " 259       3 nvme1n1 2500 0 200000 1250 451000 0 36128000 920000 0 801000 921250 0 0 0 0\n"
    ),
)
LXCFS = (  # writes fourteen values, and no weighted time
    "8       0 sda 0 0 0 0 46 0 977 34 0 2 0 0 0 0\n8       2 sda2 0 0 0 0 46 0 977 34 0 2 0 0 0 0\n",
    "8       0 sda 0 0 0 0 146 0 9770 340 0 20 0 0 0 0\n8       2 sda2 0 0 0 0 146 0 9770 340 0 20 0 0 0 0\n",
)


def second_of(machine: Machine, texts: tuple[str, str]) -> dict[str, float]:
    machine.show(texts[0])
    machine.probe.read()
    machine.clock.advance(1)
    machine.show(texts[1])
    return {column.name: value for column, value in machine.probe.read().samples}


def test_a_drive_that_is_counted_by_path_has_the_sum_of_its_paths(tmp_path: Path) -> None:
    """The multipath head of an NVMe drive has a line of zeros; they are not a drive at rest."""
    machine = Machine(tmp_path, "linux-6.18", (259, 13), "nvme-multipath")

    found = second_of(machine, NVME_PATHS)

    assert found['node_disk_writes_completed{device="nvme3n1"}'] == 1500
    assert found['node_disk_written_bytes{device="nvme3n1"}'] == (256_000 + 128_000) * 512
    assert found['disk_write_await_seconds{device="nvme3n1"}'] == pytest.approx(16 / 1500)
    assert found['disk_flush_await_seconds{device="nvme3n1"}'] == pytest.approx(0.05)
    assert found['disk_device_turnover_ratio{device="nvme3n1"}'] == 17_554_000 / 2_000_000_000


def test_a_path_that_connects_again_is_no_burst_of_requests(tmp_path: Path) -> None:
    """It has a new name, and its first count is no growth; idle paths and another drive add nothing."""
    machine = Machine(tmp_path, "linux-6.18", (259, 13), "nvme-multipath")
    idle = " 259      13 nvme3n1 {zeros}\n   0       0 nvme3c36n1 {zeros}\n".format(zeros="0 " * 17)
    path = "   0       0 nvme{name}n1 0 0 0 0 {count} 0 {count} {count} 0 {count} {count} 0 0 0 0 0 0\n"
    found = []
    for second, paths in enumerate(
        (
            {"3c33": 67_000, "3c34": 670},
            {"3c34": 1170, "3c35": 60_000},  # in place of the first one
            {"3c34": 1170, "3c35": 61_000},
        )
    ):
        named = {**paths, "30c33": 9000 * second}
        lines = [path.format(name=name, count=count) for name, count in named.items()]
        machine.show(idle + "".join(lines))
        found.append(machine.read())
        machine.clock.advance(1)

    assert [one.get("node_disk_writes_completed") for one in found] == [None, 500, 1000]
    assert [one.get("disk_queue_length") for one in found] == [None, 0.5, 1.0]


def test_a_partition_of_a_drive_that_is_counted_by_path_has_the_numbers_of_the_drive(
    tmp_path: Path,
) -> None:
    """The kernel counts nothing for the partition, and says so with zeros."""
    machine = Machine(tmp_path, "linux-6.18", (259, 14), "nvme-multipath")
    partition = " 259      14 nvme3n1p1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"

    found = second_of(machine, (NVME_PATHS[0] + partition, NVME_PATHS[1] + partition))

    assert found['node_disk_writes_completed{device="nvme3n1"}'] == 1500
    assert not any("nvme3n1p1" in name for name in found)


def test_paths_that_the_kernel_does_not_list_are_no_drive_at_rest(tmp_path: Path) -> None:
    """Without any counter the probe is not available, and names the drive."""
    machine = Machine(tmp_path, "linux-6.18", (259, 13), "nvme-multipath")
    machine.show(" 259      13 nvme3n1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n")

    with pytest.raises(NotAvailableError, match="keeps no statistics of nvme3n1"):
        machine.read()


def test_an_array_without_times_has_those_of_its_drives(tmp_path: Path) -> None:
    """The driver counts no times before Linux 5.10: a wait of zero would look instant."""
    machine = Machine(tmp_path, "linux-6.18", (9, 127), "md-raid1")

    found = second_of(machine, MD_WITHOUT_TIMES)

    assert found['node_disk_writes_completed{device="md127"}'] == 2000
    assert {
        name for name in found if "md127" in name and ("time" in name or "await" in name)
    } == set()
    assert 'disk_queue_length{device="md127"}' not in found
    assert 'node_disk_io_now{device="md127"}' not in found
    assert found['disk_write_await_seconds{device="nvme0n1"}'] == 0.02
    assert found['node_disk_io_time_seconds{device="nvme1n1"}'] == 1.0


@pytest.mark.parametrize("values", [12, 13, 14, 16])
def test_values_that_no_kernel_writes_are_ignored(tmp_path: Path, values: int) -> None:
    """A container under lxcfs sees other numbers than the host, with zeros for what it does not know."""
    machine = Machine(tmp_path, "linux-6.18")
    texts = tuple(
        "".join(
            " ".join([*line.split(), "0", "0"][: 3 + values]) + "\n" for line in text.splitlines()
        )
        for text in LXCFS
    )

    found = second_of(machine, (texts[0], texts[1]))

    assert found['node_disk_writes_completed{device="sda2"}'] == 100
    assert found['disk_write_await_seconds{device="sda2"}'] == pytest.approx(0.00306)
    assert 'disk_queue_length{device="sda2"}' not in found


def test_cgroup_counters_without_times_are_numbers_without_times(tmp_path: Path) -> None:
    """On cgroup v2 lxcfs knows requests and bytes only."""
    machine = Machine(tmp_path, "linux-6.18")
    texts = [text.replace(" 34 0 2 ", " 0 0 0 ").replace(" 340 0 20 ", " 0 0 0 ") for text in LXCFS]

    found = second_of(machine, (texts[0], texts[1]))

    assert found['node_disk_writes_completed{device="sda2"}'] == 100
    assert not any("await" in name or "time" in name or "queue" in name for name in found)


def test_statistics_that_are_switched_off_are_not_a_drive_at_rest(tmp_path: Path) -> None:
    """With queue/iostats at 0 the counters stand still at their old values."""
    machine = Machine(tmp_path, "linux-6.18", (8, 2), "iostats-off")

    with pytest.raises(
        NotAvailableError, match=r"sda \(queue/iostats is 0\), sda2 \(queue/iostats is 0\)"
    ):
        machine.read()


def test_a_driver_that_counts_although_statistics_are_switched_off_is_measured(
    tmp_path: Path,
) -> None:
    """Some device-mapper targets do."""
    machine = Machine(tmp_path, "linux-6.18", (8, 2), "iostats-off")
    with pytest.raises(NotAvailableError):
        machine.read()
    machine.clock.advance(2)
    machine.boot("after")

    assert machine.read()["node_disk_writes_completed"] == 50.0


def test_a_filesystem_of_two_drives_shows_both(tmp_path: Path) -> None:
    """With btrfs as raid1 the mount names one, and the slow one may be the other."""
    machine = Machine(tmp_path, "linux-6.18", (0, 34), "btrfs-raid1")
    (machine.proc / "self").mkdir()
    (machine.proc / "self/mountinfo").write_text(
        "29 1 0:34 / / rw - btrfs /dev/sda rw,space_cache=v2\n"
    )
    paths = SystemPaths(
        machine.proc,
        machine.paths.sys,
        lambda path: PathNumbers(os.makedev(0, 34), os.makedev(8, 0) if path == "/dev/sda" else 0),
    )
    machine.probe = DiskIo(Config(directory="/data"), machine.clock, paths=paths)
    line = "   8  {minor} {name} 0 0 0 0 {writes} 0 {sectors} {ms} 0 {busy} {ms} 0 0 0 0 0 0\n"

    found = second_of(
        machine,
        (
            line.format(minor=0, name="sda", writes=1000, sectors=80_000, ms=500, busy=500)
            + line.format(minor=16, name="sdb", writes=1000, sectors=80_000, ms=500, busy=500),
            line.format(minor=0, name="sda", writes=1100, sectors=88_000, ms=600, busy=600)
            + line.format(minor=16, name="sdb", writes=1100, sectors=88_000, ms=5600, busy=1500),
        ),
    )

    assert found['disk_write_await_seconds{device="sda"}'] == 0.001
    assert found['disk_write_await_seconds{device="sdb"}'] == 0.051
    assert sum(value for name, value in found.items() if "written_bytes" in name) == 8_192_000
    assert found['disk_capacity_bytes{device="sdb"}'] == 1_024_000_000_000


def test_a_device_without_a_line_is_not_available() -> None:
    """The kernel keeps no statistics for some."""
    with pytest.raises(NotAvailableError, match="9:127"):
        disk_io.find_line(TEXT, (9, 127))


@pytest.mark.parametrize("in_flight", ["-1", "4294967295", "18446744073709551615"])
def test_requests_in_flight_below_zero_are_missing(tmp_path: Path, in_flight: str) -> None:
    """Some kernels count a request's end twice, and print what is left with or without its sign."""
    machine = Machine(tmp_path, "linux-6.18")
    texts = [
        f"   8       2 sda2 100 0 800 50 {writes} 0 80000 {ms} {in_flight} {ms} {ms} 0 0 0 0 0 0\n"
        "   8       0 sda 100 0 800 50 1000 0 80000 500 0 500 550 0 0 0 0 0 0\n"
        for writes, ms in ((1000, 500), (1100, 600))
    ]

    found = second_of(machine, (texts[0], texts[1]))

    assert found['disk_write_await_seconds{device="sda2"}'] == 0.001
    assert 'node_disk_io_now{device="sda2"}' not in found


@pytest.mark.parametrize(
    ("name", "counters"),
    [
        ("zram0", "5000 0 40000 {reads} 9000 0 72000 {writes} 0 0 0"),  # no busy time
        ("drbd0", "5000 0 40000 0 {count} 0 72000 0 0 0 0"),
        ("bcache0", "0 0 0 0 {count} 0 72000 0 0 0 0"),
    ],
)
def test_drivers_that_keep_no_times_have_none(tmp_path: Path, name: str, counters: str) -> None:
    """Of what is not counted there is no zero, as of a drive that answers at once."""
    machine = Machine(tmp_path, "linux-6.18")
    texts = [
        f"   8       2 {name} {counters.format(count=9000 + more, reads=0, writes=0)} 0 0 0 0 0 0\n"
        f"   8       0 sda 100 0 800 50 1000 0 80000 500 0 500 550 0 0 0 0 0 0\n"
        for more in (0, 100)
    ]

    found = second_of(machine, (texts[0], texts[1]))

    kept = [one for one in found if f'"{name}"' in one]
    assert f'node_disk_writes_completed{{device="{name}"}}' in kept
    assert not any("await" in one or "time" in one or "queue" in one for one in kept)


def test_newer_kernels_may_add_fields_at_the_end() -> None:
    """They are ignored."""
    longer = TEXT.replace(" 7421 458\n", " 7421 458 23 42\n")

    assert disk_io.find_line(longer, SDA) == disk_io.find_line(TEXT, SDA)


@settings(max_examples=examples(300))
@given(cut=st.integers(0, len(TEXT)))
def test_a_cut_text_is_an_error_or_the_same_number(cut: int) -> None:
    """A cut last number must not be taken for a smaller one."""
    whole = disk_io.find_line(TEXT, SDA)
    try:
        found = disk_io.find_line(TEXT[:cut], SDA)
    except (ProbeError, NotAvailableError):
        return

    assert found == whole


@settings(max_examples=examples(300))
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


def test_a_device_and_its_drive_have_the_place_where_they_are_mounted(tmp_path: Path) -> None:
    """Names of folders may hold bytes that are no text."""
    machine = Machine(tmp_path, "linux-6.18", (254, 0))
    (machine.proc / "self").mkdir()
    (machine.proc / "self/mountinfo").write_bytes(
        b"22 1 254:1 / / rw - ext4 /dev/dm-1 rw\n"
        b"23 22 254:0 / /data\\040of\xff rw - xfs /dev/dm-0 rw\n"
    )
    machine.probe = DiskIo(
        Config(directory="/data of\udcff/kafka"), machine.clock, paths=machine.paths
    )

    found = {column.name for column, _ in machine.probe.read().samples}

    place = 'mountpoint="/data of\N{REPLACEMENT CHARACTER}"'
    assert f'disk_mount_info{{device="dm-0",{place}}}' in found
    assert f'disk_mount_info{{device="sda",{place}}}' in found
