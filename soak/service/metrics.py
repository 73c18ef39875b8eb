"""The newest values of a daemon as a Prometheus page, rendered only when it is scraped.

The address of each page is in `<run>/metrics/<daemon>.json`, in the format of file_sd_configs, with run, plan
and daemon as labels of the target.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from soak.core.model import THRESHOLDS_SECONDS, Column, Distribution
from soak.core.plan.plan import Metrics
from soak.core.ports import Clock
from soak.core.series import Labels, parse_series
from soak.core.units import SECOND_NS
from soak.service.files import write_atomically
from soak.service.metric_names import ADDED_UP, SHOWN, Shown, shown_as

if TYPE_CHECKING:
    from prometheus_client import Metric

LOG = logging.getLogger(__name__)

MAX_SERIES = 10_000
"""Of more, those that no longer exist are forgotten: topics and brokers may come and go for weeks."""
KEPT_NS = 300 * SECOND_NS
"""So long a value is shown that is not measured again: some probes read once a minute."""

Samples = Sequence[tuple[Column, float]]
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

Distributions = Mapping[str, Distribution]
"""Latencies of one second by the names of their columns, without the label of the quantile."""


@dataclass(frozen=True, slots=True)
class _State:
    """What the page shows; replaced as a whole, as a scrape may read it meanwhile."""

    newest: Mapping[Column, tuple[float, int]] = field(default_factory=dict)  # measured when
    sums: Mapping[Column, float] = field(default_factory=dict)
    totals: Mapping[str, Distribution] = field(default_factory=dict)
    at_ns: int = 0


class MetricsPage:
    """Holds the newest values, and the sums and distributions of all seconds since the daemon's start."""

    def __init__(self, clock: Clock, labels: Mapping[str, str]) -> None:
        self._clock = clock
        self.labels = dict(labels)
        self._state = _State()

    def show(self, samples: Samples, distributions: Distributions | None = None) -> None:
        """Take in what was measured in one second."""
        last, now_ns = self._state, self._clock.mono_ns()
        sums = _bounded(last.sums, (column for column, _ in samples))
        newest: dict[Column, tuple[float, int]] = {}
        for column, value in samples:
            before = last.newest.get(column)
            if not math.isnan(value):
                newest[column] = value, now_ns
                since_ns = SECOND_NS if before is None else now_ns - before[1]
                kind = "" if (shown := shown_as(column)) is None else shown.kind
                if kind in ADDED_UP:
                    seconds = 1.0 if kind == "sum" else since_ns / SECOND_NS
                    sums[column] = sums.get(column, 0.0) + value * seconds
            elif before is not None and now_ns - before[1] < KEPT_NS:
                newest[column] = before
        found = _bounded(last.totals, distributions or {})
        for name, second in (distributions or {}).items():
            found[name] = _added(found.get(name, _NOTHING), second)
        self._state = _State(newest, sums, found, self._clock.wall_ns())

    def collect(self) -> Iterator[Metric]:
        """Yield one family for each metric; values that were not measured are left out."""
        from prometheus_client import Metric  # noqa: PLC0415  # only plans with `metrics` need it

        state = self._state
        about = Metric("soak_daemon_info", "Daemon and run of this page.", "gauge")
        about.add_sample(about.name, self.labels, 1.0)
        yield about
        if state.at_ns:
            name = "soak_last_record_timestamp_seconds"
            newest = Metric(name, "Time of the newest values, in seconds since 1970.", "gauge")
            newest.add_sample(name, {}, state.at_ns / SECOND_NS)
            yield newest
        families: dict[str, Metric] = {}

        def family_of(shown: Shown, kind: str) -> Metric:
            if shown.name not in families:
                families[shown.name] = Metric(shown.name, shown.help, kind)
            return families[shown.name]

        for column, (value, _) in state.newest.items():
            shown = shown_as(column)
            if shown is None or shown.kind in {*ADDED_UP, "histogram"}:
                continue
            name = f"{shown.name}_total" if shown.kind == "counter" else shown.name
            family_of(shown, shown.kind).add_sample(name, _labels_of(column.labels), value)
        for column, value in state.sums.items():
            shown = shown_as(column)
            if shown is not None and not _is_in_histogram(column):
                family_of(shown, "counter").add_sample(
                    f"{shown.name}_total", _labels_of(column.labels), value
                )
        for name, total in state.totals.items():
            series = parse_series(name)
            shown = _by_leader(SHOWN[series.metric], series.labels)
            _add_histogram(family_of(shown, "histogram"), _labels_of(series.labels), total)
        yield from families.values()


