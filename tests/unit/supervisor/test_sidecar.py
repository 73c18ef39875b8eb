"""One more daemon: started, restarted, and ended with this process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from soak.app.multi_host import ship_sidecar
from soak.core.plan import text as plan_text
from soak.core.plan.plan import ProbePlan
from soak.store.run_folder import RunFolder
from soak.supervisor.sidecar import Sidecar
from tests.support.fakes import FakeClock

PLAN = "name: x\nprobes: {pressure: {}}\nship: {bootstrap_servers: '127.0.0.1:9'}\n"


def test_without_a_log_file_it_writes_to_our_standard_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As on a probe host: the journal of its unit has all lines, and no file grows for weeks."""
    sidecar = Sidecar(("echo heard >&2",), None, FakeClock(), program=("sh", "-c"))
    sidecar.poll()
    os.waitid(os.P_PID, sidecar.pid or 0, os.WEXITED | os.WNOWAIT)
    sidecar.close()

    assert capfd.readouterr().err == "heard\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_service", [True, False])
def test_a_probe_hosts_ship_daemon_has_no_log_file_in_a_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_service: bool
) -> None:
    """Where our own errors go to the systemd journal, its errors do too."""
    own = os.fstat(2)
    monkeypatch.setenv("JOURNAL_STREAM", f"{own.st_dev}:{own.st_ino + 1 - is_service}")
    plan, _ = plan_text.load_any(PLAN, "p")
    assert isinstance(plan, ProbePlan)
    with ship_sidecar(RunFolder(tmp_path), plan, (), FakeClock()) as sidecar:
        assert sidecar is not None
        sidecar.poll()

    assert (tmp_path / "logs" / "ship.log").exists() != is_service


def test_a_log_that_cannot_be_opened_delays_only_the_sidecar(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder in its place stands for a read-only drive; the start is tried again, ever later."""
    clock, log = FakeClock(), tmp_path / "logs" / "ship.log"
    log.mkdir(parents=True)
    sidecar = Sidecar(("60",), log, clock, program=("sleep",))
    for _ in range(600):
        sidecar.poll()
        clock.advance(1)
    tries = caplog.text.count("daemon_not_started")
    before = sidecar.pid
    log.rmdir()
    clock.advance(60)
    sidecar.poll()
    after = sidecar.pid
    sidecar.close()

    assert tries < 20
    assert (before is None, after is None) == (True, False)
