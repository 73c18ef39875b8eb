"""Which run of a plan is now, and which daemons it wants."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from soak.core import plan_text
from soak.store.home import Home, units_of
from soak.store.run_folder import Run, RunFolder, write_run

RUN = Run("r1", 0, "h", {}, "running", "p")


def run_in(home: Home, run: Run = RUN) -> RunFolder:
    folder = RunFolder(home.path / f"p-{run.id}")
    folder.path.mkdir(parents=True)
    write_run(folder, run)
    return folder


def test_a_run_that_was_begun_goes_on_until_it_is_over(tmp_path: Path) -> None:
    """A folder without one, a run that goes on, and one that has ended."""
    home = Home(tmp_path)
    none = home.unfinished()
    folder = run_in(home)
    home.enter(folder, ["conduct"])
    one = home.unfinished()
    write_run(folder, dataclasses.replace(RUN, state="ended"))

    assert none is None
    assert one == folder
    assert home.unfinished() is None


def test_daemons_of_an_earlier_run_are_wanted_no_more(tmp_path: Path) -> None:
    """The next run has another plan; after the last one nothing is to start."""
    home = Home(tmp_path)
    home.enter(run_in(home), ["conduct", "probe"])
    home.enter(run_in(home, dataclasses.replace(RUN, id="r2")), ["conduct"])
    wanted = sorted(path.name for path in home.wanted.iterdir())
    home.leave()

    assert wanted == ["conduct"]
    assert home.current.resolve().name == "p-r2"
    assert not home.wanted.exists()


def test_many_processes_of_a_kind_are_one_unit() -> None:
    text = "name: p\nbroker: {kafka: {}}\nload: {producers: 3}\nprobes: {host: {}}\n"

    assert units_of(plan_text.load(text, "p").plan) == (
        "conduct",
        "consume",
        "probe",
        "produce",
        "detect-stream",
        "alert",
    )
