"""Pending notifications of an ended run are sent by their own unit under a real systemd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from aiosmtpd.controller import Controller

from soak.store.findings.store import FindingsStore
from tests.support.alerting.findings import SERIES, finding
from tests.support.alerting.mail_server import Inbox, free_port
from tests.support.spark.synthetic_run import Shape, write_synthetic_run
from tests.support.systemd.machine import SOAK
from tests.support.systemd.world import World, booted, why_not

pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

UNIT = "soak-pending@t.service"
RUN = "synthetic-1"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    tmp_path.chmod(0o755)  # /srv of the user soak
    with booted(tmp_path) as found:
        assert "checked" in found.run(SOAK, "install-units")
        yield found


def test_a_pending_mail_outlives_the_run_and_its_daemon(world: World) -> None:
    """The server is down at first and the daemon is killed; each mail arrives once, and the unit ends."""
    port = free_port()
    sinks = f"{{mail: {{to: [a@example.org], host: 127.0.0.1, port: {port}}}}}"
    folder = write_synthetic_run(
        world.shared / "lib" / "t" / "t-1", Shape(seconds=130, sinks=sinks)
    )
    gone = finding("gone", run=RUN, resolved_k=128, series=SERIES.replace("@h", "@host"))
    with FindingsStore(folder.findings) as store:
        store.save_finding(gone, ["mail"], 0)
    world.run("chown", "-R", "soak:soak", "/var/lib/soak")
    world.run("systemctl", "start", UNIT)
    world.until(lambda: "result=retry" in world.run("journalctl", "-u", UNIT), "a try")
    world.run("systemctl", "kill", "-s", "KILL", UNIT)
    world.until(lambda: world.show(UNIT, "NRestarts") == "1", "a second life")
    inbox = Inbox()
    server = Controller(inbox, hostname="127.0.0.1", port=port)
    server.start()
    try:
        world.until(lambda: world.show(UNIT, "ActiveState") == "inactive", "the unit to end", 120)
    finally:
        server.stop()
    with FindingsStore(folder.findings) as store:
        states = [(row.kind, row.state) for row in store.notifications(RUN)]

    ids = [mail["Message-ID"] for _, mail in inbox.mails]
    assert ids == ["<run1-130.confirmed@localhost>", "<run1-130.gone@localhost>"]
    assert states == [("opened", "sent"), ("resolved", "sent")]
    assert world.show(UNIT, "Result") == "success"
