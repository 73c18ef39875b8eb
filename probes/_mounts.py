"""Which filesystem a path lies on, from the text of `/proc/self/mountinfo` (proc(5))."""

from __future__ import annotations

import re
from dataclasses import dataclass

from soak.core.errors import ProbeError

MEMORY_KINDS = frozenset({"tmpfs", "ramfs"})

_LINE = re.compile(
    r"\d+ \d+ \d+:\d+ \S+ (?P<point>/\S*) (?P<own>\S+)(?: \S+)*"
    r" - (?P<kind>\S+) (?P<source>\S*) (?P<options>\S*)"
)
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    point: str
    kind: str
    source: str
    options: str  # of the superblock
    own_options: str = ""  # of this mount

    def option(self, name: str) -> str:
        """Return the value of `name=value`, or ""."""
        pairs = (item.partition("=") for item in self.options.split(","))
        return next((value for key, _, value in pairs if key == name), "")


def parse(text: str) -> list[Mount]:
    """Return the mounts in the kernel's order: a later one hides an earlier one on the same point.

    Raises:
        ProbeError: a line is not as the kernel writes it.
    """
    if not text.endswith("\n"):
        raise ProbeError("mountinfo ends in the middle of a line")
    found = []
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            raise ProbeError(f"cannot read this line of mountinfo: {line!r}")
        parts = ("point", "kind", "source", "options", "own")
        found.append(Mount(*(_plain(match[name]) for name in parts)))
    return found


def mount_of(path: str, mounts: list[Mount]) -> Mount:
    """Return the mount that holds an absolute path without links.

    Raises:
        ProbeError: none does.
    """
    holding = [mount for mount in mounts if _holds(mount.point, path)]
    if not holding:
        raise ProbeError(f"no mount holds {path}")
    longest = max(len(mount.point) for mount in holding)
    return [mount for mount in holding if len(mount.point) == longest][-1]


def _holds(point: str, path: str) -> bool:
    return point in {"/", path} or path.startswith(point + "/")


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
