"""A `Result` to the JSON of a dialect: every field that the dialect has, in the order in which it has them.

The benchmark cannot say missing: what is missing is written as it writes it, as 0.
"""

from __future__ import annotations

import json

import numpy as np

from soak.omb import fields, profile
from soak.omb.fields import DELAY, Family
from soak.omb.numbers import in_unit
from soak.omb.result import Floats, Result

_TEXT_FACTS = frozenset({"version", "beginTime", "endTime", "keyDistributor"})

Json = dict[str, object]


def text(result: Result, dialect: str) -> str:
    """Return the file's text.

    Raises:
        PlanError: there is no such dialect.
    """
    return json.dumps(body(result, dialect), allow_nan=False) + "\n"


def body(result: Result, dialect: str) -> Json:
    """Return the fields; what the dialect has no field for is left out.

    Raises:
        PlanError: there is no such dialect.
    """
    known = profile.load(dialect)
    found: Json = {"workload": result.workload, "driver": result.driver}
    facts = {"sampleRateMillis": round(result.step_seconds * 1e3), **result.facts}
    for fact in known.facts:
        found[fact] = facts.get(fact, None if fact in _TEXT_FACTS else 0)
    for key in known.counts:
        values = _column(result, fields.COUNTS[key])
        found[key] = [round(value) for value in values] if key in fields.WHOLE else values.tolist()
    for family, statistics in known.latencies.items():
        for statistic in statistics:
            values = _column(result, fields.statistic_name(family, statistic))
            found[family.stem + fields.suffix(statistic)] = _listed(values, family, statistic)
    for family, statistics in known.totals.items():
        found |= _totals(result, family, statistics)
    return found


def _totals(result: Result, family: Family, statistics: tuple[str, ...]) -> Json:
    found: Json = {}
    for statistic in statistics:
        value = result.totals.get(fields.statistic_name(family, statistic), np.nan)
        key = family.aggregated + fields.suffix(statistic)
        found[key] = _listed(_filled(np.array([value])), family, statistic)[0]
    one = result.distributions.get(family.metric)
    found[f"{family.aggregated}Quantiles"] = (
        {}
        if one is None
        else dict(
            zip(
                [repr(percentile) for percentile in one.percentiles.tolist()],
                _listed(one.seconds, family, "p"),
                strict=True,
            )
        )
    )
    return found


def _column(result: Result, name: str) -> Floats:
    return _filled(result.samples.get(name, np.zeros(result.seconds.size)))


def _filled(values: Floats) -> Floats:
    return np.where(np.isnan(values), 0.0, values)


def _listed(seconds: Floats, family: Family, statistic: str) -> list[float] | list[int]:
    """Return values in the field's unit; delays are whole microseconds but for their mean."""
    values = in_unit(seconds, family.per_second)
    if family is DELAY and statistic != "mean":
        return [round(value) for value in values]
    return [float(value) for value in values]
