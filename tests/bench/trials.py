"""Trials that were recorded: keep one small in the repository, and judge today's detector by all of them.

`tuning` holds those that the detector may be changed by; `judging` those that only give figures.
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from soak.app.lab.trials import RESULT, replay_trial, trial_of
from soak.core.journal_format import Columns, Line, decode, encode
from soak.core.model import Record
from soak.lab.trials.figures import figures
from soak.lab.trials.outcome import Trial
from soak.lab.trials.page import write_page
from soak.service.signals import exit_on_sigterm
from soak.store.journal.reader import complete_size, lines, segments, sources
from soak.store.run_folder import RunFolder
from tests.support.paths import RECORDED

FOLDER = RECORDED / "trials"
USES = ("tuning", "judging")
_SUFFIX = ".tar.xz"
_DIGITS = 5
"""Of each value that is kept: a histogram's buckets are wider."""
_KEPT = ("plan.yaml", "run.json", "phases.jsonl", "lab/faults.jsonl", f"lab/{RESULT}")


def keep(run_dir: Path, archive: Path) -> None:
    """Write what a replay of a trial needs: the journals without histograms and spans, and its troubles.

    Raises:
        LabError: it is no folder of a finished trial.
        SoakError: its journals cannot be read.
    """
    trial_of(run_dir)
    archive.parent.mkdir(parents=True, exist_ok=True)
    source = RunFolder(run_dir)
    with tempfile.TemporaryDirectory(prefix="soakd-trial-") as work:
        folder = RunFolder(Path(work) / "trial")
        folder.lab.mkdir(parents=True)
        for name in _KEPT:
            shutil.copyfile(run_dir / name, folder.path / name)
        for name in sources(source.journal):
            for path in segments(source.journal / name):
                _copy_small(path, folder.journal / name / path.name)
        whole = archive.with_name(f"{archive.name}.part")  # an interrupted one is not an archive
        with tarfile.open(whole, "w:xz", preset=9) as found:
            found.add(folder.path, arcname=".")
        whole.replace(archive)


def _copy_small(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        for raw in lines(path, 0, complete_size(path)):
            file.write(encode(_small(decode(raw))))


def leave_out(run_dir: Path, unmeasured: re.Pattern[str]) -> None:
    """Take the metrics and events whose names begin so out of the journals, as if no probe gave them."""
    folder = RunFolder(run_dir)
    for name in sources(folder.journal):
        kept: dict[str, list[int]] = {}
        for path in segments(folder.journal / name):
            every = [decode(raw) for raw in lines(path, 0, complete_size(path))]
            path.write_bytes(b"".join(encode(_without(one, unmeasured, kept)) for one in every))


def _without(line: Line, unmeasured: re.Pattern[str], kept: dict[str, list[int]]) -> Line:
    """Return a line without these; `kept` has the places of the columns that stay, by their id."""
    if isinstance(line, Columns):
        at = [i for i, one in enumerate(line.columns) if not unmeasured.match(one.metric)]
        kept[line.id] = at
        return replace(line, columns=tuple(line.columns[i] for i in at))
    if not isinstance(line, Record):
        return line
    return replace(
        line,
        values=tuple(line.values[i] for i in kept[line.columns_id]),
        events=tuple(one for one in line.events if not unmeasured.match(one.kind)),
    )


def _small(line: Line) -> Line:
    if not isinstance(line, Record):
        return line
    values = tuple(
        value if not math.isfinite(value) else float(f"{value:.{_DIGITS}g}")
        for value in line.values
    )
    return replace(line, values=values, histograms={}, acknowledged={}, received={}, sent_next={})


def replayed(archive: Path, unmeasured: re.Pattern[str] | None = None) -> Trial:
    """Let today's detector read the journals of a kept trial; return what became of its troubles.

    `unmeasured` as in `leave_out`.

    Raises:
        LabError: the archive holds no trial, or the detector failed.
    """
    with tempfile.TemporaryDirectory(prefix="soakd-trial-") as work:
        before, after = Path(work) / "before", Path(work) / "after"
        with tarfile.open(archive) as found:
            found.extractall(before, filter="data")
        if unmeasured is not None:
            leave_out(before, unmeasured)
        replay_trial(before, after)
        return trial_of(after)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-trials", description=__doc__)
    parser.add_argument("--use", choices=USES, help="only these; of --keep: for what")
    parser.add_argument("--keep", type=Path, help="keep the trial of this run folder")
    parser.add_argument("--page", type=Path, help="write tables and pictures of the replays here")
    parser.add_argument(
        "--without",
        type=re.compile,
        help="metrics and events that no probe gives: a pattern of names",
    )
    arguments = parser.parse_args()
    if arguments.keep is not None:
        if arguments.use is None:
            parser.error("--keep needs --use")
        keep(arguments.keep, FOLDER / arguments.use / f"{arguments.keep.name}{_SUFFIX}")
        return
    exit_on_sigterm()
    console = Console()
    every: list[Trial] = []
    for use in [arguments.use] if arguments.use else USES:
        found = []
        for archive in sorted((FOLDER / use).glob(f"*{_SUFFIX}")):
            console.print(f"\n{use}/{archive.name}", markup=False, highlight=False)
            found.append(replayed(archive, arguments.without))
        if found:
            console.print(f"\n{use}, {len(found)} trials", markup=False, highlight=False)
            for name, share in figures(found).items():
                console.print(f"{name}: {share}", markup=False, highlight=False)
        every += found
    if arguments.page is not None and every:
        write_page(every, arguments.page)


if __name__ == "__main__":
    main()
