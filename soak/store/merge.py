"""Merge the journals and drive checks of a run's other hosts into one run folder.

Sources carry their host's name.
"""

from __future__ import annotations

import filecmp
import shutil

from soak.core.errors import RunFolderError
from soak.service.files import file_lock, write_atomically
from soak.store.journal.reader import sources
from soak.store.run_folder import RunFolder, read_run


def merge_run_folder(into: RunFolder, part: RunFolder) -> list[str]:
    """Copy the sources and drive checks that `into` lacks; return their names. Once more changes nothing.

    A conductor's own view stays where it is: the phases of a run are those of its first host.

    Raises:
        RunFolderError: they belong to different runs, the part is not over, a source differs, or one
            cannot be copied.
    """
    ours, theirs = read_run(into), read_run(part)
    if ours.id != theirs.id or ours.start_wall_ns != theirs.start_wall_ns:
        raise RunFolderError(f"{part.path} is of run {theirs.id}, not of {ours.id} and its start")
    if theirs.state == "running":
        raise RunFolderError(
            f"{part.path} is not over: its run.json says running. Its own host ends it by `soak stop`, "
            "after a kill by `soak run PLAN --resume` and then that, a `soak probe` by SIGTERM; copy it again"
        )
    brought = []
    with file_lock(into.path / "collect.lock", "the collecting of this run"):
        into.journal.mkdir(exist_ok=True)  # a first host may measure nothing itself
        for source in sources(part.journal):
            if _is_there(into, part, source):
                continue
            _copy(into, part, source)
            brought.append(source)
        brought += _copy_drives(into, part)
    return brought


def _copy_drives(into: RunFolder, part: RunFolder) -> list[str]:
    """Copy what the other host measured of its drives; it may have measured again since the last time."""
    brought = []
    for path in sorted(part.drives.glob("*.json")):
        text, target = path.read_text(), into.drives / path.name
        if not target.exists() or target.read_text() != text:
            write_atomically(target, text)
            brought.append(f"drives/{path.name}")
    return brought


def _copy(into: RunFolder, part: RunFolder, source: str) -> None:
    """Copy a source, whole or not at all."""
    draft = into.path / f".{source}.part"
    shutil.rmtree(draft, ignore_errors=True)  # of a copy that was cut short
    try:
        shutil.copytree(part.journal / source, draft)
        draft.rename(into.journal / source)
    except OSError as error:  # the disk is full, or a file cannot be read
        raise RunFolderError(f"cannot copy {source} of {part.path}: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _is_there(into: RunFolder, part: RunFolder, source: str) -> bool:
    """Return whether a source was brought before.

    Raises:
        RunFolderError: there is another one of that name: two hosts are called alike.
    """
    if not (into.journal / source).exists():
        return False
    here, there = (folder.journal / source for folder in (into, part))
    names = sorted(path.name for path in there.glob("*.jsonl"))
    is_same = names == sorted(path.name for path in here.glob("*.jsonl")) and all(
        filecmp.cmp(here / name, there / name, shallow=False) for name in names
    )
    if not is_same:
        raise RunFolderError(
            f"{source} is in both folders and differs: did it come over a topic, or are two hosts "
            "called alike?"
        )
    return True
