"""Inject faults by name, as a drill does."""

from __future__ import annotations

from soak.lab.faults.registry import find_fault
from soak.lab.ports import Active, Target


def inject(name: str, target: Target, **settings: object) -> Active:
    """Inject a fault whose other settings are the defaults."""
    fault = find_fault(name)
    return fault.inject(target, fault.config(**settings))
