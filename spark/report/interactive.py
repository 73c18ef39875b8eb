"""What the charts of the page draw: which series, in which order, packed, bounded for any length.

Latency and rates come first, then the series that the evidence of incidents cites with their peers, then
those of drives, hosts and brokers, then all others by name until the page is full. All of it is computed
from the digests; of a run longer than two hours, seconds near incidents are read from the journals again, in
tasks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from soak.core import wording
from soak.core.model import Finding
from soak.core.series import parse_series, series_name, source_of
from soak.runtime.incident_size import latency_of_outage
from soak.service.metric_names import SHOWN
from soak.store.journal.history import MAX_WINDOW_SECONDS, History
from spark.batch.coverage import runs
from spark.batch.digest import reduction
from spark.batch.outcomes import CURVE, counts_above, curve, shares_shown
from spark.batch.timeline import leader_addresses
from spark.report.packing import (
    Grid,
    Scale,
    Words,
    band_words,
    bands,
    block,
    scale_of,
    usual_distance,
    windows,
)
from spark.report.page import (
    MOST_DETAILED,
    Page,
    in_microseconds,
    merged_spans,
    number_of_worst,
    numbered,
    ranked,
    shown_name,
    source_text,
    what_text,
    where,
)
from spark.report.summary import span_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Joined = Literal["one", "highest", "sum"]

MOST_BUCKET_BYTES, MOST_SECOND_WORDS = 4_300_000, 1_000_000
"""Room for packed buckets and for single seconds; text, pictures and the program take the remaining room."""
MOST_SERIES = 1_500
A_BLOCK = 24  # series; a block is unpacked as a whole
MOST_EVENTS = 40_000  # of a row
MOST_CITED, MOST_PEERS, MOST_LINES, MOST_BROKER_CHARTS = 6, 2, 4, 24
MOST_NEAR = 8  # incidents of which the cited series are kept second by second
AROUND_SECONDS = 900
"""The distributions before and after an incident are of so much of the soak on either side."""

FAMILIES = {"publish": "Publish", "end_to_end": "End to end"}
QUANTILES = (
    ("0.5", "p50", "c3"),
    ("0.99", "p99", "c1"),
    ("0.999", "p99.9", "c4"),
    ("max", "max", "c2"),
)
EVENT_ROWS = {
    "deletions": ("deletion", "unlink", "reclaimed", "log_start_moved"),
    "leader changes": ("leader", "isr_"),
    "GC pauses": ("gc_pause", "gc_stall"),
    "errors": ("fail", "error", "clock_step", "suspend", "rate_not_held", "skipped"),
}
"""Rows of events, and parts of the names of their kinds."""
FIRST_METRICS = (
    "fsync_latency_seconds",
    "disk_write_await_seconds",
    "node_disk_io_time_seconds",
    "node_disk_written_bytes",
    "disk_device_turnover_ratio",
    "retention_held_bytes",
    "retention_deleted_bytes",
    "schedule_lag_seconds",
    "host_cpu_ratio",
    "node_pressure_io_waiting_seconds",
    "broker_round_trip_seconds",
    "jvm_gc_pause_seconds",
)
"""Series of hosts and drives in which a cause would show; of quantiles the 99th percentile."""
BROKER_PREFIXES = (
    *("kafka_", "redpanda_", "vectorized_", "pulsar_", "bookie_", "bookkeeper_", "kminion_"),
    *("jvm_memory", "jvm_gc_collection", "process_cpu_seconds"),
)
"""Metrics that the probe `prometheus` takes from pages of brokers and bookies."""
_CAUSES_OF_HOSTS = frozenset({"client", "clock", "noisy_neighbour"})
_OWN = (
    *("process_", "host_daemon_", "probe_"),
    *("schedule_lag", "callback_delay", "consumer_pause"),
)
"""Metrics of soakd's own processes: elsewhere they are effects."""
_LEFT_OUT = ("_above_messages", "leader_info", "mount_info")  # a heat map, or only names
_UNITS = {"seconds": "s", "bytes": "B", "ratio": "%"}


