"""A run of soakd as a benchmark result with samples of 10 s, and as an HdrHistogram interval log.

Quantiles of seconds cannot be merged; their histograms are added exactly. Publish latency counts from the
actual send, as in the benchmark, and the delay of that is a latency of its own. End-to-end latency counts
from the intended time: that from the send is not recorded.
"""

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
"""Kinds of keys in the benchmark, by their names in a plan."""

FRESH_SECONDS = 5
"""For so long after a pause, the lag that a subscription reports may be from before it."""
_CONSUMER = "consume."

_METRICS = {
    PUBLISH: "publish_service_seconds",  # the benchmark counts from the actual send
    DELAY: "schedule_lag_seconds",
    END_TO_END: "end_to_end_latency_seconds",
}

_PRODUCED = {"acked_messages": "sent_messages", "failed_messages": "failed_messages"}
_CONSUMED = {"received_messages": "received_messages"}

STEP = NOMINAL_STEP_MILLIS // 1_000

Second = tuple[int, Sequence[SourceRecord]]
"""Second k and the records of all sources for it."""

TAGS = {
    "publish_latency_seconds": "publish",
    "end_to_end_latency_seconds": "end_to_end",
}
_US_PER_MS = 1_000.0  # by convention the maximum is in ms


def plan_facts(plan: Plan, rate: Fraction) -> dict[str, str | int | float]:
    """Return the single values of a result, with whole minutes and rates, as the benchmark has them.

    `rate` is that of the soak: after a ramp the plan's own is that of the warm-up.
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


class RunBacklog:
    """The backlog of each subscription, from the seconds of a run in order: some may read while others pause.

    A subscription that receives nothing does not see new messages: acknowledged ones are added to its
    backlog.
    """

    def __init__(self, consumers: Consumers, reader: RecordReader) -> None:
        self._consumers = consumers
        self._reader = reader
        self._backlog_of = [math.nan] * consumers.subscriptions
        self._silent_k = [-math.inf] * consumers.subscriptions  # the last second without a message

    def add(self, k: int, records: Sequence[SourceRecord]) -> None:
        """Add the records of all sources for a second."""
        acked = sum(self._counts(records, "acked_messages"))
        consumers: dict[int, list[SourceRecord]] = {}
        for one in records:
            if one.source.startswith(_CONSUMER) and not self._consumers.is_unplanned(one.source):
                index = process_index(one.source)
                consumers.setdefault(self._consumers.subscription_of(index), []).append(one)
        for at, mine in consumers.items():
            received = self._counts(mine, "received_messages")
            if received:
                self._note(at, k, acked, sum(received), self._counts(mine, "lag_messages"))

    def messages(self) -> float:
        """Return the sum over the subscriptions with a known backlog; NaN if there are none."""
        known = [backlog for backlog in self._backlog_of if not math.isnan(backlog)]
        return sum(known) if known else math.nan

    def _note(self, at: int, k: int, acked: float, received: float, lags: Sequence[float]) -> None:
        if not received:
            self._silent_k[at] = k
        is_fresh = k - self._silent_k[at] > FRESH_SECONDS
        counted = self._backlog_of[at] + acked - received
        if math.isnan(counted) or (is_fresh and len(lags) == self._consumers.per_subscription):
            self._backlog_of[at] = sum(lags) if lags else math.nan
        else:
            self._backlog_of[at] = max(0.0, counted)

    def _counts(self, records: Sequence[SourceRecord], metric: str) -> list[float]:
        found = [self._reader.count(one, metric) for one in records]
        return [count for count in found if not math.isnan(count)]


class RunLatencies:
    """Publish latency, send delay and end-to-end latency since the last `clear`."""

    def __init__(self, cells: HistogramCells, reader: RecordReader) -> None:
        self._reader = reader
        self._merged = {family: MergedHistogram(cells) for family in _METRICS}
        self.clear()

    def clear(self) -> None:
        for merged in self._merged.values():
            merged.clear()

    def add_produced(self, source: SourceRecord) -> None:
        """Add a producer's second."""
        self._take(source, PUBLISH)
        self._take(source, DELAY)

    def add_consumed(self, source: SourceRecord) -> None:
        """Add a consumer's second."""
        self._take(source, END_TO_END)

    def absorb(self, other: RunLatencies) -> None:
        """Add another one."""
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

    def _take(self, source: SourceRecord, family: Family) -> None:
        merged, metric = self._merged[family], _METRICS[family]
        for text in histograms(source.record, metric):
            merged.add(text)
        merged.note_max(self._reader.quantile(source, metric, "max"))
        overflow = self._reader.count(source, "overflow_messages")
        if (
            overflow > 0 and family is END_TO_END
        ):  # those of a producer are of latencies from the intended time
            merged.add_overflow(int(overflow))


