"""A machine's /sys/dev/block and what stat(2) says, from recorded text."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from probes.common.block_device import PathNumbers
from tests.support.paths import RECORDED


def sys_tree(root: Path, *names: str) -> Path:
    """Lay out /sys as recorded: a line is a device's folder, number, sectors, then what else is in it.

    A number of `-` is a hidden device. `btrfs=UUID` makes it a member of that volume.
    """
    text = "".join((RECORDED / "sys" / f"{name}.txt").read_text() for name in names)
    lines = [line.split() for line in text.splitlines()]
    (root / "dev/block").mkdir(parents=True)
    (root / "block").mkdir()
    (root / "class/block").mkdir(parents=True)
    for place, number, sectors, *rest in lines:
        folder = root / "devices" / place
        (folder / "slaves").mkdir(parents=True)
        (folder / "size").write_text(f"{sectors}\n")
        if number != "-":
            (folder / "dev").write_text(f"{number}\n")
            (root / "dev/block" / number).symlink_to(folder)
            (root / "class/block" / folder.name).symlink_to(folder)
        if not any(word.startswith("partition=") for word in rest):
            (root / "block" / folder.name).symlink_to(folder)
        for key, _, value in (word.partition("=") for word in rest):
            if key == "slave":
                (folder / "slaves" / Path(value).name).symlink_to(root / "devices" / value)
            elif key == "btrfs":
                members = root / "fs/btrfs" / value / "devices"
                members.mkdir(parents=True, exist_ok=True)
                (members / folder.name).symlink_to(folder)
            else:
                (folder / key).parent.mkdir(exist_ok=True)
                (folder / key).write_text(value.replace("\\040", " ") + "\n")
    return root


def remove_device(sys: Path, name: str) -> None:
    """Take a device away as a drive that is pulled: the links to it stay, and lead nowhere."""
    shutil.rmtree((sys / "class/block" / name).resolve())


def on(major: int, minor: int) -> PathNumbers:
    return PathNumbers(holder=os.makedev(major, minor), device=0)
