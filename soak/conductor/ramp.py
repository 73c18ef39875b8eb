"""Ramp: the search for the highest rate that a cluster sustains, by growth and then bisection.

The state of the search is kept in `phases.jsonl`, so that a restarted conductor continues.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor, log10
from statistics import median

from soak.conductor.load_records import LoadInterval
from soak.core.plan.phases import Decision, Ramp, decisions_from_soak
from soak.core.plan.plan import Plan
from soak.core.units import SECOND_NS, format_duration, format_rate, nearest_rate, rate_per_second

MIN_ACKED_RATIO = 0.98
"""A rate is not sustained when less of the due messages is acknowledged."""
MAX_BEHIND_SECONDS = 0.050
"""Nor when the median send of the last third is later than this."""
MAX_LAG_GROWTH = 0.02
"""Nor when consumer lag grows by more of the due messages; half a second of load does not count."""
MIN_RECORDED_RATIO = 0.8
"""With records of fewer seconds the rate cannot be judged."""
SETTLE_SECONDS = 5
"""The first seconds of a rate are not judged; of a shorter step a third."""
LATE_SECONDS = 3
"""A record may come so much later than its second before it counts as missing."""
MIN_START_RATIO = Fraction(1, 100)
"""The search ends without a result below this share of the first rate."""
MAX_TRIES = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a rate was sustained (None: too few records) and why, for people.

    A refusal is certain where sends were skipped; any other reason may be temporary.
    """

    is_sustained: bool | None
    why: str
    is_certain: bool = False


def judge_rate(
    seconds: Sequence[LoadInterval],
    rate: Fraction,
    publish_p99_ns: int,
    producers: int,
    consumers: int,
) -> Outcome:
    """Judge `seconds` at `rate` a second of all processes; seconds without all their records do not count."""
    whole = [one for one in seconds if one.producers >= producers and one.consumers >= consumers]
    skipped = sum(one.skipped for one in seconds)
    if not skipped and len(whole) < max(1, MIN_RECORDED_RATIO * len(seconds)):
        return Outcome(None, f"only {len(whole)} of {len(seconds)} s were recorded")
    why = (
        f"{skipped:.0f} sends were skipped" if skipped else _objection(whole, rate, publish_p99_ns)
    )
    if not why:
        return Outcome(True, "sustained")
    invalid = [one.invalid for one in whole if one.invalid]
    if invalid:
        why += (
            f"; this client was the bottleneck in {len(invalid)} of {len(whole)} s ({invalid[0]})"
        )
    return Outcome(False, why, is_certain=bool(skipped))


def _objection(seconds: Sequence[LoadInterval], rate: Fraction, publish_p99_ns: int) -> str:
    """Return the first reason why the rate is not sustained, or ""."""
    due, acked = float(rate) * len(seconds), sum(one.acked for one in seconds)
    if acked + 1 < MIN_ACKED_RATIO * due:
        return f"only {acked / due:.1%} of the due messages were acknowledged"
    behind = median(one.schedule_lag for one in _thirds(seconds)[-1])
    if behind > MAX_BEHIND_SECONDS:
        return f"sends were {behind:.3g} s late at the end"
    slow = median(one.publish_p99 for one in seconds)
    if slow > publish_p99_ns / SECOND_NS:
        return f"publish p99 was {slow:.3g} s, above {format_duration(publish_p99_ns)}"
    growth = _lag_growth(seconds, float(rate))
    return f"consumer lag grew by {growth:.0f} messages a second" if growth else ""