class RunSample:
    """Counts, rates and latencies of the seconds added since the last `clear`, and the backlog after them."""

    def __init__(self, consumers: Consumers, cells: HistogramCells, reader: RecordReader) -> None:
        self._reader = reader
        self._backlog = RunBacklog(consumers, reader)
        self.latencies = RunLatencies(cells, reader)
        self.clear()

    def clear(self) -> None:
        self.latencies.clear()
        self._counts = dict.fromkeys((*_PRODUCED.values(), *_CONSUMED.values()), 0.0)
        self._produced: set[int] = set()
        self._consumed: set[int] = set()

    def add(self, k: int, records: Sequence[SourceRecord]) -> None:
        """Add the records of all sources for a second."""
        for one in records:
            self._add(one)
        self._backlog.add(k, records)

    def _add(self, source: SourceRecord) -> None:
        """Add one record, of a producer or a consumer by the counts that it has."""
        k = source.record.k
        if not math.isnan(self._reader.count(source, "acked_messages")):
            self._produced.add(k)
            self._count(source, _PRODUCED)
            self.latencies.add_produced(source)
        if not math.isnan(self._reader.count(source, "received_messages")):
            self._consumed.add(k)
            self._count(source, _CONSUMED)
            self.latencies.add_consumed(source)

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

    def _count(self, source: SourceRecord, names: dict[str, str]) -> None:
        for metric, name in names.items():
            amount = self._reader.count(source, metric)
            if not math.isnan(amount):
                self._counts[name] += amount


def _rate(messages: float, seconds: set[int]) -> float:
    return messages / len(seconds) if seconds else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRun:
    """The facts of a run folder apart from its journals; the seconds begin_k <= k < end_k count."""

    plan: Plan
    rate: Fraction  # of the soak, before any profile
    name: str
    start_wall_ns: int
    begin_k: int
    end_k: int


def result_of_run(source: ExportedRun, seconds: Iterable[Second]) -> Result:
    """Return the result of the measured seconds, which come in ascending order of k.

    A record of an earlier second was written after a clock step; it is omitted, with a remark.

    Raises:
        RunFolderError: no such second is recorded.
    """
    cells, reader = HistogramCells(), RecordReader()
    sample = RunSample(source.plan.consumers, cells, reader)
    whole = RunLatencies(cells, reader)
    rows: list[dict[str, float]] = []
    late, last_k = 0, source.begin_k - 1
    for k, records in seconds:
        if k < source.begin_k or k >= source.end_k:
            continue
        if k < last_k:
            late += len(records)
            continue
        while (k - source.begin_k) // STEP > len(rows):
            rows.append(sample.values())
            whole.absorb(sample.latencies)
            sample.clear()
        last_k = k
        sample.add(k, records)
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
        remarks.append(f"{late} records of earlier seconds are omitted: a clock was set back")
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


def interval_log(start_wall_ns: int, seconds: Iterable[Second]) -> Iterator[str]:
    """Yield the lines of the log with newlines; times count from the start of the run, values are in us.

    The sources of a second are added up; a second without values has no line. Latencies above the hour of
    a histogram are in none: a comment has their number, and the maximum is the exact one.
    """
    reader = RecordReader()
    start_seconds = start_wall_ns / SECOND_NS
    yield "#[soakd: latencies in us, maxima in ms]\n"
    yield "#[Histogram log format version 1.3]\n"
    yield f"#[StartTime: {start_seconds:.3f} (seconds since epoch)]\n"
    yield f"#[BaseTime: {start_seconds:.3f} (seconds since epoch)]\n"
    yield '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"\n'
    for k, records in seconds:
        for metric, tag in TAGS.items():
            own = [(one, texts) for one in records if (texts := histograms(one.record, metric))]
            if own:
                yield from _interval_line(k, metric, tag, own, reader)


def _interval_line(
    k: int,
    metric: str,
    tag: str,
    records: Sequence[tuple[SourceRecord, list[str]]],
    reader: RecordReader,
) -> Iterator[str]:
    texts = [text for _, own in records for text in own]
    one = decode(texts[0])
    if len(texts) > 1:
        one = empty_histogram()
        for text in texts:
            one.decode_and_add(text.encode("ascii"))
    counts = [reader.count(source, "overflow_messages") for source, _ in records]
    overflow = int(sum(count for count in counts if count > 0))
    largest_us = float(one.get_max_value()) if one.get_total_count() else 0.0
    if overflow:
        exact = [reader.quantile(source, metric, "max") for source, _ in records]
        largest_us = max(largest_us, *(1e6 * value for value in exact if not math.isnan(value)))
        yield f"#[{tag} at {k:.3f}: {overflow} more above 1 h]\n"
    if one.get_total_count() or overflow:
        payload = one.encode().decode("ascii") if len(texts) > 1 else texts[0]
        yield f"Tag={tag},{k:.3f},1.000,{largest_us / _US_PER_MS:.3f},{payload}\n"