_NOTHING = Distribution((0,) * (len(THRESHOLDS_SECONDS) + 1), 0.0)
_BUCKETS = (*(f"{threshold:g}" for threshold in THRESHOLDS_SECONDS), "+Inf")
"""The upper ends of all buckets of all daemons and runs, so that their histograms can be added."""


def _bounded(known: Mapping[_Key, _Value], present: Iterable[_Key]) -> dict[_Key, _Value]:
    """Return a copy; where there are too many, of those that are present."""
    if len(known) <= MAX_SERIES:
        return dict(known)
    return {key: known[key] for key in present if key in known}


def _added(one: Distribution, other: Distribution) -> Distribution:
    counts = tuple(map(sum, zip(one.counts, other.counts, strict=True)))
    return Distribution(counts, one.seconds + other.seconds)


def _add_histogram(family: Metric, labels: dict[str, str], total: Distribution) -> None:
    counts = list(accumulate(total.counts))
    for upper, count in zip(_BUCKETS, counts, strict=True):
        family.add_sample(f"{family.name}_bucket", {**labels, "le": upper}, float(count))
    family.add_sample(f"{family.name}_sum", labels, total.seconds)
    family.add_sample(f"{family.name}_count", labels, float(counts[-1]))


def _by_leader(shown: Shown, labels: Labels) -> Shown:
    """Return a name of its own for histograms of single leaders: a sum over one name would count twice."""
    if not labels:
        return shown
    name = f"{shown.name.removesuffix('_seconds')}_by_leader_seconds"
    return Shown(name, shown.kind, f"{shown.help} By the leader of the partition.")


def _is_in_histogram(column: Column) -> bool:
    """True for the counts above a threshold that is the end of a bucket."""
    return dict(column.labels).get("threshold", "") in _BUCKETS


def _labels_of(of: Labels) -> dict[str, str]:
    """Return labels as a page can have them: in UTF-8, and the quantile of a summary as a number."""
    labels = {name: text.encode(errors="backslashreplace").decode() for name, text in of}
    return {**labels, "quantile": "1"} if labels.get("quantile") == "max" else labels


def publish(
    page: MetricsPage,
    run_dir: Path,
    metrics: Metrics | None,
    daemons: Sequence[str],
    daemon: str,
) -> Callable[[], None]:
    """Serve a page if the plan has `metrics`, the i-th of `daemons` at the i-th port from the plan's on.

    Return a function that ends it. A port in use is logged; the daemon goes on without a page.
    """
    if metrics is None:
        return _serve_nothing
    from soak.service.metrics_server import serve  # noqa: PLC0415  # only plans with `metrics` need it

    at = daemons.index(daemon) if daemon in daemons else len(daemons)
    port = metrics.port + at if metrics.port else 0
    try:
        port, end = serve(page, metrics.address, port)
    except (OSError, OverflowError) as error:
        LOG.warning("metrics_not_served address=%s port=%d error=%s", metrics.address, port, error)
        return _serve_nothing
    LOG.info("metrics_served address=%s port=%d", metrics.address, port)
    host = f"[{metrics.address}]" if ":" in metrics.address else metrics.address
    target = [{"targets": [f"{host}:{port}"], "labels": {**page.labels, "daemon": daemon}}]
    path = _folder(run_dir) / f"{daemon}.json"
    with contextlib.suppress(OSError):  # the page is served all the same
        write_atomically(path, json.dumps(target) + "\n")
    return end


def _serve_nothing() -> None:
    """Nothing is served."""


def remove_metrics_targets(run_dir: Path) -> None:
    """Remove the addresses of the pages of a run whose daemons have ended."""
    shutil.rmtree(_folder(run_dir), ignore_errors=True)


def _folder(run_dir: Path) -> Path:
    return run_dir / "metrics"
