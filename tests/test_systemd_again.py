"""A daemon that dies at once, again and again, under a real manager: it waits, and goes on when it can."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.systemd_stand_in import standing_in
from tests.systemd_world import World, why_not

pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

UNIT = "soak-owed@x.service"
STAND_IN = """
import sys
from pathlib import Path
from soak.core.clock import SystemClock
from soak.service.again import keep_apart
from soak.service.notify import notifier
from soak.service.signals import stop_event

keep_apart(SystemClock())
if Path("/var/lib/soak/x/broken").exists():
    sys.exit(1)
stop, manager = stop_event(), notifier()
manager.ready()
while not stop.wait(0.2):
    manager.alive()
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with standing_in(tmp_path, STAND_IN) as found:
        yield found


def await_wait(world: World) -> None:
    """Have a daemon die at once until it waits for some fourteen seconds, and is not between two tries."""
    (world.shared / "lib" / "x" / "broken").touch()
    world.run("systemctl", "start", "--no-block", UNIT)
    world.until(lambda: "started 5 times" in world.show(UNIT, "StatusText"), "a wait", 120)
    world.until(lambda: world.show(UNIT, "SubState") == "start", "the next try")


def test_it_waits_and_goes_on_once_it_can(world: World) -> None:
    """It is starting while it waits, has not failed for good, and is ready when nothing is wrong any more."""
    await_wait(world)
    state, restarts = world.show(UNIT, "ActiveState"), int(world.show(UNIT, "NRestarts"))
    (world.shared / "lib" / "x" / "broken").unlink()
    world.until(lambda: world.show(UNIT, "ActiveState") == "active", "the daemon to go on", 120)

    assert state == "activating"
    assert restarts >= 4


def test_it_can_be_stopped_while_it_waits_and_then_nothing_is_held_against_it(world: World) -> None:
    """Nobody waits for the wait; what was noted of its starts goes with it."""
    await_wait(world)
    noted = world.run("ls", "/run/soak-owed@x")
    world.run("systemctl", "stop", UNIT)
    state, result = world.show(UNIT, "ActiveState"), world.show(UNIT, "Result")
    left = world.run("ls", "/run/soak-owed@x")

    assert noted == "starts"
    assert (state, result) == ("inactive", "success")
    assert "No such file" in left
