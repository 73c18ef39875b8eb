"""A run over several hosts: each starts its part by the clock, under one id, and asks no other."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from soak.core.announcement import RUN_ID
from soak.core.errors import PlanError, SoakError
from soak.core.plan_text import PlanFile
from soak.core.plugins import nearest
from soak.core.units import SECOND_NS
from soak.daemons.supervise import Role, roles_of
from soak.store.run_folder import Run

LEADING = ("conduct", "receive", "detect-stream", "alert")
"""Daemons of the first host, which makes the topics and judges."""

_LATEST_NS = 2**63 - 1  # of a stamp: in the year 2262


@dataclass(frozen=True, slots=True)
class Part:
    """What this host does of a run. Without anything said it does all, at once, under an id of its own."""

    run_id: str = ""
    start_wall_ns: int = 0
    only: tuple[str, ...] = ()

    @property
    def is_first(self) -> bool:
        """True on the host that makes the topics, detects and reports."""
        return not self.only or "conduct" in self.only

    def roles(self, plan_file: PlanFile) -> tuple[Role, ...]:
        """Return the daemons of this host; one that joins has a conductor for itself.

        Raises:
            PlanError: a daemon that the plan does not have.
        """
        every = roles_of(plan_file.plan)
        known = [role.name for role in every]
        for name in self.only:
            if name not in known:
                raise PlanError(f"--only: the plan has no daemon {name!r}{nearest(name, known)}")
        if not self.only:
            return every
        wanted = {*self.only, "conduct", "ship", *(("receive",) if self.is_first else ())}
        return tuple(role for role in every if role.name in wanted)


WHOLE = Part()


def part_of(run_id: str, start: str, only: str) -> Part:
    """Return a part from the options of a command line.

    Raises:
        PlanError: an option that cannot be, or one without those that it needs.
    """
    if not (run_id or start or only):
        return WHOLE
    if not (run_id and start):
        raise PlanError("a run over several hosts needs --run-id and --start, the same on each")
    if not RUN_ID.fullmatch(run_id):
        raise PlanError(f"--run-id {run_id!r}: letters, digits, '-', '_' and '.', at most 100")
    try:
        at = datetime.fromisoformat(start)
    except ValueError as error:
        raise PlanError(f"--start {start!r} is no time; write 2026-01-31T12:00:00Z") from error
    if at.tzinfo is None:
        raise PlanError(f"--start {start!r} has no time zone; write {at.isoformat()}Z for UTC")
    names = names_of(only)
    strays = sorted(set(LEADING) & set(names)) if "conduct" not in names else []
    if strays:
        raise PlanError(f"--only: {strays[0]} belongs to the host that has conduct")
    since_epoch = at - datetime(1970, 1, 1, tzinfo=UTC)
    micros = (since_epoch.days * 86_400 + since_epoch.seconds) * 10**6 + since_epoch.microseconds
    start_wall_ns = micros * (SECOND_NS // 10**6)
    if not 0 < start_wall_ns <= _LATEST_NS:
        raise PlanError(f"--start {start!r} lies outside the years 1970 to 2262")
    return Part(run_id, start_wall_ns, names)


def part_again(run: Run, only: tuple[str, ...]) -> Part:
    """Return what this host does of a run that goes on: what is named now, or else what it did before.

    Raises:
        PlanError: it did all of it: the rest would end without a report.
    """
    if only and not run.only:
        raise PlanError(
            f"--only: run {run.id} has all its daemons on this host: go on with it without"
        )
    return Part(run.id, run.start_wall_ns, only or run.only)


def names_of(only: str) -> tuple[str, ...]:
    """Return the daemons that a command line names."""
    return tuple(name.strip() for name in only.split(",") if name.strip())


def check_in_time(part: Part, now_wall_ns: int, lead_ns: int) -> None:
    """Check, once the topics are there, that the daemons will be ready for the first message.

    Raises:
        SoakError: to make the topics took too long: what was due by then would be missed.
    """
    if part.start_wall_ns and part.start_wall_ns < now_wall_ns + lead_ns:
        raise SoakError(
            f"the topics were not there {lead_ns // SECOND_NS} s before --start, which the daemons need "
            "to be ready; begin anew with a later --start and another --run-id"
        )


def check_part(part: Part, plan_file: PlanFile, now_wall_ns: int, lead_ns: int) -> None:
    """Check what only the plan and the time can tell.

    Raises:
        PlanError: it starts too soon, or the plan decides by data that this host does not see.
    """
    part.roles(plan_file)
    if part.start_wall_ns and part.start_wall_ns < now_wall_ns + lead_ns:
        least = lead_ns // SECOND_NS
        raise PlanError(f"--start is less than {least} s from now: the daemons would not be ready")
    plan = plan_file.plan
    if plan.lab is not None and part.only:
        raise plan_file.error("lab", "a lab's broker is on loopback: no other host reaches it")
    for key in ("ramp", "catch_up", "windows"):
        if part.only and getattr(plan.phases, key):
            raise plan_file.error(f"phases.{key}", "is decided by data, which one host alone sees")
