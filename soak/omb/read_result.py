"""A result file's JSON to a `Result`: the dialect is told by the keys; a fault by file and key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from soak.core.errors import PlanError
from soak.omb import fields, missing, profile, time_axis
from soak.omb.numbers import number, numbers, percentile_map, whole_ns
from soak.omb.result import Distribution, Floats, Result

_REQUIRED = ("publishRate", "consumeRate", "publishLatency99pct")


def parse(body: object, name: str) -> Result:
    """Return the result; keys that no dialect knows are named in a remark.

    Raises:
        PlanError: it is not a result, or a value is not what its key asks for.
    """
    if not isinstance(body, Mapping):
        raise PlanError(f"{name}: not a benchmark result: {type(body).__name__}, not an object")
    absent = [key for key in _REQUIRED if key not in body]
    if absent:
        raise PlanError(f"{name}: not a benchmark result: it has no {absent[0]}")
    sorted_out = _sort_out(body, name)
    _check_lengths(body, sorted_out.samples, name)
    dialect = profile.recognise(frozenset(body))
    step_seconds = _step_seconds(sorted_out.facts, name)
    ends, remark = time_axis.rebuilt(sorted_out.samples, step_seconds)
    samples = missing.forget_empty(sorted_out.samples)
    remarks = [
        *([remark] if remark else []),
        *_remarks_on_times(sorted_out.facts, name),
        *missing.remarks(samples, profile.load(dialect).caps_seconds),
    ]
    if sorted_out.unknown:
        remarks.append(f"unknown keys, read over: {', '.join(sorted(sorted_out.unknown))}")
    return Result(
        dialect=dialect,
        workload=str(body.get("workload") or ""),
        driver=str(body.get("driver") or ""),
        facts=sorted_out.facts,
        step_seconds=step_seconds,
        seconds=ends,
        samples=samples,
        totals=_measured_totals(sorted_out),
        distributions=sorted_out.distributions,
        remarks=tuple(remarks),
    )


@dataclass(slots=True)
class _Sorted:
    """What the keys of one file hold, by kind."""

    samples: dict[str, Floats] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    distributions: dict[str, Distribution] = field(default_factory=dict)
    facts: dict[str, str | int | float] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)


def _sort_out(body: Mapping[str, Any], name: str) -> _Sorted:
    found, known_facts = _Sorted(), profile.all_facts()
    for key, value in body.items():
        latency = fields.parse(key)
        if latency is not None:
            _sort_latency(found, latency, key, value, name)
        elif key in fields.COUNTS:
            found.samples[fields.COUNTS[key]] = numbers(value, name, key)
        elif key in known_facts and isinstance(value, str | int | float):
            found.facts[key] = value
        elif key not in known_facts | {"workload", "driver"}:
            found.unknown.append(key)
    return found


def _sort_latency(
    found: _Sorted, latency: fields.Field, key: str, value: object, name: str
) -> None:
    unit = latency.family.per_second
    if not latency.statistic:
        percentiles, values = percentile_map(value, name, key)
        if percentiles.size:
            distribution = Distribution(percentiles, whole_ns(values, unit))
            found.distributions[latency.family.metric] = distribution
    elif latency.is_total:
        total = np.array([number(value, name, key)])
        found.totals[latency.name] = float(whole_ns(total, unit)[0])
    else:
        found.samples[latency.name] = whole_ns(numbers(value, name, key), unit)


def _check_lengths(body: Mapping[str, Any], samples: dict[str, Floats], name: str) -> None:
    """Drop lists that were never filled; all others must be as long as the rates."""
    whole = samples[fields.COUNTS["publishRate"]].size
    for key in body:
        latency = fields.parse(key)
        column = latency.name if latency is not None else fields.COUNTS.get(key, "")
        if column not in samples or (latency is not None and latency.is_total):
            continue
        size = samples[column].size
        if size == 0 and key not in _REQUIRED:
            del samples[column]
        elif size != whole:
            raise PlanError(f"{name}: {key}: {size} samples, but publishRate has {whole}")


def _measured_totals(found: _Sorted) -> dict[str, float]:
    """Return the totals without the zeros of a latency of which nothing was recorded."""
    empty = tuple(
        f"{family.name}_" for family in fields.FAMILIES if family.metric not in found.distributions
    )
    return {
        column: value
        for column, value in found.totals.items()
        if value != 0.0 or not column.startswith(empty)
    }


def _step_seconds(facts: Mapping[str, str | int | float], name: str) -> float:
    millis = facts.get("sampleRateMillis", profile.NOMINAL_STEP_MILLIS)
    step_millis = number(millis, name, "sampleRateMillis")
    if not step_millis >= 1:  # whole ones there; ends of samples are kept to a millisecond
        raise PlanError(f"{name}: sampleRateMillis: {millis!r} is below 1")
    return step_millis / 1e3


def _remarks_on_times(facts: dict[str, str | int | float], name: str) -> list[str]:
    """Take the end from the file's name where nothing else tells it, and say what the times mean."""
    if "beginTime" in facts:
        return ["beginTime is from before the warm-up, in local time; its zone is not told"]
    end = time_axis.end_in_name(name)
    if not end or "endTime" in facts:
        return []
    facts["endTime"] = end
    return ["endTime is from the file's name, in local time; its zone is not told"]
