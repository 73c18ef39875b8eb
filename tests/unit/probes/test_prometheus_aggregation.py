"""Growth of series and aggregates over them, against their definitions."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.common.counters import Point, SeriesTracker, Step, Steps
from probes.prometheus.aggregation import Aggregator
from probes.prometheus.name_map import Aggregate, Entry
from soak.core.model import Column
from soak.core.series import Labels
from soak.core.units import SECOND_NS

LABELS: Labels = (("t", "x"),)
VALUES = st.sampled_from([*map(float, range(7)), math.nan])


def slow_step(before: Point | None, new: list[Point]) -> Step:
    """Add up what it rose by from each point to the next; with one fall or NaN it is not known."""
    seen = new if before is None else [before, *new]
    rises = [after.value - earlier.value for earlier, after in pairwise(seen)]
    is_known = bool(rises) and all(rise >= 0 for rise in rises)
    seconds = (seen[-1].at_ns - seen[0].at_ns) / SECOND_NS
    return Step(seen[-1].value, sum(rises) if is_known else None, seconds)


@given(st.lists(st.lists(VALUES, max_size=5), max_size=6))
def test_growth_is_the_rise_over_all_points_since_the_last_reading(
    looks: list[list[float]],
) -> None:
    """With one fall among them it is unknown."""
    walk = SeriesTracker()
    before: Point | None = None
    at_ns = 0

    for look in looks:
        new = []
        for value in look:
            at_ns += SECOND_NS
            new.append(Point(value, at_ns))
        found = walk.take({"a": {LABELS: new}})
        wanted = {"a": {LABELS: slow_step(before, new)}} if new else {}
        assert repr(found) == repr(wanted)  # in which NaN is like NaN
        before = new[-1] if new else before


@pytest.mark.parametrize(
    ("values", "growth"),
    [((3.0, 7.0, 2.0, 9.0), None), ((3.0, 7.0, 5.0, 9.0), None), ((2.0, 2.0, 5.0, 9.0), 7.0)],
)
def test_a_counter_that_fell_within_one_answer_has_no_growth(
    values: tuple[float, ...], growth: float | None
) -> None:
    """It was reset, and its last point may be above its first."""
    points = [Point(value, at * SECOND_NS) for at, value in enumerate(values)]

    assert SeriesTracker().take({"a": {LABELS: points}}) == {"a": {LABELS: Step(9.0, growth, 3.0)}}


def test_repeated_points_are_ignored() -> None:
    """A server is asked for some seconds again."""
    walk = SeriesTracker()
    old, new = Point(3.0, SECOND_NS), Point(26.0, 2 * SECOND_NS)
    walk.take({"a": {LABELS: [old]}})

    found = walk.take({"a": {LABELS: [old, new]}})
    again = walk.take({"a": {LABELS: [old, new]}})

    assert found == {"a": {LABELS: Step(26.0, 23.0, 1.0)}}
    assert again == {}


def gauges(**values: float) -> dict[Labels, Step]:
    return {(("t", name),): Step(value, None, 0.0) for name, value in values.items()}


@pytest.mark.parametrize("values", [(math.inf, -math.inf), (1e308, 1e308)])
def test_values_without_a_sum_have_no_aggregate(values: tuple[float, float]) -> None:
    """This affects one metric only."""
    entry = Entry(name="a", spellings=["a"], kind="gauge", unit="bytes")
    series = gauges(**{str(at): value for at, value in enumerate(values)})

    assert Aggregator([entry], ()).samples({"a": series}, frozenset()) == []


@pytest.mark.parametrize(("fold", "expected"), [("max", [9.0]), ("min", [3.0]), ("sum", [])])
def test_a_quantile_of_nothing_has_no_part_in_the_greatest(
    fold: Aggregate, expected: list[float]
) -> None:
    """Such as of a bookie's second journal without a write: what the first one does is known."""
    entry = Entry(name="a", spellings=["a"], kind="gauge", unit="seconds", fold=fold)
    series = gauges(idle=math.nan, slow=9.0, fast=3.0)

    found = Aggregator([entry], ()).samples({"a": series}, frozenset())

    assert [value for _, value in found] == expected


def test_of_quantiles_of_nothing_there_is_no_greatest() -> None:
    """All are idle."""
    entry = Entry(name="a", spellings=["a"], kind="gauge", unit="seconds", fold="max")

    assert Aggregator([entry], ()).samples({"a": gauges(idle=math.nan)}, frozenset()) == []


