"""A run folder of ours as a benchmark result with samples of 10 s, and as an HdrHistogram interval log."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction

import numpy as np

from soak.core.errors import RunFolderError
from soak.core.histogram import decode
from soak.core.plan.load import Consumers, process_index
from soak.core.plan.plan import Plan
from soak.core.units import SECOND_NS
from soak.omb.histograms import (
    HistogramCells,
    MergedHistogram,
    RecordReader,
    SourceRecord,
    empty_histogram,
    histograms,
)
from soak.omb.result import (
    DELAY,
    END_TO_END,
    NOMINAL_STEP_MILLIS,
    PUBLISH,
    Distribution,
    Family,
    Result,
    statistic_name,
)

_MINUTE_NS = 60 * SECOND_NS
KEY_KINDS = {"none": "NO_KEY", "round_robin": "KEY_ROUND_ROBIN", "random": "RANDOM_NANO"}
"""Kinds of keys that the benchmark has, by our name of them."""


def plan_facts(plan: Plan, rate: Fraction) -> dict[str, str | int | float]:
    """Return the single values of a result; the benchmark knows whole minutes and whole rates only.

    `rate` is the soak's: after a ramp the plan's own is the warm-up's.
    """
    topic, load, consumers = plan.topic, plan.load, plan.consumers
    return {
        "messageSize": round(load.mean_size),
        "topics": topic.count,
        "partitions": topic.partitions,
        "producersPerTopic": load.producers * load.clients_per_producer,
        "consumersPerTopic": consumers.per_subscription,
        "subscriptionsPerTopic": consumers.subscriptions,
        "keyDistributor": KEY_KINDS.get(load.keys.kind, load.keys.kind.upper()),
        "producerRate": round(rate),
        "testDurationMinutes": round(plan.phases.soak / _MINUTE_NS),
        "warmupDurationMinutes": round(plan.phases.warm_up / _MINUTE_NS),
        "warmupProducerRate": -1,
    }


# --- What the subscriptions of a run had not read: as they say it, and counted where they cannot know it.

FRESH_SECONDS = 5
"""So long after a subscription reads on, its own idea of the lag may be from before the pause."""
_CONSUMER = "consume."


class RunBacklog:
    """Takes a run's seconds in order. Each subscription counts for itself: some may read while others pause.

    One that receives nothing hears of no new message: what is acknowledged is added to what it had left.
    """

    def __init__(self, who: Consumers, amounts: RecordReader) -> None:
        self._who = who
        self._amounts = amounts
        self._left = [math.nan] * who.subscriptions
        self._silent_k = [-math.inf] * who.subscriptions  # the last second without a message

    def add(self, k: int, told: Sequence[SourceRecord]) -> None:
        """Take what all sources recorded of a second."""
        acked = sum(self._counts(told, "acked_messages"))
        consumers: dict[int, list[SourceRecord]] = {}
        for one in told:
            if one.source.startswith(_CONSUMER):
                index = process_index(one.source)
                consumers.setdefault(self._who.subscription_of(index), []).append(one)
        for at, mine in consumers.items():
            received = self._counts(mine, "received_messages")
            if received:
                self._note(at, k, acked, sum(received), self._counts(mine, "lag_messages"))

    def messages(self) -> float:
        """Return what is left of all subscriptions of which something is known; NaN of none."""
        known = [left for left in self._left if not math.isnan(left)]
        return sum(known) if known else math.nan

    def _note(self, at: int, k: int, acked: float, received: float, lags: Sequence[float]) -> None:
        if not received:
            self._silent_k[at] = k
        is_fresh = k - self._silent_k[at] > FRESH_SECONDS
        counted = self._left[at] + acked - received
        if math.isnan(counted) or (is_fresh and len(lags) == self._who.per_subscription):
            self._left[at] = sum(lags) if lags else math.nan
        else:
            self._left[at] = max(0.0, counted)

    def _counts(self, told: Sequence[SourceRecord], metric: str) -> list[float]:
        found = [self._amounts.count(one, metric) for one in told]
        return [count for count in found if not math.isnan(count)]


# --- The three latencies of some seconds of a run, added up from the journals' histograms.

_METRICS = {
    PUBLISH: "publish_service_seconds",  # the benchmark counts from the actual send
    DELAY: "schedule_lag_seconds",
    END_TO_END: "end_to_end_latency_seconds",
}


class RunLatencies:
    """Publish latency, send delay and end-to-end latency since the last `clear`."""

    def __init__(self, cells: HistogramCells, amounts: RecordReader) -> None:
        self._amounts = amounts
        self._merged = {family: MergedHistogram(cells) for family in _METRICS}
        self.clear()

    def clear(self) -> None:
        for merged in self._merged.values():
            merged.clear()

    def add_produced(self, told: SourceRecord) -> None:
        """Take a producer's second."""
        self._take(told, PUBLISH)
        self._take(told, DELAY)

    def add_consumed(self, told: SourceRecord) -> None:
        """Take a consumer's second."""
        self._take(told, END_TO_END)

    def absorb(self, other: RunLatencies) -> None:
        """Add what another one holds."""
        for family, merged in self._merged.items():
            merged.absorb(other._merged[family])  # its own kind

    def statistics(self) -> dict[str, float]:
        """Return each latency's statistics by name, NaN where nothing was measured."""
        found: dict[str, float] = {}
        for family, merged in self._merged.items():
            found |= {
                statistic_name(family, name): value for name, value in merged.statistics().items()
            }
        return found

    def distributions(self) -> dict[str, Distribution]:
        """Return the whole distribution of each latency that was measured."""
        found = {family: merged.distribution() for family, merged in self._merged.items()}
        return {family.metric: one for family, one in found.items() if one is not None}

    def _take(self, told: SourceRecord, family: Family) -> None:
        merged, metric = self._merged[family], _METRICS[family]
        for text in histograms(told.record, metric):
            merged.add(text)
        merged.note_max(self._amounts.quantile(told, metric, "max"))
        overflow = self._amounts.count(told, "overflow_messages")
        if overflow > 0 and family is END_TO_END:  # a producer's are of latencies from the due time
            merged.add_overflow(int(overflow))


