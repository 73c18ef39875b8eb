"""A run folder that grows second by second, cut from a whole one."""

from __future__ import annotations

import shutil
from pathlib import Path

from soak.core.journal_format import DamagedLineError, End, decode
from soak.core.model import Record
from soak.store.run_folder import RunFolder


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
    for source in sorted(path.name for path in whole.journal.iterdir()):
        raw = (whole.journal / source / "000000.jsonl").read_bytes()
        kept = b"".join(line for line in raw.splitlines(keepends=True) if _is_before(line, k))
        target = folder.journal / source / "000000.jsonl"
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("ab") as file:
            file.write(kept[file.tell() :])


def end(whole: RunFolder, folder: RunFolder) -> None:
    """Append the rest, and the decision that the run is over."""
    for source in sorted(path.name for path in whole.journal.iterdir()):
        raw = (whole.journal / source / "000000.jsonl").read_bytes()
        with (folder.journal / source / "000000.jsonl").open("ab") as file:
            file.write(raw[file.tell() :])
    shutil.copy(whole.phases, folder.phases)


def _is_before(line: bytes, k: int) -> bool:
    try:
        found = decode(line)
    except DamagedLineError:
        return True
    return not isinstance(found, End) and not (isinstance(found, Record) and found.k >= k)
