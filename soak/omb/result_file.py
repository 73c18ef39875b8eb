"""Read and write result files of the benchmark: the dialect is recognised by the keys of the file.

Files carry no times, so the ends of samples are rebuilt, with a remark. HdrHistogram gives 0 for mean,
percentiles and maximum of an empty sample, so that an outage looks perfect: these zeros become missing
values.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soak.core import json_text
from soak.core.errors import PlanError
from soak.omb.result import (
    COUNT_FIELDS,
    DELAY,
    END_TO_END,
    FAMILIES,
    NOMINAL_STEP_MILLIS,
    PUBLISH,
    WHOLE_FIELDS,
    Distribution,
    Family,
    Field,
    Floats,
    Result,
    all_facts,
    load_profile,
    parse_field,
    recognise_dialect,
    statistic_name,
    statistic_suffix,
)

_NS = 1e9
_AT_CAP = 0.9999  # a recorder of 5 digits changes a capped value a little
_ALWAYS = (PUBLISH, END_TO_END)  # in every dialect, and never 0

_END = re.compile(r"-(\d{4}(?:-\d\d){5})\.json(?:\.gz)?$")
_SHORTEST_DRIFT = 1e-3  # of the nominal step: less is rounding

MAX_BYTES = 2**28
"""Of a file, also unpacked: a month of seconds with five columns has half of it."""
_GZIP_MAGIC = b"\x1f\x8b"
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # as Windows writes redirected output

_REQUIRED = ("publishRate", "consumeRate", "publishLatency99pct")

_TEXT_FACTS = frozenset({"version", "beginTime", "endTime", "keyDistributor"})

Json = dict[str, object]


def read_text(path: Path) -> str:
    """Return the text of a file, unpacked if it is gzip, whatever its name.

    Raises:
        PlanError: it cannot be read, is cut off, damaged, not text, or has more than `MAX_BYTES`.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise PlanError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        text = _unpacked(raw) if raw.startswith(_GZIP_MAGIC) else raw
        if len(text) > MAX_BYTES:
            raise PlanError(f"{path}: more than {MAX_BYTES >> 20} MiB; cut it into smaller files")
        return text.decode("utf-16" if text.startswith(_UTF_16) else "utf-8-sig")
    except EOFError as error:
        raise PlanError(f"{path}: cut off after {len(raw)} packed bytes") from error
    except (OSError, zlib.error) as error:
        raise PlanError(f"{path}: the packed file is damaged: {error}") from error
    except UnicodeDecodeError as error:
        encoding = error.encoding.upper()
        raise PlanError(f"{path}: not text: byte {error.start} is not {encoding}") from error


def _unpacked(raw: bytes) -> bytes:
    """Return what a packed file holds, up to one byte more than `MAX_BYTES`: a few MiB may hold gigabytes."""
    with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
        return file.read(MAX_BYTES + 1)


def parse_json(text: str, name: str) -> object:
    """Return the JSON value.

    Raises:
        PlanError: not JSON; the message has line and column.
    """
    try:
        return json_text.loads(text)
    except json.JSONDecodeError as error:
        reason = error.msg.lower().removesuffix(" starting at")
        is_cut = not text[error.pos :].strip() or error.msg.startswith("Unterminated")
        hint = "; the file seems to be cut off" if is_cut else ""
        where = f"{name}:{error.lineno}:{error.colno}"
        raise PlanError(f"{where}: not JSON: {reason}{hint}") from error
    except (RecursionError, ValueError) as error:  # ValueError: a number of thousands of digits
        raise PlanError(f"{name}:1: not JSON: {error}") from error


