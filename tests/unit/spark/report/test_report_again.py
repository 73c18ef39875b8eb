"""Whose report is made where a run ends, or another one begins, while it is made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from soak.app.outcome import make_report
from soak.store.plan_home import PlanHome
from soak.store.run_folder import Run, RunFolder, read_run, write_run
from spark.batch.digest import Scope
from spark.batch.digest_cache import Row
from spark.batch.timeline import assemble, digest_rows
from spark.report import job as report
from tests.support.spark.synthetic_run import CONSUMER, Shape, write_synthetic_run

RUN = Run("r1", 0, "h", {}, "running", "p")


class Reports:
    """Notes of which runs a report is made, and lets something happen during the first one."""

    def __init__(self, path: Path, during: Callable[[Reports], None] = lambda _: None) -> None:
        self.home, self._during = PlanHome(path), during
        self.states: list[tuple[str, str]] = []
        self.begin("r1")

    def begin(self, run_id: str, state: str = "running") -> None:
        folder = RunFolder(self.home.path / run_id)
        folder.path.mkdir()
        write_run(folder, dataclasses.replace(RUN, id=run_id, state=state))
        self.home.set_current(folder)

    def end(self) -> None:
        folder = RunFolder(self.home.current.resolve())
        write_run(folder, dataclasses.replace(read_run(folder), state="ended"))

    def make(self, path: Path) -> int:
        run = read_run(RunFolder(path))
        self.states.append((run.id, run.state))
        if len(self.states) == 1:
            self._during(self)
        return len(self.states)


def reported(path: Path, during: Callable[[Reports], None]) -> list[tuple[str, str]]:
    reports = Reports(path, during)
    make_report(reports.home.current, reports.make)
    return reports.states


def test_a_run_that_goes_on_has_one_report(tmp_path: Path) -> None:
    reports = Reports(tmp_path)
    code, folder = make_report(reports.home.current, reports.make)

    assert (code, folder.path.name) == (1, "r1")
    assert reports.states == [("r1", "running")]


def test_a_run_that_ends_meanwhile_has_another(tmp_path: Path) -> None:
    """The one under way says that it goes on."""
    assert reported(tmp_path, Reports.end) == [("r1", "running"), ("r1", "ended")]


def test_a_run_that_begins_meanwhile_has_its_own_later(tmp_path: Path) -> None:
    """What is being made is of the run that it was begun for, to its end."""

    def begin_another(reports: Reports) -> None:
        reports.end()
        reports.begin("r2")

    assert reported(tmp_path, begin_another) == [("r1", "running"), ("r1", "ended")]


def test_a_short_run_that_begins_and_ends_meanwhile_has_one(tmp_path: Path) -> None:
    def live_another(reports: Reports) -> None:
        reports.begin("r2", "ended")

    assert reported(tmp_path, live_another) == [("r1", "running"), ("r2", "ended")]


@pytest.mark.long
def test_a_report_is_the_same_in_whatever_order_tasks_end(tmp_path: Path) -> None:
    """Rows of journal files come as tasks of Spark finish."""
    shape = Shape(gaps=((CONSUMER, range(60, 63)),), damaged_k=80, invalid=range(40, 42))
    folder = write_synthetic_run(tmp_path / "run", shape)

    def backwards(paths: Sequence[Path], step: int, scope: Scope) -> list[Row]:
        return digest_rows(paths, step, scope)[::-1]

    pages = []
    for read in (digest_rows, backwards):
        report.write(assemble(folder, read), ())
        pages.append((folder.summary.read_text(), folder.report.read_text()))

    assert pages[0] == pages[1]
