"""One more daemon beside another: started, started again ever later, and ended with it."""

from __future__ import annotations

from pathlib import Path

from soak.daemons.beside import Beside
from tests.fakes import FakeClock


def test_a_drive_that_takes_no_log_costs_the_daemon_beside_alone(tmp_path: Path) -> None:
    """A folder in the log's place stands for a drive that is read-only: it is tried again."""
    clock, log = FakeClock(), tmp_path / "logs" / "ship.log"
    log.mkdir(parents=True)
    beside = Beside(("60",), log, clock, program=("sleep",))
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
