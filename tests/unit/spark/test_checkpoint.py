"""Whether the detector's query makes progress: a hung batch must not pass for a quiet hour."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
import traceback
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from soak.core.clock import SystemClock
from soak.core.errors import FindingsError, PlanError, RunFolderError
from soak.core.journal_format import columns_line, encode
from soak.core.model import Column, Record
from soak.core.units import SECOND_NS
from soak.store.run_folder import RunFolder, read_plan
from spark.cluster.master import Cluster
from spark.sources.journals import JournalSource, caution_path, rows
from spark.sources.offsets import Caution, ColumnsIndex, Offset, newest, spans
from spark.sources.schema import ROWS
from spark.streaming.checkpoint import (
    LOOK_NS,
    Headway,
    committed,
    deaths_noted,
    end_predecessor,
    note_death,
    planned,
)
from spark.streaming.job import LAYOUT, run
from spark.streaming.panel_state import dealt_layout
from tests.support.fakes import FakeClock, refuse
from tests.support.spark.synthetic_run import Shape, write_synthetic_run

LOOK_SECONDS = LOOK_NS / SECOND_NS


class World:
    def __init__(self, path: Path) -> None:
        self._checkpoint, self._source = path / "checkpoint", path / "journal" / "produce.0@h"
        for folder in (self._source, self._checkpoint / "commits", self._checkpoint / "offsets"):
            folder.mkdir(parents=True)
        self._batch = -1
        self._clock = FakeClock()
        self._headway = Headway(self._checkpoint, self._source.parent, self._clock)

    def record(self) -> None:
        with (self._source / "000000.jsonl").open("a") as file:
            file.write("a line\n")

    def commit(self) -> None:
        """As Spark does, of all that is there."""
        self._batch += 1
        end = [0, (self._source / "000000.jsonl").stat().st_size]
        lines = ["v1", "{}", json.dumps({self._source.name: end})]
        (self._checkpoint / "offsets" / str(self._batch)).write_text("\n".join(lines))
        (self._checkpoint / "commits" / str(self._batch)).touch()

    def has_progressed(self, seconds: float = 0) -> bool:
        self._clock.advance(seconds)
        return self._headway.has_progressed()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_batch_that_never_ends_is_no_progress(world: World) -> None:
    """Also the first one; one more commit, and all is well."""
    world.record()
    seen = [world.has_progressed(), world.has_progressed(3600), world.has_progressed(1)]
    world.commit()
    seen.append(world.has_progressed())

    assert seen == [False, False, False, True]


def test_each_batch_is_progress_however_much_is_left(world: World) -> None:
    seen = []
    for _ in range(5):
        world.record()
        world.commit()
        world.record()
        seen += [world.has_progressed(300), world.has_progressed(1)]

    assert seen == [True, False] * 5


def test_with_nothing_to_take_in_a_query_may_be_silent(world: World) -> None:
    """A paused load, looked at every ten seconds; the first line after it is something to take in."""
    quiet = [world.has_progressed(), world.has_progressed(1), world.has_progressed(LOOK_SECONDS)]
    world.record()

    assert quiet == [True, False, True]
    assert not world.has_progressed(LOOK_SECONDS)


class DeadlyRun:
    """A run with a line that ends every process that reads it, and Spark's logs as each start leaves them."""

    def __init__(self, path: Path, deadly: tuple[str, int], seconds: int = 40) -> None:
        self.folder = RunFolder(path)
        self.deadly = deadly
        self.seconds = seconds
        columns = columns_line((Column("a_seconds"),))
        for source in ("probe@a", "probe@b", "probe@c"):
            (self.folder.journal / source).mkdir(parents=True)
            lines = [encode(Record(k, 1, 0, 10**9, columns.id, (1.0,))) for k in range(seconds)]
            path = self.folder.journal / source / "000000.jsonl"
            path.write_bytes(b"".join([encode(columns), *lines]))
        for name in ("offsets", "commits"):
            (self.folder.checkpoint / name).mkdir(parents=True)
        self.taken: set[tuple[str, int]] = set()
        self.gaps: list[str] = []

    def start(self) -> bool:
        """Run batches until the end of what is there, or a death; return whether it lives."""
        checkpoint, journal = self.folder.checkpoint, self.folder.journal
        note_death(checkpoint, journal, caution_path(self.folder.path))
        options = {"run_dir": str(self.folder.path), "run": "r"}
        tail = JournalSource(options).streamReader(ROWS)
        while True:
            numbers = [int(one.name) for one in (checkpoint / "offsets").iterdir()]
            batch, start = max(numbers, default=-1), committed(checkpoint) or {}
            if not (checkpoint / "commits" / str(batch)).exists() and batch >= 0:
                end: Offset = json.loads(
                    (checkpoint / "offsets" / str(batch)).read_text().splitlines()[2]
                )
            else:
                batch += 1
                end = tail.latestOffset(start, tail.getDefaultReadLimit())
                if end == start:
                    return True
                text = "\n".join(["v1", "{}", json.dumps(end)])
                (checkpoint / "offsets" / str(batch)).write_text(text)
            listed = spans(journal, start, end, ColumnsIndex())
            found = list(rows(self.folder.path, "r", listed))
            if self.deadly in {(row["source"], row.get("k")) for row in found}:
                return False
            self.gaps += [str(row["gap"]) for row in found if row["gap"]]
            self.taken |= {
                (str(row["source"]), int(str(row["k"]))) for row in found if not row["gap"]
            }
            (checkpoint / "commits" / str(batch)).touch()


