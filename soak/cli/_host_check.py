"""`soak check` of a host that only probes: its plan, what it asks and where it ships, clock and drives."""

from __future__ import annotations

from pathlib import Path

from soak.cli import _machine
from soak.cli._folder_checks import check_runs
from soak.cli._probe_checks import check_folders, check_settings, looked
from soak.cli._ship_check import unshipped
from soak.core.clock import SystemClock
from soak.core.plan_probe import ProbePlan
from soak.core.yaml_text import Document
from soak.daemons.free_space import folders_of


def check(path: Path, plan: ProbePlan, document: Document) -> None:
    """Refuse what is wrong, and print what there is to know.

    Raises:
        PlanError: with file, line and key.
    """
    check_runs(plan, document, Path(plan.run_directory))
    check_folders(plan, document)
    check_settings(plan, document)
    print(f"{path}: good. A host that only probes: {', '.join(plan.probes)}.")
    clock = SystemClock()
    for lacking in (*looked(plan, clock), *unshipped(plan.ship, clock)):
        print(f"Warning: {lacking}.")
    print("\n".join(_machine.told(folders_of(plan))))
