"""The search for the highest rate that a cluster sustains: grow until it no longer follows, then bisect.

What is known by then travels in the lines of `phases.jsonl`, so that a conductor that starts anew goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor, log10

from soak.core.phase_plan import from_soak
from soak.core.phases import Decision
from soak.core.plan import Plan
from soak.core.plan_phases import Ramp
from soak.core.units import SECOND_NS, format_rate, nearest_rate, rate_per_second
from soak.daemons.load_seconds import LoadSecond
from soak.daemons.sustained import Outcome, judged

SETTLE_SECONDS = 5
"""The first seconds of a rate that are not judged; a third of the step where that is shorter."""
LATE_SECONDS = 3
"""A record may come so much later than its second before it counts as missing."""
LEAST_OF_START = Fraction(1, 100)
"""A cluster that does not follow this part of the first rate follows none."""
MOST_TRIES = 3


@dataclass(frozen=True, slots=True)
class Bounds:
    """The highest rate known to be sustained, the lowest known not to be, and why it is not."""

    sustained: Fraction | None = None
    refused: Fraction | None = None
    why: str = ""

    def after(self, rate: Fraction, outcome: Outcome) -> Bounds:
        if outcome.is_sustained:
            return replace(self, sustained=rate)
        return replace(self, refused=rate, why=outcome.why)

    def fields(self) -> dict[str, str | int | float]:
        rates = {"sustained": self.sustained, "refused": self.refused}
        texts = {key: format_rate(rate) for key, rate in rates.items() if rate is not None}
        return {**texts, "why": self.why} if self.why else {**texts}

    @classmethod
    def of(cls, fields: Mapping[str, str | int | float]) -> Bounds:
        low, high = fields.get("sustained"), fields.get("refused")
        return cls(
            None if low is None else rate_per_second(low),
            None if high is None else rate_per_second(high),
            str(fields.get("why", "")),
        )


def next_rate(config: Ramp, bounds: Bounds) -> Fraction | None:
    """Return the rate to try next, or None when the search is over.

    Rates are rounded to what the precision can tell apart, so that they can be read.
    """
    low, high, growth = bounds.sustained, bounds.refused, Fraction(str(config.growth))
    if high is None:
        if low is None:
            return config.start
        return None if low >= config.most else min(_rounded(low * growth, config), config.most)
    if low is None:
        lower = _rounded(high / growth, config)
        return lower if lower >= config.start * LEAST_OF_START else None
    middle = _rounded((low + high) / 2, config)
    is_close = high - low <= Fraction(str(config.precision)) * high
    return middle if low < middle < high and not is_close else None


def decide(
    plan: Plan, current: Decision, k: int, ahead_k: int, at: Callable[[int], LoadSecond]
) -> tuple[Decision, ...]:
    """Return what follows in the second k of a ramp, from second `ahead_k` on; nothing while it is open.

    `current` is the decision that holds; `at` gives what was recorded in a second.
    """
    if current.part == "rest":
        return _after_rest(plan, current, k, ahead_k, at)
    outcome = _outcome(plan, current, k, at)
    return () if outcome is None else _after_step(plan, current, ahead_k, outcome)


def _after_rest(
    plan: Plan, current: Decision, k: int, ahead_k: int, at: Callable[[int], LoadSecond]
) -> tuple[Decision, ...]:
    step = (plan.phases.ramp or Ramp()).step
    is_late = k >= current.from_k + (plan.load.backlog + step) // SECOND_NS
    if not (is_late or _is_calm(plan, current, k, at)):
        return ()
    if "again" in current.fields:
        rate = rate_per_second(current.fields["again"])
        return (Decision("ramp", ahead_k, "once more", rate=rate, fields=current.fields),)
    reason = "what the last rate left was not gone in time" if is_late else "after a rest"
    return _following(plan, Bounds.of(current.fields), ahead_k, reason)


def _after_step(
    plan: Plan, current: Decision, from_k: int, outcome: Outcome
) -> tuple[Decision, ...]:
    """Return what follows a step; a rate whose refusal may have passed by now is tried once more."""
    rate, bounds = current.rate or plan.load.rate, Bounds.of(current.fields)
    tries = int(current.fields.get("tries", 1))
    if outcome.is_sustained is None and tries < MOST_TRIES:
        fields = {**current.fields, "tries": tries + 1}
        return (replace(current, from_k=from_k, reason=f"again: {outcome.why}", fields=fields),)
    reason = f"{format_rate(rate)}: {outcome.why}"
    if outcome.is_sustained:
        return _following(plan, bounds.after(rate, outcome), from_k, reason)
    is_final = outcome.is_certain or outcome.is_sustained is None or "again" in current.fields
    fields = bounds.after(rate, outcome).fields() if is_final else bounds.fields()
    if not is_final:
        fields["again"] = format_rate(rate)
    return (Decision("ramp", from_k, reason, "rest", Fraction(0), fields),)


def _following(plan: Plan, bounds: Bounds, from_k: int, reason: str) -> tuple[Decision, ...]:
    """Return the next rate, or the soak and all after it when the search is over."""
    config = plan.phases.ramp or Ramp()
    rate = next_rate(config, bounds)
    if rate is not None:
        return (Decision("ramp", from_k, reason, rate=rate, fields=bounds.fields()),)
    share = Fraction(str(config.soak_share))
    result = _result(bounds)
    if bounds.sustained is None and share:
        return (
            Decision("drain", from_k, f"no rate for the soak: {result}", fields=bounds.fields()),
        )
    soak_rate = nearest_rate((bounds.sustained or Fraction(0)) * share) or None
    soak, *others = from_soak(plan.phases, from_k, result, soak_rate)
    return (replace(soak, fields=bounds.fields()), *others)


def _result(bounds: Bounds) -> str:
    if bounds.sustained is None:
        lowest = format_rate(bounds.refused or Fraction(0))
        return f"ramp: not even {lowest} is sustained: {bounds.why}"
    found = f"ramp: {format_rate(bounds.sustained)} is sustained"
    if bounds.refused is None:
        return f"{found}, the most that the plan asks for"
    return f"{found}, {format_rate(bounds.refused)} is not: {bounds.why}"


def _outcome(
    plan: Plan, current: Decision, k: int, at: Callable[[int], LoadSecond]
) -> Outcome | None:
    """Return how the cluster took the rate, or None while the step lasts and nothing has gone wrong."""
    config = plan.phases.ramp or Ramp()
    step = config.step // SECOND_NS
    first_k = current.from_k + min(SETTLE_SECONDS, step // 3)
    last_k = current.from_k + step
    seconds = [at(one) for one in range(first_k, min(last_k, k))]
    outcome = judged(
        seconds,
        current.rate or plan.load.rate,
        config.publish_p99,
        plan.load.producers,
        plan.consumers.processes,
    )
    if any(one.missed for one in seconds):
        return outcome
    is_there = at(last_k - 1).producers >= plan.load.producers and k > last_k
    return outcome if is_there or k >= last_k + LATE_SECONDS else None


def _is_calm(plan: Plan, current: Decision, k: int, at: Callable[[int], LoadSecond]) -> bool:
    """True once a whole second of the rest has passed in which nothing went out, came back or was read."""
    for one_k in range(max(current.from_k + 1, k - LATE_SECONDS), k):
        one = at(one_k)
        is_whole = (
            one.producers >= plan.load.producers and one.consumers >= plan.consumers.processes
        )
        if is_whole and not (one.sent or one.acked or one.in_flight or any(one.received.values())):
            return True
    return False


def _rounded(rate: Fraction, config: Ramp) -> Fraction:
    """Return the rate as a multiple of a power of ten, near enough that two rates in turn stay apart."""
    apart = min(config.precision, config.growth - 1, 0.5)
    grain = Fraction(10) ** floor(log10(float(rate) * apart / 2))
    return round(rate / grain) * grain
