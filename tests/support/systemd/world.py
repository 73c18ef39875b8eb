"""A real systemd manager in namespaces of its own, for tests: see `boot.sh` for what it may touch."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from soak.service import children

BOOT = Path(__file__).with_name("boot.sh")
LIMIT_SECONDS = 90
_CGROUPS = Path("/sys/fs/cgroup")
_HIDDEN = ("/tmp", "/var", "/run")  # by folders of the manager's own: see boot.sh


def why_not() -> str:
    """Return why there can be no such manager here, or nothing."""
    if os.geteuid() != 0:
        return "namespaces of a manager need root"
    tools = ("unshare", "nsenter", "systemctl")
    for folder in (Path(sys.prefix), Path(sys.base_prefix), BOOT):
        if any(folder.is_relative_to(hidden) for hidden in _HIDDEN):
            return f"{folder} cannot be seen where a manager of its own has /tmp, /var and /run"
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if not Path("/lib/systemd/systemd").exists():
        missing.append("systemd")
    return f"not here: {', '.join(missing)}" if missing else ""


class World:
    """`run` runs a command where the manager lives; `shared` is its /srv, and what it keeps over a boot."""

    def __init__(self, shared: Path) -> None:
        self.shared = shared
        self._outer: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def boot(self) -> None:
        names = ["--fork", "--pid", "--kill-child", "--mount", "--mount-proc", "--uts", "--ipc"]
        self._outer = children.spawn(
            ["unshare", *names, "bash", str(BOOT), str(self.shared)],
            log_path=self.shared / "boot.log",
        )
        inner = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children")
        self.until(lambda: inner.read_text().split(), "the manager to start")
        self._pid = int(inner.read_text().split()[0])
        target = "multi-user.target"
        self.until(lambda: self.run("systemctl", "is-active", target) == "active", "the boot")

    def cut_power(self) -> None:
        """Kill the manager and all that it started, at once."""
        if self._outer is not None:
            self._outer.kill()  # --kill-child: the namespace's first process goes with it
            self._outer.wait(LIMIT_SECONDS)
            self._outer = None
            self.until(lambda: not Path(f"/proc/{self._pid}").exists(), "the namespace to end")
            _remove_cgroups()

    def run(self, *command: str) -> str:
        """Return what the command printed, whatever its exit code."""
        done = subprocess.run(
            ["nsenter", "-t", str(self._pid), "-a", "env", "-u", "TMPDIR", *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_SECONDS,
        )
        return (done.stdout + done.stderr).strip()

    def show(self, unit: str, name: str) -> str:
        return self.run("systemctl", "show", "--value", "-p", name, unit)

    def journal(self) -> str:
        return self.run("journalctl", "--no-pager", "-o", "short-iso", "-n", "200")

    def until(self, condition: Callable[[], object], what: str, seconds: float = 60) -> None:
        """Ask until it holds; a bound, not a pace."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"waited {seconds:g} s for {what}\n{self.journal()}")
            time.sleep(0.1)


@contextmanager
def booted(shared: Path) -> Iterator[World]:
    """A manager for the length of the block; nothing that it started is left.

    Two at once would share their groups of processes: the test is skipped while another has one.
    """
    world = World(shared)
    with BOOT.open() as turn:
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pytest.skip("another test has a manager of its own on this machine")
        try:
            world.boot()
            yield world
        finally:
            world.cut_power()


def _remove_cgroups() -> None:
    """Remove the groups that the manager made in the machine's tree; those in use stay."""
    for top in [*_CGROUPS.glob("*/system.slice"), *_CGROUPS.glob("*/init.scope")]:
        for folder, _, _ in os.walk(top, topdown=False):
            try:
                Path(folder).rmdir()
            except OSError:
                continue
