"""What many series of a page come to as one number, by itself."""

from __future__ import annotations

import math

import pytest

from probes._folds import Folds
from probes._name_map import Entry
from probes._steps import Step
from soak.core.model import Labels


@pytest.mark.parametrize("values", [(math.inf, -math.inf), (1e308, 1e308)])
def test_numbers_that_have_no_sum_give_none(values: tuple[float, float]) -> None:
    """A page may hold them; it costs this metric, and not all that the probe reads."""
    entry = Entry(name="a", spellings=["a"], kind="gauge", unit="bytes")
    series: dict[Labels, Step] = {
        (("t", str(at)),): Step(value, None, 0.0) for at, value in enumerate(values)
    }

    assert Folds([entry], ()).samples({"a": series}, frozenset()) == []
