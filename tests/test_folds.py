"""What many series of a page come to as one number, by itself."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes._folds import Folds
from probes._name_map import Entry
from probes._steps import Step
from soak.core.model import Column, Labels


@pytest.mark.parametrize("values", [(math.inf, -math.inf), (1e308, 1e308)])
def test_numbers_that_have_no_sum_give_none(values: tuple[float, float]) -> None:
    """A page may hold them; it costs this metric, and not all that the probe reads."""
    entry = Entry(name="a", spellings=["a"], kind="gauge", unit="bytes")
    series: dict[Labels, Step] = {
        (("t", str(at)),): Step(value, None, 0.0) for at, value in enumerate(values)
    }

    assert Folds([entry], ()).samples({"a": series}, frozenset()) == []


@given(st.lists(st.lists(st.sampled_from("wxyz"), unique=True), max_size=12))
def test_a_sum_is_that_of_this_reading_over_the_series_of_the_one_before(
    pages: list[list[str]],
) -> None:
    """Whatever comes, goes, or stands in another order; a page that has none of them is passed over."""
    folds = Folds([Entry(name="a", spellings=["a"], kind="gauge", unit="bytes")], ())
    before: set[str] = set()

    for reading, page in enumerate(pages):
        series: dict[Labels, Step] = {
            (("t", name),): Step(10.0 * reading + ord(name), None, 0.0) for name in page
        }
        found = folds.samples({"a": series} if page else {}, frozenset())
        is_same = bool(page) and set(page) == (before or set(page))
        total = sum(step.value for step in series.values())
        assert found == ([(Column("a", (), "bytes"), total)] if is_same else [])
        before = set(page) or before
