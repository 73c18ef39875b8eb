"""The brokers' drives on the page and in `summary.json`: alone, and under the load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from soak.core.cluster.drives import Measured
from soak.core.model import Column
from soak.core.series import series_name
from soak.store import run_folder
from spark.batch.timeline import Timeline
from spark.report import job as report
from tests.support.spark.report_run import summary, timeline
from tests.support.spark.synthetic_run import START_WALL_NS, Shape

BEFORE = Measured(
    "host", ("/data <x>",), "before", START_WALL_NS - 40 * 10**9, 99, 0.001, 0.002, 1e9
)
AFTER = replace(
    BEFORE, moment="after", at_wall_ns=START_WALL_NS + 250 * 10**9, fsync_p99_seconds=0.0046
)
QUIET = Shape(seconds=40, warm_up=10, deletions_k=None, fault_k=None)


def with_turnover(found: Timeline, *turns: float, capacity: float = 2.0**30) -> Timeline:
    """Return a run whose probe recorded these drive writes of one drive, a second each."""
    columns, series, k = dict(found.columns), dict(found.series), np.arange(len(turns))
    for metric, values in (
        ("disk_device_turnover_ratio", np.array(turns)),
        ("disk_capacity_bytes", np.full(len(turns), capacity)),
    ):
        column = Column(metric, (("device", "sda"),))
        columns[series_name("probe@host", column.name)] = column
        series[series_name("probe@host", column.name)] = (k, values)
    return replace(found, columns=columns, series=series)


@pytest.mark.long
def test_what_the_drives_could_do_alone_is_on_the_page_and_in_the_summary(tmp_path: Path) -> None:
    """Before and after the load, with the warning that the load has worn it."""
    found = timeline(tmp_path, QUIET)
    run_folder.append_drive_checks(found.folder, [BEFORE, AFTER])

    report.write(found, [], None)

    body, page = summary(found.folder)["drives"], found.folder.report.read_text()
    assert [one["moment"] for one in body["checks"]] == ["before", "after"]
    assert len(body["warnings"]) == 1
    assert "Fsync p99 of host:/data &lt;x&gt; was 2.3 times as long after the load" in page
    assert "4.6 ms" in page


def test_bytes_written_for_each_byte_of_payload_are_known_where_both_are(tmp_path: Path) -> None:
    """Half a turn of 1 GiB, in two parts because the device began anew in between."""
    found = with_turnover(timeline(tmp_path, QUIET), 3.0, 3.25, 0.0, 0.25)

    report.write(found, [], None)

    body = summary(found.folder)
    client = body["audit"]["acked"] * found.plan.load.mean_size
    assert body["drives"]["written"] == {"host:sda": {"turns": 0.5, "bytes": 2.0**29}}
    assert body["drives"]["client_bytes"] == client
    assert body["drives"]["write_amplification"] == pytest.approx(2**29 / client, rel=1e-3)
    assert "bytes for each byte of payload acknowledged" in found.folder.report.read_text()


@pytest.mark.long
def test_without_a_probe_or_a_check_the_report_says_so(tmp_path: Path) -> None:
    """Nothing is made up."""
    found = timeline(tmp_path, QUIET)

    report.write(found, [], None)

    body = summary(found.folder)["drives"]
    assert (body["checks"], body["written"], body["write_amplification"]) == ([], {}, None)
    assert "The drives were not measured without load" in found.folder.report.read_text()
