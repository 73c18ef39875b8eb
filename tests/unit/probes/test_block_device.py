"""From a directory to the drives below it, on recorded machines of each kind."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.common import block_device
from probes.common.block_device import BlockDevices, Drive, PathNumbers, SystemPaths
from soak.core.errors import NotAvailableError, ProbeError
from tests.support.examples import examples
from tests.support.paths import RECORDED
from tests.support.probes.sys_tree import on, remove_device, sys_tree

CAPACITY_SECTORS = 8_192_000
MOUNTS = (RECORDED / "mountinfo").read_text()


def mounted(
    tmp_path: Path, directory: str, devices: dict[str, PathNumbers], tree: str = "lvm"
) -> BlockDevices:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/mountinfo").write_text((RECORDED / "mountinfo").read_text())

    def numbers(path: str) -> PathNumbers:
        if path not in devices:
            raise FileNotFoundError(2, "No such file or directory")
        return devices[path]

    return block_device.find_devices(
        directory, SystemPaths(proc, sys_tree(tmp_path / "sys", tree), numbers)
    )


def test_btrfs_is_found_by_the_source_of_its_mount(tmp_path: Path) -> None:
    """Its st_dev has major 0; the mount point contains a blank, which the kernel escapes."""
    directory = "/srv/kafka logs/topic-0"
    volume = PathNumbers(holder=5, device=os.makedev(254, 0))

    found = mounted(tmp_path, directory, {directory: on(0, 41), "/dev/mapper/vg-data": volume})

    assert found == BlockDevices(((254, 0),), (Drive((8, 0), CAPACITY_SECTORS * 512),))


def test_overlay_is_found_by_its_upper_folder(tmp_path: Path) -> None:
    """A container writes to the upper folder."""
    merged = "/var/lib/docker/overlay2/a1/merged"
    upper = "/var/lib/docker/overlay2/a1/diff"

    found = mounted(tmp_path, merged, {merged: on(0, 47), upper: on(8, 2)})

    assert found.holders == ((8, 2),)


@pytest.mark.parametrize(
    ("tree", "number", "drives"),
    [
        ("lvm", (8, 2), [(8, 0)]),  # a partition
        ("lvm", (254, 0), [(8, 0)]),  # a volume on a partition
        ("lvm-striped", (253, 3), [(8, 16), (8, 32)]),
        ("crypt-on-lvm", (253, 1), [(259, 0)]),
        ("md-raid1", (9, 127), [(259, 0), (259, 3)]),  # of partitions of two drives
        ("virtio", (254, 0), [(254, 0)]),
        ("dm-multipath", (253, 1), [(253, 0)]),  # two ways to one drive, and a partition of it
        ("nvme-multipath", (259, 14), [(259, 13)]),
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

    assert found.holders == (number,)
    assert [drive.number for drive in found.drives] == drives
    assert all(drive.capacity_bytes > 0 for drive in found.drives)


@pytest.mark.parametrize(
    ("kind", "source", "holders"),
    [
        ("btrfs", "/dev/sda", [(8, 0), (8, 16)]),  # of raid1, of which the mount names one
        ("btrfs", "/dev/sdb", [(8, 0), (8, 16)]),
        ("btrfs", "/dev/sdc", [(8, 32)]),
        ("bcachefs", "/dev/sdb:/dev/sdc", [(8, 16), (8, 32)]),
        ("ext4", "/dev/sda", [(8, 0)]),
        ("btrfs", "/dev/disk/by-path/pci-0000:00:17.0-ata-3", [(8, 32)]),  # one name with colons
    ],
)
def test_a_filesystem_that_spreads_over_drives_by_itself_has_them_all(
    tmp_path: Path, kind: str, source: str, holders: list[tuple[int, int]]
) -> None:
    """Its mount names one of them, or all with colons; /sys knows the members of each volume."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text(f"29 1 0:34 / / rw shared:1 - {kind} {source} rw\n")
    named = {f"/dev/sd{letter}": os.makedev(8, 16 * at) for at, letter in enumerate("abc")}
    named["/dev/disk/by-path/pci-0000:00:17.0-ata-3"] = named["/dev/sdc"]

    def numbers(path: str) -> PathNumbers:
        if path.startswith("/dev/") and path not in named:
            raise FileNotFoundError(2, "No such file or directory")
        return PathNumbers(os.makedev(0, 34), named.get(path, 0))

    found = block_device.find_devices(
        "/data",
        SystemPaths(
            tmp_path,
            sys_tree(tmp_path / "sys", "btrfs-raid1"),
            numbers,
        ),
    )

    assert list(found.holders) == holders
    assert [drive.number for drive in found.drives] == holders


