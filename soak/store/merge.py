"""Merge the journals and drive checks of a run's other hosts into one run folder."""

from __future__ import annotations

import filecmp
import shutil

from soak.core.errors import RunFolderError
from soak.service.files import file_lock, write_atomically
from soak.store.journal.reader import sources
from soak.store.run_folder import RunFolder, read_run


def merge_run_folder(into: RunFolder, part: RunFolder) -> list[str]:
    """Copy the sources and drive checks that `into` lacks, and return their names.

    Merging the same folder again changes nothing. Phases are not copied: the first host decides them.

    Raises:
        RunFolderError: the folders are of different runs, the part is not over, a source differs, or cannot
            be copied.
    """
    ours, theirs = read_run(into), read_run(part)
    if ours.id != theirs.id or ours.start_wall_ns != theirs.start_wall_ns:
        raise RunFolderError(
            f"{part.path} is of run {theirs.id}, not of {ours.id}, or has another start: name the folder of "
            "another host of this run"
        )
    if theirs.state == "running":
        raise RunFolderError(
            f"{part.path} is not over: the state in its run.json is running. End it on its own host and copy "
            "it again: with `soak stop` (after a kill, `soak run PLAN --resume` first), a `soak probe` with "
            "SIGTERM"
        )
    copied = []
    with file_lock(into.path / "collect.lock", "the collecting of this run"):
        into.journal.mkdir(exist_ok=True)  # the first host may have no source of its own
        for source in sources(part.journal):
            if _is_there(into, part, source):
                continue
            _copy(into, part, source)
            copied.append(source)
        copied += _copy_drives(into, part)
    return copied


def _copy_drives(into: RunFolder, part: RunFolder) -> list[str]:
    """Copy the drive checks of the other host; it may have added some since the last time."""
    copied = []
    for path in sorted(part.drives.glob("*.json")):
        text, target = path.read_text(), into.drives / path.name
        if not target.exists() or target.read_text() != text:
            write_atomically(target, text)
            copied.append(f"drives/{path.name}")
    return copied


def _copy(into: RunFolder, part: RunFolder, source: str) -> None:
    """Copy a source completely or not at all."""
    draft = into.path / f".{source}.part"
    shutil.rmtree(draft, ignore_errors=True)  # of an interrupted copy
    try:
        shutil.copytree(part.journal / source, draft)
        draft.rename(into.journal / source)
    except OSError as error:  # the disk is full, or a file cannot be read
        raise RunFolderError(f"cannot copy {source} of {part.path}: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _is_there(into: RunFolder, part: RunFolder, source: str) -> bool:
    """Return True if the source is there already.

    Raises:
        RunFolderError: there is another source of that name: two hosts have the same name.
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
            f"{source} is in both folders and differs: either it was shipped over a topic, or two hosts "
            "have the same name"
        )
    return True