@pytest.mark.long
def test_a_line_that_ends_every_process_is_stepped_over(tmp_path: Path) -> None:
    """After a bounded number of deaths; every other line is taken, and a gap names the file."""
    run = DeadlyRun(tmp_path, ("probe@b", 17))

    deaths = 0
    while not run.start():
        deaths += 1
        assert deaths < 20

    every = {(f"probe@{name}", k) for name in "abc" for k in range(run.seconds)}
    assert run.taken == every - {run.deadly}
    assert run.gaps == [
        next(gap for gap in run.gaps if "a line that ends the detector is stepped over" in gap)
    ]
    assert deaths > 3


def test_a_process_that_dies_once_gets_its_batch_again(tmp_path: Path) -> None:
    """A reboot is no fault of a record."""
    run = DeadlyRun(tmp_path, ("probe@b", 17))

    assert not run.start()
    run.deadly = ("", 0)

    assert run.start()
    assert len(run.taken) == 3 * run.seconds
    assert not caution_path(run.folder.path).exists() or run.gaps == []


def of_task(error: Exception) -> StreamingQueryException:
    """Return what Spark makes of an error in an executor."""
    text = "".join(traceback.format_exception(error))
    return StreamingQueryException(f"[STREAM_FAILED] Job aborted due to stage failure: {text}")


@pytest.mark.parametrize(
    ("error", "is_death"),
    [
        (None, False),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), False),
        (OSError(errno.EIO, os.strerror(errno.EIO)), False),
        (FindingsError("cannot use it: database is locked"), False),
        (of_task(RunFolderError("executors do not share /runs/r")), False),
        (of_task(ZeroDivisionError()), True),
        (ConnectionRefusedError(), True),
        (MemoryError(), True),
    ],
    ids=[
        "stopped",
        "full drive",
        "failing drive",
        "failing store",
        "no folder",
        "failing task",
        "no JVM",
        "died",
    ],
)
def test_only_a_death_makes_batches_smaller(
    tmp_path: Path, error: Exception | None, *, is_death: bool
) -> None:
    """A process that is stopped, or cannot use the drive or the store, leaves a planned batch behind, too."""
    run = DeadlyRun(tmp_path, ("probe@b", 17))
    places = run.folder.checkpoint, run.folder.journal, caution_path(run.folder.path)
    run.start()
    for _ in range(4):
        with contextlib.suppress(Exception), deaths_noted(*places):
            if error is not None:
                raise error

    assert bool(Caution.read(places[2]).limit_bytes) == is_death


def test_what_fails_as_a_batch_is_kept_is_raised_and_is_no_death(tmp_path: Path) -> None:
    """Spark calls the block, and ends its query with an error of its own."""
    run = DeadlyRun(tmp_path, ("probe@b", 17))
    places = run.folder.checkpoint, run.folder.journal, caution_path(run.folder.path)
    run.start()

    def query() -> None:
        with deaths_noted(*places) as keeping:
            with contextlib.suppress(FindingsError), keeping.noted():
                raise FindingsError("cannot use it: database is locked")
            raise StreamingQueryException("[STREAM_FAILED] Query terminated with exception")

    for _ in range(4):
        with pytest.raises(FindingsError, match="is locked"):
            query()

    assert Caution.read(places[2]) == Caution()


def test_a_start_that_never_comes_to_its_query_is_no_death(tmp_path: Path) -> None:
    """The secret of the cluster is missing, or no executor comes: the batch has nothing to do with it."""
    folder = write_synthetic_run(tmp_path / "r", Shape(seconds=60))
    shards = read_plan(folder).detection.shards
    for name in ("offsets", "commits"):
        (folder.checkpoint / name).mkdir(parents=True)
    (folder.spark / LAYOUT).write_text(dealt_layout(shards))
    end = newest(folder.journal, {}, None)
    (folder.checkpoint / "offsets" / "0").write_text("\n".join(["v1", "{}", json.dumps(end)]))
    cluster = Cluster(master="spark://192.0.2.1:7077", secret="${env:SOAK_NO_SUCH_SECRET}")
    for _ in range(4):
        with pytest.raises(PlanError, match="SOAK_NO_SUCH_SECRET"):
            run(folder.path, threading.Event(), SystemClock(), cluster)

    assert Caution.read(caution_path(folder.path)) == Caution()
    assert planned(folder.checkpoint, 0) == end


def test_the_lock_of_another_users_spark_is_an_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a start by root, or by somebody else with the same folder."""
    monkeypatch.setattr(os, "open", refuse)

    with pytest.raises(RunFolderError, match=r"^cannot write /.*/jvm\.lock: permission denied$"):
        end_predecessor(tmp_path / "spark", tmp_path / "spark" / "tmp", FakeClock())
