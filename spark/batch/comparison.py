"""Runs compared: sides of one run or more, each quantity with its verdict, warnings, and trends over runs.

The first side is what the others are compared with. Runs are aligned at the start of their soaks, at an event
or at equal bytes, see `spark.batch.alignment`: what all runs have from there on is compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from detectors import comparison
from detectors.comparison import LEAST_DRIFT_VALUES, Difference, Drift, Estimate, Verdict
from soak.core import wording
from soak.core.errors import RunFolderError
from soak.store.run_folder import RunFolder, read_run
from spark.batch.alignment import Alignment, Span, aligned
from spark.batch.compared_objectives import Share, shares_of
from spark.batch.compared_run import (
    LATENCIES,
    OTHER_LENGTH,
    SHARES,
    ComparedRun,
    Incident,
    read_compared,
)

MOST_DETECTABLE = 10.0
"""A ratio above it is no power worth stating."""
OTHER_RATE = 0.02
_HEADLINE = ("acks", "replication factor", "min.insync.replicas", "flush.messages", "flush.ms")
_LOAD = ("rate", "profile", "producers", "message_size", "message_sizes", "compressible", "keys")
_PARQUET_MAGIC = b"PAR1"
_EXPORTED = ("events.parquet", "changes.parquet")
_LAB = "a broker of a lab"
_MOST_ADDRESSES = 5
_TOPIC = ("count", "partitions", "replication")
_QUANTILES = frozenset(f"{text} {quantile}" for text in LATENCIES.values() for quantile in SHARES)


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
            "before": _finite(self.before),
            "after": _finite(self.after),
            "verdict": self.verdict,
            "why": self.why,
            "interval": None if self.interval is None else [_finite(one) for one in self.interval],
            "detectable_ratio": _finite(self.detectable),
            "block_seconds": None
            if self.block_seconds is None
            else [_finite(one) for one in self.block_seconds],
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
                {"name": name, "unit": unit, "before": _finite(before), "after": _finite(after)}
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
    only_before, only_after = _only(before, after), _only(after, before)
    return Comparison(
        before,
        after,
        settings,
        span,
        tuple(quantities),
        tuple(_warnings(before, after, settings.align)),
        tuple(_costs(before, after)),
        tuple(only_before),
        tuple(only_after),
        tuple(_notes(before, after)),
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


# --- What makes runs hard to compare, and what else differs.


def _warnings(before: Side, after: Side, align: Alignment) -> Iterator[str]:
    """Give what differs in durability first, then cluster, load, and the runs themselves."""
    one, other = before.runs[0], after.runs[0]
    if (one.plan is None) == (other.plan is None):
        yield from _durability_warnings(before, after)
    else:
        yield (
            "a run is compared with a benchmark result: its load, cluster and durability are not known, and "
            "its publish latency counts from the actual send"
        )
    for name, *values in _differing(one, other):
        old, new = map(wording.printable, values)
        yield f"{name} is {old} before, {new} after"
    yield from _unequal(before.runs, "the runs before")
    yield from _unequal(after.runs, "the runs after")
    yield from _objectives_alone(before, after)
    for side, names in (("before", _only_of(one, other)), ("after", _only_of(other, one))):
        if names:
            yield f"versions that were recorded {side} only: {', '.join(map(wording.printable, names))}"
    for metric, what in (("acked_messages", "acknowledged"), ("received_messages", "received")):
        rates = [_average(run.per_second(metric) for run in side.runs) for side in (before, after)]
        old_rate, new_rate = rates
        if old_rate is None or new_rate is None:
            continue
        if abs(new_rate - old_rate) > OTHER_RATE * max(old_rate, new_rate):
            yield f"load: {old_rate:,.0f} messages/s were {what} before, {new_rate:,.0f} after"
    yield from _run_warnings((*before.runs, *after.runs), align)


def _unequal(runs: Sequence[ComparedRun], which: str) -> Iterator[str]:
    """Give what differs between runs that are taken for equal, each with all its values."""
    found: dict[str, dict[str, None]] = {}
    for other in runs[1:]:
        for name, *values in _differing(runs[0], other):
            found.setdefault(name, {}).update(dict.fromkeys(values))
    for name, several in found.items():
        yield f"{which} differ: {name} is {' and '.join(map(wording.printable, several))}"


def _objectives_alone(before: Side, after: Side) -> Iterator[str]:
    """Give the objectives that some of the runs were judged by, and not all."""
    runs = [run for run in (*before.runs, *after.runs) if run.result is None]
    by_run = [shares_of(run) for run in runs]
    for name in dict.fromkeys(name for found in by_run for name in found):
        lacking = [run for run, found in zip(runs, by_run, strict=True) if name not in found]
        if lacking:
            yield f"objective {name} is not compared: {lacking[0].path} has no verdict on it"


def _durability_warnings(before: Side, after: Side) -> Iterator[str]:
    def both(value: Callable[[ComparedRun], object]) -> list[str]:
        return [_distinct(value(run) for run in side.runs) for side in (before, after)]

    old, new = both(lambda run: run.durability.get("level"))
    if old != new:
        yield f"DURABILITY differs: level {old} before, {new} after"
    for name in _HEADLINE:
        old, new = both(partial(_setting, name=name))
        if old != new:
            yield f"durability: {name} is {old} before, {new} after"


def _run_warnings(runs: Sequence[ComparedRun], align: Alignment) -> Iterator[str]:
    lengths = [run.soak_seconds for run in runs if run.result is None]
    if align == "soak" and lengths and min(lengths) < max(lengths) * (1.0 - OTHER_LENGTH):
        least, most = min(lengths), max(lengths)
        yield f"the soaks lasted {least:,} to {most:,} s: the first {least:,} s are compared"
    for path in dict.fromkeys(run.path for run in runs if not run.is_whole):
        yield f"{path} was cut short or goes on: what there is of its soak is compared"
    for path in dict.fromkeys(run.path for run in runs if run.verdict == "inconclusive"):
        yield f"{path} is inconclusive by its own report"
    for path, lost in dict.fromkeys((run.path, run.audited("lost")) for run in runs):
        if lost:
            yield f"{path} lost {wording.counted(lost, 'acknowledged message')}"


def _differing(one: ComparedRun, other: ComparedRun) -> Iterator[tuple[str, str, str]]:
    if one.plan is None or other.plan is None:
        return
    yield from _cluster_differences(one, other)
    for name in sorted(one.versions.keys() & other.versions.keys()):
        if one.versions[name] != other.versions[name]:
            yield f"version of {name}", one.versions[name], other.versions[name]
    parts = (
        ("load", one.plan.load, other.plan.load, _LOAD),
        ("topic", one.plan.topic, other.plan.topic, _TOPIC),
    )
    for part, old, new, names in parts:
        for name in names:
            values = getattr(old, name), getattr(new, name)
            if values[0] != values[1]:
                yield f"{part}.{name}", str(values[0]), str(values[1])


def _cluster_differences(one: ComparedRun, other: ComparedRun) -> Iterator[tuple[str, str, str]]:
    """Give the kind of broker, their number where it is known, and addresses; those of a lab are random."""
    before, after = one.plan, other.plan
    if before is None or after is None:
        return
    if before.broker_kind != after.broker_kind:
        yield "cluster: the broker", before.broker_kind, after.broker_kind
    counts = _broker_count(one), _broker_count(other)
    if all(counts) and counts[0] != counts[1]:
        yield "cluster: the number of brokers", str(counts[0]), str(counts[1])
    if before.lab is not None and after.lab is not None:
        return
    are_recorded = bool(one.brokers and other.brokers)
    old, new = (
        set(run.brokers) if are_recorded else set(plan.broker_config.addresses.values())
        for run, plan in ((one, before), (other, after))
    )
    if old - new and new - old:  # else one is a part of the other, and their number says it
        yield (
            "cluster: the address",
            _LAB if before.lab is not None else _named(old - new),
            _LAB if after.lab is not None else _named(new - old),
        )


def _broker_count(run: ComparedRun) -> int:
    """Return the number of brokers at the start; 0 where it is not known."""
    if run.brokers:
        return len(run.brokers)
    return run.plan.lab.nodes if run.plan is not None and run.plan.lab is not None else 0


def _named(addresses: set[str]) -> str:
    first, more = sorted(addresses)[:_MOST_ADDRESSES], len(addresses) - _MOST_ADDRESSES
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")


def _only_of(run: ComparedRun, other: ComparedRun) -> list[str]:
    """Return the names of versions that one of two runs did not record: an earlier soakd recorded fewer."""
    if run.plan is None or other.plan is None:
        return []
    return sorted(run.versions.keys() - other.versions.keys())


def _setting(run: ComparedRun, name: str) -> str:
    found = run.durability.get("settings")
    for one in found if isinstance(found, list) else ():
        if isinstance(one, dict) and one.get("name") == name:
            return str(one.get("value"))
    return "not known"


def _distinct(values: Iterator[Any]) -> str:
    return ", ".join(sorted({"not known" if one is None else str(one) for one in values}))


def _costs(before: Side, after: Side) -> Iterator[tuple[str, float | None, float | None, str]]:
    """Give throughput and cost, the mean over the runs of a side."""

    def row(
        name: str, unit: str, of_run: Callable[[ComparedRun], float | None]
    ) -> tuple[str, float | None, float | None, str]:
        old, new = (_average(map(of_run, side.runs)) for side in (before, after))
        return name, old, new, unit

    yield row("acknowledged", "messages/s", lambda run: run.per_second("acked_messages"))
    yield row("received", "messages/s", lambda run: run.per_second("received_messages"))
    yield row("failed", "messages/s", lambda run: run.per_second("failed_messages"))
    yield row("skipped", "messages/s", lambda run: run.per_second("missed_messages"))
    yield row("CPU of the hosts with probes", "ratio", _cpu)
    yield row("written to drives per message", "bytes", _written)
    yield row("lost", "messages", lambda run: run.audited("lost"))
    yield row("duplicated", "messages", lambda run: run.audited("duplicated"))
    yield row("incidents that count", "", lambda run: float(len(run.counting)))


def _cpu(run: ComparedRun) -> float | None:
    return _average(iter(run.recorded.cpu_ratio.values()))


def _written(run: ComparedRun) -> float | None:
    """Return the bytes that all watched drives were written, a message; of the whole run."""
    drives, audit = run.summary.get("drives") or {}, run.summary.get("audit") or {}
    try:
        total = sum(float(one["bytes"]) for one in drives.get("written", {}).values())
        acked = float(audit.get("acked") or 0)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return total / acked if acked and total else None


def _average(values: Iterator[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return sum(known) / len(known) if known else None


def _only(side: Side, other: Side) -> Iterator[Incident]:
    """Give the incidents that count of which the other side has none of the same kind and cause."""
    known = {(one.kind, one.cause) for run in other.runs for one in run.counting}
    for run in side.runs:
        yield from (one for one in run.counting if (one.kind, one.cause) not in known)


def _notes(before: Side, after: Side) -> Iterator[str]:
    for side in (before, after):
        for run in side.runs:
            for one in run.incidents:
                if one.note is not None:
                    yield f"{run.path}: {one.key} is acknowledged and does not count: {one.note}"


# --- Trends.


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
                    "values": {name: _finite(found[at]) for name, found in self.values.items()},
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
        tuple(one for one in _unequal(runs, "the runs") if ": version of " not in one),
    )


def _incident_json(one: Incident) -> dict[str, object]:
    return {"key": one.key, "what": one.what, "at": one.at, "cause": one.cause, "kind": one.kind}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _finite_or(value: float) -> float:
    return value if math.isfinite(value) else 0.0
