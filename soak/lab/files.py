"""Files that processes of the lab share or leave behind: replaced whole, and marked with their owner."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MARK_PARTS = 3
_SCRATCH_PREFIX = "soakd-drill-"


def replace_text(path: Path, text: str) -> None:
    """Replace the text of a file at once, so that no reader sees half of it; not durable.

    Raises:
        OSError: the file keeps its old text.
    """
    draft = path.with_suffix(".part")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in the kernel's ticks since the boot; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # proc(5): the start time is field 22, and the first one here is field 3, the state.
    return None if fields[0] in "ZX" else int(fields[19])


def mark_of(pid: int) -> str:
    """Return a mark of three numbers: containers may share a folder, and their process ids repeat."""
    return f"{_pid_namespace()}-{pid}-{start_ticks(pid)}"


def own_mark() -> str:
    """Return the mark of this process, for the names of files and cgroups that it creates."""
    return mark_of(os.getpid())


def visible_marks() -> str:
    """Return a glob of the marks of all processes in the pid namespace of this one."""
    return f"{_pid_namespace()}-*-*"


def has_ended(mark: str) -> bool:
    """Return whether the mark is of a process in this pid namespace that has ended."""
    parts = mark.split("-")
    if len(parts) != _MARK_PARTS or not all(part.isdecimal() for part in parts):
        return False
    return int(parts[0]) == _pid_namespace() and mark != mark_of(int(parts[1]))


@contextmanager
def scratch_folder(root: Path | None = None) -> Iterator[Path]:
    """Give a temporary folder for files that a drill's daemons need; folders of killed drills are removed."""
    root = root or Path(tempfile.gettempdir())
    for folder in root.glob(f"{_SCRATCH_PREFIX}{visible_marks()}-*"):
        mark = folder.name.removeprefix(_SCRATCH_PREFIX).rpartition("-")[0]
        if has_ended(mark) and folder.lstat().st_uid == os.getuid():
            shutil.rmtree(folder, ignore_errors=True)
    prefix = f"{_SCRATCH_PREFIX}{own_mark()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=root) as folder_name:
        yield Path(folder_name)


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino
