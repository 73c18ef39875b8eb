"""Trends: how latencies and objectives went from run to run, with changes of level and drifts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from detectors import comparison
from detectors.comparison import LEAST_DRIFT_VALUES, Drift, Verdict
from spark.batch.comparison.comparison import Settings, finite
from spark.batch.comparison.differences import unequal
from spark.batch.comparison.objectives import shares_of
from spark.batch.comparison.run import LATENCIES, SHARES, ComparedRun

_QUANTILES = frozenset(f"{text} {quantile}" for text in LATENCIES.values() for quantile in SHARES)


@dataclass(frozen=True, slots=True)
class TrendChange:
    """From this run on a quantity has another level."""

    name: str
    run: ComparedRun
    before: float
    after: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Trend:
    """By quantity the value of each run, NaN where it was not measured, the changes of level and drifts."""

    runs: tuple[ComparedRun, ...]
    values: Mapping[str, tuple[float, ...]]
    changes: tuple[TrendChange, ...]
    drifts: Mapping[str, Drift] = field(default_factory=dict)  # of latencies with values enough
    least_runs: int = 0  # in which a change of level can be distinguished from noise
    warnings: tuple[str, ...] = ()  # what else than versions differs between the runs

    def unit(self, name: str) -> str:
        """Return the unit of a quantity: latencies in seconds, the bad share of an objective as a ratio."""
        return "seconds" if name in _QUANTILES else "ratio"

    @property
    def verdict(self) -> Verdict:
        """Return the verdict on the last change of each quantity."""
        last = {one.name: one.verdict for one in self.changes}
        if len(self.runs) < self.least_runs:
            return "cannot tell"
        return comparison.overall(list(last.values()) or ["same"])

    def to_json(self) -> dict[str, object]:
        """Return it as `--format json` prints it."""
        return {
            "verdict": self.verdict,
            "warnings": list(self.warnings),
            "runs": [
                {
                    "run": run.id,
                    "path": str(run.path),
                    "verdict": run.verdict,
                    "incidents": len(run.counting),
                    "values": {name: finite(found[at]) for name, found in self.values.items()},
                }
                for at, run in enumerate(self.runs)
            ],
            "changes": [
                {
                    "name": one.name,
                    "run": one.run.id,
                    "path": str(one.run.path),
                    "before": one.before,
                    "after": one.after,
                    "verdict": one.verdict,
                }
                for one in self.changes
            ],
            "drifts": {
                name: {"ratio": one.ratio, "chance": one.chance, "is_clear": one.is_clear}
                for name, one in self.drifts.items()
            },
        }


def trend(runs: Sequence[ComparedRun], settings: Settings) -> Trend:
    """Return how latencies and objectives went from run to run, in the order given."""
    values: dict[str, tuple[float, ...]] = {}
    for latency, text in LATENCIES.items():
        for quantile in SHARES:
            measured = (run.value(latency, quantile) for run in runs)
            values[f"{text} {quantile}"] = tuple(measured)
    objectives = [shares_of(run) for run in runs]
    budgets: dict[str, float] = {}
    for name in dict.fromkeys(name for found in objectives for name in found):
        budgets[name] = 1.0 - min(found[name].target for found in objectives if name in found)
        values[name] = tuple(
            found[name].bad / found[name].judged if name in found else math.nan
            for found in objectives
        )
    values = {name: found for name, found in values.items() if any(map(math.isfinite, found))}
    error_rate = settings.error_rate / max(1, len(values))
    changes = []
    for name, found in values.items():
        there = [at for at, one in enumerate(found) if math.isfinite(one)]
        is_share = name not in _QUANTILES
        scaled = [found[at] if is_share else math.log(found[at]) for at in there]
        least = budgets[name] if is_share else math.log1p(settings.margin)
        for place, before, after in comparison.level_changes(scaled, least, error_rate):
            levels = (before, after) if is_share else (math.exp(before), math.exp(after))
            verdict: Verdict = "worse" if after > before else "better"
            changes.append(TrendChange(name, runs[there[place]], *levels, verdict))
    order = {run.path: at for at, run in enumerate(runs)}
    changes.sort(key=lambda one: order[one.run.path])
    measured_by = {
        name: [one for one in found if math.isfinite(one) and one > 0]
        for name, found in values.items()
        if name in _QUANTILES
    }
    drifts = {
        name: comparison.drift(found)
        for name, found in measured_by.items()
        if len(found) >= LEAST_DRIFT_VALUES
    }
    return Trend(
        tuple(runs),
        values,
        tuple(changes),
        drifts,
        comparison.least_level_runs(error_rate),
        tuple(one for one in unequal(runs, "the runs") if ": version of " not in one),
    )