def parse_result(body: object, name: str) -> Result:
    """Return the result; keys that no dialect knows are named in a remark.

    Raises:
        PlanError: it is not a result, or a value is wrong.
    """
    if not isinstance(body, Mapping):
        raise PlanError(f"{name}: not a benchmark result: {type(body).__name__}, not an object")
    absent = [key for key in _REQUIRED if key not in body]
    if absent:
        raise PlanError(f"{name}: not a benchmark result: it has no {absent[0]}")
    sorted_out = _sort_keys(body, name)
    _check_lengths(body, sorted_out.samples, name)
    dialect = recognise_dialect(frozenset(body))
    step_seconds = _step_seconds(sorted_out.facts, name)
    ends, remark = rebuild_times(sorted_out.samples, step_seconds)
    samples = drop_empty_samples(sorted_out.samples)
    remarks = [
        *([remark] if remark else []),
        *_remarks_on_times(sorted_out.facts, name),
        *remarks_on_values(samples, load_profile(dialect).caps_seconds),
    ]
    if sorted_out.unknown:
        remarks.append(f"unknown keys, ignored: {', '.join(sorted(sorted_out.unknown))}")
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
class _Contents:
    """The values of one file, by kind."""

    samples: dict[str, Floats] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    distributions: dict[str, Distribution] = field(default_factory=dict)
    facts: dict[str, str | int | float] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)


def _sort_keys(body: Mapping[str, Any], name: str) -> _Contents:
    found, known_facts = _Contents(), all_facts()
    for key, value in body.items():
        latency = parse_field(key)
        if latency is not None:
            _sort_latency(found, latency, key, value, name)
        elif key in COUNT_FIELDS:
            found.samples[COUNT_FIELDS[key]] = parse_numbers(value, name, key)
        elif key in known_facts and isinstance(value, str | int | float):
            found.facts[key] = value
        elif key not in known_facts | {"workload", "driver"}:
            found.unknown.append(key)
    return found


def _sort_latency(found: _Contents, latency: Field, key: str, value: object, name: str) -> None:
    unit = latency.family.per_second
    if not latency.statistic:
        percentiles, values = parse_percentile_map(value, name, key)
        if percentiles.size:
            distribution = Distribution(percentiles, whole_ns(values, unit))
            found.distributions[latency.family.metric] = distribution
    elif latency.is_total:
        total = np.array([parse_number(value, name, key)])
        found.totals[latency.name] = float(whole_ns(total, unit)[0])
    else:
        found.samples[latency.name] = whole_ns(parse_numbers(value, name, key), unit)


def _check_lengths(body: Mapping[str, Any], samples: dict[str, Floats], name: str) -> None:
    """Drop lists that were never filled; all others must be as long as the rates."""
    whole = samples[COUNT_FIELDS["publishRate"]].size
    for key in body:
        latency = parse_field(key)
        column = latency.name if latency is not None else COUNT_FIELDS.get(key, "")
        if column not in samples or (latency is not None and latency.is_total):
            continue
        size = samples[column].size
        if size == 0 and key not in _REQUIRED:
            del samples[column]
        elif size != whole:
            raise PlanError(f"{name}: {key}: {size} samples, but publishRate has {whole}")


def _measured_totals(found: _Contents) -> dict[str, float]:
    """Return the totals without the zeros of a latency that was not recorded."""
    empty = tuple(
        f"{family.name}_" for family in FAMILIES if family.metric not in found.distributions
    )
    return {
        column: value
        for column, value in found.totals.items()
        if value != 0.0 or not column.startswith(empty)
    }


def _step_seconds(facts: Mapping[str, str | int | float], name: str) -> float:
    millis = facts.get("sampleRateMillis", NOMINAL_STEP_MILLIS)
    step_millis = parse_number(millis, name, "sampleRateMillis")
    if (
        not step_millis >= 1
    ):  # a whole number in the benchmark; ends of samples are kept to a millisecond
        raise PlanError(f"{name}: sampleRateMillis: {millis!r} is below 1")
    return step_millis / 1e3


def _remarks_on_times(facts: dict[str, str | int | float], name: str) -> list[str]:
    """Take the end from the file's name if the file has none, and return what the times mean."""
    if "beginTime" in facts:
        return ["beginTime is from before the warm-up, in local time; its zone is unknown"]
    end = end_in_name(name)
    if not end or "endTime" in facts:
        return []
    facts["endTime"] = end
    return ["endTime is from the file's name, in local time; its zone is unknown"]


