"""The drive checks of a run: a file a host, `drives/<host>.json`, so that several hosts' can be joined."""

from __future__ import annotations

import json
from pathlib import Path

from soak.core.drive_check import Measured, from_json, to_json
from soak.core.errors import RunFolderError
from soak.store.run_folder import RunFolder, permitted, write_atomically


def append(folder: RunFolder, several: list[Measured]) -> None:
    """Add what was measured on one host.

    Raises:
        RunFolderError: what is there is damaged, or we may not write there.
    """
    for host in dict.fromkeys(one.host for one in several):
        path = folder.drives / f"{host}.json"
        with permitted(path):
            kept = _read(path) if path.exists() else []
            kept += [one for one in several if one.host == host]
            body = {"drives": [to_json(one) for one in kept]}
            write_atomically(path, json.dumps(body, indent=2, allow_nan=False) + "\n")


def read_all(folder: RunFolder) -> list[Measured]:
    """Return what was measured on all hosts, in order of time; empty where nobody looked.

    Raises:
        RunFolderError: a file is damaged.
    """
    paths = sorted(folder.drives.glob("*.json"))
    found = [one for path in paths for one in _read(path)]
    return sorted(found, key=lambda one: one.at_wall_ns)


def _read(path: Path) -> list[Measured]:
    try:
        return [from_json(one) for one in json.loads(path.read_text())["drives"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunFolderError(f"{path} is damaged: {error}") from error
