"""Runs compared: sides of one run or more, and each quantity with its verdict.

The first side is what the others are compared with. Runs are aligned at the start of their soaks, at an event
or at equal bytes, see `alignment`: what all runs have from there on is compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from detectors import comparison
from detectors.comparison import Difference, Estimate, Verdict
from soak.core import wording
from soak.core.errors import RunFolderError
from soak.store.run_folder import RunFolder, read_run
from spark.batch.comparison import differences
from spark.batch.comparison.alignment import Alignment, Span, aligned
from spark.batch.comparison.objectives import Share, shares_of
from spark.batch.comparison.run import LATENCIES, SHARES, ComparedRun, Incident, read_compared

MOST_DETECTABLE = 10.0
"""A ratio above it is no power worth stating."""
_PARQUET_MAGIC = b"PAR1"
_EXPORTED = ("events.parquet", "changes.parquet")


@dataclass(frozen=True, slots=True)
class Settings:
    """What is taken for no difference, what equal runs are assumed to differ by, how often to err."""

    margin: float = 0.1
    run_noise: float = 0.01
    error_rate: float = 0.05  # of all quantities of a comparison together
    align: Alignment = "soak"


@dataclass(frozen=True, slots=True)
class Side:
    """Equal runs; `label` is the path that named them."""

    label: str
    runs: tuple[ComparedRun, ...]


@dataclass(frozen=True, slots=True)
class Quantity:
    """One quantity of both sides; `unit` is "seconds", or "ratio" for the bad share of an objective."""

    name: str
    unit: str
    before: float
    after: float
    verdict: Verdict
    why: str
    interval: tuple[float, float] | None = None  # 95 %, of after / before, or of after - before
    detectable: float | None = None  # the least ratio that is found with a power of 80 %
    block_seconds: tuple[float, float] | None = None

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "unit": self.unit,
            "before": finite(self.before),
            "after": finite(self.after),
            "verdict": self.verdict,
            "why": self.why,
            "interval": None if self.interval is None else [finite(one) for one in self.interval],
            "detectable_ratio": finite(self.detectable),
            "block_seconds": None
            if self.block_seconds is None
            else [finite(one) for one in self.block_seconds],
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """One side compared with the first, in the seconds of `span`; None: neither side has a journal."""

    before: Side
    after: Side
    settings: Settings
    span: Span | None
    quantities: tuple[Quantity, ...]
    warnings: tuple[str, ...]
    costs: tuple[tuple[str, float | None, float | None, str], ...]  # name, before, after, unit
    only_before: tuple[Incident, ...] = ()
    only_after: tuple[Incident, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def verdict(self) -> Verdict:
        return comparison.overall([one.verdict for one in self.quantities])

    @property
    def seconds(self) -> int | None:
        """Return how many seconds of each soak were compared; None: all of them, or not as many of each."""
        runs = [one for one in (*self.before.runs, *self.after.runs) if one.result is None]
        lengths = {int(one.compared.size) for one in runs}
        is_whole = all(one.compared.size == one.soak_seconds for one in runs)
        return None if is_whole or len(lengths) > 1 else lengths.pop()

    @property
    def aligned_text(self) -> str:
        """Return what of the soaks is compared, as a sentence without its full stop."""
        align, span, seconds = self.settings.align, self.span, self.seconds
        if span is None or align == "soak":
            what = "the whole soaks" if seconds is None else f"the first {seconds:,} s of the soaks"
            return f"{what}, aligned at their starts"
        if align == "first-deletion":
            return (
                f"the soaks from {span.low:,.0f} to {span.high + 1:,.0f} s after the first deletion by "
                "retention of each run"
            )
        low, high = (wording.amount(one, "bytes") for one in (span.low, span.high))
        return f"the soaks between equal bytes written, from {low} to {high} since the load began"

    def to_json(self) -> dict[str, object]:
        """Return it as `--format json` prints it."""
        return {
            "before": [str(run.path) for run in self.before.runs],
            "after": [str(run.path) for run in self.after.runs],
            "verdict": self.verdict,
            "margin_ratio": self.settings.margin,
            "run_noise_ratio": self.settings.run_noise,
            "compared_seconds": self.seconds,
            "aligned": None
            if self.span is None
            else {
                "at": self.settings.align,
                "from": self.span.low,
                "to": self.span.high,
                "unit": self.span.unit,
            },
            "compared": [
                {
                    "run": str(run.path),
                    "from_second": int(run.compared[0]),
                    "to_second": int(run.compared[-1]) + 1,
                }
                for run in (*self.before.runs, *self.after.runs)
                if run.compared.size
            ],
            "warnings": list(self.warnings),
            "quantities": [one.to_json() for one in self.quantities],
            "costs": [
                {"name": name, "unit": unit, "before": finite(before), "after": finite(after)}
                for name, before, after, unit in self.costs
            ],
            "incidents_only_before": [_incident_json(one) for one in self.only_before],
            "incidents_only_after": [_incident_json(one) for one in self.only_after],
            "notes": list(self.notes),
        }


def read_side(path: Path, *, is_cached: bool = True) -> Side:
    """Read a run, a benchmark result, or a folder of runs, which are taken for equal.

    Raises:
        RunFolderError: it is none of them, such as an export as parquet, or a file in it is missing or
            damaged.
    """
    if _is_parquet(path):
        raise RunFolderError(
            f"{path} is parquet of `soak export`, which has no histograms: compare the folder of its run, or "
            "what `soak omb export` writes of it"
        )
    if path.is_dir() and not RunFolder(path).run_json.exists():
        found = runs_in(path)
        if not found:
            raise RunFolderError(f"{path} is neither a run nor a folder of runs: no run.json in it")
        return Side(str(path), tuple(read_compared(one, is_cached=is_cached) for one in found))
    if not path.exists():
        raise RunFolderError(f"{path} does not exist")
    return Side(str(path), (read_compared(path, is_cached=is_cached),))


def _is_parquet(path: Path) -> bool:
    if path.is_file():
        with path.open("rb") as file:
            return file.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC
    return any((path / name).is_file() for name in _EXPORTED)


def runs_in(folder: Path) -> list[Path]:
    """Return the runs of a folder in the order in which they started; those without a start come last.

    Raises:
        RunFolderError: there is no such folder.
    """
    if not folder.is_dir():
        raise RunFolderError(f"{folder} is not a folder")

    def start(path: Path) -> tuple[float, str]:
        try:
            return read_run(RunFolder(path)).start_wall_ns, path.name
        except RunFolderError:
            return math.inf, path.name

    links_first = sorted(folder.iterdir(), key=lambda path: not path.is_symlink())
    found = {path.resolve(): path for path in links_first}  # `current` leads to one of the others
    runs = [path for path in found.values() if RunFolder(path).run_json.exists()]
    return sorted(runs, key=start)


def compare(before: Side, after: Side, settings: Settings) -> Comparison:
    """Return how one side differs from the other.

    Raises:
        RunFolderError: the runs cannot be aligned as the settings say; names the run.
    """
    runs, span = aligned((*before.runs, *after.runs), settings.align)
    count = len(before.runs)
    before, after = (
        replace(before, runs=tuple(runs[:count])),
        replace(after, runs=tuple(runs[count:])),
    )
    estimates = {
        f"{text} {quantile}": (
            _estimates(before, latency, quantile),
            _estimates(after, latency, quantile),
        )
        for latency, text in LATENCIES.items()
        for quantile in SHARES
    }
    both = {name: sides for name, sides in estimates.items() if all(sides)}
    alone = {name: sides for name, sides in estimates.items() if any(sides) and not all(sides)}
    if any(run.result is not None for run in runs):  # benchmarks do not measure everything
        alone = {}
    objectives = list(_objectives(before, after))
    error_rate = settings.error_rate / max(1, len(both) + len(objectives))  # Bonferroni
    quantities = [
        _quantile(name, old, new, settings, error_rate) for name, (old, new) in both.items()
    ]
    quantities += [_alone(name, *sides) for name, sides in alone.items()]
    quantities += _lost(before, after)
    quantities += [_objective(*one, error_rate) for one in objectives]
    only_before = differences.incidents_of_one_side(before.runs, after.runs)
    only_after = differences.incidents_of_one_side(after.runs, before.runs)
    return Comparison(
        before,
        after,
        settings,
        span,
        tuple(quantities),
        tuple(differences.warnings(before.runs, after.runs, settings.align)),
        tuple(differences.costs(before.runs, after.runs)),
        tuple(only_before),
        tuple(only_after),
        tuple(differences.notes(runs)),
    )


# --- Quantities and their verdicts.


def _estimates(side: Side, latency: str, quantile: str) -> list[Estimate]:
    """Return the estimate of each run that measured the quantile."""
    found = (run.estimate(latency, quantile) for run in side.runs)
    return [one for one in found if one is not None]


def _quantile(
    name: str,
    before: Sequence[Estimate],
    after: Sequence[Estimate],
    settings: Settings,
    error_rate: float,
) -> Quantity:
    found = comparison.difference(before, after, settings.run_noise)
    verdict = found.verdict(settings.margin, error_rate)
    blocks = tuple(max(_finite_or(one.block_seconds) for one in side) for side in (before, after))
    is_known = math.isfinite(found.error)
    return Quantity(
        name,
        "seconds",
        _mean(before),
        _mean(after),
        verdict,
        _why(found, settings, verdict),
        found.interval() if is_known else None,
        found.detectable(settings.margin, error_rate) if is_known and found.error else None,
        (blocks[0], blocks[1]),
    )


def _alone(name: str, before: Sequence[Estimate], after: Sequence[Estimate]) -> Quantity:
    """Return a latency that one side alone measured, such as one where the other received nothing."""
    side = "before" if before else "after"
    old, new = (_mean(one) if one else math.nan for one in (before, after))
    return Quantity(name, "seconds", old, new, "cannot tell", f"measured {side} only")


def _lost(before: Side, after: Side) -> Iterator[Quantity]:
    """Give the acknowledged messages that were lost, where all audits know it: chance loses none."""
    counts = [[run.audited("lost") for run in side.runs] for side in (before, after)]
    if any(one is None for side in counts for one in side):
        return
    old, new = (sum(one or 0 for one in side) / len(side) for side in counts)
    verdict: Verdict = "same" if old == new else "worse" if new > old else "better"
    yield Quantity("lost messages", "messages", old, new, verdict, "a single one counts")


def _why(found: Difference, settings: Settings, verdict: Verdict) -> str:
    if not math.isfinite(found.error):
        return "too few messages or too short a soak to know how sure it is"
    if found.error == 0.0:
        return "the same runs on both sides"
    low, high = (f"{100.0 * (one - 1.0):+.1f}" for one in found.interval())
    noise = (
        "measured" if found.is_noise_measured else f"assumed to be {100 * settings.run_noise:g} %"
    )
    margin = f"{100.0 * settings.margin:g} %"
    meaning = {
        "same": f"shown to lie within {margin}",
        "worse": "higher beyond chance",
        "better": "lower beyond chance",
        "cannot tell": f"neither within {margin} for sure nor beyond chance",
    }[verdict]
    return f"{low} to {high} % with 95 %; {meaning}; noise between runs {noise}"


def _objectives(before: Side, after: Side) -> Iterator[tuple[str, list[Share], list[Share]]]:
    """Give each objective that all runs have, with how each side kept it."""
    by_run = [shares_of(run) for side in (before, after) for run in side.runs]
    if not by_run:
        return
    for name in by_run[0]:
        if all(name in found for found in by_run):
            there = [found[name] for found in by_run]
            yield name, there[: len(before.runs)], there[len(before.runs) :]


def _objective(
    name: str,
    before: Sequence[Share],
    after: Sequence[Share],
    error_rate: float,
) -> Quantity:
    """Return the verdict on an objective: the bad share, within the budget that the target leaves.

    Method: difference of two shares with two added trials, one of them bad, a side (Agresti and Caffo 2000).
    Messages of one minute share its fate, so a trial is a minute for objectives in messages, too.
    """
    shares, variance, plain = [], 0.0, []
    for side in (before, after):
        trials = sum(one.judged if one.is_minutes else one.minutes for one in side)
        share = sum(one.bad for one in side) / sum(one.judged for one in side)
        moved = (share * trials + 1.0) / (trials + 2.0)
        plain.append(share)
        shares.append(moved)
        variance += moved * (1.0 - moved) / (trials + 2.0)
    is_itself = sorted(one.run for one in before) == sorted(one.run for one in after)
    step = shares[1] - shares[0]
    found = Difference(step, 0.0 if is_itself else math.sqrt(variance), math.inf, True)
    budget = 1.0 - before[0].target
    verdict = found.verdict(math.expm1(budget), error_rate)  # there margins are ratios
    missed = [sum(one.is_missed for one in side) / len(side) for side in (before, after)]
    low, high = (math.log(one) for one in found.interval())
    if not any(plain):
        verdict = "same"
    why = (
        f"bad share {wording.share_up(plain[0], 2)}, then {wording.share_up(plain[1], 2)}; "
        f"a difference below the budget of {wording.share_up(budget, 2)} counts as none"
    )
    if missed[0] != missed[1] and set(missed) == {0.0, 1.0}:
        verdict = "worse" if missed[1] else "better"
        why += "; kept, then missed" if missed[1] else "; missed, then kept"
    return Quantity(name, "ratio", plain[0], plain[1], verdict, why, (low, high))


def _mean(side: Sequence[Estimate]) -> float:
    return math.exp(sum(one.log_value for one in side) / len(side))


def _incident_json(one: Incident) -> dict[str, object]:
    return {"key": one.key, "what": one.what, "at": one.at, "cause": one.cause, "kind": one.kind}


def finite(value: float | None) -> float | None:
    """Return a number that JSON has; None for NaN and infinity."""
    return value if value is not None and math.isfinite(value) else None


def _finite_or(value: float) -> float:
    return value if math.isfinite(value) else 0.0
