"""The phases of a run: their lengths in the plan, and the conductor's decisions, planned and made."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any, Literal, get_args

from pydantic.dataclasses import dataclass as config_dataclass

from soak.core import json_text
from soak.core.plan.config import STRICT, FormerName, check_between
from soak.core.units import (
    SECOND_NS,
    Duration,
    Rate,
    Size,
    duration_ns,
    format_rate,
    rate_per_second,
)


@config_dataclass(frozen=True, kw_only=True, config=STRICT)
class Ramp:
    """The search for the highest sustained rate: grow until the cluster cannot follow, then bisect."""

    start: Rate = field(default_factory=lambda: rate_per_second("1k/s"))
    max_rate: Annotated[Rate, FormerName("most")] = field(
        default_factory=lambda: rate_per_second("10M/s")
    )
    growth: float = 2.0  # from one step to the next
    step: Duration = 30 * SECOND_NS  # each rate is held this long
    precision: float = 0.05  # bisect until the bounds are this close, as a share of the rate
    publish_p99: Duration = SECOND_NS  # a rate with slower acknowledgements is not sustained
    soak_share: float = 0.0  # share of the rate found for the soak; 0: the soak has `load.rate`

    def __post_init__(self) -> None:
        if not 0 < self.start <= self.max_rate:
            raise ValueError("start must be above 0/s and not above max_rate")
        check_between(self, "growth", 1.05, 10)
        check_between(self, "precision", 0.001, 0.5)
        check_between(self, "soak_share", 0, 1)
        if self.step < 5 * SECOND_NS or self.step % SECOND_NS:
            raise ValueError("step must be whole seconds, at least 5s")


@config_dataclass(frozen=True, kw_only=True, config=STRICT)
class CatchUp:
    """Consumers pause until a backlog has grown, then read it while the producers keep their rate."""

    backlog_size: Size = 0  # unread bytes; 0: by age only
    backlog_age: Duration = 0  # how long the consumers pause; 0: by size only
    drain_limit: Duration = duration_ns(
        "30min"
    )  # a backlog that takes longer counts as one that never drains
    settle: Duration = duration_ns("60s")  # cool-down before the soak is judged again

    def __post_init__(self) -> None:
        if not self.backlog_size and not self.backlog_age:
            raise ValueError("name backlog_size or backlog_age")
        for key in ("backlog_age", "drain_limit", "settle"):
            if getattr(self, key) % SECOND_NS:
                raise ValueError(f"{key} must be whole seconds")
        if self.drain_limit < 10 * SECOND_NS:
            raise ValueError("drain_limit must be at least 10s")


@config_dataclass(frozen=True, kw_only=True, config=STRICT)
class Window:
    """A catch-up that is repeated during the soak: at an interval from its start, or by cron."""

    catch_up: CatchUp
    every: Duration = 0
    cron: str = ""  # five fields, in UTC

    def __post_init__(self) -> None:
        if bool(self.every) == bool(self.cron):
            raise ValueError("name either every or cron")
        if self.every and self.every < 30 * SECOND_NS:
            raise ValueError("every must be at least 30s")


@config_dataclass(frozen=True, kw_only=True, config=STRICT)
class PhaseLengths:
    warm_up: Duration = duration_ns("60s")  # recorded and marked, not judged
    ramp: Ramp | None = None  # between warm-up and soak
    soak: Duration = duration_ns("24h")
    windows: tuple[Window, ...] = ()  # catch-ups during the soak
    catch_up: CatchUp | None = None  # one after the soak
    cool_down: Duration = 0  # the load continues, not judged
    drain: Duration = duration_ns("30s")  # maximum wait for the consumers after the last message

    def __post_init__(self) -> None:
        for key in ("warm_up", "soak", "cool_down", "drain"):
            value = getattr(self, key)
            if value % SECOND_NS or value < 0:
                raise ValueError(f"{key} must be whole seconds")
        if self.soak < 20 * SECOND_NS:
            raise ValueError("soak must be at least 20s: there is no level to judge earlier")


Phase = Literal["warm-up", "ramp", "soak", "catch-up", "cool-down", "drain", "end"]
Part = Literal["", "build", "drain", "rest"]
"""A catch-up builds a backlog and then drains it; a ramp rests after a rate that was too high."""

LOAD_PHASES: frozenset[str] = frozenset({"warm-up", "ramp", "soak", "catch-up", "cool-down"})
"""Phases in which the producers send."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The phase from interval `from_k` on. `reason` is for people, `fields` for the report.

    `rate` is the rate of all producers together from then on; None: the one of the plan.
    """

    phase: Phase
    from_k: int
    reason: str = "planned"
    part: Part = ""
    rate: Fraction | None = None
    fields: Mapping[str, str | int | float] = field(default_factory=dict)

    def to_line(self) -> str:
        body: dict[str, Any] = {"phase": self.phase, "from_k": self.from_k, "reason": self.reason}
        if self.part:
            body["part"] = self.part
        if self.rate is not None:
            body["rate"] = format_rate(self.rate)
        if self.fields:
            body["fields"] = dict(self.fields)
        return json.dumps(body) + "\n"


@dataclass(frozen=True, slots=True)
class Phases:
    """Decisions in ascending order of `from_k`; intervals before the first have no phase."""

    decisions: tuple[Decision, ...] = ()

    @property
    def from_k(self) -> tuple[int, ...]:
        return tuple(one.from_k for one in self.decisions)

    @property
    def names(self) -> tuple[Phase, ...]:
        return tuple(one.phase for one in self.decisions)

    @property
    def end_k(self) -> int | None:
        return self.first_k("end")

    def at(self, k: int) -> str:
        """Return the phase of interval k, or "" before the first decision."""
        found = self.decision_at(k)
        return "" if found is None else found.phase

    def decision_at(self, k: int) -> Decision | None:
        """Return the decision that holds in interval k, or None before the first."""
        index = bisect_right(self.decisions, k, key=_from_k) - 1
        return self.decisions[index] if index >= 0 else None

    def is_building(self, k: int) -> bool:
        """True in intervals in which consumers pause, so that a backlog grows."""
        found = self.decision_at(k)
        return found is not None and (found.phase, found.part) == ("catch-up", "build")

    def first_k(self, name: Phase) -> int | None:
        """Return the first interval of a phase, or None while it is not decided."""
        return next((one.from_k for one in self.decisions if one.phase == name), None)

    def after(self, k: int) -> tuple[Decision, ...]:
        """Return the decisions that take effect after interval k."""
        return self.decisions[bisect_right(self.decisions, k, key=_from_k) :]

    def held(self, end_k: int) -> list[tuple[Decision, int]]:
        """Return the decisions that hold before `end_k`, each with the first interval after it."""
        edges = [*self.from_k[1:], end_k]
        found = [(one, min(edge, end_k)) for one, edge in zip(self.decisions, edges, strict=False)]
        return [(one, edge) for one, edge in found if one.from_k < edge]

    def spans(self, name: Phase, end_k: int) -> list[tuple[int, int]]:
        """Return the first interval and the first one after it of every stretch of a phase before `end_k`."""
        return [(one.from_k, edge) for one, edge in self.held(end_k) if one.phase == name]

    def outcome(self, held: Decision, edge_k: int) -> Mapping[str, str | int | float]:
        """Return the outcome of a ramp step or a drain that ended before interval `edge_k`, or nothing.

        The decision that follows holds it.
        """
        following = self.decision_at(edge_k)
        if following is None or following is held:
            return {}
        return following.fields if held.phase == "ramp" or held.part == "drain" else {}


def decision_line(name: Phase, from_k: int, reason: str = "planned") -> str:
    """Return the line of a decision with phase, first interval and reason only."""
    return Decision(name, from_k, reason).to_line()


def apply_decisions(known: Sequence[Decision], later: Sequence[Decision]) -> tuple[Decision, ...]:
    """Return the decisions after `later`: each of these replaces all decisions from its `from_k` on."""
    kept = list(known)
    for decision in later:
        while kept and kept[-1].from_k >= decision.from_k:
            kept.pop()
        kept.append(decision)
    return tuple(kept)


def parse_phases(text: str, known: Phases | None = None) -> Phases:
    """Return the decisions of a file that may be growing; an unfinished last line is ignored.

    A later line replaces earlier ones from its `from_k` on (a run that is stopped early). `known` holds the
    decisions before `text`.

    Raises:
        ValueError: a line has a phase or rate that this program does not know.
    """
    found = []
    for line in text.split("\n")[:-1]:
        try:
            body = json_text.loads(line)
        except ValueError:  # torn by a crash, and continued after it
            continue
        found.append(_decision(body))
    return Phases(apply_decisions(() if known is None else known.decisions, found))


def _decision(body: Mapping[str, Any]) -> Decision:
    if body["phase"] not in get_args(Phase):
        raise ValueError(f"unknown phase {body['phase']!r}")
    rate = body.get("rate")
    return Decision(
        phase=body["phase"],
        from_k=int(body["from_k"]),
        reason=str(body.get("reason", "")),
        part=body.get("part", ""),
        rate=None if rate is None else rate_per_second(rate),
        fields=body.get("fields", {}),
    )


def _from_k(decision: Decision) -> int:
    return decision.from_k


def planned_phases(lengths: PhaseLengths) -> Phases:
    """Return the decisions that are known before the run: up to a ramp, or all but the end.

    The length of a ramp depends on its results, and the drain decides the end.
    """
    warm_up = lengths.warm_up // SECOND_NS
    first = (Decision("warm-up", 0),) if warm_up else ()
    if lengths.ramp is None:
        return Phases((*first, *decisions_from_soak(lengths, warm_up)))
    reason = "the first rate of the ramp"
    return Phases((*first, Decision("ramp", warm_up, reason, rate=lengths.ramp.start)))


def decisions_from_soak(
    lengths: PhaseLengths, soak_k: int, reason: str = "planned", rate: Fraction | None = None
) -> tuple[Decision, ...]:
    """Return the soak from interval `soak_k` on, and all later decisions."""
    soak = Decision("soak", soak_k, reason, rate=rate)
    return (soak, *decisions_after_soak(lengths, soak_k + lengths.soak // SECOND_NS))


def decisions_after_soak(lengths: PhaseLengths, end_k: int) -> tuple[Decision, ...]:
    """Return the decisions after a soak that ends before interval `end_k`."""
    if lengths.catch_up is None:
        return decisions_after_catch_up(lengths, end_k)
    build = Decision("catch-up", end_k, part="build")
    settled_k, following = decisions_after_build(
        lengths.catch_up, end_k + build_seconds(lengths.catch_up)
    )
    return (build, *following, *decisions_after_catch_up(lengths, settled_k))


def decisions_after_build(catch_up: CatchUp, drain_k: int) -> tuple[int, tuple[Decision, ...]]:
    """Return the first interval after a drain of maximum length and its cool-down, and both decisions."""
    drain = Decision("catch-up", drain_k, part="drain")
    settled_k, settle = decisions_after_drain(catch_up, drain_k + catch_up.drain_limit // SECOND_NS)
    return settled_k, (drain, *settle)


def decisions_after_drain(
    catch_up: CatchUp, settle_k: int, reason: str = "planned"
) -> tuple[int, tuple[Decision, ...]]:
    """Return the first interval after the cool-down of a drained backlog, and its decision."""
    seconds = catch_up.settle // SECOND_NS
    return settle_k + seconds, (Decision("cool-down", settle_k, reason),) if seconds else ()


def decisions_after_catch_up(lengths: PhaseLengths, end_k: int) -> tuple[Decision, ...]:
    """Return the last decisions: cool-down, then drain."""
    cool_down = lengths.cool_down // SECOND_NS
    first = (Decision("cool-down", end_k),) if cool_down else ()
    return (*first, Decision("drain", end_k + cool_down))


def build_seconds(catch_up: CatchUp) -> int:
    """Return the maximum time in which a backlog grows: its age, or without one its drain limit."""
    return (catch_up.backlog_age or catch_up.drain_limit) // SECOND_NS


def drain_k(phases: Phases, lengths: PhaseLengths) -> int:
    """Return the first interval in which nothing is sent, as far as it is planned; a ramp counts as over."""
    known = phases if phases.names else planned_phases(lengths)
    decided = known.first_k("drain")
    if decided is None:
        decided = known.end_k
    if decided is None:
        decided = decisions_from_soak(lengths, known.from_k[-1])[-1].from_k
    return decided


def latest_end_k(phases: Phases, lengths: PhaseLengths, backlog_ns: int) -> int:
    """Return the interval by which a run should have ended, as if the ramp's current step were its last."""
    open_ns = lengths.ramp.step + backlog_ns if lengths.ramp else 0
    return drain_k(phases, lengths) + (lengths.drain + open_ns) // SECOND_NS
