"""Our units under a real manager: the plan `t`, its runs and its daemons, for tests."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from soak.store.run_folder import RunFolder
from tests.support.systemd.world import World

SOAK = str(Path(sys.prefix) / "bin" / "soak")
DAEMONS = ("produce", "consume", "probe", "conduct", "detect", "alert", "finish")

_DAEMON = re.compile(r'"host_daemon_cpu_cores","labels":\{"daemon":"([^"]+)"')
DOWN = "tests-down.target"
DOWN_UNIT = """
[Unit]
Description=What a reboot waits for before the machine goes down
DefaultDependencies=no
Requires=shutdown.target
After=shutdown.target
"""


class Machine:
    """A booted manager with our units, and the newest run of the plan `t`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.home = world.shared / "lib" / "t"

    def install(self, plan: str) -> None:
        """Install the units, and a plan called `t` with the secret that it may ask for."""
        assert "checked" in self.world.run(SOAK, "install-units")
        (self.world.shared / "t.yaml").write_text(plan)
        self.world.run("install", "-m", "640", "-g", "soak", "/srv/t.yaml", "/etc/soak/t.yaml")
        (self.world.shared / "client").write_text("a client\n")
        secret = "/etc/soak/credentials/client"
        self.world.run("install", "-m", "600", "/srv/client", secret)
        (self.world.shared / "client").unlink()

    def ctl(self, *words: str) -> str:
        return self.world.run("systemctl", *words)

    def shut_down(self) -> None:
        """Stop what `systemctl reboot` stops, in that order, up to where the machine would go down."""
        (self.world.shared / DOWN).write_text(DOWN_UNIT)
        self.world.run("install", "-m", "644", f"/srv/{DOWN}", f"/etc/systemd/system/{DOWN}")
        self.ctl("daemon-reload")
        self.ctl("start", "--no-block", "--job-mode=replace-irreversibly", DOWN)
        self.world.until(lambda: self.world.show(DOWN, "ActiveState") == "active", "the end", 300)

    def folder(self) -> RunFolder:
        return RunFolder(self.home / (self.home / "current").readlink())

    def runs(self) -> list[str]:
        return sorted(path.name for path in self.home.glob("t-*"))

    def active(self, unit: str) -> str:
        return self.world.show(f"soak-{unit}@t.service", "ActiveState")

    def group_of(self, unit: str) -> str:
        """Return how the kernel weighs the session of a daemon: `/autogroup-5 nice 19`."""
        pid = self.world.show(f"soak-{unit}@t.service", "MainPID")
        return self.world.run("cat", f"/proc/{pid}/autogroup")

    def recorded(self, daemon: str = "produce.0") -> int:
        """Return how many bytes a daemon has written."""
        files = self.folder().journal.glob(f"{daemon}@*/*.jsonl")
        return sum(path.stat().st_size for path in files)

    def seen_by_probe(self) -> set[str]:
        """Return the daemons whose CPU the probe has read."""
        files = self.folder().journal.glob("probe@*/*.jsonl")
        return {name for path in files for name in _DAEMON.findall(path.read_text())}

    def await_records(self, daemon: str = "produce.0") -> None:
        before = self.recorded(daemon)
        self.world.until(lambda: self.recorded(daemon) > before, f"{daemon} to record", 120)

    def await_restart(self, daemon: str, times: int) -> None:
        """Wait until a daemon has been started again so often, and is ready."""
        unit = f"soak-{daemon}@t.service"
        again = str(times)
        self.world.until(lambda: self.world.show(unit, "NRestarts") == again, f"{unit} again", 180)
        self.world.until(lambda: self.active(daemon) == "active", f"{unit} to be ready", 180)

    def await_report(self, since: float = 0.0) -> dict[str, Any]:
        """Return the summary that is made when the run has ended or pauses; of several, one since then."""
        self.world.until(
            lambda: (
                self.folder().summary.exists()
                and self.folder().summary.stat().st_mtime >= since
                and self.active("report") == "inactive"
            ),
            "the report",
            400,
        )
        found: dict[str, Any] = json.loads(self.folder().summary.read_text())
        return found
