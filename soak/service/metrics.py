"""The newest values of a daemon as a Prometheus page, rendered only when it is scraped.

Where each page is stands in `<run>/metrics/<daemon>.json`, as Prometheus's file_sd_configs read it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from soak.core.model import Column
from soak.core.plan.plan import Metrics
from soak.core.ports import Clock
from soak.core.units import SECOND_NS

if TYPE_CHECKING:
    from prometheus_client import Metric

LOG = logging.getLogger("soak.service.metrics")

_OURS = "soak_probe_"

Samples = Sequence[tuple[Column, float]]


class MetricsPage:
    """Holds what was shown last: to show more costs an assignment."""

    def __init__(self, clock: Clock, labels: Mapping[str, str]) -> None:
        self._clock = clock
        self._labels = dict(labels)
        self._shown: tuple[Samples, int] = ((), 0)

    def show(self, samples: Samples) -> None:
        self._shown = (samples, self._clock.wall_ns())

    def collect(self) -> Iterator[Metric]:
        """Give one family a metric; what was not measured is left out."""
        from prometheus_client import Metric  # noqa: PLC0415  # only where a plan wants pages

        samples, at_ns = self._shown
        about = Metric("soak_daemon_info", "which daemon of which run this is", "gauge")
        about.add_sample(about.name, self._labels, 1.0)
        yield about
        if at_ns:
            name = "soak_last_record_timestamp_seconds"
            newest = Metric(
                name, "when the numbers below were taken, in seconds since 1970", "gauge"
            )
            newest.add_sample(name, {}, at_ns / SECOND_NS)
            yield newest
        families: dict[str, Metric] = {}
        for column, value in samples:
            if not math.isnan(value):
                name = f"{_OURS}{column.metric}" if _is_reserved(column.metric) else column.metric
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
    """Serve the page where the plan wants it; the i-th of `daemons` has the i-th port from the plan's on.

    Returns what ends the serving. A port that is taken costs the page, never the daemon.
    """
    if metrics is None:
        return _serve_nothing
    from soak.service.metrics_server import serve  # noqa: PLC0415  # only where a plan wants pages

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
    with contextlib.suppress(OSError):  # the page is there all the same
        path.parent.mkdir(exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_text(json.dumps(target) + "\n")
        draft.replace(path)
    return end


def _serve_nothing() -> None:
    """Nothing is served."""


def _is_reserved(metric: str) -> bool:
    """Return whether a server gives this name to its own scrapes: ours are of what a probe fetched."""
    return metric == "up" or metric.startswith("scrape_")


def remove_metrics_targets(run_dir: Path) -> None:
    """Take back where the pages of a run are, once its daemons are gone: nobody is to ask for them."""
    shutil.rmtree(_folder(run_dir), ignore_errors=True)


def _folder(run_dir: Path) -> Path:
    return run_dir / "metrics"