@dataclass(frozen=True, slots=True)
class Drawn:
    """A series as the page draws it: one of the run's, or the highest or the sum of several."""

    title: str
    note: str
    unit: str
    members: tuple[str, ...]
    joined: Joined = "one"

    @property
    def source(self) -> str:
        """Return the source whose gaps it has; "" for all clients."""
        return source_of(self.members[0]) if len(self.members) == 1 else ""


def first_kind(page: Page, kinds: Collection[str]) -> str:
    """Return the latency that the page shows first: that of the worst incident, else the first there is."""
    of_worst = [FAMILIES[_family(one.finding)] for one in ranked(page)[:1]]
    return next((one for one in (*of_worst, *kinds) if one in kinds), "")


def _family(found: Finding) -> str:
    metric = (latency_of_outage(found.series) or parse_series(found.series)).metric
    return next((family for family in FAMILIES if metric.startswith(family)), "publish")


def page_data(page: Page) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what the page's program reads: its JSON, and its compressed blocks by name."""
    return _Making(page).made()


# --- Which series are drawn, and where.


@dataclass(slots=True)
class _Making:
    page: Page
    grid: Grid = field(init=False)
    drawn: dict[str, Drawn] = field(default_factory=dict)  # the most important first
    recorded: dict[str, Floats] = field(default_factory=dict)  # by source: seconds recorded a step
    counted: dict[str, tuple[list[float], Floats] | None] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.grid = Grid.of(self.page.timeline.end_k, self.page.timeline.step)
        self.addresses = leader_addresses(self.page.timeline)

    def made(self) -> tuple[dict[str, Any], dict[str, str]]:
        page, timeline = self.page, self.page.timeline
        main = {FAMILIES[family]: lines for family in FAMILIES if (lines := self._latency(family))}
        load = self._load()
        detailed, near = ranked(page)[:MOST_DETAILED], list(self.drawn)
        cells = {}
        for rank, one in enumerate(detailed, 1):
            cells[one.finding.key] = self._cells(one.finding)
            if rank <= MOST_NEAR:
                near = list(self.drawn)
        hosts = [self._of_metric(metric) for metric in FIRST_METRICS]
        brokers = self._broker_charts()
        for name in sorted(timeline.series):
            if not name.partition("|")[2].partition("{")[0].endswith(_LEFT_OUT):
                self._add(name)
        spans = [span_of(timeline, one) for one in detailed]
        stretches = self._stretches(spans, near)
        packed, blocks, seconds_known = self._packed(near, stretches)
        place = {name: at for at, name in enumerate(packed)}

        def charts(found: Iterable[dict[str, Any] | None]) -> list[dict[str, Any]]:
            kept = []
            for chart in found:
                lines = [
                    [label, place[name], *more]
                    for label, name, *more in (chart or {}).get("lines", ())
                    if name in place
                ]
                if chart and lines:
                    kept.append({**chart, "lines": lines})
            return kept

        events, block_of_events = self._events()
        heat, block_of_heat = self._heat()
        body: dict[str, Any] = {
            "start": timeline.run.start_wall_ns / 1e9,
            "seconds": self.grid.seconds,
            "bucket": self.grid.bucket,
            "buckets": self.grid.buckets,
            "phases": [
                [f"{one.phase} {one.part}".rstrip(), one.from_k, edge]
                for one, edge in timeline.phases.held(timeline.end_k)
            ],
            "gaps": self._gaps(),
            "invalid": self._invalid(),
            "series": list(packed.values()),
            "windows": stretches if seconds_known else [],
            "main": {
                name: kept[0]
                for name, lines in main.items()
                if (kept := charts([{"lines": lines}]))
            },
            "limits": self._limits(),
            "load": charts(load),
            "hosts": charts(hosts),
            "brokers": charts(brokers),
            "left_out": len(self.drawn) - len(packed),
            "events": events,
            "heat": heat,
            "written": self._written(),
            "curve": [round(float(x), 4) for x in CURVE],
            "worst": number_of_worst(page),
            "incidents": [
                {
                    "title": in_microseconds(shown_name(what_text(one.finding), 120)),
                    "span": list(span_of(timeline, one)),
                    "isAgainstCluster": one.is_against_cluster,
                    "curves": self._curves(one.finding, span_of(timeline, one)),
                    "charts": charts(cells[one.finding.key]),
                }
                for one in numbered(page)[:MOST_DETAILED]
            ],
        }
        return body, {**blocks, "events": block_of_events, "heat": block_of_heat}

    def _add(self, name: str) -> str | None:
        """Let a series of the run be drawn; return its name, or None where it has no value."""
        if not self._has(name):
            return None
        if name not in self.drawn:
            note = where(self.page, name, self.addresses)
            title = shown_name(wording.title(name), 90)
            self.drawn[name] = Drawn(title, note, self._unit(name), (name,))
        return name

    def _has(self, name: str) -> bool:
        series = self.page.timeline.series
        return name in series and bool(series[name][0].size)

    def _unit(self, name: str) -> str:
        column, found = self.page.timeline.columns[name], parse_series(name)
        unit = _UNITS.get(found.unit or column.unit, shown_name(column.unit or found.unit, 20))
        return f"{unit}/s" if found.is_per_second or reduction(column) is np.sum else unit

    def _join(self, title: str, note: str, members: Sequence[str], joined: Joined) -> str | None:
        """Let the highest or the sum of several series be drawn; one of them is drawn as itself."""
        there = tuple(name for name in members if self._has(name))
        if len(there) < 2:  # noqa: PLR2004  # nothing to join
            return self._add(there[0]) if there else None
        name = f"{title} {note}"
        self.drawn.setdefault(name, Drawn(title, note, self._unit(there[0]), there, joined))
        return name

    def _latency(self, family: str) -> list[list[Any]]:
        """Return the lines of the main chart for a latency: of several clients the highest of each second."""
        lines: list[list[Any]] = []
        metric = f"{family}_latency_seconds"
        for quantile, label, ink in QUANTILES:
            wanted = (("quantile", quantile),)
            members = [
                name
                for name, column in self.page.timeline.columns.items()
                if column.metric == metric and column.labels == wanted
            ]
            who = "producers" if family == "publish" else "consumers"
            title = f"{label} {FAMILIES[family].lower()} latency"
            found = self._join(title, f"highest of {len(members)} {who}", members, "highest")
            if found is not None:
                lines.append([label, found, ink, label == "max"])
        return lines

    def _clients(self, metric: str) -> list[str]:
        names = (series_name(source, metric) for source in self.page.timeline.seconds)
        return [name for name in names if name in self.page.timeline.series]

    def _load(self) -> list[dict[str, Any]]:
        """Return the charts of rates, of what did not come through, and of what waits."""
        who = self.page.timeline.plan.consumers
        sent, acked = self._clients("sent_messages"), self._clients("acked_messages")
        note = "producer 0" if len(sent) == 1 else f"all {len(sent)} producers"
        rates: list[list[Any]] = [
            ["sent", self._join("sent messages", note, sent, "sum"), "c3"],
            ["acknowledged", self._join("acknowledged messages", note, acked, "sum"), "c1"],
        ]
        lags: list[list[Any]] = []
        inks = ("c2", "c4", "c3", "c1")
        of_subscription: dict[int, list[str]] = defaultdict(list)
        for name in self._clients("received_messages"):
            number = source_of(name).partition("@")[0].partition(".")[2]
            index = int(number) if number.isdigit() else 0
            of_subscription[who.subscription_of(index)].append(source_of(name))
        for subscription, sources in sorted(of_subscription.items())[:MOST_LINES]:
            label, ink = f"subscription {subscription}", inks[subscription % len(inks)]
            received = [series_name(one, "received_messages") for one in sources]
            lagging = [series_name(one, "lag_messages") for one in sources]
            several = f"{label}, {len(sources)} consumers"
            rates.append(
                [
                    f"received, {label}",
                    self._join("received messages", several, received, "sum"),
                    ink,
                ]
            )
            lags.append([label, self._join("consumer lag", several, lagging, "sum"), ink])
        short = [
            [
                label,
                self._join(f"{label} messages", note, self._clients(f"{metric}_messages"), "sum"),
                ink,
            ]
            for label, metric, ink in (("failed", "failed", "bad"), ("skipped", "missed", "c2"))
        ]
        flying = self._join("in-flight messages", note, self._clients("in_flight_messages"), "sum")
        return [
            {"title": "Messages a second", "note": note, "lines": rates, "zero": True},
            {
                "title": "Messages in flight",
                "note": note,
                "lines": [["in flight", flying, "c1"]],
                "zero": True,
            },
            {"title": "Consumer lag", "note": "messages", "lines": lags, "zero": True},
            {"title": "Failed and skipped sends", "note": note, "lines": short, "zero": True},
        ]

    def _of_metric(self, metric: str) -> dict[str, Any] | None:
        """Return the chart of a metric of hosts and drives: of very many series those that moved most."""
        found = [
            name
            for name, column in self.page.timeline.columns.items()
            if column.metric == metric
            and dict(column.labels).get("quantile", "0.99") in {"0.99", "max"}
            and not (
                dict(column.labels).get("quantile") == "max" and metric != "jvm_gc_pause_seconds"
            )
        ]
        return self._chart(metric, found)

    def _chart(self, metric: str, found: Sequence[str]) -> dict[str, Any] | None:
        moved = sorted(found, key=lambda name: -_movement(self.page.timeline.series[name][1]))
        names = [name for name in sorted(moved[:MOST_LINES]) if self._add(name)]
        if not names:
            return None
        lines = [
            [_label_of(self.page, name, self.addresses), name, ink]
            for name, ink in zip(names, ("c1", "c2", "c3", "c4"), strict=False)
        ]
        more = f", {len(found) - len(names)} more" if len(found) > len(names) else ""
        alone = where(self.page, names[0], self.addresses) if len(names) == 1 else ""
        note = f"{alone}{more}".lstrip(", ")
        title = wording.title(series_name("", metric))
        return {"title": title, "note": note, "help": _help(metric), "lines": lines}

    def _broker_charts(self) -> list[dict[str, Any] | None]:
        """Return charts of what brokers and bookies say of themselves, those that moved most first."""
        by_metric: dict[str, list[str]] = defaultdict(list)
        for name, column in self.page.timeline.columns.items():
            quantile = dict(column.labels).get("quantile", "0.99")
            if column.metric.startswith(BROKER_PREFIXES) and quantile == "0.99":
                by_metric[column.metric].append(name)
        series = self.page.timeline.series
        moved = sorted(
            by_metric, key=lambda one: -max(_movement(series[name][1]) for name in by_metric[one])
        )
        return [
            self._chart(metric, by_metric[metric]) for metric in sorted(moved[:MOST_BROKER_CHARTS])
        ]

    # --- Of one incident.

    def _cells(self, found: Finding) -> list[dict[str, Any]]:
        """Return the charts of an incident: each series that its evidence cites, with its peers."""
        charts: list[dict[str, Any]] = []
        waited = latency_of_outage(found.series)
        name = found.series
        if waited is not None:  # an outage is no series of the journals: its messages came late
            name = str(replace(waited, labels=(*waited.labels, ("quantile", "0.99"))))
        if self._add(name):
            note = where(self.page, name, self.addresses)
            title = shown_name(wording.title(name), 90)
            charts.append({"title": title, "note": note, "lines": [["", name, "bad"]], "row": 0})
        for row, (cited, is_cited) in enumerate(self._cited(found), 1):
            if cited == name or self._add(cited) is None:
                continue
            peers = [one for one in self._peers(cited)[:MOST_PEERS] if self._add(one)]
            for one in (cited, *peers):
                role, ink = ("cited by the evidence", "bad") if is_cited else ("changed too", "c2")
                if one != cited:
                    role, ink = "peer", "c3"
                note = f"{where(self.page, one, self.addresses)}, {role}"
                charts.append(
                    {
                        "title": shown_name(wording.title(one), 90),
                        "note": note,
                        "help": _help(parse_series(one).metric),
                        "lines": [["", one, ink]],
                        "row": row,
                    }
                )
        return charts

    def _cited(self, found: Finding) -> list[tuple[str, bool]]:
        """Return the series that the evidence names, True; then, up to three, others that changed, False.

        Of others those of a suspect come first, and soakd's own processes only where they may be the cause.
        """
        series = self.page.timeline.series
        items = [item for cause in found.causes for item in (*cause.evidence, *cause.against)]
        cited = [str(item.numbers["series"]) for item in items if "series" in item.numbers]
        names = [name for name in dict.fromkeys(cited) if name in series]
        by_evidence = set(names)
        suspects = [cause.suspect.split() for cause in found.causes]

        def is_shown(metric: str) -> bool:
            return found.cause in _CAUSES_OF_HOSTS or not _is_own(metric)

        changed = [
            name
            for name in found.changes
            if name in series
            and not parse_series(name).metric.endswith("_latency_seconds")
            and is_shown(parse_series(name).metric)
        ]
        names += self._clearest(found, suspects, [one for one in changed if one not in names])[
            : max(0, 3 - len(names))
        ]
        if len(names) < 3:  # noqa: PLR2004  # a row of charts
            near = [
                name
                for name, column in self.page.timeline.columns.items()
                if dict(column.labels).get("quantile", "0.99") == "0.99"
                and (
                    column.metric in FIRST_METRICS
                    or (
                        column.metric.startswith(BROKER_PREFIXES)
                        and self._suspicion(name, suspects) < len(suspects)
                    )
                )
                and is_shown(column.metric)
                and name not in names
                and _shift(*series[name], found.onset_k) > 0
            ]
            names += self._clearest(found, suspects, near)[: 3 - len(names)]
        return [(name, name in by_evidence) for name in names[:MOST_CITED]]

    def _clearest(
        self, found: Finding, suspects: Sequence[Sequence[str]], names: Sequence[str]
    ) -> list[str]:
        """Return series, those of the suspects first, then those whose level changed most."""
        series = self.page.timeline.series

        def key(name: str) -> tuple[int, float]:
            return self._suspicion(name, suspects), -_shift(*series[name], found.onset_k)

        return sorted(names, key=key)

    def _suspicion(self, name: str, suspects: Sequence[Sequence[str]]) -> int:
        """Return the place of the first cause whose suspect a series is about; their number: of none."""
        labels = parse_series(name).labels
        values = {
            self.addresses.get(value, "") if key == "leader" else value for key, value in labels
        }
        found = (at for at, words in enumerate(suspects) if not values.isdisjoint(words))
        return next(found, len(suspects))

    def _peers(self, name: str) -> list[str]:
        """Return series of the same metric and quantile of other hosts, drives, brokers or topics."""
        column = self.page.timeline.columns[name]
        quantile = dict(column.labels).get("quantile")
        alike = [
            other
            for other, one in self.page.timeline.columns.items()
            if other != name
            and one.metric == column.metric
            and dict(one.labels).get("quantile") == quantile
        ]
        return sorted(alike, key=lambda other: (_differing(name, other), other))

    def _curves(self, found: Finding, span: tuple[int, int]) -> dict[str, list[float | None]]:
        """Return latency before, during and after an incident, at `CURVE`; empty where none was counted."""
        counts = f"{_family(found)}_latency_above_messages"
        if counts not in self.counted:
            self.counted[counts] = counts_above(self.page.timeline, counts)
        counted = self.counted[counts]
        if counted is None:
            return {}
        thresholds, above = counted
        step, (begin, end) = self.page.timeline.step, self.page.timeline.soak
        parts = {
            "before": (max(begin, span[0] - AROUND_SECONDS), span[0]),
            "during": span,
            "after": (span[1], min(end, span[1] + AROUND_SECONDS)),
        }
        curves = {
            name: curve(
                thresholds, above[:, -(-a // step) : max(b // step, -(-a // step))].sum(axis=1)
            )
            for name, (a, b) in parts.items()
        }
        return {name: one for name, one in curves.items() if one}

    # --- Packing.

    def _stretches(
        self, spans: Sequence[tuple[int, int]], near: Sequence[str]
    ) -> list[tuple[int, int]]:
        """Return what is kept second by second: the whole of a short run, or around the worst incidents."""
        if self.grid.bucket == 1:
            return []
        if self.grid.step == 1 and self.grid.seconds * max(len(near), 1) <= MOST_SECOND_WORDS:
            return [(0, self.grid.seconds)]
        found: list[tuple[int, int]] = []
        for count in range(1, len(spans) + 1):
            wanted = windows(spans[:count], self.grid.seconds)
            if sum(b - a for a, b in wanted) * max(len(near), 1) > MOST_SECOND_WORDS:
                break
            found = wanted
        return found

    def _packed(
        self, near: Sequence[str], stretches: Sequence[tuple[int, int]]
    ) -> tuple[dict[str, list[Any]], dict[str, str], bool]:
        """Return series by name as the page lists them, and their blocks, until the page is full."""
        seconds = self._seconds_near(near, stretches)
        listed: dict[str, list[Any]] = {}
        blocks: dict[str, str] = {}
        names, used = list(self.drawn)[:MOST_SERIES], 0
        for first in range(0, len(names), A_BLOCK):
            block_name = str(first // A_BLOCK)
            words: list[Words] = []
            fine_words: list[Words] = []
            rows: dict[str, list[Any]] = {}
            for place, name in enumerate(names[first : first + A_BLOCK]):
                one = self.drawn[name]
                scale, packed, fine, distance = self._words(one, seconds)
                words.append(packed)
                fine_place = -1
                if fine is not None:
                    fine_place = len(fine_words)
                    fine_words.append(fine)
                row = [
                    one.source,
                    one.title,
                    one.note,
                    one.unit,
                    *scale.to_json(),
                    block_name,
                    place,
                    fine_place,
                    distance,
                ]
                rows[name] = row
            text = block(words)
            if used + len(text) > MOST_BUCKET_BYTES and listed:
                break
            used += len(text)
            listed |= rows
            blocks[block_name] = text
            if fine_words:
                blocks[f"{block_name}-seconds"] = block(fine_words)
        return listed, blocks, bool(stretches)

    def _words(
        self, one: Drawn, seconds: Mapping[str, Floats]
    ) -> tuple[Scale, Words, Words | None, float]:
        """Return scale, buckets and seconds of a series, and the usual distance of its values in seconds."""
        native = _joined([self._native(name) for name in one.members], one.joined)
        extremes = (
            [self._extremes(name) for name in one.members]
            if one.joined != "sum" or len(one.members) == 1
            else []
        )
        low: Floats | None = None
        high: Floats | None = None
        if extremes and all(pair is not None for pair in extremes):
            pairs = [pair for pair in extremes if pair is not None]
            high = _joined([pair[1] for pair in pairs], one.joined)
            low = pairs[0][0] if len(pairs) == 1 else None
        band = bands(self.grid.rows(native, self.grid.step), low, high)
        fine = None
        if all(name in seconds for name in one.members):
            fine = _joined([seconds[name] for name in one.members], one.joined)
        scale = scale_of(native, band, fine)
        packed = band_words(scale, band, with_extremes=self.grid.bucket > 1)
        if fine is None or self.grid.step == 1:
            distance = usual_distance(native, self.grid.step)
        else:
            distance = usual_distance(fine, 1)
        return scale, packed, None if fine is None else scale.words(fine), distance

    def _native(self, name: str) -> Floats:
        """Return a series by `step` seconds; of counts the rate a second."""
        timeline = self.page.timeline
        found = self.grid.dense(*timeline.series[name], timeline.step)
        if timeline.step > 1 and reduction(timeline.columns[name]) is np.sum:
            source = source_of(name)
            if source not in self.recorded:
                seconds = timeline.seconds[source]
                counts = np.bincount(seconds[seconds >= 0] // timeline.step, minlength=found.size)
                self.recorded[source] = np.maximum(counts[: found.size], 1).astype(np.float64)
            found = found / self.recorded[source]
        return found

    def _extremes(self, name: str) -> tuple[Floats, Floats] | None:
        """Return the lowest and highest second of each bucket, where the digest has them apart."""
        kept = self.page.timeline.extremes.get(name)
        if kept is None:
            return None
        at, count = kept.k // self.grid.bucket, self.grid.buckets
        is_within = (at >= 0) & (at < count)
        low, high = np.full(count, np.nan), np.full(count, np.nan)
        np.fmin.at(low, at[is_within], kept.low[is_within].astype(np.float64))
        np.fmax.at(high, at[is_within], kept.high[is_within].astype(np.float64))
        return low, high

    def _seconds_near(
        self, near: Sequence[str], stretches: Sequence[tuple[int, int]]
    ) -> dict[str, Floats]:
        """Return the seconds of the stretches, one after the other, by series."""
        timeline = self.page.timeline
        names = sorted({name for one in near for name in self.drawn[one].members})
        if not stretches:
            return {}
        if timeline.step == 1:
            every = {name: self._native(name) for name in names}
            return {
                name: np.concatenate([one[a:b] for a, b in stretches])
                for name, one in every.items()
            }
        parts = [
            (first, min(first + MAX_WINDOW_SECONDS, b))
            for a, b in stretches
            for first in range(a, b, MAX_WINDOW_SECONDS)
        ]
        wanted = [(timeline.folder.journal, a, b, tuple(names)) for a, b in parts]
        found = self.page.each(_read_seconds, wanted)
        joined = np.concatenate(found, axis=1).astype(np.float64)
        return dict(zip(names, joined, strict=True))

    # --- What lies behind and below the lines.

    def _gaps(self) -> list[list[Any]]:
        found: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        for gap in self.page.covered.gaps:
            if gap.to_k > gap.from_k:
                found[gap.source, gap.why].append((gap.from_k, gap.to_k))
        return [
            [a, b, source, shown_name(why, 120)]
            for (source, why), spans in found.items()
            for a, b in merged_spans(sorted(spans), self.grid.seconds / 1000)
        ]

    def _invalid(self) -> list[list[Any]]:
        found: list[list[Any]] = []
        for source, reasons in self.page.timeline.invalid.items():
            spans = [(a, b + 1) for a, b in runs(np.array(sorted(reasons), dtype=np.int64))]
            found += [[a, b, source] for a, b in merged_spans(spans, self.grid.seconds / 1000)]
        return found

    def _limits(self) -> dict[str, float]:
        """Return the limit of each latency that an objective of the plan has."""
        found: dict[str, float] = {}
        for one in self.page.standings:
            family = FAMILIES.get(one.objective.latency.replace("-", "_"))
            if family is not None:
                found.setdefault(family, one.objective.limit_seconds)
        return found

    def _events(self) -> tuple[dict[str, dict[str, Any]], str]:
        """Return of each row how many seconds have an event, and the names of its kinds; and their block.

        The block has of each row the hours, then the seconds in them, then the kinds as places in the names.
        """
        rows: dict[str, dict[str, Any]] = {}
        words: list[Words] = []
        for name, parts in EVENT_ROWS.items():
            kinds = [
                one
                for one in self.page.timeline.event_seconds
                if any(part in one for part in parts)
            ]
            if not kinds:
                continue
            parted = [self.page.timeline.event_seconds[kind] for kind in kinds]
            which = np.repeat(np.arange(len(kinds)), [one.size for one in parted])
            k, first = np.unique(np.concatenate(parted), return_index=True)
            which, is_within = which[first], (k >= 0) & (k < self.grid.seconds)
            k, which = k[is_within], which[is_within]
            if k.size > MOST_EVENTS:
                k, first = np.unique(k // self.grid.bucket * self.grid.bucket, return_index=True)
                k, which = k[:MOST_EVENTS], which[first][:MOST_EVENTS]
            names = [shown_name(kind.replace("_", " "), 60) for kind in kinds]
            rows[name] = {"count": int(k.size), "kinds": names}
            words += [part.astype(np.uint16) for part in (k // 3600, k % 3600, which)]
        return rows, block(words)

    def _heat(self) -> tuple[dict[str, Any] | None, str]:
        """Return the bands of the heat map, and its block: shares from 0 (none) to 100 (all), logarithmic."""
        found = shares_shown(self.page.timeline, self.grid.bucket)
        if found is None:
            return None, ""
        family, thresholds, share = found
        level = np.rint(np.clip(25 * (np.log10(np.maximum(share, 1e-9)) + 4), 0, 100))
        body = {
            "kind": FAMILIES[family],
            "bands": len(share),
            "low": thresholds[0],
            "high": thresholds[-1],
            "perDecade": 8,
        }
        return body, block([level.astype(np.uint16).ravel()])

    def _written(self) -> list[int] | None:
        """Return the payload acknowledged by the end of each bucket, in kB; None where it is not known."""
        names = self._clients("acked_messages")
        if not names:
            return None
        rates = _joined([self._native(name) for name in names], "sum")
        a_bucket = np.nansum(self.grid.rows(rates, self.grid.step), axis=1) * self.grid.step
        return [
            int(one) for one in np.cumsum(a_bucket) * self.page.timeline.plan.load.mean_size / 1e3
        ]


def _help(metric: str) -> str:
    """Return what a metric of our own means; "" of others, and of growth since the start of a kernel."""
    found = SHOWN.get(metric)
    return (
        "" if found is None or metric.startswith(("node_disk_", "node_pressure_")) else found.help
    )


def _read_seconds(wanted: tuple[Path, int, int, tuple[str, ...]]) -> NDArray[np.float32]:
    """Return seconds [a, b) of series from the journals, (series, seconds), NaN where there is none."""
    journal, a, b, names = wanted
    window = History(journal).window(a, b, of=sorted({source_of(name) for name in names}))
    found = np.full((len(names), b - a), np.nan, np.float32)
    for row, name in zip(found, names, strict=True):
        series = window.series(name)
        row[series.k - a] = series.values
    return found


def _is_own(metric: str) -> bool:
    """True for how soakd's own processes did, and for how old their last look is."""
    return metric.startswith(_OWN) or metric.endswith("_poll_age_seconds")


def _joined(parts: Sequence[Floats], joined: Joined) -> Floats:
    """Return one series of several; NaN where none has a value."""
    if len(parts) == 1:
        return parts[0]
    if joined == "highest":
        return np.asarray(np.fmax.reduce(list(parts)), np.float64)
    stacked = np.stack(list(parts))
    return np.where(np.isfinite(stacked).any(axis=0), np.nansum(stacked, axis=0), np.nan)


def _movement(values: Floats) -> float:
    """Return by how much a series changed, relative to its own size."""
    if values.size < 2:  # noqa: PLR2004  # one value does not move
        return 0.0
    low, middle, high = np.quantile(values, (0.02, 0.5, 0.98))
    return float((high - low) / (abs(middle) + 1e-9 + 0.01 * abs(high)))


def _shift(k: Ints, values: Floats, onset_k: int) -> float:
    """Return by what factor, on logarithms, the level after an onset differs from that before it."""
    before = values[(k < onset_k) & (k >= onset_k - 60)]
    after = values[(k >= onset_k) & (k < onset_k + 60)]
    if not before.size or not after.size:
        return 0.0
    was, became = float(np.median(before)), float(np.median(after))
    return abs(math.log(became / was)) if min(was, became) > 0 else 0.0


def _differing(name: str, other: str) -> int:
    """Return in how many labels two series of one metric differ."""
    one, two = parse_series(name), parse_series(other)
    pairs = set(one.labels) ^ set(two.labels)
    return len(pairs) + (one.source != two.source)


def _label_of(page: Page, name: str, addresses: Mapping[str, str]) -> str:
    """Return what sets a series apart from others of its metric: its client or host, drive, broker, topic."""
    found = parse_series(name)
    parts = [
        addresses.get(value, f"leader {value}") if key == "leader" else value
        for key, value in found.labels
        if key != "quantile"
    ]
    return shown_name(" ".join(dict.fromkeys([source_text(page, found.source), *parts])), 80)
