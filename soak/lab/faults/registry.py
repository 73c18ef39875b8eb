"""Find a fault by its name: every module of this package that has `FAULTS` adds to it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

from soak.core.errors import PlanError
from soak.core.plan import plugins
from soak.lab import faults
from soak.lab.faults.active import Fault


def all_faults() -> Mapping[str, Fault]:
    """Return the faults of every module by name, in the order of their names."""
    found: dict[str, Fault] = {}
    for module in pkgutil.iter_modules(faults.__path__):
        found |= getattr(importlib.import_module(f"{faults.__name__}.{module.name}"), "FAULTS", {})
    return dict(sorted(found.items()))


def find_fault(name: str) -> Fault:
    """Return a fault by its name.

    Raises:
        PlanError: there is none; the message lists the known ones.
    """
    known = all_faults()
    if name not in known:
        raise PlanError(f"unknown fault {name!r}{plugins.nearest(name, list(known))}")
    return known[name]
