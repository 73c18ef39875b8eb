"""Puts the journals of one run's hosts into one folder; sources carry their host's name."""

from __future__ import annotations

import shutil

from soak.core.errors import RunFolderError
from soak.store.journal_reader import sources
from soak.store.run_folder import RunFolder, exclusive, read_run


def collect(into: RunFolder, part: RunFolder) -> list[str]:
    """Copy the sources that `into` lacks; return their names. Doing it again changes nothing.

    A conductor's own view stays where it is: the phases of a run are those of its first host.

    Raises:
        RunFolderError: they belong to different runs, the part is not over, or a source differs.
    """
    ours, theirs = read_run(into), read_run(part)
    if ours.id != theirs.id or ours.start_wall_ns != theirs.start_wall_ns:
        raise RunFolderError(f"{part.path} is of run {theirs.id}, not of {ours.id} and its start")
    if theirs.state == "running":
        raise RunFolderError(f"{part.path} is not over: its run.json says running")
    brought = []
    with exclusive(into.path / "collect.lock", "the collecting of this run"):
        for source in sources(part.journal):
            if _is_there(into, part, source):
                continue
            draft = into.path / f".{source}.part"
            shutil.rmtree(draft, ignore_errors=True)  # of a copy that was cut short
            shutil.copytree(part.journal / source, draft)
            draft.rename(into.journal / source)
            brought.append(source)
    return brought


def _is_there(into: RunFolder, part: RunFolder, source: str) -> bool:
    """Return whether a source was brought before.

    Raises:
        RunFolderError: there is another one of that name: two hosts are called alike.
    """
    if not (into.journal / source).exists():
        return False
    here, there = (
        {path.name: path.read_bytes() for path in (folder.journal / source).glob("*.jsonl")}
        for folder in (into, part)
    )
    if here != there:
        raise RunFolderError(
            f"{source} is in both folders and differs: are two hosts called alike?"
        )
    return True