def drop_empty_samples(samples: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return the samples with NaN for latencies of 0 where the rate or the maximum is 0."""
    found = dict(samples)
    for family in FAMILIES:
        rate = samples[COUNT_FIELDS[family.side]]
        maximum = samples.get(statistic_name(family, "max"), np.ones_like(rate))
        for name in _names(samples, family):
            is_zero = samples[name] == 0.0
            found[name] = np.where(
                is_zero & ((rate == 0.0) | (maximum == 0.0)), np.nan, samples[name]
            )
    return found


def remarks_on_values(
    samples: Mapping[str, Floats], caps_seconds: Mapping[Family, float]
) -> list[str]:
    """Return a sentence on each kind of missing, impossible and capped values."""
    found = []
    for family in FAMILIES:
        names = _names(samples, family)
        missing = [int(np.count_nonzero(np.isnan(samples[name]))) for name in names]
        if any(missing):
            found.append(
                f"{family.name}: {max(missing)} of {samples[names[0]].size} samples missing"
            )
    for family in _ALWAYS:
        names = _names(samples, family)
        if not names:
            found.append(f"{family.name}: no values in the file")
        impossible = _samples_with(samples[name] <= 0.0 for name in names)
        if impossible:
            found.append(
                f"{family.name}: {impossible} samples hold values of 0 or below: kept, but "
                "not searched for steps"
            )
    for family, cap in caps_seconds.items():
        capped = _samples_with(samples[name] >= cap * _AT_CAP for name in _names(samples, family))
        if capped:
            found.append(
                f"{family.name}: {capped} samples reach the recorder's cap of {cap:g} s; "
                "the true values may be greater"
            )
    negative = int(np.count_nonzero(samples.get("backlog_messages", np.zeros(0)) < 0))
    if negative:
        found.append(f"backlog_messages: {negative} samples are negative, kept")
    return found


def _samples_with(marks: Iterable[NDArray[np.bool_]]) -> int:
    """Return how many samples are marked by any statistic."""
    return int(np.count_nonzero(np.any(list(marks), axis=0)))


def _names(samples: Mapping[str, Floats], family: Family) -> list[str]:
    return [name for name in samples if name.startswith(f"{family.name}_")]


def rebuild_times(samples: Mapping[str, Floats], step_seconds: float) -> tuple[Floats, str]:
    """Return the end of each sample in seconds from the start of the first, and a remark.

    The benchmark sleeps for the nominal step and then collects, so a true step is never shorter.
    Where the file has counts, the true step is count / rate; elsewhere the nominal step is assumed.
    """
    count = samples["publish_rate_per_second"].size
    steps = np.full(count, np.nan)
    for amount, rate in (
        ("sent_messages", "publish_rate_per_second"),
        ("received_messages", "consume_rate_per_second"),
    ):
        if amount in samples:
            steps = np.where(np.isfinite(steps), steps, _ratio(samples[amount], samples[rate]))
    is_known = np.isfinite(steps)
    steps = np.where(is_known & (steps > step_seconds), steps, step_seconds)
    ends = np.round(np.cumsum(steps), 3)
    return ends, _remark(steps[is_known], step_seconds)


def end_in_name(name: str) -> str:
    """Return the end of the run in the name of a result file, or "": local time, zone unknown."""
    match = _END.search(name)
    return match[1] if match else ""


def _ratio(amount: Floats, rate: Floats) -> Floats:
    found = np.full(rate.shape, np.nan)
    np.divide(amount, rate, out=found, where=(rate > 0) & (amount > 0))
    return found


def _remark(known: Floats, step_seconds: float) -> str:
    if not known.size:
        return (
            f"no time axis in the file: rebuilt at the nominal {step_seconds:g} s a sample; true steps"
            " are longer (by 0.7 % in results with counts), so late samples lie later than shown"
        )
    drift = float(known.mean()) / step_seconds - 1.0
    if abs(drift) < _SHORTEST_DRIFT:
        return ""
    return (
        f"time axis rebuilt from counts and rates: a step is {known.mean():.3f} s, "
        f"not the nominal {step_seconds:g} s"
    )


def parse_number(value: object, name: str, key: str) -> float:
    """Return a number; null and "NaN" (as Jackson writes it) are NaN.

    Raises:
        PlanError: it is not a number, or infinite.
    """
    if value is None or value == "NaN":
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PlanError(f"{name}: {key}: {_shown(value)} is not a number")
    if (isinstance(value, float) and not math.isfinite(value)) or abs(value) > 2**63:
        raise PlanError(f"{name}: {key}: {_shown(value)} is out of range")
    return float(value)


def parse_numbers(value: object, name: str, key: str) -> NDArray[np.float64]:
    """Return a list of numbers, shape (n,).

    Raises:
        PlanError: it is not a list of numbers.
    """
    if not isinstance(value, list):
        raise PlanError(f"{name}: {key}: {_shown(value)} is not a list of numbers")
    return np.array(
        [parse_number(item, name, f"{key}[{at}]") for at, item in enumerate(value)],
        dtype=np.float64,
    )


def parse_percentile_map(
    value: object, name: str, key: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return percentiles ascending and their values, each of shape (m,).

    Raises:
        PlanError: it is not a map of percentiles between 0 and 100 to numbers.
    """
    if not isinstance(value, Mapping):
        raise PlanError(f"{name}: {key}: {_shown(value)} is not a map of percentiles")
    pairs = sorted(
        (_percentile(text, name, key), parse_number(item, name, f"{key}.{text}"))
        for text, item in value.items()
    )
    block = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return block[:, 0], block[:, 1]


def whole_ns(values: NDArray[np.float64], per_second: int) -> NDArray[np.float64]:
    """Return seconds, to a whole nanosecond, so that a number survives conversion to ms or us and back."""
    rounded: NDArray[np.float64] = np.round(values * (_NS / per_second)) / _NS
    return rounded


def in_unit(seconds: NDArray[np.float64], per_second: int) -> NDArray[np.float64]:
    """Return the inverse of `whole_ns`."""
    scaled: NDArray[np.float64] = np.round(seconds * _NS) / (_NS / per_second)
    return scaled


def _percentile(text: str, name: str, key: str) -> float:
    try:
        found = float(text)
    except ValueError as error:
        raise PlanError(f"{name}: {key}: {text!r} is not a percentile") from error
    if not 0.0 <= found <= 100.0:  # noqa: PLR2004  # per cent
        raise PlanError(f"{name}: {key}: {text!r} does not lie between 0 and 100")
    return found


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."  # noqa: PLR2004  # a line's worth


def result_text(result: Result, dialect: str) -> str:
    """Return the text of a file.

    Raises:
        PlanError: there is no such dialect.
    """
    return json.dumps(result_body(result, dialect), allow_nan=False) + "\n"


def result_body(result: Result, dialect: str) -> Json:
    """Return the fields of a dialect; it may lack fields for some values, and has 0 for missing ones.

    Raises:
        PlanError: there is no such dialect.
    """
    known = load_profile(dialect)
    found: Json = {"workload": result.workload, "driver": result.driver}
    facts = {"sampleRateMillis": round(result.step_seconds * 1e3), **result.facts}
    for fact in known.facts:
        found[fact] = facts.get(fact, None if fact in _TEXT_FACTS else 0)
    for key in known.counts:
        values = _column(result, COUNT_FIELDS[key])
        found[key] = [round(value) for value in values] if key in WHOLE_FIELDS else values.tolist()
    for family, statistics in known.latencies.items():
        for statistic in statistics:
            values = _column(result, statistic_name(family, statistic))
            found[family.stem + statistic_suffix(statistic)] = _listed(values, family, statistic)
    for family, statistics in known.totals.items():
        found |= _totals(result, family, statistics)
    return found


def _totals(result: Result, family: Family, statistics: tuple[str, ...]) -> Json:
    found: Json = {}
    for statistic in statistics:
        value = result.totals.get(statistic_name(family, statistic), np.nan)
        key = family.aggregated + statistic_suffix(statistic)
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
