"""From a directory to the drives below it, on recorded machines of each kind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.common import block_device
from probes.common.block_device import BlockDevice, Drive, PathNumbers, SystemPaths
from soak.core.errors import NotAvailableError, ProbeError
from tests.support.paths import RECORDED
from tests.support.probes.sys_tree import on, sys_tree

CAPACITY_SECTORS = 8_192_000
MOUNTS = (RECORDED / "mountinfo").read_text()


def mounted(
    tmp_path: Path, directory: str, devices: dict[str, PathNumbers], tree: str = "lvm"
) -> BlockDevice:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/mountinfo").write_text((RECORDED / "mountinfo").read_text())

    def numbers(path: str) -> PathNumbers:
        if path not in devices:
            raise FileNotFoundError(2, "No such file or directory")
        return devices[path]

    return block_device.find_device(
        directory, SystemPaths(proc, sys_tree(tmp_path / "sys", tree), numbers)
    )


def test_btrfs_is_found_by_the_source_of_its_mount(tmp_path: Path) -> None:
    """Its st_dev has major 0; the mount point contains a blank, which the kernel escapes."""
    directory = "/srv/kafka logs/topic-0"
    volume = PathNumbers(holder=5, device=os.makedev(254, 0))

    found = mounted(tmp_path, directory, {directory: on(0, 41), "/dev/mapper/vg-data": volume})

    assert found == BlockDevice((254, 0), (Drive((8, 0), CAPACITY_SECTORS * 512),))


def test_overlay_is_found_by_its_upper_folder(tmp_path: Path) -> None:
    """A container writes to the upper folder."""
    merged = "/var/lib/docker/overlay2/a1/merged"
    upper = "/var/lib/docker/overlay2/a1/diff"

    found = mounted(tmp_path, merged, {merged: on(0, 47), upper: on(8, 2)})

    assert found.number == (8, 2)


@pytest.mark.parametrize(
    ("tree", "number", "drives"),
    [
        ("lvm", (8, 2), [(8, 0)]),  # a partition
        ("lvm", (254, 0), [(8, 0)]),  # a volume on a partition
        ("lvm-striped", (253, 3), [(8, 16), (8, 32)]),
        ("crypt-on-lvm", (253, 1), [(259, 0)]),
        ("md-raid1", (9, 127), [(259, 0), (259, 3)]),  # of partitions of two drives
        ("virtio", (254, 0), [(254, 0)]),
        ("loop", (7, 0), [(254, 0)]),  # an image on a partition of that drive
        ("loop", (7, 1), [(7, 1)]),  # an image that was deleted
    ],
)
def test_drives_are_the_devices_at_the_bottom(
    tmp_path: Path, tree: str, number: tuple[int, int], drives: list[tuple[int, int]]
) -> None:
    """Through any number of partitions, volumes, encryption, arrays and loop devices."""
    devices = {"/data": on(*number), "/var/lib/images/kafka data.img": on(254, 1)}

    found = mounted(tmp_path, "/data", devices, tree)

    assert found.number == number
    assert [drive.number for drive in found.drives] == drives
    assert all(drive.capacity_bytes > 0 for drive in found.drives)


def test_an_image_on_a_filesystem_without_a_device_is_its_own_drive(tmp_path: Path) -> None:
    """Such as one served by FUSE, whose source is a character device."""
    image = "/run/user/image"
    devices = {"/data": on(7, 2), image: on(0, 52), "/dev/fuse": PathNumbers(holder=6, device=0)}

    found = mounted(tmp_path, "/data", devices, "loop")

    assert [drive.number for drive in found.drives] == [(7, 2)]


@pytest.mark.parametrize(
    ("directory", "kind"),
    [
        ("/dev/shm/x", "tmpfs"),
        ("/mnt/pool/x", "zfs"),
        ("/var/lib/docker/overlay2/a1/merged", "overlay"),
        ("/data/x", "tmpfs"),  # mounted over the network filesystem of the same point
    ],
)
def test_without_a_block_device_the_message_names_the_filesystem(
    tmp_path: Path, directory: str, kind: str
) -> None:
    """Memory, pools, networks and containers are not available, which is no failure."""
    with pytest.raises(NotAvailableError, match=rf"{directory} \({kind}\)"):
        mounted(tmp_path, directory, {directory: on(0, 23)})


@settings(max_examples=300)
@given(at=st.integers(0, len(MOUNTS) - 1), junk=st.text(max_size=8))
def test_a_damaged_mount_table_is_parsed_or_an_error(at: int, junk: str) -> None:
    """A line that the kernel would not write is an error."""
    try:
        found = block_device.parse_mounts(MOUNTS[:at] + junk + MOUNTS[at + len(junk) :])
    except ProbeError:
        return

    assert all(mount.point.startswith("/") and mount.kind for mount in found)


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return /sys of a machine with a volume on a partition."""
    return sys_tree(tmp_path_factory.mktemp("volume") / "sys", "lvm")


@given(size=st.text(max_size=4), number=st.text(max_size=6))
def test_a_damaged_device_folder_is_an_error_or_no_device(
    volume: Path, size: str, number: str
) -> None:
    """A size that is not a number must not be taken for a capacity."""
    sda = volume / "devices/pci0000:00/0000:00:1f.2/block/sda"
    (sda / "size").write_bytes(size.encode(errors="replace"))
    (sda / "sda2/dev").write_bytes(number.encode(errors="replace"))
    try:
        found = block_device.find_device(
            "/data", SystemPaths(sys=volume, numbers=lambda _: on(254, 0))
        )
    except (ProbeError, NotAvailableError):
        return

    assert all(drive.capacity_bytes >= 0 for drive in found.drives)
