"""What the charts of the page draw: which series, in which order, packed, bounded for any length.

Latency and rates come first, then the series that the evidence of incidents cites with their peers, then
those of drives, hosts and brokers, then all others by name until the page is full.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.objectives import SOURCES
from soak.core import wording
from soak.core.model import Finding
from soak.core.series import parse_series, series_name, source_of
from soak.runtime.incident_size import latency_of_outage
from soak.service.metric_names import SHOWN
from spark.batch.digest import reduction
from spark.batch.outcomes import CURVE, counts_above, curve
from spark.batch.peaks import AROUND_SECONDS as PEAKS_APART
from spark.batch.timeline import leader_addresses
from spark.report import backdrop
from spark.report.backdrop import FAMILIES
from spark.report.packing import Grid
from spark.report.page import (
    MOST_DETAILED,
    Page,
    in_microseconds,
    number_of_worst,
    numbered,
    ranked,
    shown_name,
    source_text,
    what_text,
    where,
)
from spark.report.series_blocks import Drawn, Joined, SeriesBlocks, combined
from spark.report.summary import span_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MOST_CITED, MOST_PEERS, MOST_LINES, MOST_BROKER_CHARTS = 6, 2, 4, 24
MOST_NEAR = 8  # incidents of which the cited series are kept second by second
AROUND_SECONDS = 900
"""The distributions before and after an incident are of so much of the soak on either side."""

QUANTILES = (
    ("0.5", "p50", "c3"),
    ("0.99", "p99", "c1"),
    ("0.999", "p99.9", "c4"),
    ("max", "max", "c2"),
)
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


def first_kind(page: Page, kinds: Collection[str]) -> str:
    """Return the latency that the page shows first: that of the worst incident, else the first there is."""
    of_worst = [FAMILIES[_family(one.finding)] for one in ranked(page)[:1]]
    return next((one for one in (*of_worst, *kinds) if one in kinds), "")


def _family(found: Finding) -> str:
    name = latency_of_outage(found.series) or parse_series(found.series)
    if name.source == SOURCES["end-to-end"]:  # an objective, of all consumers together
        return "end_to_end"
    return next((family for family in FAMILIES if name.metric.startswith(family)), "publish")


def page_data(page: Page) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what the page's program reads: its JSON, and its compressed blocks by name."""
    return _Making(page).made()


# --- Which series are drawn, and where.


@dataclass(slots=True)
class _Making:
    page: Page
    grid: Grid = field(init=False)
    blocks: SeriesBlocks = field(init=False)
    drawn: dict[str, Drawn] = field(default_factory=dict)  # the most important first
    counted: dict[str, tuple[list[float], Floats] | None] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.grid = Grid.of(self.page.timeline.end_k, self.page.timeline.step)
        self.blocks = SeriesBlocks(self.page, self.grid, self.drawn)
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
        stretches = self.blocks.stretches(spans, near)
        packed, blocks = self.blocks.packed(near, stretches)
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

        events, block_of_events = backdrop.events(page, self.grid)
        heat, block_of_heat = backdrop.heat(page, self.grid)
        body: dict[str, Any] = {
            "start": timeline.run.start_wall_ns / 1e9,
            "seconds": self.grid.seconds,
            "bucket": self.grid.bucket,
            "buckets": self.grid.buckets,
            "phases": [
                [f"{one.phase} {one.part}".rstrip(), one.from_k, edge]
                for one, edge in timeline.phases.held(timeline.end_k)
            ],
            "gaps": backdrop.gaps(page, self.grid),
            "invalid": backdrop.invalid(page, self.grid),
            "series": list(packed.values()),
            "windows": stretches,
            "main": {
                name: kept[0]
                for name, lines in main.items()
                if (kept := charts([{"lines": lines}]))
            },
            "limits": backdrop.limits(page),
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
        """Return latency before, during and after an incident, at `CURVE`; empty where none was counted.

        All three are of the soak; before and after are without other incidents and the half minute beside
        them, in which what waited in them comes.
        """
        counts = f"{_family(found)}_latency_above_messages"
        if counts not in self.counted:
            self.counted[counts] = counts_above(self.page.timeline, counts)
        counted = self.counted[counts]
        if counted is None:
            return {}
        thresholds, above = counted
        timeline, step = self.page.timeline, self.page.timeline.step
        k = np.arange(above.shape[1]) * step
        is_apart = np.ones(k.size, dtype=np.bool_)
        for other in self.page.spans:
            margin = 0 if other == span else PEAKS_APART
            is_apart &= (k + step <= other[0] - margin) | (k >= other[1] + margin)
        is_judged, (first, last) = timeline.is_soak(k), span
        parts = {
            "before": is_apart & (k >= first - AROUND_SECONDS) & (k + step <= first),
            "during": (k + step > first) & (k < last),
            "after": is_apart & (k >= last) & (k + step <= last + AROUND_SECONDS),
        }
        curves = {
            name: curve(thresholds, above[:, part & is_judged].sum(axis=1))
            for name, part in parts.items()
        }
        return {name: one for name, one in curves.items() if one}

    def _written(self) -> list[int] | None:
        """Return the payload acknowledged by the end of each bucket, in kB; None where it is not known."""
        names = self._clients("acked_messages")
        if not names:
            return None
        rates = combined([self.blocks.native(name) for name in names], "sum")
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


def _is_own(metric: str) -> bool:
    """True for how soakd's own processes did, and for how old their last look is."""
    return metric.startswith(_OWN) or metric.endswith("_poll_age_seconds")


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
