"""Find a plug-in by the name of its module or package: `probes/fsync.py` is the probe `fsync`."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from types import ModuleType

from soak.core.errors import PlanError


def names(package: str) -> list[str]:
    """Return the plug-ins of a package, sorted: its modules and packages but for `common` and `_private`."""
    path = importlib.import_module(package).__path__
    found = (module.name for module in pkgutil.iter_modules(path))
    return sorted(name for name in found if name != "common" and not name.startswith("_"))


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
    """Return `; did you mean ...?`, or "" when no known name is similar."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
