"""A daemon that dies at once, again and again, under a real systemd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.systemd.stand_in import standing_in
from tests.support.systemd.world import World, why_not

pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

STAND_IN = """
import sys
from pathlib import Path
from soak.core.clock import SystemClock
from soak.service.restart_backoff import delay_start
from soak.service.systemd import notifier
from soak.service.signals import stop_event

delay_start(SystemClock())
if Path(sys.argv[sys.argv.index("--pending") + 1], "broken").exists():
    sys.exit(1)
stop, manager = stop_event(), notifier()
manager.ready()
while not stop.wait(0.2):
    manager.alive()
"""


LONG_AFTER = 3
"""Restarts: the fourth start in a row waits for six seconds, the next for fourteen."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A manager with two plans, `x` and `y`, whose daemon dies at once."""
    with standing_in(tmp_path_factory.mktemp("again"), STAND_IN) as found:
        for plan in ("x", "y"):
            folder = found.shared / "lib" / plan
            found.run("install", "-d", "-o", "soak", "-g", "soak", f"/var/lib/soak/{plan}")
            (folder / "broken").touch()
            found.run("systemctl", "start", "--no-block", unit(plan))
        yield found


def unit(plan: str) -> str:
    return f"soak-pending@{plan}.service"


def await_wait(world: World, plan: str) -> None:
    """Return when the daemon has just begun to wait, for six seconds or more."""
    name = unit(plan)

    def restarts() -> int:
        return int(world.show(name, "NRestarts"))

    ends_soon = max(restarts(), LONG_AFTER - 1)

    def waits() -> bool:
        state, status = world.show(name, "SubState"), world.show(name, "StatusText")
        return state == "start" and "waits" in status and restarts() > ends_soon

    world.until(waits, "a long wait", 120)


def test_a_dying_daemon_waits_and_recovers(world: World) -> None:
    """It is activating while it waits, never fails for good, and is ready once its cause is gone."""
    await_wait(world, "x")
    state = world.show(unit("x"), "ActiveState")
    (world.shared / "lib" / "x" / "broken").unlink()
    world.until(
        lambda: world.show(unit("x"), "ActiveState") == "active", "the daemon to go on", 120
    )

    assert state == "activating"


def test_a_waiting_daemon_can_be_stopped(world: World) -> None:
    """Stopping does not wait, and resets the count of its starts."""
    await_wait(world, "y")
    noted = world.run("ls", "/run/soak-pending@y")
    world.run("systemctl", "stop", unit("y"))
    state, result = world.show(unit("y"), "ActiveState"), world.show(unit("y"), "Result")
    left = world.run("ls", "/run/soak-pending@y")

    assert noted == "starts"
    assert (state, result) == ("inactive", "success")
    assert "No such file" in left
