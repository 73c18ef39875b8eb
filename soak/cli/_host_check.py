"""`soak check` of a host that only probes: its plan, what its probes ask, its clock and its drives."""

from __future__ import annotations

from pathlib import Path

from soak.cli import _machine
from soak.cli._probe_checks import check_folders, check_settings, looked
from soak.core.clock import SystemClock
from soak.core.plan_probe import ProbePlan
from soak.core.yaml_text import Document
from soak.daemons.free_space import folders_of


def check(path: Path, plan: ProbePlan, document: Document) -> None:
    """Refuse what is wrong, and print what there is to know.

    Raises:
        PlanError: with file, line and key.
    """
    check_folders(plan, document)
    check_settings(plan, document)
    print(f"{path}: good. A host that only probes: {', '.join(plan.probes)}.")
    for lacking in looked(plan, SystemClock()):
        print(f"Warning: {lacking}.")
    print("\n".join(_machine.told(folders_of(plan))))
