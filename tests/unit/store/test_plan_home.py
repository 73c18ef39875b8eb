"""Which run of a plan is now, and which daemons it wants."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from soak.app.lifecycle import start_run
from soak.core.clock import SystemClock
from soak.core.errors import PlanError, SoakError
from soak.core.plan import text as plan_text
from soak.lab.ports import Running
from soak.store.plan_home import PlanHome, service_units
from soak.store.run_folder import Run, RunFolder, read_run, write_plan, write_run

RUN = Run("r1", 0, "h", {}, "running", "p")


def run_in(home: PlanHome, run: Run = RUN) -> RunFolder:
    folder = RunFolder(home.path / f"p-{run.id}")
    folder.path.mkdir(parents=True)
    write_run(folder, run)
    return folder


def test_a_run_that_was_begun_goes_on_until_it_is_over(tmp_path: Path) -> None:
    """A folder without one, a run that goes on, and one that has ended."""
    home = PlanHome(tmp_path)
    none = home.newest("running")
    folder = run_in(home)
    home.point_to(folder)
    one = home.newest("running")
    write_run(folder, dataclasses.replace(RUN, state="ended"))

    assert none is None
    assert one == folder
    assert home.newest("running") is None


def test_daemons_of_an_earlier_run_are_wanted_no_more(tmp_path: Path) -> None:
    """The next run has another plan; after the last one nothing is to start."""
    home = PlanHome(tmp_path)
    home.point_to(run_in(home))
    home.want(["conduct", "probe"])
    home.point_to(run_in(home, dataclasses.replace(RUN, id="r2")))
    home.want(["conduct"])
    wanted = sorted(path.name for path in home.wanted.iterdir())
    home.leave()

    assert wanted == ["conduct"]
    assert home.current.resolve().name == "p-r2"
    assert not home.wanted.exists()


def test_a_run_that_is_over_is_closed_before_another_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever was to close it was killed: no daemon is wanted, and not even the plan is looked at."""
    home = PlanHome(tmp_path)
    home.point_to(run_in(home, dataclasses.replace(RUN, state="ended")))
    home.want(["conduct"])

    start_run(tmp_path / "nowhere.yaml", home, SystemClock())

    assert "r1 is over" in capsys.readouterr().out
    assert list(home.wanted.iterdir()) == []


def test_a_plan_is_called_as_the_units_know_it(tmp_path: Path) -> None:
    """Else the fields of the journal and the subjects of the mails would name two."""
    plan = tmp_path / "a.yaml"
    plan.write_text("name: b\nbroker: {kafka: {bootstrap_servers: '127.0.0.1:9'}}\n")

    with pytest.raises(PlanError, match=r"a\.yaml:1: name: is not a, by which"):
        start_run(plan, PlanHome(tmp_path / "a"), SystemClock())


def test_drives_are_not_measured_for_longer_than_the_units_wait(tmp_path: Path) -> None:
    """They would be stopped in the middle of it, again and again."""
    plan = tmp_path / "a.yaml"
    plan.write_text(
        "name: a\nbroker: {kafka: {bootstrap_servers: '127.0.0.1:9'}}\n"
        f"probes: {{disk_io: {{directory: {tmp_path}}}}}\ndrive_check: 11min\n"
    )

    with pytest.raises(PlanError, match=r"a\.yaml:4: drive_check: takes more than the 10min"):
        start_run(plan, PlanHome(tmp_path / "a"), SystemClock())


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("", r"a\.yaml:2: broker\.kafka\.bootstrap_servers: "),
        ("free_space_floor: 9999TiB\n", "has .* free"),
    ],
)
def test_what_is_not_to_be_had_now_is_no_plan_that_was_refused(
    tmp_path: Path, more: str, why: str
) -> None:
    """A timer may have begun it at night: its unit fails in a way that people are told of."""
    plan = tmp_path / "a.yaml"
    cluster = "{bootstrap_servers: '127.0.0.1:1', timeout: 300ms}"
    plan.write_text(f"name: a\nbroker: {{kafka: {cluster}}}\n{more}")

    with pytest.raises(SoakError, match=why) as caught:
        start_run(plan, PlanHome(tmp_path / "a"), SystemClock())
    assert not isinstance(caught.value, PlanError)


@pytest.mark.broker
def test_a_begin_that_was_killed_is_gone_on_with(tmp_path: Path, lab_kafka: Running) -> None:
    """Its topics are ours although they are there; another plan has to leave them alone."""
    plan = tmp_path / "p.yaml"
    servers = lab_kafka.addresses["bootstrap_servers"]
    text = (
        f"name: p\nbroker: {{kafka: {{bootstrap_servers: '{servers}'}}}}\ntopic: {{name: half}}\n"
    )
    plan.write_text(text)
    home = PlanHome(tmp_path / "p")
    start_run(plan, home, SystemClock())
    folder = home.newest("running")
    assert folder is not None
    write_run(folder, dataclasses.replace(read_run(folder), state="beginning", start_wall_ns=0))
    home.leave()
    start_run(plan, home, SystemClock())
    again = home.newest("running")
    write_run(folder, dataclasses.replace(read_run(folder), state="beginning"))
    plan.write_text(text + "load: {rate: 7/s}\n")

    assert again == folder
    with pytest.raises(PlanError, match="topic half exists already"):
        start_run(plan, home, SystemClock())


def test_many_processes_of_a_kind_are_one_unit() -> None:
    text = "name: p\nbroker: {kafka: {}}\nload: {producers: 3}\nprobes: {host: {}}\n"

    assert service_units(plan_text.load(text, "p").plan) == (
        "conduct",
        "consume",
        "probe",
        "produce",
        "detect-stream",
        "alert",
    )


WITH_SECRETS = """
name: p
broker: {kafka: {bootstrap_servers: 'h:9', common: {sasl.password: '${credential:soak_sasl}'}}}
sinks: {webhook: {url: 'https://a', token: '${credential:soak_token}'}}
"""


def test_the_plan_of_a_run_is_read_by_the_group_and_holds_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is on call reads reports and the plan they are about; where the secrets are, it says alone."""
    (tmp_path / "soak_sasl").write_text("hush")
    (tmp_path / "soak_token").write_text("hush")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    folder = RunFolder(tmp_path)
    before = os.umask(0o022)
    try:
        write_plan(folder, plan_text.load(WITH_SECRETS, "p").plan)
    finally:
        os.umask(before)
    text = folder.plan.read_text()

    assert folder.plan.stat().st_mode & 0o777 == 0o640
    assert "hush" not in text
    assert "${credential:soak_sasl}" in text
    assert "${credential:soak_token}" in text
