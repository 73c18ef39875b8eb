"""Objectives: each form is read, written back the same, and refused with its fault when out of bounds."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.core.errors import PlanError
from soak.core.plan import text as plan_text
from soak.core.plan.objectives import (
    MAX_LIMIT_NS,
    MIN_LIMIT_NS,
    Objective,
    budget_text,
    is_budget_below_one,
    parse_objective,
    recorded_limits,
)
from soak.core.units import SECOND_NS, duration_ns

LIMITS = st.integers(MIN_LIMIT_NS, MAX_LIMIT_NS)
TARGETS = st.integers(1, 10**8 - 1).map(lambda part: Fraction(part, 10**8))
QUANTILES = st.integers(5 * 10**7, 10**8 - 1).map(lambda part: Fraction(part, 10**8))
OBJECTIVES = st.builds(
    Objective,
    st.just("minutes"),
    st.sampled_from(["publish", "end-to-end"]),
    LIMITS,
    TARGETS,
    QUANTILES,
) | st.builds(Objective, st.just("messages"), st.just("publish"), LIMITS, TARGETS)


@given(OBJECTIVES)
def test_an_objective_is_read_as_it_is_written(objective: Objective) -> None:
    assert parse_objective(str(objective)) == objective


@given(OBJECTIVES, st.lists(st.sampled_from(["  ", "\t", " \n "]), min_size=1))
def test_blanks_do_not_matter(objective: Objective, blanks: list[str]) -> None:
    words = str(objective).replace("%", " %").split(" ")
    spaced = "".join(word + blanks[number % len(blanks)] for number, word in enumerate(words))

    assert parse_objective(spaced) == objective


@pytest.mark.long
@given(OBJECTIVES)
def test_a_plan_holds_an_objective_through_being_written_out(objective: Objective) -> None:
    text = f"name: x\nbroker: {{kafka: {{}}}}\nobjectives:\n  - {objective}\n"

    plan = plan_text.load(text, "plan.yaml").plan

    assert plan.service_objectives == (objective,)
    assert plan_text.load(plan_text.dump(plan), "again").plan == plan


@given(st.text(max_size=60))
def test_any_text_is_an_objective_or_a_clear_error(text: str) -> None:
    try:
        found = str(parse_objective(text))
    except ValueError as error:
        found = str(error)

    assert found
    assert "\n" not in found


def test_the_forms_of_the_documentation_mean_what_they_say() -> None:
    publish = parse_objective("p99 publish <= 50ms for 99 % of minutes")
    received = parse_objective("p99.9 end to end<=0.5s for 99.5% of minutes")
    available = parse_objective("99.95 % of messages acknowledged within 1s")

    assert publish == Objective(
        "minutes", "publish", 50_000_000, Fraction(99, 100), Fraction(99, 100)
    )
    assert str(received) == "p99.9 end-to-end <= 500ms for 99.5% of minutes"
    assert available == Objective("messages", "publish", SECOND_NS, Fraction(9995, 10_000))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("p49 publish <= 50ms for 99% of minutes", "percentile must be at least 50"),
        ("p100 publish <= 50ms for 99% of minutes", "percentile must be at least 50 and below 100"),
        ("p99 publish <= 50ms for 0% of minutes", "share of minutes must be above 0"),
        ("p99 publish <= 99us for 99% of minutes", "limit 99us must lie between 100us and 100s"),
        ("p99 publish <= 50 for 99% of minutes", "'50' is not a duration"),
        ("100% of messages acknowledged within 1s", "share of messages must be above 0 and below"),
        ("p99 latency <= 50ms for 99% of minutes", "write it like p99 publish <= 50ms"),
    ],
)
def test_what_is_wrong_is_named(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_objective(text)


def test_more_objectives_than_a_plan_may_have_are_refused() -> None:
    lines = "".join(f"  - {share}% of messages acknowledged within 1s\n" for share in range(1, 24))

    with pytest.raises(PlanError, match="p:3: objectives: must be at most 20"):
        plan_text.load(f"name: x\nbroker: {{kafka: {{}}}}\nobjectives:\n{lines}", "p")


def test_the_limits_of_each_latency_are_recorded_once() -> None:
    texts = (
        "p99 publish <= 50ms for 99% of minutes",
        "p50 publish <= 50ms for 99% of minutes",
        "p99 end-to-end <= 70ms for 99% of minutes",
        "99% of messages acknowledged within 1s",
    )

    assert recorded_limits(texts, "publish") == (0.05, 1.0)
    assert recorded_limits(texts, "end-to-end") == (0.07,)


def test_a_budget_is_said_in_the_unit_of_its_objective() -> None:
    minutes = parse_objective("p99 publish <= 50ms for 99% of minutes")
    messages = parse_objective("99.95% of messages acknowledged within 1s")

    assert budget_text(minutes, duration_ns("36h")).endswith(": 21.6 of 2,160 minutes may be bad")
    assert "0.05% of the soak's messages" in budget_text(messages, duration_ns("36h"))
    assert is_budget_below_one(minutes, duration_ns("10min"))
    assert not is_budget_below_one(minutes, duration_ns("36h"))
