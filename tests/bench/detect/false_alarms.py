"""False alarms of online methods where nothing changes, at a set rate, over how many are allowed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from soak.core.model import Column
from tests.bench.detect import feed, noises, peers
from tests.bench.detect.feed import FAR
from tests.bench.detect.noises import NOISES, Make, Table
from tests.bench.detect.parts import OURS, Measurement, Run, worst

HOUR, DAY = 3600.0, 86_400.0
MONTH = 30 * DAY
FACTOR = 2.0
"""How far from the set rate counts as held."""
_MOST_FACTOR = 3.0
_MIN_HELD = 12  # of fourteen noises
_MOST_VALUES = 20_000_000  # of a table
_PLAN_HOURS = 12
_PANEL_SERIES = 100
_PANEL_NOISES = ("independent", "AR(1) 0.3", "AR(1) 0.6", "AR(1) 0.8")

_LATENCY = "publish_latency_seconds"
_QUANTILES = ("0.5", "0.99", "0.999")
_SHARES = np.array([0.3, 0.1, 0.03, 0.01, 0.003, 0.001])  # of messages above each threshold
_MESSAGES = 20_000  # a second
_LEARNT = 120
KINDS_COLUMNS = (
    *(Column(_LATENCY, (("quantile", quantile),), "seconds") for quantile in _QUANTILES),
    *(
        Column("publish_latency_above_messages", (("threshold", str(number)),), "messages")
        for number in range(_SHARES.size)
    ),
    Column("acked_messages", (), "messages"),
)
KINDS_SERIES = {"drift": len(_QUANTILES), "spikes": len(_QUANTILES), "tail": 2}
"""Of one source, those in which a kind is looked for."""


@dataclass(frozen=True, slots=True)
class Count:
    """Of one noise, method and set rate: alarms raised, and allowed."""

    noise: str
    method: str
    every_seconds: float
    alarms: int
    allowed: float

    @property
    def ratio(self) -> float:
        return self.alarms / self.allowed


def counted(
    tables: Mapping[str, Table], unit: str, method: str, every: float, found: peers.Online
) -> Iterator[Count]:
    """Yield the alarms of one method on each noise; allowed are those after the baseline of ours."""
    alarms = peers.alarms_of_each(found, [*tables.values()], unit, every)
    for (noise, table), raised in zip(tables.items(), alarms, strict=True):
        rows, series = table.shape
        allowed = series * (rows - feed.baseline_rows(every)) / every
        yield Count(noise, method, every, len(raised), allowed)


def measure(run: Run) -> list[Measurement]:
    """Count at one an hour and at one a day on each of fourteen noises."""
    found: list[Measurement] = []
    for every, rows, name in (
        (HOUR, run.size.hour_rows, "one an hour"),
        (DAY, run.size.day_rows, "one a day"),
    ):
        found += rate_figures(name, _counts_at(run, every, rows))
    return [*found, *_at_a_plans_rate(run)]


def measure_hourly(run: Run) -> list[Measurement]:
    """Count at one an hour only."""
    return rate_figures("one an hour", _counts_at(run, HOUR, run.size.hour_rows))


def _counts_at(run: Run, every: float, rows: int) -> list[Count]:
    size = run.size.series
    jobs = [
        (batch, rows, size, every, run.references, run.are_peers_shown)
        for batch in _batches(rows * size)
    ]
    return [one for many in run.map(_counts, jobs) for one in many]


def _batches(values: int) -> Iterator[tuple[str, ...]]:
    """Yield names of noises of one unit that fit into a table, of `values` numbers each."""
    most = max(1, _MOST_VALUES // values)
    for is_other in (False, True):
        names = [name for name in NOISES if (noises.unit_of(name) != "") == is_other]
        for begin in range(0, len(names), most):
            yield tuple(names[begin : begin + most])


def rate_figures(name: str, counts: list[Count]) -> list[Measurement]:
    """Return alarms over those allowed for each noise, how many noises hold the rate, and the worst."""
    found = [
        Measurement(
            figure=f"{name}, {one.noise}: alarms / allowed",
            method=one.method,
            value=one.ratio,
            at_least=1.0 / FACTOR,
            at_most=FACTOR,
            note=f"{one.alarms} / {one.allowed:.0f}",
        )
        for one in counts
    ]
    for method in dict.fromkeys(one.method for one in counts):
        ratios = {one.noise: one.ratio for one in counts if one.method == method}
        held = [ratio for ratio in ratios.values() if 1.0 / FACTOR <= ratio <= FACTOR]
        most, fewest = worst([*ratios.items()]), worst([*ratios.items()], lambda ratio: -ratio)
        one = partial(Measurement, method=method)
        found += [
            one(
                figure=f"{name}: noises within a factor of {FACTOR:g}, of {len(ratios)}",
                value=len(held),
                at_least=min(_MIN_HELD, len(ratios)),
            ),
            one(
                figure=f"{name}: alarms / allowed, highest of all noises",
                value=most[1],
                at_most=_MOST_FACTOR,
                note=most[0],
            ),
            one(
                figure=f"{name}: alarms / allowed, lowest of all noises",
                value=fewest[1],
                note=fewest[0],
            ),
        ]
    return found


def measure_panels(run: Run) -> list[Measurement]:
    """Count the alarms of whole panels without a change at one in thirty days over a panel."""
    jobs = [(panel, run.size.day_rows) for panel in range(run.size.panels)]
    alarms = list(run.map(_panel_alarms, jobs))
    hours = run.size.day_rows / HOUR
    expected = run.size.panels * run.size.day_rows / MONTH
    return [
        Measurement(
            figure=f"{run.size.panels} panels of {_PANEL_SERIES} series x {hours:g} h: alarms",
            method=OURS,
            value=sum(alarms),
            at_most=max(1.0, 4.0 * expected),
            note=f"{expected:.2g} expected",
        )
    ]


def measure_kinds(run: Run) -> list[Measurement]:
    """Count drift, spikes and tails where nothing changes, at one false alarm an hour and series.

    Each source has one latency: three quantiles whose log10 is a noise, and counts of slow messages whose
    log-odds are the same noise.
    """
    sources = max(1, run.size.series // 10)
    jobs = [(noise, source, run.size.hour_rows) for noise in NOISES for source in range(sources)]
    totals: dict[str, Counter[str]] = {noise: Counter() for noise in NOISES}
    for (noise, *_), kinds in zip(jobs, run.map(_kinds, jobs), strict=True):
        totals[noise] += Counter(kinds)
    return [
        Measurement(
            figure=f"one an hour, {noise}: {kind} alarms / allowed",
            method=OURS,
            value=total[kind] / (sources * series * run.size.hour_rows / HOUR),
            at_most=FACTOR,
        )
        for noise, total in totals.items()
        for kind, series in KINDS_SERIES.items()
    ]


def _counts(job: tuple[tuple[str, ...], int, int, float, Path | None, bool]) -> list[Count]:
    names, rows, series, every, references, with_peers = job
    tables = {}
    for name in names:
        table = NOISES[name](np.random.default_rng([3, int(every)]), rows, series)
        tables[name] = noises.as_measured(name, table)
    unit = noises.unit_of(names[0])
    methods = peers.online_methods(references, with_peers=with_peers)
    return [
        count
        for method, found in methods.items()
        for count in counted(tables, unit, method, every, found)
    ]


def _at_a_plans_rate(run: Run) -> Iterator[Measurement]:
    """Yield the alarms in twelve hours of each noise, at one in thirty days over a hundred series."""
    rows = min(run.size.day_rows, int(_PLAN_HOURS * HOUR))
    methods = peers.online_methods(run.references, with_peers=run.are_peers_shown)
    every = MONTH * _PANEL_SERIES
    tables = {
        name: noises.as_measured(name, make(np.random.default_rng([4, number]), rows, 1))
        for number, (name, make) in enumerate(NOISES.items())
    }
    for method, found in methods.items():
        alarms: Counter[str] = Counter()
        for batch in _batches(rows):
            some, unit = {name: tables[name] for name in batch}, noises.unit_of(batch[0])
            alarms.update(
                {one.noise: one.alarms for one in counted(some, unit, method, every, found)}
            )
        yield Measurement(
            figure=f"{rows / HOUR:g} h of each noise at one in 30 days over 100 series: alarms",
            method=method,
            value=alarms.total(),
            at_most=1.0,
            note=", ".join(f"{noise} {count}" for noise, count in alarms.most_common(3) if count),
        )


def _panel_alarms(job: tuple[int, int]) -> int:
    panel, rows = job
    make = NOISES[_PANEL_NOISES[panel % len(_PANEL_NOISES)]]
    values = FAR + make(np.random.default_rng([5, panel]), rows, _PANEL_SERIES)
    return len(feed.alarms(values, "", MONTH * _PANEL_SERIES))


def _kinds(job: tuple[str, int, int]) -> Mapping[str, int]:
    noise, source, rows = job
    values = kinds_values(np.random.default_rng([8, source]), NOISES[noise], _LEARNT + rows)
    return feed.kinds_confirmed(values, KINDS_COLUMNS, HOUR)


def kinds_values(rng: np.random.Generator, make: Make, rows: int) -> Table:
    """Return rows of the columns of one source."""
    sd = noises.SD
    quantiles = 0.01 * 10.0 ** (sd * make(rng, rows, len(_QUANTILES)) + np.array([0.0, 0.5, 1.0]))
    odds = _SHARES / (1.0 - _SHARES) * np.exp(4.0 * sd * make(rng, rows, 1))
    above = rng.binomial(_MESSAGES, odds / (1.0 + odds))
    return np.hstack([quantiles, above, np.full((rows, 1), _MESSAGES)])
