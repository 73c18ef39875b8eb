"""`soak service start`: which runs it starts, resumes or refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.app.lifecycle import find_partly_started_run, resolve_plan, start_run
from soak.core.clock import SystemClock
from soak.core.errors import PlanError, SoakError
from soak.core.plan import text
from soak.store.plan_home import PlanHome
from soak.store.run_folder import Run, RunFolder, write_plan, write_run
from tests.support.vanishing import PLAN, vanishing_cluster


def test_a_run_that_is_over_is_finished_before_another_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its `soak service finish` was killed: no daemon may start, and the plan is not even read."""
    home = PlanHome(tmp_path)
    folder = RunFolder(tmp_path / "p-r1")
    folder.path.mkdir()
    write_run(folder, Run("r1", 0, "h", {}, "ended", "p"))
    home.set_current(folder)
    home.set_daemons(["conduct"])

    start_run(tmp_path / "nowhere.yaml", home, SystemClock())

    assert "r1 is over" in capsys.readouterr().out
    assert list(home.daemons_folder.iterdir()) == []


def test_the_name_of_a_plan_is_that_of_its_unit(tmp_path: Path) -> None:
    """Otherwise the log and the mails would have two names for one run."""
    plan = tmp_path / "a.yaml"
    plan.write_text("name: b\nbroker: {kafka: {bootstrap_servers: '127.0.0.1:9'}}\n")

    with pytest.raises(PlanError, match=r"a\.yaml:1: name: must be a, "):
        start_run(plan, PlanHome(tmp_path / "a"), SystemClock())


def test_a_drive_check_is_shorter_than_the_start_limit_of_the_unit(tmp_path: Path) -> None:
    """Systemd would stop it in the middle, again and again."""
    plan = tmp_path / "a.yaml"
    plan.write_text(
        "name: a\nbroker: {kafka: {bootstrap_servers: '127.0.0.1:9'}}\n"
        f"probes: {{disk_io: {{directory: {tmp_path}}}}}\ndrive_check: 11min\n"
    )

    with pytest.raises(PlanError, match=r"a\.yaml:4: drive_check: takes longer than 10min"):
        start_run(plan, PlanHome(tmp_path / "a"), SystemClock())


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("", r"a\.yaml:2: broker\.kafka\.bootstrap_servers: "),
        ("free_space_floor: 9999TiB\n", "has .* free"),
    ],
)
def test_a_missing_resource_is_no_error_of_the_plan(tmp_path: Path, more: str, why: str) -> None:
    """A timer may have started it at night: its unit fails in a way that people are notified of."""
    plan = tmp_path / "a.yaml"
    cluster = "{bootstrap_servers: '127.0.0.1:1', timeout: 300ms}"
    plan.write_text(f"name: a\nbroker: {{kafka: {cluster}}}\n{more}")

    with pytest.raises(SoakError, match=why) as caught:
        start_run(plan, PlanHome(tmp_path / "a"), SystemClock())
    assert not isinstance(caught.value, PlanError)


def test_a_cluster_that_is_gone_after_the_check_is_no_error_of_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that does not answer the check: people are notified. The next start completes this one."""
    cluster = vanishing_cluster(tmp_path, monkeypatch)
    plan, home = tmp_path / "x.yaml", PlanHome(tmp_path / "x")
    plan.write_text(PLAN)
    for _ in range(2):
        with pytest.raises(SoakError, match="timed out; the cluster does not answer now") as caught:
            start_run(plan, home, SystemClock())
        assert not isinstance(caught.value, PlanError)
        cluster.come_back()

    assert len(list(home.path.glob("x-*"))) == 1


def test_a_start_that_version_0_1_0_left_unfinished_is_completed(tmp_path: Path) -> None:
    """Its plan.yaml has earlier names of keys; another plan does not complete it."""
    plan = text.load("name: p\nbroker: {kafka: {bootstrap_servers: '127.0.0.1:9'}}\n", "p").plan
    home, folder, run = (
        PlanHome(tmp_path),
        RunFolder(tmp_path / "p-r1"),
        Run("r1", 0, "h", {}, "beginning", "p"),
    )
    folder.path.mkdir()
    write_run(folder, run)
    write_plan(folder, resolve_plan(plan, None, run))
    home.set_current(folder)
    former = folder.plan.read_text().replace("max_per_hour", "most_per_hour")
    folder.plan.write_text(former)
    found = find_partly_started_run(plan, home)
    folder.plan.write_text(former.replace("most_per_hour: 20", "max_per_hour: 21"))

    assert "most_per_hour: 20" in former
    assert found == folder
    assert find_partly_started_run(plan, home) is None