# --- One sample of a result: ten seconds of a run's journals, all processes added up.

_PRODUCED = {"acked_messages": "sent_messages", "failed_messages": "failed_messages"}
_CONSUMED = {"received_messages": "received_messages"}


class RunSample:
    """Counts, rates and latencies of the seconds added since the last `clear`, and the backlog after them."""

    def __init__(self, who: Consumers, cells: HistogramCells, amounts: RecordReader) -> None:
        self._amounts = amounts
        self._backlog = RunBacklog(who, amounts)
        self.latencies = RunLatencies(cells, amounts)
        self.clear()

    def clear(self) -> None:
        self.latencies.clear()
        self._counts = dict.fromkeys((*_PRODUCED.values(), *_CONSUMED.values()), 0.0)
        self._produced: set[int] = set()
        self._consumed: set[int] = set()

    def add(self, k: int, told: Sequence[SourceRecord]) -> None:
        """Take what all sources recorded of a second."""
        for one in told:
            self._add(one)
        self._backlog.add(k, told)

    def _add(self, told: SourceRecord) -> None:
        """Take one record; it is the producer's or the consumer's by the counts that it holds."""
        k = told.record.k
        if not math.isnan(self._amounts.count(told, "acked_messages")):
            self._produced.add(k)
            self._count(told, _PRODUCED)
            self.latencies.add_produced(told)
        if not math.isnan(self._amounts.count(told, "received_messages")):
            self._consumed.add(k)
            self._count(told, _CONSUMED)
            self.latencies.add_consumed(told)

    def values(self) -> dict[str, float]:
        """Return the sample by the names of `Result.samples`; rates count recorded seconds only."""
        counts = self._counts
        return {
            **counts,
            "consume_failed_messages": 0.0,
            "publish_rate_per_second": _rate(counts["sent_messages"], self._produced),
            "publish_error_rate_per_second": _rate(counts["failed_messages"], self._produced),
            "consume_rate_per_second": _rate(counts["received_messages"], self._consumed),
            "backlog_messages": self._backlog.messages() if self._consumed else math.nan,
            **self.latencies.statistics(),
        }

    def _count(self, told: SourceRecord, names: dict[str, str]) -> None:
        for metric, name in names.items():
            amount = self._amounts.count(told, metric)
            if not math.isnan(amount):
                self._counts[name] += amount


def _rate(messages: float, seconds: set[int]) -> float:
    return messages / len(seconds) if seconds else math.nan


# --- The journals of one of our own runs to a `Result`: samples of 10 s, histograms added up exactly.
# Publish latency counts from the actual send, as the benchmark counts it; how late that was is a delay of
# its own. End-to-end latency counts from the intended time: what it is from the send is not recorded.

STEP = NOMINAL_STEP_MILLIS // 1_000

