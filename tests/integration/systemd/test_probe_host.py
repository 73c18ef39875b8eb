"""The unit of a probe host under a real systemd: enabled once, it joins run after run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from soak.core.plan.plan import Ship
from soak.core.units import SECOND_NS
from soak.lab.ports import Running
from tests.integration.kafka.test_probe_host_joins import Main, until
from tests.support.systemd.machine import SOAK
from tests.support.systemd.world import World, booted, why_not

pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

UNIT = "soak-host@x.service"
LATEST_SECOND = 6
"""Of a run that begins in eight: seven until all have been heard, and the start of a probe."""
PLAN = """
name: x
probes: {{pressure: {{}}}}
free_space_floor: 1MiB
ship: {{bootstrap_servers: '{servers}', topic: joined-by-unit, timeout: 3s}}
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    tmp_path.chmod(0o755)  # /srv of the user soak
    with booted(tmp_path) as found:
        assert "checked" in found.run(SOAK, "install-units")
        yield found


def test_an_enabled_unit_joins_run_after_run(
    world: World, lab_kafka: Running, tmp_path: Path
) -> None:
    """Each to its last interval without a gap; between runs it is active and waits."""
    ship = Ship(
        bootstrap_servers=lab_kafka.bootstrap_servers, topic="joined-by-unit", timeout=3 * SECOND_NS
    )
    (world.shared / "x.yaml").write_text(PLAN.format(servers=ship.bootstrap_servers))
    world.run("install", "-m", "640", "-g", "soak", "/srv/x.yaml", "/etc/soak/x.yaml")
    world.run("systemctl", "enable", "--now", "soak-host@x.target")

    def waits() -> bool:
        status = world.show(UNIT, "StatusText")
        return world.show(UNIT, "ActiveState") == "active" and status.startswith("waits for a run")

    seen = []
    for run_id in ("r1", "r2"):
        world.until(waits, "the unit to wait", 120)
        main = Main(tmp_path / "main", run_id, ship, seconds=12, ahead_seconds=8)
        with main.receiving():
            until(main.has_end, "the last record")
        seen.append([k for _, k in main.records()])
    world.until(waits, "the unit to wait again", 120)

    folders = sorted(path.name for path in (world.shared / "lib" / "x" / "host").glob("x-*/"))
    firsts = [min(ks, default=12) for ks in seen]
    assert max(firsts) <= LATEST_SECOND
    assert seen == [list(range(first, 12)) for first in firsts]
    assert folders == ["x-r1", "x-r2"]
    assert world.show(UNIT, "NRestarts") == "2"
    assert world.show(UNIT, "Result") == "success"
