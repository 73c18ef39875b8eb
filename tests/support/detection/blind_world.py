"""A process that detects and reports on a run in which a drill has left everything it keeps.

It prints as JSON how many findings there were, and in order which files were opened and when findings
were judged.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql.streaming.tws_tester import TwsTester

from detectors.level_shift import Config
from soak.core.clock import SystemClock
from soak.core.model import Change, Finding
from soak.store.run_folder import RunFolder, read_plan, read_run
from spark.batch.timeline import assemble, digest_rows
from spark.report import job as report
from spark.sources.journals import batches, rows
from spark.sources.offsets import ColumnsIndex, newest, spans
from spark.streaming.attribution import Attribution
from spark.streaming.panel_state import PanelProcessor
from tests.support.spark.growing_run import advance
from tests.support.spark.synthetic_run import Shape, write_synthetic_run

KEPT = ("faults.jsonl", "drill.json", "control.json", "counters.json", "network.json", "clock")
JUDGED = "<judged>"
SHAPE = Shape(seconds=320, deletions_k=200, fault_k=202, is_drill=True)


def run_of_a_drill(path: Path) -> RunFolder:
    """Write a run with a step, and next to what it declared the files of every fault."""
    folder = write_synthetic_run(path, SHAPE)
    for place in (folder.lab, folder.lab / "drive-1", folder.lab / "kafka"):
        place.mkdir(exist_ok=True)
        for name in KEPT:
            if not (place / name).exists():
                (place / name).write_text("{}\n")
    return folder


def detect(folder: RunFolder) -> None:
    """Do what the detector's daemon does, without Spark's JVM."""
    run = read_run(folder).id
    listed = spans(folder.journal, {}, newest(folder.journal, {}, None), ColumnsIndex())
    frames = [batch.to_pandas() for batch in batches(rows(folder.path, run, listed))]
    tester = TwsTester(PanelProcessor(Config()))
    answer = tester.testInPandas((run, 0), pd.concat(frames, ignore_index=True))
    seen = [
        Change.from_row(dict(zip(answer.columns, row, strict=True))) for row in answer.to_numpy()
    ]
    judge = Attribution(folder, run, read_plan(folder), SystemClock())
    advance(judge, seen)
    judge.conclude()


class Looked(list[Finding]):
    """What was found online; it notes when a judgement reads it."""

    def __init__(self, found: Sequence[Finding], did: list[str]) -> None:
        super().__init__(found)
        self._did = did

    def __iter__(self) -> Iterator[Finding]:
        self._did.append(JUDGED)
        return super().__iter__()


def main() -> None:
    folder = run_of_a_drill(Path(sys.argv[1]))
    did: list[str] = []

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            did.append(os.fsdecode(arguments[0]))

    sys.addaudithook(note)
    detect(folder)
    timeline = assemble(folder, digest_rows)
    online, changes, unread = report.seen_online(folder, timeline.run.id)
    report.write(timeline, Looked(online, did), report.drill_of, changes, unread)
    sys.stdout.write(json.dumps({"found": len(online), "did": did}))


if __name__ == "__main__":
    main()
