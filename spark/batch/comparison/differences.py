"""What else differs between compared runs: durability, cluster, load, cost and incidents.

Differences in durability are named first: runs that promise different things are hard to compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from soak.core import wording
from spark.batch.comparison.alignment import Alignment
from spark.batch.comparison.objectives import shares_of
from spark.batch.comparison.run import OTHER_LENGTH, ComparedRun, Incident

OTHER_RATE = 0.02
_HEADLINE = ("acks", "replication factor", "min.insync.replicas", "flush.messages", "flush.ms")
_LOAD = ("rate", "profile", "producers", "message_size", "message_sizes", "compressible", "keys")
_LAB = "a broker of a lab"
_MOST_ADDRESSES = 5
_TOPIC = ("count", "partitions", "replication")


def warnings(
    before: Sequence[ComparedRun], after: Sequence[ComparedRun], align: Alignment
) -> Iterator[str]:
    """Give what differs in durability first, then cluster, load, and the runs themselves."""
    one, other = before[0], after[0]
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
    yield from unequal(before, "the runs before")
    yield from unequal(after, "the runs after")
    yield from _objectives_alone((*before, *after))
    for side, names in (("before", _only_of(one, other)), ("after", _only_of(other, one))):
        if names:
            yield f"versions that were recorded {side} only: {', '.join(map(wording.printable, names))}"
    for metric, what in (("acked_messages", "acknowledged"), ("received_messages", "received")):
        rates = [_average(run.per_second(metric) for run in runs) for runs in (before, after)]
        old_rate, new_rate = rates
        if old_rate is None or new_rate is None:
            continue
        if abs(new_rate - old_rate) > OTHER_RATE * max(old_rate, new_rate):
            yield f"load: {old_rate:,.0f} messages/s were {what} before, {new_rate:,.0f} after"
    yield from _run_warnings((*before, *after), align)


def unequal(runs: Sequence[ComparedRun], which: str) -> Iterator[str]:
    """Give what differs between runs that are taken for equal, each with all its values."""
    found: dict[str, dict[str, None]] = {}
    for other in runs[1:]:
        for name, *values in _differing(runs[0], other):
            found.setdefault(name, {}).update(dict.fromkeys(values))
    for name, several in found.items():
        yield f"{which} differ: {name} is {' and '.join(map(wording.printable, several))}"


def _objectives_alone(runs: Sequence[ComparedRun]) -> Iterator[str]:
    """Give the objectives that some of the runs were judged by, and not all."""
    recorded = [run for run in runs if run.result is None]
    by_run = [shares_of(run) for run in recorded]
    for name in dict.fromkeys(name for found in by_run for name in found):
        lacking = [run for run, found in zip(recorded, by_run, strict=True) if name not in found]
        if lacking:
            yield f"objective {name} is not compared: {lacking[0].path} has no verdict on it"


def _durability_warnings(
    before: Sequence[ComparedRun], after: Sequence[ComparedRun]
) -> Iterator[str]:
    def both(value: Callable[[ComparedRun], object]) -> list[str]:
        return [_distinct(value(run) for run in runs) for runs in (before, after)]

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


def costs(
    before: Sequence[ComparedRun], after: Sequence[ComparedRun]
) -> Iterator[tuple[str, float | None, float | None, str]]:
    """Give throughput and cost, the mean over the runs of a side."""

    def row(
        name: str, unit: str, of_run: Callable[[ComparedRun], float | None]
    ) -> tuple[str, float | None, float | None, str]:
        old, new = (_average(map(of_run, runs)) for runs in (before, after))
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


def incidents_of_one_side(
    side: Sequence[ComparedRun], other: Sequence[ComparedRun]
) -> Iterator[Incident]:
    """Give the incidents that count of which the other side has none of the same kind and cause."""
    known = {(one.kind, one.cause) for run in other for one in run.counting}
    for run in side:
        yield from (one for one in run.counting if (one.kind, one.cause) not in known)


def notes(runs: Sequence[ComparedRun]) -> Iterator[str]:
    """Give a line for each acknowledged incident, with its note."""
    for run in runs:
        for one in run.incidents:
            if one.note is not None:
                yield f"{run.path}: {one.key} is acknowledged and does not count: {one.note}"
