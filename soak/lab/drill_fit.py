"""Whether a drill fits its plan, told with file, line and key before anything is started for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from soak.core import phase_plan, plugins
from soak.core.phases import Phases
from soak.core.plan import Lab
from soak.core.plan_text import PlanFile
from soak.core.units import SECOND_NS, format_duration
from soak.core.yaml_text import Place
from soak.lab.drill import Drill

_BROKERS = ("node", "onto")
"""Keys of faults that name a broker by its place from 1; where 0 is the default it means no certain one."""


def check(found: Drill, plan_file: PlanFile) -> None:
    """Refuse a drill for which its plan's lab or its length is not made.

    Raises:
        PlanError: with file, line and key: of the plan where that has no lab, else of the drill.
    """
    lab = plan_file.plan.lab
    if lab is None:
        raise plan_file.error(
            "lab", f"is missing: the drill {found.name} does harm to no cluster but a lab's own"
        )
    faults: list[tuple[Place, str, Any]] = [(("fault",), found.fault_kind, found.fault)]
    faults += [(("given", at), kind, config) for at, (kind, config) in enumerate(found.given)]
    for place, kind, config in faults:
        _check_fault(found, place, kind, config, lab)
    _check_sole(found, faults)
    _check_pool(found, lab)
    _check_begin(found, plan_file)


def _check_fault(found: Drill, place: Place, kind: str, config: Any, lab: Lab) -> None:  # noqa: ANN401  # its own
    """Refuse a fault whose brokers, drive or network the lab does not have."""
    usual = type(config)()
    for key in _BROKERS:
        number = getattr(config, key, None)
        if number is not None and not min(1, getattr(usual, key)) <= number <= lab.nodes:
            raise found.document.error(
                (*place, key),
                f"there is no broker {number}: `lab.nodes` of the plan is {lab.nodes}",
            )
    lacks = getattr(plugins.load("soak.lab.faults", kind), "lacks", None)
    lack = "" if lacks is None else lacks(lab, config)
    if lack:
        raise found.document.error((*place, "kind"), lack)


def _check_sole(found: Drill, faults: Sequence[tuple[Place, str, Any]]) -> None:
    """Refuse two faults that set the same: what one does the other would undo."""
    set_by: dict[tuple[str, int], str] = {}
    for place, kind, config in faults:
        sole = getattr(plugins.load("soak.lab.faults", kind), "sole", None)
        key = None if sole is None else sole(config)
        if key in set_by:
            text = f"{kind} and {set_by[key]} would both set {key[0]}"
            raise found.document.error((*place, "kind"), text)
        if key is not None:
            set_by[key] = kind


def _check_pool(found: Drill, lab: Lab) -> None:
    """Refuse to judge by the pool of a drive that is not there."""
    number = getattr(found.fault, "node", 0)
    is_there = lab.drive is not None and number in lab.drive.brokers
    if found.expect.pool_within and not is_there:
        raise found.document.error(
            ("expect", "pool_within"),
            "is of the injected drive under the fault's `node`: name it in `lab.drive` of the plan",
        )


def _check_begin(found: Drill, plan_file: PlanFile) -> None:
    """Refuse a fault that begins when the load is over; how long a ramp takes is not known."""
    phases = plan_file.plan.phases
    end_ns = phase_plan.drain_k(Phases(), phases) * SECOND_NS
    if phases.ramp is None and found.begin_ns >= end_ns:
        raise found.document.error(
            ("begin",),
            f"{format_duration(found.begin_ns)} is too late: the load of {found.plan} ends after "
            f"{format_duration(end_ns)}",
        )