@pytest.mark.parametrize(
    ("source", "holders"),
    [
        ("/dev/sda2", ((8, 2),)),  # Docker on openSUSE
        ("/dev/vg1/volume_1", ((254, 0),)),  # a container of a Synology
        ("/dev/mapper/vg1-volume_1", ((254, 0),)),
        ("/dev/dm-0", ((254, 0),)),
    ],
)
def test_a_container_without_nodes_of_drives_finds_them_in_sys(
    tmp_path: Path, source: str, holders: tuple[tuple[int, int], ...]
) -> None:
    """Its /dev is a memory filesystem of its own, and the mount names the host's device."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text(
        f"400 365 0:29 /@/var/lib/docker/btrfs/subvolumes/78c1 / rw,relatime master:52 - btrfs {source} "
        "rw,space_cache,subvolid=353,subvol=/@/var/lib/docker/btrfs/subvolumes/78c1\n"
        "402 400 0:96 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755,inode64\n"
        "404 400 0:98 / /sys ro,nosuid,nodev,noexec,relatime - sysfs sysfs ro\n"
    )

    def numbers(path: str) -> PathNumbers:
        if path.startswith("/dev/"):
            raise FileNotFoundError(2, "No such file or directory")
        return on(0, 29)

    found = block_device.find_devices(
        "/data", SystemPaths(tmp_path, sys_tree(tmp_path / "sys", "lvm"), numbers)
    )

    assert found.holders == holders
    assert [drive.number for drive in found.drives] == [(8, 0)]


def test_a_mount_point_with_letters_of_other_languages_is_found(tmp_path: Path) -> None:
    """The kernel escapes blanks alone; names are read as Python reads those of files."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_bytes(
        b"80 0 8:32 / / rw,relatime - ext4 /dev/sdc rw\n"
        b"90 80 0:41 / /srv/donn\xc3\xa9es rw,relatime - tmpfs tmpfs rw\n"
    )

    assert block_device.find_mount("/srv/données/kafka", tmp_path).kind == "tmpfs"


def test_an_overlay_on_btrfs_is_found_by_the_mount_of_its_upper_folder(tmp_path: Path) -> None:
    """Neither has a device number of its own."""
    merged = "/var/lib/docker/overlay2/a1/merged"
    upper = "/srv/kafka logs/topic-0"
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(
        MOUNTS.replace(
            "upperdir=/var/lib/docker/overlay2/a1/diff", r"upperdir=/srv/kafka\040logs/topic-0"
        )
    )
    numbers = {
        merged: on(0, 47),
        upper: on(0, 41),
        "/dev/mapper/vg-data": PathNumbers(5, os.makedev(254, 0)),
    }

    found = block_device.find_devices(
        merged,
        SystemPaths(tmp_path / "proc", sys_tree(tmp_path / "sys", "lvm"), numbers.__getitem__),
    )

    assert found.holders == ((254, 0),)


def test_an_overlay_whose_upper_folder_is_hidden_says_so(tmp_path: Path) -> None:
    """As in a container without a volume: the message names the folder of the host."""
    merged = "/var/lib/docker/overlay2/a1/merged"

    with pytest.raises(
        NotAvailableError, match="/var/lib/docker/overlay2/a1/diff, where it writes, is not visible"
    ):
        mounted(tmp_path, merged, {merged: on(0, 47)})


def test_a_volume_goes_on_without_a_drive_that_was_removed(tmp_path: Path) -> None:
    """Device-mapper keeps its link to it, which leads nowhere."""
    sys = sys_tree(tmp_path / "sys", "lvm-striped")
    remove_device(sys, "sdb")

    found = block_device.find_devices("/data", SystemPaths(tmp_path, sys, lambda _: on(253, 3)))

    assert [drive.number for drive in found.drives] == [(8, 32)]


