"""Namespaces of our own, in which a small drive is filled and names cease to be known, and nobody notices."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAMES = ("broker.soak.test", "mail.soak.test")
DRIVE_MIB = 512


def enter(module: str, arguments: list[str]) -> None:
    """Become the same program with mounts of its own; returns where that cannot be had."""
    tool = shutil.which("unshare")
    if tool is None:
        sys.exit("chaos: needs unshare(1) (util-linux)")
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    command = [tool, *user, "--mount", "--propagation", "private"]
    os.execv(tool, [*command, sys.executable, "-m", module, *arguments])


class Surroundings:
    """The run's drive and the host's names, below `folder`; both end with the namespace."""

    def __init__(self, folder: Path) -> None:
        self.drive = folder / "drive"
        self.drive.mkdir()
        _mount("-t", "tmpfs", "-o", f"size={DRIVE_MIB}m", "tmpfs", str(self.drive))
        self._hosts, resolver = folder / "hosts", folder / "resolv.conf"
        resolver.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")  # nobody there
        self._write_hosts(NAMES)
        _mount("--bind", str(self._hosts), "/etc/hosts")
        _mount("--bind", str(resolver), "/etc/resolv.conf")

    def close(self) -> None:
        """Give the drive back, whoever still uses it."""
        _unmount(self.drive)

    @contextmanager
    def full(self) -> Iterator[None]:
        """No byte more fits on the drive."""
        for spare in range(64):
            found = os.statvfs(self.drive)
            used = (found.f_blocks - found.f_bfree + spare) * found.f_frsize // 1024
            if _is_mounted_so("-o", f"remount,size={used}k", str(self.drive)):
                break
        try:
            yield
        finally:
            _mount("-o", f"remount,size={DRIVE_MIB}m", str(self.drive))

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Nothing can be opened for writing any more, and what is open takes no byte more."""
        with self.full():
            _mount("--bind", str(self.drive), str(self.drive))
            _mount("-o", "remount,bind,ro", str(self.drive))
            try:
                yield
            finally:
                _unmount(self.drive)

    @contextmanager
    def nameless(self) -> Iterator[None]:
        """No name is known, and no name server answers."""
        self._write_hosts(())
        try:
            yield
        finally:
            self._write_hosts(NAMES)

    def _write_hosts(self, names: tuple[str, ...]) -> None:
        self._hosts.write_text(f"127.0.0.1 localhost {' '.join(names)}\n")


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


def _unmount(place: Path) -> None:
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def _is_mounted_so(*arguments: str) -> bool:
    done = subprocess.run(["mount", *arguments], check=False, capture_output=True)
    return done.returncode == 0
