"""Finds a plug-in by its file name: `probes/fsync.py` is the probe `fsync`. There is no list to edit."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from types import ModuleType

from soak.core.errors import PlanError


def names(package: str) -> list[str]:
    """Return the plug-ins of a package, sorted; a leading underscore marks helpers."""
    path = importlib.import_module(package).__path__
    return sorted(
        module.name
        for module in pkgutil.iter_modules(path)
        if not module.ispkg and not module.name.startswith("_")
    )


def load(package: str, name: str) -> ModuleType:
    """Return the module of one plug-in.

    Raises:
        PlanError: there is none of this name; the message lists the known ones.
    """
    known = names(package)
    if name not in known:
        raise PlanError(f"no {package} named {name!r}{nearest(name, known)}")
    return importlib.import_module(f"{package}.{name}")


def nearest(name: str, known: list[str]) -> str:
    """Return `; did you mean ...? known: ...` for an error message."""
    return f"{close_to(name, known) or ';'} known: {', '.join(known)}"


def close_to(name: str, known: list[str]) -> str:
    """Return `; did you mean ...?`, or "" when nothing known comes near."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
