"""What many series of a page come to as one number, by itself."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes._folds import Folds
from probes._name_map import Entry
from probes._steps import Step, Steps
from soak.core.model import Column, Labels


def gauges(**values: float) -> dict[Labels, Step]:
    return {(("t", name),): Step(value, None, 0.0) for name, value in values.items()}


@pytest.mark.parametrize("values", [(math.inf, -math.inf), (1e308, 1e308)])
def test_numbers_that_have_no_sum_give_none(values: tuple[float, float]) -> None:
    """A page may hold them; it costs this metric, and not all that the probe reads."""
    entry = Entry(name="a", spellings=["a"], kind="gauge", unit="bytes")
    series = gauges(**{str(at): value for at, value in enumerate(values)})

    assert Folds([entry], ()).samples({"a": series}, frozenset()) == []


@given(st.lists(st.lists(st.sampled_from("wxyz"), unique=True), max_size=12))
def test_a_sum_is_that_of_this_reading_over_the_series_of_the_one_before(
    pages: list[list[str]],
) -> None:
    """Whatever comes, goes, or stands in another order; a page that has none of them is passed over."""
    folds = Folds([Entry(name="a", spellings=["a"], kind="gauge", unit="bytes")], ())
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
    folds = Folds(entries, (), most=3)
    for gone, new in (("v", "w"), ("x", "y")):
        folds.samples({"a": gauges(p=1, q=2), "b": gauges(**{gone: 3, new: 4})}, frozenset())
    left = gauges(x=3, y=4)
    folds.samples({"a": gauges(p=1, q=2), "b": left}, frozenset())

    found = folds.samples({"a": gauges(p=1), "b": left}, frozenset())

    assert [column.metric for column, _ in found] == ["each", "each"]


def test_groups_that_are_gone_are_forgotten_when_they_are_too_many() -> None:
    """Labels come and go for days: what was gone for longest is as new when it is back with less."""
    entry = Entry(name="a", spellings=["a"], kind="gauge", unit="bytes", labels=["t"])
    folds = Folds([entry], (), most=3)

    def page(names: str, series: str) -> Steps:
        return {"a": {(("s", s), ("t", t)): Step(1.0, None, 0.0) for t in names for s in series}}

    for name in "wxyz":
        folds.samples(page(name, "pq"), frozenset())

    back = folds.samples(page("wz", "p"), frozenset())

    assert [column.labels for column, _ in back] == [(("t", "w"),)]


def test_a_name_that_becomes_damaged_while_the_page_keeps_its_series_makes_no_sample() -> None:
    """As when a series stands there twice, with two values: which of them holds nobody knows."""
    folds = Folds([Entry(name="a", spellings=["a"], kind="gauge", unit="bytes")], ())
    page: Steps = {"a": gauges(p=1, q=2)}

    found = [folds.samples(page, frozenset(names)) for names in ("", "a", "")]

    whole = [(Column("a", (), "bytes"), 3.0)]
    assert found == [whole, [], whole]


def test_series_that_stand_in_another_order_keep_their_values() -> None:
    """Of each name the page may list them anew at every reading."""
    folds = Folds([Entry(name="a", spellings=["a"], kind="gauge", unit="bytes", labels=["t"])], ())
    folds.samples({"a": gauges(p=1, q=2)}, frozenset())

    found = folds.samples({"a": gauges(q=2, p=1)}, frozenset())

    assert {dict(column.labels)["t"]: value for column, value in found} == {"p": 1, "q": 2}


def test_a_reading_without_anything_new_leaves_what_was_worked_out() -> None:
    """A server is asked more often than it scrapes: the columns are those of the scrape before."""
    folds = Folds([Entry(name="a", spellings=["a"], kind="gauge", unit="bytes")], ())
    page: Steps = {"a": gauges(p=1)}
    ((before, _),) = folds.samples(page, frozenset())
    nothing = folds.samples({}, frozenset())

    ((after, _),) = folds.samples(page, frozenset())

    assert nothing == []
    assert after is before


def test_a_mean_whose_sum_and_count_lie_in_two_groups_is_none() -> None:
    """`success` of the one and no `success` of the other: it costs this metric, and not all targets'."""
    entry = Entry(name="a", spellings=["a"], kind="mean", unit="seconds", labels=["t"])
    folds = Folds([entry], ())
    page: Steps = {
        "a_count": {(("t", "true"),): Step(3.0, 3.0, 1.0)},
        "a_sum": {(("t", "false"),): Step(1.0, 1.0, 1.0)},
    }

    assert folds.samples(page, frozenset()) == []
