"""How far hosts' clocks may have been off stands beside the latency between them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from soak.core.model import Column
from soak.core.series import series_name
from spark.batch.timeline import Timeline
from spark.report import job as report
from tests.support.spark.report_run import timeline
from tests.support.spark.synthetic_run import Shape

QUIET = Shape(seconds=40, warm_up=10, deletions_k=None, fault_k=None)


def between_hosts(found: Timeline, bounds: dict[str, float]) -> Timeline:
    """Return a run whose consumer is on host b; `bounds` are those of host b's clock by their source."""
    columns, series = dict(found.columns), dict(found.series)
    for source, seconds in bounds.items():
        column = Column("clock_offset_bound_seconds", (("source", source),), "seconds")
        columns[series_name("probe@b", column.name)] = column
        series[series_name("probe@b", column.name)] = (np.arange(2), np.array([0.0001, seconds]))
    seconds_of = {**found.seconds, "consume.0@b": found.seconds["consume.0@host"]}
    return replace(found, columns=columns, series=series, seconds=seconds_of)


def page_of(found: Timeline) -> str:
    report.write(found, [], None)
    return found.folder.report.read_text()


@pytest.mark.long
def test_between_hosts_the_largest_bound_of_each_clock_is_reported(tmp_path: Path) -> None:
    """Chrony's bound before the kernel's; a host without the probe is not known."""
    page = page_of(between_hosts(timeline(tmp_path, QUIET), {"kernel": 0.5, "chrony": 0.0023}))

    assert "b off by at most 2.3 ms; host not known" in page


@pytest.mark.long
def test_on_one_host_clocks_do_not_matter(tmp_path: Path) -> None:
    """There the monotonic clock is used."""
    assert "as their clocks agree" not in page_of(timeline(tmp_path, QUIET))
