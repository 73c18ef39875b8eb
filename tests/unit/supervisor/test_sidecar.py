"""One more daemon beside another: started, started again ever later, and ended with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from soak.app.multi_host import _shipping
from soak.core.plan import text as plan_text
from soak.core.plan.plan import ProbePlan
from soak.store.run_folder import RunFolder
from soak.supervisor.sidecar import Sidecar
from tests.support.fakes import FakeClock

PLAN = "name: x\nprobes: {pressure: {}}\nship: {bootstrap_servers: '127.0.0.1:9'}\n"


def test_without_a_log_it_speaks_where_we_do(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As on a host that only probes: its unit's journal has all of it, and no file grows for weeks."""
    beside = Sidecar(("echo heard >&2",), None, FakeClock(), program=("sh", "-c"))
    beside.poll()
    os.waitid(os.P_PID, beside.pid or 0, os.WEXITED | os.WNOWAIT)
    beside.close()

    assert capfd.readouterr().err == "heard\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_service", [True, False])
def test_a_host_that_only_probes_has_its_ship_speak_in_the_journal(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    *,
    is_service: bool,
) -> None:
    """Where its own errors go there; elsewhere into a file of the run's folder."""
    own = os.fstat(2)
    monkeypatch.setenv("JOURNAL_STREAM", f"{own.st_dev}:{own.st_ino + 1 - is_service}")
    plan, _ = plan_text.load_any(PLAN, "p")
    assert isinstance(plan, ProbePlan)
    folder = RunFolder(tmp_path)
    with _shipping(folder, plan, (), FakeClock()) as beside:
        assert beside is not None
        beside.poll()
        os.waitid(os.P_PID, beside.pid or 0, os.WEXITED | os.WNOWAIT)
    logs = {path.name: path.read_text() for path in folder.logs.glob("*")}

    said = f"soak: {tmp_path} is not a run folder"
    assert capfd.readouterr().err.startswith(f"<3>{said}") == is_service
    assert [name for name, text in logs.items() if said in text] == ["ship.log"] * (not is_service)


def test_a_drive_that_takes_no_log_costs_the_daemon_beside_alone(tmp_path: Path) -> None:
    """A folder in the log's place stands for a drive that is read-only: it is tried again."""
    clock, log = FakeClock(), tmp_path / "logs" / "ship.log"
    log.mkdir(parents=True)
    beside = Sidecar(("60",), log, clock, program=("sleep",))
    beside.poll()
    log.rmdir()
    beside.poll()
    soon = beside.pid
    clock.advance(1)
    beside.poll()
    later = beside.pid
    beside.close()

    assert soon is None
    assert later is not None
