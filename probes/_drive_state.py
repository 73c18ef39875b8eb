"""How the drive under a directory is set up and how full it is, which decides when flash starves.

Read once, for a drive check: any of it may block as any look at that filesystem may.
"""

from __future__ import annotations

import os
from pathlib import Path

from probes import _mounts
from probes._block_device import BlockDevice, Places, find, name_of, read_text
from soak.core.drive_check import DriveState, Trim
from soak.core.errors import NotAvailableError, ProbeError
from soak.core.units import SECOND_NS

_WANTS = "systemd/system/timers.target.wants/fstrim.timer"
_STAMP = "var/lib/systemd/timers/stamp-fstrim.timer"


def look(directory: str, places: Places, root: Path = Path("/")) -> DriveState:
    """Return the state; what the kernel does not tell is left empty.

    Raises:
        ProbeError: the mount table cannot be read.
        OSError: the directory cannot be looked at.
    """
    mounts = _mounts.parse(read_text(places.proc / "self/mountinfo"))
    mount = _mounts.mount_of(os.path.realpath(directory), mounts)
    space = os.statvfs(directory)
    try:
        device: BlockDevice | None = find(directory, places)
    except (NotAvailableError, ProbeError):
        device = None
    drives = device.drives if device else ()
    names = tuple(name_of(drive.number, places.sys) for drive in drives)
    queues = [places.sys / "block" / name / "queue" for name in names]
    discards = [_number(queue / "discard_max_bytes") for queue in queues]
    known = [size for size in discards if size is not None]
    stamp = root / _STAMP
    return DriveState(
        filesystem=mount.kind,
        options=",".join(dict.fromkeys(f"{mount.own_options},{mount.options}".split(","))),
        devices=names,
        total_bytes=space.f_blocks * space.f_frsize,
        free_bytes=space.f_bavail * space.f_frsize,
        discard_bytes=min(known) if known else None,
        write_cache=_text(queues[0] / "write_cache") if queues else "",
        trim_timer=_trim_timer(root),
        trimmed_wall_ns=int(stamp.stat().st_mtime * SECOND_NS) if stamp.exists() else None,
    )


def _trim_timer(root: Path) -> Trim:
    """Tell from its links whether systemd starts fstrim.timer: asking systemd would need its bus."""
    folders = (root / "etc", root / "usr/lib", root / "lib")
    if any(os.path.lexists(folder / _WANTS) for folder in folders):
        return "enabled"
    return "disabled" if (root / "run/systemd/system").is_dir() else "unknown"


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isascii() and text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return read_text(path).strip()
    except ProbeError:
        return ""