@given(st.lists(st.lists(st.sampled_from("wxyz"), unique=True), max_size=12))
def test_a_sum_needs_the_same_series_as_the_previous_reading(
    pages: list[list[str]],
) -> None:
    """Series may come, go and change their order; a page without any of them is skipped."""
    folds = Aggregator([Entry(name="a", spellings=["a"], kind="gauge", unit="bytes")], ())
    before: set[str] = set()

    for reading, page in enumerate(pages):
        series = gauges(**{name: 10.0 * reading + ord(name) for name in page})
        found = folds.samples({"a": series} if page else {}, frozenset())
        is_same = bool(page) and set(page) == (before or set(page))
        total = sum(step.value for step in series.values())
        assert found == ([(Column("a", (), "bytes"), total)] if is_same else [])
        before = set(page) or before


def test_the_series_of_a_present_group_are_not_forgotten() -> None:
    """Only groups that have gone are, when there are too many."""
    entries = [
        Entry(name="all", spellings=["a"], kind="gauge", unit="bytes"),
        Entry(name="each", spellings=["b"], kind="gauge", unit="bytes", labels=["t"]),
    ]
    folds = Aggregator(entries, (), max_groups=3)
    for gone, new in (("v", "w"), ("x", "y")):
        folds.samples({"a": gauges(p=1, q=2), "b": gauges(**{gone: 3, new: 4})}, frozenset())
    left = gauges(x=3, y=4)
    folds.samples({"a": gauges(p=1, q=2), "b": left}, frozenset())

    found = folds.samples({"a": gauges(p=1), "b": left}, frozenset())

    assert [column.metric for column, _ in found] == ["each", "each"]


def test_absent_groups_are_forgotten_if_there_are_too_many() -> None:
    """One that was absent longest is new when it comes back with fewer series."""
    entry = Entry(name="a", spellings=["a"], kind="gauge", unit="bytes", labels=["t"])
    folds = Aggregator([entry], (), max_groups=3)

    def page(names: str, series: str) -> Steps:
        return {"a": {(("s", s), ("t", t)): Step(1.0, None, 0.0) for t in names for s in series}}

    for name in "wxyz":
        folds.samples(page(name, "pq"), frozenset())

    back = folds.samples(page("wz", "p"), frozenset())

    assert [column.labels for column, _ in back] == [(("t", "w"),)]


def test_a_name_that_becomes_damaged_has_no_sample() -> None:
    """Such as one with a series that appears with two values."""
    folds = Aggregator([Entry(name="a", spellings=["a"], kind="gauge", unit="bytes")], ())
    page: Steps = {"a": gauges(p=1, q=2)}

    found = [folds.samples(page, frozenset(names)) for names in ("", "a", "")]

    whole = [(Column("a", (), "bytes"), 3.0)]
    assert found == [whole, [], whole]


def test_series_in_another_order_keep_their_values() -> None:
    """A page may list them in a new order at every reading."""
    folds = Aggregator(
        [Entry(name="a", spellings=["a"], kind="gauge", unit="bytes", labels=["t"])], ()
    )
    folds.samples({"a": gauges(p=1, q=2)}, frozenset())

    found = folds.samples({"a": gauges(q=2, p=1)}, frozenset())

    assert {dict(column.labels)["t"]: value for column, value in found} == {"p": 1, "q": 2}


def test_a_reading_without_new_points_keeps_the_groups() -> None:
    """A server is asked more often than it scrapes."""
    folds = Aggregator([Entry(name="a", spellings=["a"], kind="gauge", unit="bytes")], ())
    page: Steps = {"a": gauges(p=1)}
    ((before, _),) = folds.samples(page, frozenset())
    nothing = folds.samples({}, frozenset())

    ((after, _),) = folds.samples(page, frozenset())

    assert nothing == []
    assert after is before


def test_a_mean_needs_sum_and_count_in_one_group() -> None:
    """This affects one metric only."""
    entry = Entry(name="a", spellings=["a"], kind="mean", unit="seconds", labels=["t"])
    folds = Aggregator([entry], ())
    page: Steps = {
        "a_count": {(("t", "true"),): Step(3.0, 3.0, 1.0)},
        "a_sum": {(("t", "false"),): Step(1.0, 1.0, 1.0)},
    }

    assert folds.samples(page, frozenset()) == []
