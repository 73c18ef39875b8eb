"""A machine's /sys/dev/block and what stat(2) says, from recorded text."""

from __future__ import annotations

import os
from pathlib import Path

from probes.common.block_device import PathNumbers
from tests.support.paths import RECORDED


def sys_tree(root: Path, *names: str) -> Path:
    """Lay out /sys as recorded: a line is a device's folder, number, sectors, then what else is in it."""
    text = "".join((RECORDED / "sys" / f"{name}.txt").read_text() for name in names)
    lines = [line.split() for line in text.splitlines()]
    (root / "dev/block").mkdir(parents=True)
    for place, number, sectors, *rest in lines:
        folder = root / "devices" / place
        (folder / "slaves").mkdir(parents=True)
        (folder / "dev").write_text(f"{number}\n")
        (folder / "size").write_text(f"{sectors}\n")
        (root / "dev/block" / number).symlink_to(folder)
        for key, _, value in (word.partition("=") for word in rest):
            if key == "slave":
                (folder / "slaves" / Path(value).name).symlink_to(root / "devices" / value)
            else:
                (folder / key).parent.mkdir(exist_ok=True)
                (folder / key).write_text(value.replace("\\040", " ") + "\n")
    return root


def on(major: int, minor: int) -> PathNumbers:
    return PathNumbers(holder=os.makedev(major, minor), device=0)