def _thirds(
    seconds: Sequence[LoadInterval],
) -> tuple[Sequence[LoadInterval], Sequence[LoadInterval]]:
    """Return the first and the last third, at least one second each."""
    size = max(1, len(seconds) // 3)
    return seconds[:size], seconds[-size:]


def _lag_growth(seconds: Sequence[LoadInterval], rate: float) -> float:
    """Return by how much the lag of the slowest subscription grew a second; 0 where that is acceptable.

    Compares the medians of the first and the last third, so that one slow fetch does not count.
    """
    first, last = _thirds(seconds)
    apart = len(seconds) - len(last)
    fastest = 0.0
    for subscription in first[0].lag:
        before, after = (_lags(third, subscription) for third in (first, last))
        grown = median(after) - median(before) if before and after else 0.0
        if grown > max(MAX_LAG_GROWTH * rate * apart, rate / 2):
            fastest = max(fastest, grown / max(1, apart))
    return fastest


def _lags(seconds: Sequence[LoadInterval], subscription: int) -> list[float]:
    found = (one.lag.get(subscription, math.nan) for one in seconds)
    return [lag for lag in found if not math.isnan(lag)]


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

    Rates are rounded to the precision of the search, so that people can read them.
    """
    low, high, growth = bounds.sustained, bounds.refused, Fraction(str(config.growth))
    if high is None:
        if low is None:
            return config.start
        return (
            None if low >= config.max_rate else min(_rounded(low * growth, config), config.max_rate)
        )
    if low is None:
        lower = _rounded(high / growth, config)
        return lower if lower >= config.start * MIN_START_RATIO else None
    middle = _rounded((low + high) / 2, config)
    is_close = high - low <= Fraction(str(config.precision)) * high
    return middle if low < middle < high and not is_close else None


def decide(
    plan: Plan, current: Decision, k: int, ahead_k: int, at: Callable[[int], LoadInterval]
) -> tuple[Decision, ...]:
    """Return the decisions of second k of a ramp, in effect from second `ahead_k`; none while it is open.

    `current` is the decision in effect; `at` returns the records of a second.
    """
    if current.part == "rest":
        return _after_rest(plan, current, k, ahead_k, at)
    outcome = _outcome(plan, current, k, at)
    return () if outcome is None else _after_step(plan, current, ahead_k, outcome)


def _after_rest(
    plan: Plan, current: Decision, k: int, ahead_k: int, at: Callable[[int], LoadInterval]
) -> tuple[Decision, ...]:
    step = (plan.phases.ramp or Ramp()).step
    is_late = k >= current.from_k + (plan.load.backlog + step) // SECOND_NS
    if not (is_late or _is_quiet(plan, current, k, at)):
        return ()
    if "again" in current.fields:
        rate = rate_per_second(current.fields["again"])
        return (Decision("ramp", ahead_k, "once more", rate=rate, fields=current.fields),)
    reason = "messages of the last rate were still in flight" if is_late else "after a rest"
    return _following(plan, Bounds.of(current.fields), ahead_k, reason)


def _after_step(
    plan: Plan, current: Decision, from_k: int, outcome: Outcome
) -> tuple[Decision, ...]:
    """Return the decisions after a step; a rate with a refusal that may be temporary is tried once more."""
    rate, bounds = current.rate or plan.load.rate, Bounds.of(current.fields)
    tries = int(current.fields.get("tries", 1))
    if outcome.is_sustained is None and tries < MAX_TRIES:
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
    """Return the next rate; when the search is over, the soak and all that follows."""
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
    soak, *others = decisions_from_soak(plan.phases, from_k, result, soak_rate)
    return (replace(soak, fields=bounds.fields()), *others)


def _result(bounds: Bounds) -> str:
    if bounds.sustained is None:
        lowest = format_rate(bounds.refused or Fraction(0))
        return f"ramp: not even {lowest} is sustained: {bounds.why}"
    found = f"ramp: {format_rate(bounds.sustained)} is sustained"
    if bounds.refused is None:
        return f"{found}, the maximum of the plan"
    return f"{found}, {format_rate(bounds.refused)} is not: {bounds.why}"


def _outcome(
    plan: Plan, current: Decision, k: int, at: Callable[[int], LoadInterval]
) -> Outcome | None:
    """Judge the current rate; None while the step lasts and no sends were skipped."""
    config = plan.phases.ramp or Ramp()
    step = config.step // SECOND_NS
    first_k = current.from_k + min(SETTLE_SECONDS, step // 3)
    last_k = current.from_k + step
    seconds = [at(one) for one in range(first_k, min(last_k, k))]
    outcome = judge_rate(
        seconds,
        current.rate or plan.load.rate,
        config.publish_p99,
        plan.load.producers,
        plan.consumers.processes,
    )
    if any(one.skipped for one in seconds):
        return outcome
    is_recorded = at(last_k - 1).producers >= plan.load.producers and k > last_k
    return outcome if is_recorded or k >= last_k + LATE_SECONDS else None


def _is_quiet(plan: Plan, current: Decision, k: int, at: Callable[[int], LoadInterval]) -> bool:
    """Return whether one second of the rest has passed without messages sent, acknowledged or received."""
    for one_k in range(max(current.from_k + 1, k - LATE_SECONDS), k):
        one = at(one_k)
        is_whole = (
            one.producers >= plan.load.producers and one.consumers >= plan.consumers.processes
        )
        if is_whole and not (one.sent or one.acked or one.in_flight or any(one.received.values())):
            return True
    return False


def _rounded(rate: Fraction, config: Ramp) -> Fraction:
    """Round a rate to a multiple of a power of ten, fine enough that successive rates differ."""
    apart = min(config.precision, config.growth - 1, 0.5)
    grain = Fraction(10) ** floor(log10(float(rate) * apart / 2))
    return round(rate / grain) * grain
