"""The units under a real systemd, with a substitute for `soak`: no daemon starts without a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.systemd.stand_in import standing_in
from tests.support.systemd.world import World, why_not

pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

STAND_IN = """
import os
import sys
from pathlib import Path
from soak.app.direct_messages import should_notify
from soak.service.systemd import notifier
from soak.service.signals import stop_event

home, words = Path("/var/lib/soak/x"), [word for word in sys.argv[1:] if word != "service"]
command = words[0]
stop = stop_event()
if command == "notify-failure":
    result = os.environ.get("MONITOR_SERVICE_RESULT", "nobody knows why")
    if should_notify(words[1], os.environ):
        with Path("/var/lib/soak/notified").open("a") as file:
            file.write(words[1] + ": " + result + "\\n")
    sys.exit(0)
with (home / "started").open("a") as file:
    file.write(command + "\\n")
if command == "start":
    (home / "daemons").mkdir(exist_ok=True)
    for name in ("conduct", "consume", "probe", "produce", "detect-stream", "alert"):
        (home / "daemons" / name).touch()
    sys.exit((home / "refuse").exists())
if command == "alert" and (home / "misread").exists():
    sys.exit(2)
manager = notifier()
manager.ready()
while not stop.wait(0.2):
    manager.alive()
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with standing_in(tmp_path, STAND_IN) as found:
        yield found


def started(world: World) -> set[str]:
    path = world.shared / "lib" / "x" / "started"
    return set(path.read_text().split()) if path.exists() else set()


def test_no_daemon_starts_without_a_run(world: World) -> None:
    """Neither where beginning it fails, whatever is left of the one before, nor by a daemon on its own.

    People hear of that once, and of the alert daemon when it will not be started again.
    """
    notified = world.shared / "lib" / "notified"
    (world.shared / "lib" / "x" / "refuse").touch()
    world.run("systemctl", "start", "soak@x.target")
    world.until(notified.exists, "people to be notified")
    refused, alone = started(world), world.run("systemctl", "start", "soak-alert@x.service")
    after = started(world)
    (world.shared / "lib" / "x" / "refuse").unlink()
    world.run("systemctl", "start", "soak@x.target")
    world.until(lambda: len(started(world)) > len(after), "daemons to start")
    world.until(lambda: {"produce", "alert", "finish"} <= started(world), "all of them")
    world.run("systemctl", "kill", "-s", "KILL", "soak-alert@x.service")
    unit = "soak-alert@x.service"
    world.until(lambda: world.show(unit, "NRestarts") == "1", "a second life")
    before = notified.read_text()
    (world.shared / "lib" / "x" / "misread").touch()
    world.run("systemctl", "kill", "-s", "KILL", unit)
    world.until(lambda: notified.read_text() != before, "people to be notified of it")

    assert refused == {"start"}
    assert before == "soak-start@x: exit-code\n"
    assert notified.read_text() == before + "soak-alert@x: exit-code\n"
    assert "ependency" in alone or "inactive" in alone
    assert after == refused
