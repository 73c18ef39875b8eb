"""A host that only probes: by the id and the start of a run, by those that are announced, or on its own."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path

from soak.cli._part import part_of
from soak.cli._probe_announced import run_announced
from soak.cli._probe_checks import check_folders, check_settings
from soak.cli._probe_folder import new_run, probe_in
from soak.core import plan_text
from soak.core.errors import PlanError
from soak.core.plan_probe import AnyPlan, ProbePlan
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.core.yaml_text import Document, parse
from soak.store.run_folder import RunFolder

_OF_RUNS = frozenset({"broker", "lab", "topic", "load", "consumers", "phases"})
"""Sections by which the text is meant as the plan of a run, whatever is wrong with it."""


def load_any_plan(path: Path) -> AnyPlan:
    """Return a plan, of a run or of a host that only probes.

    Raises:
        PlanError: it cannot be read, or something in it is wrong.
    """
    return _loaded(path)[0]


def host_plan(path: Path) -> tuple[ProbePlan, Document] | None:
    """Return the plan of a host that only probes, and its text; None where the text is that of a run's plan.

    Raises:
        PlanError: it is of such a host, and something in it is wrong.
    """
    text = _text(path)
    value = parse(text, str(path)).value
    if not isinstance(value, dict) or "probes" not in value or value.keys() & _OF_RUNS:
        return None
    plan, document = plan_text.load_any(text, str(path))
    return (plan, document) if isinstance(plan, ProbePlan) else None


def run_host(
    path: Path,
    run_dir: Path | None,
    run_id: str,
    start: str,
    stop: threading.Event,
    clock: Clock,
) -> int:
    """Probe until told to stop; return the exit code.

    Raises:
        PlanError: before the first side effect.
        SoakError: another process works in the folder.
    """
    plan, document = _loaded(path)
    if not isinstance(plan, ProbePlan):
        raise document.error(
            ("broker",), "makes it the plan of a run: `soak run --only probe` does its part of it"
        )
    check_folders(plan, document)
    check_settings(plan, document)
    part = part_of(run_id, start, "")
    if plan.ship is not None and not part.run_id:
        return run_announced(plan, plan.ship, run_dir or Path(plan.run_directory), stop, clock)
    run = new_run(
        part.run_id or f"{datetime.fromtimestamp(clock.wall_ns() / SECOND_NS, UTC):%Y%m%dT%H%M%SZ}",
        part.start_wall_ns or clock.wall_ns(),
        plan,
    )
    folder = RunFolder((run_dir or Path(plan.run_directory) / f"{plan.name}-{run.id}").absolute())
    return probe_in(folder, plan, run, stop, clock, is_joining=bool(part.run_id))


def _loaded(path: Path) -> tuple[AnyPlan, Document]:
    return plan_text.load_any(_text(path), str(path))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: cannot read the plan: {error}") from error
