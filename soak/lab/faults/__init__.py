"""The faults that a drill can inject, several to a module by topic.

A module lists its faults by name in `FAULTS`; any module of this package that has one is found, so a new
fault needs no list elsewhere. `soak.lab.drills` looks them up. Open `active.py` and `network.py` first.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

from soak.core.errors import PlanError
from soak.core.plan import plugins
from soak.lab.faults.active import Fault


def all_faults() -> Mapping[str, Fault]:
    """Return the faults of every module by name, in the order of their names."""
    found: dict[str, Fault] = {}
    for module in pkgutil.iter_modules(__path__):
        found |= getattr(importlib.import_module(f"{__name__}.{module.name}"), "FAULTS", {})
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
