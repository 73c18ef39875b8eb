"""The runs of a folder as `soak serve` may show them: no name and no link leads out of it."""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from soak.app.live.pages import ListedRun
from soak.app.live.snapshot import OVER_STATES, REPORT_SECONDS, SILENT_SECONDS
from soak.core import wording
from soak.core.errors import RunFolderError, SoakError
from soak.core.units import SECOND_NS
from soak.runtime.context import PhaseFile
from soak.service.files import read_json, read_small
from soak.store.journal.reader import segments
from soak.store.run_folder import (
    RunFolder,
    counting_incidents,
    counting_verdict,
    read_acknowledged,
    read_run,
)

MAX_RUNS = 500
"""The newest ones are listed."""
MAX_FILE_BYTES = 256 * 2**20
_MAX_KEPT = 2000


def list_run(path: Path) -> ListedRun:
    """Return what a list says of a run: state, verdict, p99 of publishing, incidents that count."""
    folder = RunFolder(path)
    try:
        run = read_run(folder)
        start = wording.iso(run.start_wall_ns)[:16].replace("T", " ") if run.start_wall_ns else "-"
    except (SoakError, OverflowError, ValueError, OSError, TypeError):
        return ListedRun(path.name, state="run.json is damaged")
    known = ListedRun(path.name, str(run.name), start, str(run.state), "no report")
    try:
        body = read_json(folder.summary)
        if body.get("is_running") and run.state in OVER_STATES:
            return known  # the end may have brought what the report does not know
        notes = read_acknowledged(folder)
        counting = counting_incidents(body, notes)
        p99 = body.get("soak", {}).get("latency_seconds", {}).get("publish", {}).get("p99")
        return replace(
            known,
            verdict=counting_verdict(body, notes),
            p99="-" if p99 is None else wording.amount(float(p99), "seconds"),
            incidents=str(len(counting)),
        )
    except (OSError, SoakError, ValueError, TypeError, KeyError, AttributeError):
        return known


@dataclass(slots=True)
class ServedFolder:
    """A folder of runs, or of one run. A run is found by comparing names, never by joining a path."""

    root: Path  # resolved
    _listed: OrderedDict[bytes, tuple[object, ListedRun]] = field(default_factory=OrderedDict)

    @property
    def is_run(self) -> bool:
        """True when the folder is that of one run."""
        return RunFolder(self.root).run_json.exists()

    def keys(self) -> list[bytes]:
        """Return the names of the runs; links are not followed."""
        if self.is_run:
            return [os.fsencode(self.root.name)]
        try:
            with os.scandir(self.root) as entries:
                names = [one.name for one in entries if one.is_dir(follow_symlinks=False)]
        except OSError:
            return []
        return [
            os.fsencode(name) for name in names if RunFolder(self.root / name).run_json.exists()
        ]

    def find(self, key: bytes) -> RunFolder | None:
        """Return a run by the name of its folder, None where there is none or it has links out of it."""
        return self._enclosed(key) if key in self.keys() else None

    def _enclosed(self, key: bytes) -> RunFolder | None:
        folder = RunFolder(self.root if self.is_run else self.root / os.fsdecode(key))
        return folder if is_enclosed(folder, self.root) else None

    def runs(self, now_ns: int) -> tuple[list[ListedRun], int]:
        """Return the newest runs, newest first, and how many are left out."""
        listed = (self._list(key, now_ns) for key in self.keys())
        found = sorted(listed, key=lambda one: (one.start, one.name))
        return found[::-1][:MAX_RUNS], max(0, len(found) - MAX_RUNS)

    def _list(self, key: bytes, now_ns: int) -> ListedRun:
        folder = self._enclosed(key)
        if folder is None:
            return ListedRun(os.fsdecode(key), state="has links out of this folder")
        paths = (folder.run_json, folder.summary, folder.path / "acknowledged.json")
        stamp = tuple(map(_stamp, paths))
        kept = self._listed.pop(key, None)
        if kept is None or kept[0] != stamp:
            kept = (stamp, replace(list_run(folder.path), key=key))
        self._listed[key] = kept
        if len(self._listed) > _MAX_KEPT:
            self._listed.popitem(last=False)
        return as_it_is(kept[1], folder, now_ns)


def as_it_is(run: ListedRun, folder: RunFolder, now_ns: int) -> ListedRun:
    """Return a run that was listed, as `stopped` where it calls itself running and records nothing."""
    try:
        if run.state == "running" and _is_silent(folder, now_ns):
            return replace(run, state="stopped")
    except RunFolderError:  # the other runs are listed all the same
        return replace(run, state="phases.jsonl is damaged")
    return run


def _is_silent(folder: RunFolder, now_ns: int) -> bool:
    """True when nothing has been recorded for a while: a killed run calls itself running for ever.

    Raises:
        RunFolderError: the phases of the run are damaged.
    """
    newest_ns = [0]
    with suppress(OSError):
        newest_ns.append(folder.run_json.stat().st_mtime_ns)
        for source in folder.journal.iterdir():
            newest_ns += [path.stat().st_mtime_ns for path in segments(source)[-1:]]
    is_ending = PhaseFile(folder.phases).poll().end_k is not None
    limit = REPORT_SECONDS if is_ending else 3 * SILENT_SECONDS
    return now_ns - max(newest_ns) > limit * SECOND_NS


def is_enclosed(folder: RunFolder, root: Path) -> bool:
    """True when everything that is read of a run is a plain file or folder within `root`."""
    places = [folder.path, folder.report.parent, folder.journal]
    try:
        with os.scandir(folder.journal) as entries:
            places += [Path(one.path) for one in entries]
    except OSError:
        pass
    return all(_has_plain_entries(place, root) for place in places if os.path.lexists(place))


def _has_plain_entries(place: Path, root: Path) -> bool:
    try:
        if not place.resolve().is_relative_to(root):
            return False
        if not place.is_dir():
            return True
        with os.scandir(place) as entries:
            return all(_is_plain(one, root) for one in entries)
    except (OSError, RuntimeError):  # a loop of links, or a folder without permission
        return False


def _is_plain(entry: os.DirEntry[str], root: Path) -> bool:
    if entry.is_symlink():
        return Path(entry.path).resolve(strict=True).is_relative_to(root)
    return entry.is_file() or entry.is_dir()


def read_served_file(path: Path) -> bytes:
    """Return a file that is sent as it is.

    Raises:
        RunFolderError: it is missing, no plain file, or larger than a report can be.
    """
    try:
        return read_small(path, MAX_FILE_BYTES, os.O_NOFOLLOW)
    except OSError as error:
        raise RunFolderError(f"{path.name} cannot be read: {error.strerror}") from error


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
