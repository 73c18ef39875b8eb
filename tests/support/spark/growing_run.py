"""A run folder that grows second by second, cut from a whole one, and judgements of what it holds."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from soak.core.journal_format import DamagedLineError, End, decode
from soak.core.model import Change, Record
from soak.store.run_folder import RunFolder
from spark.streaming.attribution import Attribution


def begun(whole: RunFolder, path: Path) -> RunFolder:
    """Return a copy of the run in which nothing is recorded yet; its end is not decided."""
    folder = RunFolder(path)
    path.mkdir(parents=True)
    shutil.copy(whole.plan, folder.plan)
    shutil.copy(whole.run_json, folder.run_json)
    decided = whole.phases.read_text().splitlines(keepends=True)
    folder.phases.write_text("".join(line for line in decided if '"end"' not in line))
    return folder


def grow(whole: RunFolder, folder: RunFolder, k: int) -> None:
    """Append what each source of `whole` wrote before second `k` and `folder` lacks."""
    for path, target in _files(whole, folder):
        raw = path.read_bytes()
        kept = b"".join(line for line in raw.splitlines(keepends=True) if _is_before(line, k))
        _append(target, kept)


def tear(whole: RunFolder, folder: RunFolder, dice: random.Random) -> None:
    """Append a part of the next line of each source, as one that is written just now."""
    for path, target in _files(whole, folder):
        if target.exists():
            raw, size = path.read_bytes(), target.stat().st_size
            line = raw[size : raw.find(b"\n", size) + 1]
            _append(target, raw[: size + dice.randrange(max(1, len(line)))])


def end(whole: RunFolder, folder: RunFolder) -> None:
    """Append the remainder, and the decision that the run is over."""
    for path, target in _files(whole, folder):
        _append(target, path.read_bytes())
    shutil.copy(whole.phases, folder.phases)


def advance(judge: Attribution, changes: Sequence[Change]) -> None:
    """Have changes judged as of all records in the journals, which have shown them."""
    judge.record([], judge.history.latest())
    judge.record([replace(one, discovered_k=judge.complete_k) for one in changes], {})
    while judge.judge():
        pass


def _files(whole: RunFolder, folder: RunFolder) -> Iterator[tuple[Path, Path]]:
    """Give the files of the whole run and those to grow, of each source up to the first that is not full."""
    for source in sorted(path.name for path in whole.journal.iterdir()):
        for path in sorted((whole.journal / source).glob("*.jsonl")):
            target = folder.journal / source / path.name
            yield path, target
            if not target.exists() or target.stat().st_size < path.stat().st_size:
                break


def _append(target: Path, wanted: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("ab") as file:
        file.write(wanted[file.tell() :])


def _is_before(line: bytes, k: int) -> bool:
    try:
        found = decode(line)
    except DamagedLineError:
        return True
    return not isinstance(found, End) and not (isinstance(found, Record) and found.k >= k)
