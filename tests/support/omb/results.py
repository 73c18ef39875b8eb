"""Results of any dialect for property-based tests, and a comparison of two of them."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from soak.omb import result
from soak.omb.result import DELAY, Distribution, Family, Floats, Result, statistic_name

_HOURS_12_NS = 12 * 3600 * 10**9
_RATES = st.floats(0.1, 1e7)
_FACTS = {"version": "1.0", "keyDistributor": "NO_KEY"}


def same(ours: Result, theirs: Result) -> bool:
    """Return whether all numbers are equal, NaN included; times, remarks and dialect are no numbers."""
    return (
        (ours.workload, ours.driver) == (theirs.workload, theirs.driver)
        and ours.facts == theirs.facts
        and ours.samples.keys() == theirs.samples.keys()
        and all(_equal(values, theirs.samples[name]) for name, values in ours.samples.items())
        and dict(ours.totals) == dict(theirs.totals)
        and ours.distributions.keys() == theirs.distributions.keys()
        and all(
            _equal(one.percentiles, theirs.distributions[name].percentiles)
            and _equal(one.seconds, theirs.distributions[name].seconds)
            for name, one in ours.distributions.items()
        )
    )


@st.composite
def results(draw: st.DrawFn, dialect: str) -> Result:
    """Draw a result with everything that a dialect can say; a third of the samples are missing."""
    known = result.load_profile(dialect)
    count = draw(st.integers(1, 4))
    samples: dict[str, Floats] = {}
    is_there = {
        side: draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
        for side in ("publishRate", "consumeRate")
    }
    for key in known.counts:
        shown = is_there.get(key, [1] * count)
        number = st.integers(-100, 10**12).map(float) if key in result.WHOLE_FIELDS else _RATES
        samples[result.COUNT_FIELDS[key]] = np.array(
            [draw(number) if here else 0.0 for here in shown]
        )
    for family, statistics in known.latencies.items():
        for statistic in statistics:
            values = [
                draw(_latency(family, statistic)) if here else math.nan
                for here in is_there[family.side]
            ]
            samples[statistic_name(family, statistic)] = np.array(values)
    facts: dict[str, str | int | float] = {fact: _FACTS.get(fact, 7) for fact in known.facts}
    return Result(
        dialect=dialect,
        workload=draw(st.text(max_size=8)),
        driver="Kafka",
        facts=facts | ({"sampleRateMillis": 10_000} if "sampleRateMillis" in facts else {}),
        step_seconds=10.0,
        seconds=10.0 * np.arange(1.0, count + 1),
        samples=samples,
        totals={
            statistic_name(family, statistic): draw(_latency(family, statistic))
            for family, statistics in known.totals.items()
            for statistic in statistics
        },
        distributions={family.metric: draw(_distribution(family)) for family in known.totals},
    )


def _latency(family: Family, statistic: str) -> st.SearchStrategy[float]:
    """Draw seconds: whole us where the field holds whole us, whole ns elsewhere; a maximum is above 0."""
    least = 1 if statistic == "max" else 0
    if family is DELAY and statistic != "mean":
        return st.integers(least, 60 * 10**6).map(lambda us: us * 1000 / 1e9)
    return st.integers(least, _HOURS_12_NS).map(lambda ns: ns / 1e9)


@st.composite
def _distribution(draw: st.DrawFn, family: Family) -> Distribution:
    shares = draw(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=4, unique=True))
    seconds = [draw(_latency(family, "p")) for _ in shares]
    return Distribution(np.array(sorted(shares)), np.array(seconds))


def _equal(ours: Floats, theirs: Floats) -> bool:
    return bool(np.array_equal(ours, theirs, equal_nan=True))