Second = tuple[int, Sequence[SourceRecord]]
"""Second k and what all sources recorded of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRun:
    """What a run folder says of a run beside its journals; the seconds begin_k <= k < end_k count."""

    plan: Plan
    rate: Fraction  # of the soak, before any profile
    name: str
    start_wall_ns: int
    begin_k: int
    end_k: int


def result_of_run(source: ExportedRun, seconds: Iterable[Second]) -> Result:
    """Return the result of the measured seconds, which come in ascending order of k.

    A record of a second that is over was written after a clock was set back: left out, and told.

    Raises:
        RunFolderError: there is none of these seconds.
    """
    cells, amounts = HistogramCells(), RecordReader()
    sample = RunSample(source.plan.consumers, cells, amounts)
    whole = RunLatencies(cells, amounts)
    rows: list[dict[str, float]] = []
    late, last_k = 0, source.begin_k - 1
    for k, told in seconds:
        if k < source.begin_k or k >= source.end_k:
            continue
        if k < last_k:
            late += len(told)
            continue
        while (k - source.begin_k) // STEP > len(rows):
            rows.append(sample.values())
            whole.absorb(sample.latencies)
            sample.clear()
        last_k = k
        sample.add(k, told)
    if last_k < source.begin_k:
        raise RunFolderError(f"the run {source.name} has no record of its soak yet")
    rows.append(sample.values())
    whole.absorb(sample.latencies)
    return _result(source, rows, whole, last_k, late)


def _result(
    source: ExportedRun, rows: list[dict[str, float]], whole: RunLatencies, last_k: int, late: int
) -> Result:
    remarks = []
    if late:
        remarks.append(
            f"{late} records of seconds that were over are left out: a clock was set back"
        )
    return Result(
        dialect="",
        workload=source.name,
        driver=source.plan.broker_kind.capitalize(),
        facts={
            **plan_facts(source.plan, source.rate),
            "beginTime": _moment(source.start_wall_ns),
            "endTime": _moment(source.start_wall_ns + (last_k + 1) * SECOND_NS),
        },
        step_seconds=float(STEP),
        seconds=STEP * np.arange(1.0, len(rows) + 1),
        samples={name: np.array([row[name] for row in rows]) for name in rows[0]},
        totals=whole.statistics(),
        distributions=whole.distributions(),
        remarks=tuple(remarks),
    )


def _moment(wall_ns: int) -> str:
    return datetime.fromtimestamp(wall_ns // SECOND_NS, UTC).strftime("%Y-%m-%d-%H-%M-%S")


# --- Interval logs of HdrHistogram: one line a second and latency, tagged, so that its own tools read them.

TAGS = {
    "publish_latency_seconds": "publish",
    "end_to_end_latency_seconds": "end_to_end",
}
_US_A_MS = 1_000.0  # by convention the maximum stands in ms


def interval_log(start_wall_ns: int, seconds: Iterable[Second]) -> Iterator[str]:
    """Give the log's lines, newline included; times count from the run's start, values are in us.

    Sources of one second are added up; a second in which nothing was measured has no line. What took longer
    than a histogram's hour is in none: a comment tells how many there were, and the maximum is the exact one.
    """
    amounts = RecordReader()
    start_seconds = start_wall_ns / SECOND_NS
    yield "#[soakd: latencies in us, maxima in ms]\n"
    yield "#[Histogram log format version 1.3]\n"
    yield f"#[StartTime: {start_seconds:.3f} (seconds since epoch)]\n"
    yield f"#[BaseTime: {start_seconds:.3f} (seconds since epoch)]\n"
    yield '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"\n'
    for k, told in seconds:
        for metric, tag in TAGS.items():
            own = [(one, texts) for one in told if (texts := histograms(one.record, metric))]
            if own:
                yield from _interval_line(k, metric, tag, own, amounts)


def _interval_line(
    k: int,
    metric: str,
    tag: str,
    told: Sequence[tuple[SourceRecord, list[str]]],
    amounts: RecordReader,
) -> Iterator[str]:
    texts = [text for _, own in told for text in own]
    one = decode(texts[0])
    if len(texts) > 1:
        one = empty_histogram()
        for text in texts:
            one.decode_and_add(text.encode("ascii"))
    counts = [amounts.count(source, "overflow_messages") for source, _ in told]
    overflow = int(sum(count for count in counts if count > 0))
    largest_us = float(one.get_max_value()) if one.get_total_count() else 0.0
    if overflow:
        exact = [amounts.quantile(source, metric, "max") for source, _ in told]
        largest_us = max(largest_us, *(1e6 * value for value in exact if not math.isnan(value)))
        yield f"#[{tag} at {k:.3f}: {overflow} more above 1 h]\n"
    if one.get_total_count() or overflow:
        payload = one.encode().decode("ascii") if len(texts) > 1 else texts[0]
        yield f"Tag={tag},{k:.3f},1.000,{largest_us / _US_A_MS:.3f},{payload}\n"
