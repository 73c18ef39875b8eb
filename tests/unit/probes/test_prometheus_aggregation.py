"""What a series did since the last look, against the definition: whatever its points are."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.common.counters import Point, SeriesTracker, Step, Steps
from probes.prometheus.aggregation import Aggregator
from probes.prometheus.name_map import Entry
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
def test_growth_is_what_all_points_since_the_last_look_rose_by(looks: list[list[float]]) -> None:
    """Of several points in one answer too, as of a server: one fall among them, and it is not known."""
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
    """It began anew: what it had before is lost, and its last point may well be above its first."""
    points = [Point(value, at * SECOND_NS) for at, value in enumerate(values)]

    assert SeriesTracker().take({"a": {LABELS: points}}) == {"a": {LABELS: Step(9.0, growth, 3.0)}}


def test_points_that_an_answer_repeats_are_passed_over() -> None:
    """A server is asked for some seconds again."""
    walk = SeriesTracker()
    old, new = Point(3.0, SECOND_NS), Point(26.0, 2 * SECOND_NS)
    walk.take({"a": {LABELS: [old]}})

    found = walk.take({"a": {LABELS: [old, new]}})
    again = walk.take({"a": {LABELS: [old, new]}})

    assert found == {"a": {LABELS: Step(26.0, 23.0, 1.0)}}
    assert again == {}


# --- What many series of a page come to as one number, by itself.


def gauges(**values: float) -> dict[Labels, Step]:
    return {(("t", name),): Step(value, None, 0.0) for name, value in values.items()}


@pytest.mark.parametrize("values", [(math.inf, -math.inf), (1e308, 1e308)])
def test_numbers_that_have_no_sum_give_none(values: tuple[float, float]) -> None:
    """A page may hold them; it costs this metric, and not all that the probe reads."""
    entry = Entry(name="a", spellings=["a"], kind="gauge", unit="bytes")
    series = gauges(**{str(at): value for at, value in enumerate(values)})

    assert Aggregator([entry], ()).samples({"a": series}, frozenset()) == []


@given(st.lists(st.lists(st.sampled_from("wxyz"), unique=True), max_size=12))
def test_a_sum_is_that_of_this_reading_over_the_series_of_the_one_before(
    pages: list[list[str]],
) -> None:
    """Whatever comes, goes, or stands in another order; a page that has none of them is passed over."""
    folds = Aggregator([Entry(name="a", spellings=["a"], kind="gauge", unit="bytes")], ())
    before: set[str] = set()

    for reading, page in enumerate(pages):
        series = gauges(**{name: 10.0 * reading + ord(name) for name in page})
        found = folds.samples({"a": series} if page else {}, frozenset())
        is_same = bool(page) and set(page) == (before or set(page))
        total = sum(step.value for step in series.values())
        assert found == ([(Column("a", (), "bytes"), total)] if is_same else [])
        before = set(page) or before


def test_a_sum_over_fewer_series_is_not_given_after_more_groups_came_than_are_remembered() -> None:
    """Groups that are gone are forgotten, and not those that the page has had all the time."""
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


def test_groups_that_are_gone_are_forgotten_when_they_are_too_many() -> None:
    """Labels come and go for days: what was gone for longest is as new when it is back with less."""
    entry = Entry(name="a", spellings=["a"], kind="gauge", unit="bytes", labels=["t"])
    folds = Aggregator([entry], (), max_groups=3)

    def page(names: str, series: str) -> Steps:
        return {"a": {(("s", s), ("t", t)): Step(1.0, None, 0.0) for t in names for s in series}}

    for name in "wxyz":
        folds.samples(page(name, "pq"), frozenset())

    back = folds.samples(page("wz", "p"), frozenset())

    assert [column.labels for column, _ in back] == [(("t", "w"),)]


def test_a_name_that_becomes_damaged_while_the_page_keeps_its_series_makes_no_sample() -> None:
    """As when a series stands there twice, with two values: which of them holds nobody knows."""
    folds = Aggregator([Entry(name="a", spellings=["a"], kind="gauge", unit="bytes")], ())
    page: Steps = {"a": gauges(p=1, q=2)}

    found = [folds.samples(page, frozenset(names)) for names in ("", "a", "")]

    whole = [(Column("a", (), "bytes"), 3.0)]
    assert found == [whole, [], whole]


def test_series_that_stand_in_another_order_keep_their_values() -> None:
    """Of each name the page may list them anew at every reading."""
    folds = Aggregator(
        [Entry(name="a", spellings=["a"], kind="gauge", unit="bytes", labels=["t"])], ()
    )
    folds.samples({"a": gauges(p=1, q=2)}, frozenset())

    found = folds.samples({"a": gauges(q=2, p=1)}, frozenset())

    assert {dict(column.labels)["t"]: value for column, value in found} == {"p": 1, "q": 2}


def test_a_reading_without_anything_new_leaves_what_was_worked_out() -> None:
    """A server is asked more often than it scrapes: the columns are those of the scrape before."""
    folds = Aggregator([Entry(name="a", spellings=["a"], kind="gauge", unit="bytes")], ())
    page: Steps = {"a": gauges(p=1)}
    ((before, _),) = folds.samples(page, frozenset())
    nothing = folds.samples({}, frozenset())

    ((after, _),) = folds.samples(page, frozenset())

    assert nothing == []
    assert after is before


def test_a_mean_whose_sum_and_count_lie_in_two_groups_is_none() -> None:
    """`success` of the one and no `success` of the other: it costs this metric, and not all targets'."""
    entry = Entry(name="a", spellings=["a"], kind="mean", unit="seconds", labels=["t"])
    folds = Aggregator([entry], ())
    page: Steps = {
        "a_count": {(("t", "true"),): Step(3.0, 3.0, 1.0)},
        "a_sum": {(("t", "false"),): Step(1.0, 1.0, 1.0)},
    }

    assert folds.samples(page, frozenset()) == []
