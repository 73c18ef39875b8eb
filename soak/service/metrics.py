"""The newest values of a daemon as a Prometheus page, rendered only when it is scraped.

The address of each page is in `<run>/metrics/<daemon>.json`, in the format of file_sd_configs.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from soak.core.model import Column
from soak.core.plan.plan import Metrics
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.service.files import write_atomically

if TYPE_CHECKING:
    from prometheus_client import Metric

LOG = logging.getLogger(__name__)

_PREFIX = "soak_probe_"  # of metrics whose names a scraper uses for itself

Samples = Sequence[tuple[Column, float]]


class MetricsPage:
    """Holds the newest values; to show new ones costs an assignment."""

    def __init__(self, clock: Clock, labels: Mapping[str, str]) -> None:
        self._clock = clock
        self._labels = dict(labels)
        self._shown: tuple[Samples, int] = ((), 0)

    def show(self, samples: Samples) -> None:
        self._shown = (samples, self._clock.wall_ns())

    def collect(self) -> Iterator[Metric]:
        """Yield one family for each metric; values that were not measured are left out."""
        from prometheus_client import Metric  # noqa: PLC0415  # only plans with `metrics` need it

        samples, at_ns = self._shown
        about = Metric("soak_daemon_info", "Daemon and run of this page.", "gauge")
        about.add_sample(about.name, self._labels, 1.0)
        yield about
        if at_ns:
            name = "soak_last_record_timestamp_seconds"
            newest = Metric(name, "Time of the values below, in seconds since 1970.", "gauge")
            newest.add_sample(name, {}, at_ns / SECOND_NS)
            yield newest
        families: dict[str, Metric] = {}
        for column, value in samples:
            if not math.isnan(value):
                name = f"{_PREFIX}{column.metric}" if _is_reserved(column.metric) else column.metric
                family = families.get(name)
                if family is None:
                    stem = name.removesuffix("_total")
                    kind = "gauge" if stem == name else "counter"
                    family = families[name] = Metric(stem, f"in {column.unit}", kind)
                family.add_sample(name, dict(column.labels), value)
        yield from families.values()


def publish(
    page: MetricsPage, run_dir: Path, metrics: Metrics | None, daemons: Sequence[str], daemon: str
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
    target = [{"targets": [f"{host}:{port}"], "labels": {"daemon": daemon}}]
    path = _folder(run_dir) / f"{daemon}.json"
    with contextlib.suppress(OSError):  # the page is served all the same
        write_atomically(path, json.dumps(target) + "\n")
    return end


def _serve_nothing() -> None:
    """Nothing is served."""


def _is_reserved(metric: str) -> bool:
    """True for names that a scraper gives to metrics of its own; a probe may have fetched such metrics."""
    return metric == "up" or metric.startswith("scrape_")


def remove_metrics_targets(run_dir: Path) -> None:
    """Remove the addresses of the pages of a run whose daemons have ended."""
    shutil.rmtree(_folder(run_dir), ignore_errors=True)


def _folder(run_dir: Path) -> Path:
    return run_dir / "metrics"
