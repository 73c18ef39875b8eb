"""The search for the highest sustained rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from soak.conductor import ramp
from soak.conductor.load_records import LoadInterval
from soak.conductor.ramp import Bounds, Outcome, judge_rate, next_rate
from soak.core.plan import text as plan_text
from soak.core.plan.phases import (
    Decision,
    Phases,
    Ramp,
    apply_decisions,
    parse_phases,
    planned_phases,
)
from soak.core.plan.plan import Plan
from soak.core.units import SECOND_NS, rate_per_second
from tests.support.examples import examples

AHEAD = 5
GOOD = LoadInterval(
    producers=1, consumers=1, sent=1000, acked=1000, publish_p99=0.004, lag={0: 40.0}
)


def _plan(extra: str = "", soak_share: float = 0.0) -> Plan:
    text = f"""
name: ramp
broker: {{kafka: {{}}}}
load: {{rate: 500/s}}
phases:
  warm_up: 10s
  soak: 60s
  drain: 5s
  ramp: {{start: 1k/s, step: 15s, soak_share: {soak_share}{extra}}}
"""
    return plan_text.load(text, "plan").plan


@dataclass
class Cluster:
    """Accepts at most `capacity` messages a second."""

    capacity: float

    def second(self, rate: float) -> LoadInterval:
        accepted = min(rate, self.capacity)
        is_over = rate > self.capacity
        return replace(
            GOOD,
            sent=accepted,
            acked=accepted,
            in_flight=1.0 if rate else 0.0,
            received={0: accepted},
            schedule_lag=rate / self.capacity if is_over else 0.0,
        )


def _search(plan: Plan, cluster: Cluster, restart_every: int = 10**9) -> Phases:
    """Run the ramp against a cluster; decisions are written and read as in a run.

    The file is read again at each decision, and every `restart_every` seconds, as by a restarted conductor.
    """
    text = "".join(one.to_line() for one in planned_phases(plan.phases).decisions)
    phases = parse_phases(text)
    for k in range(10, 6000):
        current = phases.decision_at(k)
        assert current is not None
        if current.phase != "ramp":
            return phases
        if phases.decision_at(k + AHEAD) != current:
            continue

        def at(second: int, known: Phases = phases) -> LoadInterval:
            rate = known.decision_at(second)
            return cluster.second(float(rate.rate or 0) if rate else 0.0)

        following = ramp.decide(plan, current, k, k + AHEAD, at)
        text += "".join(one.to_line() for one in following)
        if following or k % restart_every == 0:
            phases = parse_phases(text)
    raise AssertionError("the ramp does not end")


@settings(max_examples=examples(40))
@given(
    capacity=st.floats(1000, 5_000_000),
    growth=st.floats(1.2, 4).map(lambda value: round(value, 2)),
    precision=st.sampled_from([0.01, 0.05, 0.2]),
)
def test_the_search_finds_a_known_capacity_within_its_precision(
    capacity: float, growth: float, precision: float
) -> None:
    config, bounds, tried = Ramp(growth=growth, precision=precision), Bounds(), 0
    while (rate := next_rate(config, bounds)) is not None:
        bounds = bounds.after(rate, Outcome(rate <= capacity, "too much"))
        tried += 1

    assert bounds.sustained is not None
    assert bounds.refused is not None
    assert bounds.sustained <= capacity < bounds.refused
    assert bounds.refused - bounds.sustained <= Fraction(str(precision)) * bounds.refused
    assert tried < 80


@given(capacity=st.floats(0.001, 999))
def test_a_capacity_below_the_first_rate_is_found(capacity: float) -> None:
    bounds = Bounds()
    while (rate := next_rate(Ramp(), bounds)) is not None:
        bounds = bounds.after(rate, Outcome(rate <= capacity, "too much"))

    if capacity >= 20:
        assert bounds.sustained is not None
        assert capacity * 0.9 <= bounds.sustained <= capacity
    if capacity < 10:
        assert bounds.sustained is None


def test_the_search_stops_at_the_maximum_rate() -> None:
    bounds, tried = Bounds(), []
    while (rate := next_rate(Ramp(max_rate=Fraction(6000)), bounds)) is not None:
        tried.append(int(rate))
        bounds = bounds.after(rate, Outcome(is_sustained=True, why=""))

    assert tried == [1000, 2000, 4000, 6000]


@settings(max_examples=examples(40))
@given(st.fractions(1, 10**7), st.floats(0.001, 0.5), st.floats(1.05, 10))
def test_rates_can_be_written_exactly(high: Fraction, precision: float, growth: float) -> None:
    config = Ramp(precision=round(precision, 4), growth=round(growth, 3), start=Fraction(1))
    decimal = Fraction(round(high * 1000), 1000)
    assume(decimal >= 1)
    for bounds in (Bounds(decimal), Bounds(None, decimal), Bounds(decimal / 2, decimal)):
        rate = next_rate(config, bounds)
        if rate is not None:
            line = Decision("ramp", 0, rate=rate).to_line()
            assert parse_phases(line).decisions[0].rate == rate


def test_a_ramp_ends_in_a_soak_with_its_result() -> None:
    """Capacity 7,777/s, found within 5 %; the soak runs at half of it, and all that follows is decided."""
    plan = _plan(soak_share=0.5)

    phases = _search(plan, Cluster(7777.0))

    soak = next(one for one in phases.decisions if one.phase == "soak")
    found = rate_per_second(soak.fields["sustained"])
    assert 7777 * 0.95 <= found <= 7777
    assert soak.rate == found / 2
    assert soak.reason.startswith("ramp: ")
    assert "sends were" in soak.reason
    assert [one.phase for one in phases.after(soak.from_k)] == ["drain"]
    assert phases.after(soak.from_k)[0].from_k == soak.from_k + 60


def test_a_conductor_that_restarts_every_second_decides_the_same() -> None:
    assert _search(_plan(), Cluster(7777.0), 1) == _search(_plan(), Cluster(7777.0))


def test_without_a_share_the_soak_keeps_the_rate_of_the_plan() -> None:
    phases = _search(_plan(), Cluster(7777.0))

    assert next(one.rate for one in phases.decisions if one.phase == "soak") is None


def test_after_a_refused_rate_the_cluster_rests() -> None:
    phases = _search(_plan(), Cluster(3000.0))

    rates = [(int(one.rate or 0), one.part) for one in phases.decisions if one.phase == "ramp"]
    assert rates[:4] == [(1000, ""), (2000, ""), (4000, ""), (0, "rest")]


def test_a_refused_rate_is_tried_once_more() -> None:
    """Another process on the machine may have disturbed one step."""
    plan, step = _plan(), Decision("ramp", 10, rate=Fraction(1000))
    slow, quiet = replace(GOOD, publish_p99=3.0), replace(GOOD, sent=0, acked=0, lag={0: 0.0})

    (rest,) = ramp.decide(plan, step, 26, 31, lambda _: slow)
    (again,) = ramp.decide(plan, replace(rest, from_k=31), 34, 39, lambda _: quiet)
    (good,) = ramp.decide(plan, replace(again, from_k=39), 55, 60, lambda _: GOOD)
    (bad,) = ramp.decide(plan, replace(again, from_k=39), 55, 60, lambda _: slow)

    assert (rest.part, rest.reason) == ("rest", "1k/s: publish p99 was 3 s, above 1s")
    assert (again.rate, again.reason) == (step.rate, "once more")
    assert (good.rate, good.fields) == (Fraction(2000), {"sustained": "1k/s"})
    assert (bad.part, bad.fields["refused"]) == ("rest", "1k/s")


def test_without_a_sustained_rate_the_run_ends() -> None:
    phases = _search(_plan(soak_share=0.5), Cluster(1.0))

    last = phases.decisions[-1]
    assert (last.phase, phases.first_k("soak")) == ("drain", None)
    assert last.reason.startswith("no rate for the soak: ramp: not even")


def test_a_step_with_too_few_records_is_tried_again() -> None:
    plan, current = _plan(), Decision("ramp", 10, rate=Fraction(1000))

    def silent(_: int) -> LoadInterval:
        return LoadInterval()

    first = ramp.decide(plan, current, 40, 45, silent)[0]
    second = ramp.decide(plan, replace(first, from_k=45), 80, 85, silent)[0]
    third = ramp.decide(plan, replace(second, from_k=85), 120, 125, silent)[0]

    assert first.rate == current.rate
    assert (first.fields["tries"], second.fields["tries"]) == (2, 3)
    assert (third.part, third.fields["refused"]) == ("rest", "1k/s")


def test_the_first_seconds_of_a_rate_do_not_count_and_the_last_one_must_be_recorded() -> None:
    plan, current = _plan(), Decision("ramp", 10, rate=Fraction(1000))

    def at(k: int) -> LoadInterval:
        return replace(GOOD, skipped=5.0, acked=0.0) if k < 15 else GOOD

    assert [bool(ramp.decide(plan, current, k, k + 5, at)) for k in (14, 24, 25, 26)] == [
        False, False, False, True,
    ]  # fmt: skip
    assert ramp.decide(plan, current, 26, 31, at)[0].rate == 2000


def test_skipped_sends_end_a_step_at_once() -> None:
    plan, current = _plan(), Decision("ramp", 10, rate=Fraction(1000))

    (found,) = ramp.decide(plan, current, 17, 22, lambda _: replace(GOOD, skipped=1.0))

    assert (found.part, found.reason) == ("rest", "1k/s: 2 sends were skipped")


Change = Callable[[int], LoadInterval]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda _: replace(GOOD, skipped=0.25), "9 sends were skipped"),
        (lambda _: replace(GOOD, acked=970), "only 97.0% of the due messages were acknowledged"),
        (lambda _: replace(GOOD, schedule_lag=0.08), "sends were 0.08 s late at the end"),
        (lambda _: replace(GOOD, publish_p99=1.4), "publish p99 was 1.4 s, above 1s"),
        (lambda at: replace(GOOD, lag={0: 1.0, 1: 100.0 * at}), "consumer lag grew by 100 "),
        (
            lambda at: replace(GOOD, acked=970, invalid="queue_full" if at < 7 else ""),
            "acknowledged; this client was the bottleneck in 7 of 36 s (queue_full)",
        ),
    ],
)
def test_each_reason_alone_refuses_a_rate(change: Change, why: str) -> None:
    found = judge_rate([change(at) for at in range(36)], Fraction(1000), SECOND_NS, 1, 1)

    assert found.is_sustained is False
    assert why in found.why


@pytest.mark.parametrize(
    "change",
    [
        lambda _: replace(GOOD, acked=985),
        lambda at: replace(GOOD, publish_p99=5.0) if at == 20 else GOOD,
        lambda at: replace(GOOD, schedule_lag=3.0) if at < 20 else GOOD,
        lambda at: replace(GOOD, lag={0: float("nan"), 1: 400.0 * (at % 2)}),
        lambda at: replace(GOOD, lag={0: 5000.0 - 100 * at}),
        lambda at: LoadInterval() if at < 7 else GOOD,
    ],
)
def test_short_disturbances_do_not_refuse_a_rate(change: Change) -> None:
    found = judge_rate([change(at) for at in range(36)], Fraction(1000), SECOND_NS, 1, 1)

    assert found.is_sustained is True


def test_a_decision_replaces_later_ones() -> None:
    known = (Decision("warm-up", 0), Decision("soak", 10), Decision("drain", 90))

    found = apply_decisions(known, (Decision("catch-up", 20, part="build"), Decision("soak", 30)))

    assert [one.from_k for one in found] == [0, 10, 20, 30]
