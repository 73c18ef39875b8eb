"""Merge the journals and drive checks of a run's other hosts into one run folder.

Another host made the folder, so only regular files with the names of ours are copied, and links are never
followed: they would lead to files of this host.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from soak.core import json_text
from soak.core.cluster.drives import Measured, from_json
from soak.core.errors import RunFolderError
from soak.core.units import format_size
from soak.service.files import file_lock
from soak.store.run_folder import (
    RunFolder,
    append_drive_checks,
    read_any_plan,
    read_drive_checks,
    read_run,
)
from soak.store.samples_topic import SOURCE_NAME

MAX_SEGMENT_BYTES = 2**28  # a writer begins a new file after a quarter of it
MAX_SMALL_BYTES = 2**22  # of run.json and of a host's drive checks
FLOOR_BYTES = 2**30  # that stay free where the first host's folder has no plan
_SEGMENT = re.compile(r"[0-9]{6,12}\.jsonl")
_DRIVE_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}\.json")
_CHUNK_BYTES = 2**20
_PLAIN = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # the last: a pipe would hang


def merge_run_folder(into: RunFolder, part: RunFolder) -> list[str]:
    """Copy the sources and drive checks that `into` lacks, and return their names.

    Merging the same folder again changes nothing. Phases are not copied: the first host decides them.

    Raises:
        RunFolderError: the folders are of different runs, the part is not over, a source differs, cannot be
            copied, leaves less than `free_space_floor` of the plan free, or is made of something else than
            files of ours.
    """
    with _reporting(part.path), _folder(part.path.resolve()) as folder:
        if "run.json" in _names(folder):
            _read(folder, "run.json")  # no link, pipe or device
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
        if os.path.lexists(part.journal):
            copied += _copy_sources(into, part)
        if os.path.lexists(part.drives):
            copied += _copy_drives(into, part, ours.host)
    return copied


def _copy_sources(into: RunFolder, part: RunFolder) -> list[str]:
    copied = []
    with _reporting(part.journal), _folder(part.journal) as journal:
        for source in sorted(filter(SOURCE_NAME.fullmatch, _names(journal))):
            with _reporting(part.journal / source), _folder(source, journal) as folder:
                if not _is_there(into, source, folder):
                    _copy(into, source, folder)
                    copied.append(source)
    return copied


def _copy_drives(into: RunFolder, part: RunFolder, own_host: str) -> list[str]:
    """Add drive checks of other hosts; there may be more of them than the last time.

    Those that `own_host` measured itself stay as they are, whatever another host has under its name.
    """
    copied = []
    known = set(read_drive_checks(into))
    with _reporting(part.drives), _folder(part.drives) as folder:
        for name in sorted(filter(_DRIVE_FILE.fullmatch, _names(folder))):
            host = name.removesuffix(".json")
            if host == own_host:
                continue
            try:
                raw = _read(folder, name)
                added = [one for one in _drive_checks_of(host, raw) if one not in known]
                _check_room(into, f"drives/{name}", len(raw))
                append_drive_checks(into, added)
            except (ValueError, TypeError, KeyError) as error:
                raise RunFolderError(f"{part.drives / name} is damaged: {error}") from error
            if added:
                copied.append(f"drives/{name}")
    return copied


def _drive_checks_of(host: str, raw: bytes) -> list[Measured]:
    """Return the drive checks in the file of a host; raises the errors of `from_json`, and `ValueError`."""
    found = [from_json(one) for one in json_text.loads(raw)["drives"]]
    if any(one.host != host for one in found):
        raise ValueError("it has checks of another host")
    return found


def _copy(into: RunFolder, source: str, folder: int) -> None:
    """Copy a source completely or not at all."""
    sizes = {name: _size_bytes(folder, name) for name in _segments(folder)}
    _check_room(into, source, sum(sizes.values()))
    draft = into.path / f".{source}.part"
    shutil.rmtree(draft, ignore_errors=True)  # of an interrupted copy
    try:
        draft.mkdir(mode=0o750)
        for name, size in sizes.items():
            with _regular(folder, name, MAX_SEGMENT_BYTES) as theirs:
                target = os.open(draft / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
                with os.fdopen(target, "wb") as ours:
                    for chunk in _chunks(theirs, size):
                        ours.write(chunk)
        draft.rename(into.journal / source)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _check_room(into: RunFolder, name: str, size_bytes: int) -> None:
    """Raise `RunFolderError` if a copy of this size would leave less than the floor free.

    Sizes are those that readers see: a sparse file takes them here, and next to nothing where it comes from.
    """
    floor = read_any_plan(into).free_space_floor if into.plan.exists() else FLOOR_BYTES
    free = shutil.disk_usage(into.path).free
    if free - size_bytes < floor:
        raise RunFolderError(
            f"{name} has {size_bytes:,} bytes, and {into.path} has {free:,} free, of which the "
            f"free_space_floor of {format_size(floor)} must remain: make room there, or use a larger drive"
        )


def _is_there(into: RunFolder, source: str, folder: int) -> bool:
    """Return True if the source is there already.

    Raises:
        RunFolderError: there is another source of that name: two hosts have the same name.
    """
    here = into.journal / source
    if not here.exists():
        return False
    names = _segments(folder)
    is_same = names == sorted(path.name for path in here.glob("*.jsonl")) and all(
        _is_same(here / name, folder, name) for name in names
    )
    if not is_same:
        raise RunFolderError(
            f"{source} is in both folders and differs: either it was shipped over a topic, or two hosts "
            "have the same name"
        )
    return True


def _names(folder: int) -> list[str]:
    return os.listdir(folder)  # of an open folder, which cannot be exchanged


def _segments(folder: int) -> list[str]:
    return sorted(filter(_SEGMENT.fullmatch, _names(folder)))


def _is_same(here: Path, folder: int, name: str) -> bool:
    with _regular(folder, name, MAX_SEGMENT_BYTES) as theirs, here.open("rb") as ours:
        chunks = _chunks(theirs, MAX_SEGMENT_BYTES)
        return all(ours.read(len(chunk)) == chunk for chunk in chunks) and not ours.read(1)


def _read(folder: int, name: str) -> bytes:
    with _regular(folder, name, MAX_SMALL_BYTES) as descriptor:
        return b"".join(_chunks(descriptor, MAX_SMALL_BYTES))


def _size_bytes(folder: int, name: str) -> int:
    with _regular(folder, name, MAX_SEGMENT_BYTES) as descriptor:
        return os.fstat(descriptor).st_size


def _chunks(descriptor: int, max_bytes: int) -> Iterator[bytes]:
    """Yield the bytes of a file, which may grow meanwhile, up to a limit."""
    while max_bytes and (chunk := os.read(descriptor, min(_CHUNK_BYTES, max_bytes))):
        max_bytes -= len(chunk)
        yield chunk


@contextmanager
def _regular(folder: int, name: str, max_bytes: int) -> Iterator[int]:
    """Open a regular file of a folder; raises `RunFolderError` for anything else, and for a huge one."""
    descriptor = os.open(name, _PLAIN, dir_fd=folder)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise RunFolderError(f"{name} is not a regular file")
        if found.st_size > max_bytes:
            raise RunFolderError(f"{name} has {found.st_size} bytes, more than any of ours")
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _folder(path: Path | str, within: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, _PLAIN | os.O_DIRECTORY, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _reporting(path: Path) -> Iterator[None]:
    """Turn what goes wrong with a part within the block into an error that names it."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        raise RunFolderError(
            f"cannot copy {path}: {error}; links are not followed: copy the files themselves"
        ) from error
