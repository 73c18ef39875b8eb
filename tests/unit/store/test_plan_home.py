"""The folder of a plan's runs under a service manager: its current run, and the daemons of that run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from soak.core.plan import text as plan_text
from soak.store.plan_home import PlanHome, service_units
from soak.store.run_folder import Run, RunFolder, write_run

RUN = Run("r1", 0, "h", {}, "running", "p")


def run_in(home: PlanHome, run: Run = RUN) -> RunFolder:
    folder = RunFolder(home.path / f"p-{run.id}")
    folder.path.mkdir(parents=True)
    write_run(folder, run)
    return folder


def test_the_current_run_has_one_of_the_states(tmp_path: Path) -> None:
    """Without a run, with a running one, and with one that has ended."""
    home = PlanHome(tmp_path)
    none = home.current_in("running")
    folder = run_in(home)
    home.set_current(folder)
    one = home.current_in("running")
    write_run(folder, dataclasses.replace(RUN, state="ended"))

    assert none is None
    assert one == folder
    assert home.current_in("running") is None


def test_the_daemons_of_an_earlier_run_are_removed(tmp_path: Path) -> None:
    """The plan of the next run may have others, and after the last run none may start."""
    home = PlanHome(tmp_path)
    home.set_current(run_in(home))
    home.set_daemons(["conduct", "probe"])
    home.set_current(run_in(home, dataclasses.replace(RUN, id="r2")))
    home.set_daemons(["conduct"])
    daemons = sorted(path.name for path in home.daemons_folder.iterdir())
    home.remove_daemons()

    assert daemons == ["conduct"]
    assert home.current.resolve().name == "p-r2"
    assert not home.daemons_folder.exists()


def test_several_processes_of_a_daemon_are_one_unit() -> None:
    """The unit supervises all of them."""
    text = "name: p\nbroker: {kafka: {}}\nload: {producers: 3}\nprobes: {host: {}}\n"

    assert service_units(plan_text.load(text, "p").plan) == (
        "conduct",
        "consume",
        "probe",
        "produce",
        "detect-stream",
        "alert",
    )