@pytest.mark.parametrize("source", ["/dev/sda", "/dev/sdb"])
def test_btrfs_goes_on_without_a_drive_that_was_removed(tmp_path: Path, source: str) -> None:
    """Its volume keeps the link, and its mount may go on naming that drive."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text(f"29 1 0:34 / / rw shared:1 - btrfs {source} rw\n")
    sys = sys_tree(tmp_path / "sys", "btrfs-raid1")
    remove_device(sys, "sda")

    def numbers(path: str) -> PathNumbers:
        if path == "/dev/sda":
            raise FileNotFoundError(2, "No such file or directory")
        return PathNumbers(os.makedev(0, 34), os.makedev(8, 16) if path == "/dev/sdb" else 0)

    found = block_device.find_devices("/data", SystemPaths(tmp_path, sys, numbers))

    assert found.holders == ((8, 16),)


@pytest.mark.parametrize(
    "other",
    [
        # WSL 2 with Docker Desktop
        r"560 80 0:138 / /Docker/host rw,noatime - 9p drvfs rw,path=C:\Program Files\Docker;root=/mnt/",
        "561 80 0:139 / /mnt/share rw - cifs //server/my share rw,username=j doe",
        "562 80 0:140 / /mnt/odd rw - fuse.sshfs host: rw,fsname=a - b - c",
        "563 80 0:141 / /mnt/broken rw - fuse.x src rw,note=one\ntwo lines",
        "564 80 0:142 / /mnt/short rw",
    ],
)
def test_a_line_of_another_mount_costs_nobody_else(other: str) -> None:
    """Drivers of filesystems put blanks and line breaks into the fields that are theirs."""
    mounts = block_device.parse_mounts(
        "80 0 8:32 / / rw,relatime - ext4 /dev/sdc rw,discard\n"
        f"{other}\n"
        "90 80 8:33 /data /data rw,relatime - ext4 /dev/sdd rw,discard\n"
    )

    assert block_device.mount_of("/data/kafka", mounts).source == "/dev/sdd"
    assert block_device.mount_of("/srv", mounts).source == "/dev/sdc"


def test_a_mount_whose_own_line_cannot_be_read_is_not_taken_for_the_one_above() -> None:
    """The root's drive is not the folder's."""
    mounts = block_device.parse_mounts(
        "80 0 8:32 / / rw,relatime - ext4 /dev/sdc rw\n81 80 0:50 / /data rw,relatime\n"
    )

    with pytest.raises(ProbeError, match="line of /data in mountinfo"):
        block_device.mount_of("/data/kafka", mounts)


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


@pytest.mark.parametrize(
    ("mount", "words"),
    [
        (
            "zfs tank/kafka rw",
            ["the pool tank has", "`zpool status tank`", "node_exporter of this host"],
        ),
        ("zfs rpool rw", ["`zpool status rpool`", "no key for drives", "the probe prometheus"]),
        ("nfs4 10.0.0.1:/export rw", ["another machine (10.0.0.1:/export)", "node_exporter of it"]),
        ("ceph 10.0.0.2:6789:/ rw", ["another machine (10.0.0.2:6789:/)", "node_exporter of it"]),
        ("tmpfs tmpfs rw", ["it lies in memory", "a folder on a drive"]),
        ("overlay overlay rw,upperdir=/no", ["the folder of a volume", "on the host itself"]),
        ("fuse.mergerfs a:b rw", ["fuse.mergerfs does not tell", "node_exporter of this host"]),
    ],
)
def test_where_the_drives_cannot_be_found_the_message_says_why_and_what_to_do(
    tmp_path: Path, mount: str, words: list[str]
) -> None:
    """It fits into an event."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text(f"80 0 0:50 / /data rw,relatime - {mount}\n")

    def numbers(path: str) -> PathNumbers:
        if path != "/data":
            raise FileNotFoundError(2, "No such file or directory")
        return on(0, 50)

    with pytest.raises(NotAvailableError) as caught:
        block_device.find_devices("/data", SystemPaths(tmp_path, tmp_path, numbers))

    assert all(word in str(caught.value) for word in words)
    assert len(str(caught.value)) < 400


@settings(max_examples=examples(300))
@given(at=st.integers(0, len(MOUNTS) - 1), junk=st.text(max_size=8))
def test_a_damaged_mount_table_is_parsed_or_an_error(at: int, junk: str) -> None:
    """What is read has a point; what is answered has a filesystem, too."""
    try:
        found = block_device.parse_mounts(MOUNTS[:at] + junk + MOUNTS[at + len(junk) :])
    except ProbeError:
        return

    assert all(mount.point.startswith("/") for mount in found)
    with suppress(ProbeError):
        assert block_device.mount_of("/srv/kafka logs/x", found).kind


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
        found = block_device.find_devices(
            "/data", SystemPaths(sys=volume, numbers=lambda _: on(254, 0))
        )
    except (ProbeError, NotAvailableError):
        return

    assert all(drive.capacity_bytes >= 0 for drive in found.drives)


def test_a_device_has_the_name_of_its_statistics(tmp_path: Path) -> None:
    """A file of /sys cannot have the slash of an older Smart Array's drive."""
    folder = tmp_path / "devices/cciss!c0d0"
    folder.mkdir(parents=True)
    (tmp_path / "dev/block").mkdir(parents=True)
    (tmp_path / "dev/block/104:0").symlink_to(folder)

    assert block_device.device_name((104, 0), tmp_path) == "cciss/c0d0"
