"""Read every probe while files of /proc are damaged: a script for `unshare --mount`.

It covers the files with copies, so it needs a mount namespace of its own. It prints as JSON how often each
probe of the package gave a reading or an error that a probe may raise, and every other error.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from soak.core.clock import SystemClock
from soak.core.errors import NotAvailableError, ProbeError
from soak.core.plan import plugins

PROC = Path("/proc")
FILES = ("diskstats", "loadavg", "meminfo", "pressure/*", "stat", "vmstat")
ROUNDS = 200
GARBAGE = (
    "xZ_\x00\ufffd{}=-."  # no digit and no blank: a number that became another cannot be noticed
)


def damaged(text: str, chance: random.Random) -> str:
    """Return a file that was cut, or has garbage in it, or has lost or mixed its lines."""
    lines = text.splitlines(keepends=True)
    at = chance.randrange(len(text))
    kind = chance.randrange(4)
    if kind == 0:
        return text[:at]
    if kind == 1:
        garbage = "".join(chance.choice(GARBAGE) for _ in range(chance.randint(1, 4)))
        return text[:at] + garbage + text[at:]
    if kind == 2:
        chance.shuffle(lines)
        return "".join(lines)
    begin = chance.randrange(len(lines))
    return "".join(lines[:begin] + lines[begin + 1 :])


def probe_of(name: str, folder: Path) -> Any:
    """Return a probe with its defaults, on a folder where it takes one."""
    module = plugins.load("probes", name)
    known = {one.name for one in dataclasses.fields(module.Config)}
    settings = {"directory": str(folder)} if "directory" in known else {}
    return module.build(module.Config(**settings), SystemClock())


def covered(folder: Path) -> dict[Path, str]:
    """Cover files of /proc; return the copies, which may be written, with what they held."""
    found = {}
    for number, path in enumerate(one for name in FILES for one in sorted(PROC.glob(name))):
        copy = folder / f"copy-{number}"
        copy.write_text(path.read_text())
        subprocess.run(["mount", "--bind", copy, path], check=True)
        found[copy] = copy.read_text()
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    probes = {name: probe_of(name, folder) for name in plugins.names("probes")}
    copies, chance = covered(folder), random.Random(23)
    outcomes = {name: Counter[str]() for name in probes}
    for _ in range(ROUNDS):
        for copy, text in copies.items():
            copy.write_text(damaged(text, chance))
        for name, probe in probes.items():
            try:
                probe.read()
                outcomes[name]["read"] += 1
            except (NotAvailableError, ProbeError):
                outcomes[name]["refused"] += 1
            except Exception as error:  # noqa: BLE001  # what the test is about
                outcomes[name][repr(error)] += 1
    sys.stdout.write(json.dumps(outcomes))
    sys.stdout.flush()
    os._exit(0)  # threads of probes


if __name__ == "__main__":
    main()
