"""The phases as far as the plan knows them; what depends on data stands in it at its latest."""

from __future__ import annotations

from fractions import Fraction

from soak.core.phases import Decision, Phases
from soak.core.plan_phases import CatchUp, PhaseLengths
from soak.core.units import SECOND_NS


def planned(lengths: PhaseLengths) -> Phases:
    """Return what is known before the first second: all up to a ramp, or else all but the end.

    How long a ramp lasts depends on what it finds, and the drain decides the end.
    """
    warm_up = lengths.warm_up // SECOND_NS
    first = (Decision("warm-up", 0),) if warm_up else ()
    if lengths.ramp is None:
        return Phases((*first, *from_soak(lengths, warm_up)))
    reason = "the first rate of the ramp"
    return Phases((*first, Decision("ramp", warm_up, reason, rate=lengths.ramp.start)))


def from_soak(
    lengths: PhaseLengths, soak_k: int, reason: str = "planned", rate: Fraction | None = None
) -> tuple[Decision, ...]:
    """Return the soak from second `soak_k` on and all that follows it."""
    soak = Decision("soak", soak_k, reason, rate=rate)
    return (soak, *after_soak(lengths, soak_k + lengths.soak // SECOND_NS))


def after_soak(lengths: PhaseLengths, end_k: int) -> tuple[Decision, ...]:
    """Return what follows a soak that ends before second `end_k`."""
    if lengths.catch_up is None:
        return after_catch_up(lengths, end_k)
    build = Decision("catch-up", end_k, part="build")
    settled_k, following = after_build(lengths.catch_up, end_k + build_seconds(lengths.catch_up))
    return (build, *following, *after_catch_up(lengths, settled_k))


def after_build(catch_up: CatchUp, drain_k: int) -> tuple[int, tuple[Decision, ...]]:
    """Return draining at its longest, what settles after it, and the first second after that."""
    drain = Decision("catch-up", drain_k, part="drain")
    settled_k, settle = after_drain(catch_up, drain_k + catch_up.drain_limit // SECOND_NS)
    return settled_k, (drain, *settle)


def after_drain(
    catch_up: CatchUp, settle_k: int, reason: str = "planned"
) -> tuple[int, tuple[Decision, ...]]:
    """Return the cool-down that follows a drained backlog, and the first second after it."""
    seconds = catch_up.settle // SECOND_NS
    return settle_k + seconds, (Decision("cool-down", settle_k, reason),) if seconds else ()


def after_catch_up(lengths: PhaseLengths, end_k: int) -> tuple[Decision, ...]:
    """Return the last phases: cool-down, then the drain."""
    cool_down = lengths.cool_down // SECOND_NS
    first = (Decision("cool-down", end_k),) if cool_down else ()
    return (*first, Decision("drain", end_k + cool_down))


def build_seconds(catch_up: CatchUp) -> int:
    """Return how long a backlog may grow: to its age; one that has none, as long as it may drain."""
    return (catch_up.backlog_age or catch_up.drain_limit) // SECOND_NS


def drain_k(phases: Phases, lengths: PhaseLengths) -> int:
    """Return the second from which on nothing is sent, as far as it is foreseen: a ramp counts as over."""
    known = phases if phases.names else planned(lengths)
    decided = known.first_k("drain")
    if decided is None:
        decided = known.end_k
    if decided is None:
        decided = from_soak(lengths, known.from_k[-1])[-1].from_k
    return decided
