"""The chart of an outage: no series of the journals is its length, so it shows what came through."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from soak.alerting.chart import draw_chart, drawn, read_window
from tests.support.alerting.findings import finding
from tests.support.spark.synthetic_run import (
    CONSUMER,
    PRODUCER,
    START_WALL_NS,
    Shape,
    write_synthetic_run,
)


@pytest.mark.long
@pytest.mark.parametrize(
    "series",
    [f"{PRODUCER}|acknowledgement_outage_seconds", f"{CONSUMER}|delivery_outage_seconds"],
)
def test_an_outage_is_drawn_by_the_messages_that_came_through(tmp_path: Path, series: str) -> None:
    folder = write_synthetic_run(
        tmp_path / "run", Shape(seconds=60, fault_k=None, deletions_k=None)
    )
    outage = drawn(finding(series=series, kind="outage", onset_k=20, before=0.0, after=5.0))
    window = read_window(folder.journal, outage.series, 10, 40)

    assert window is not None
    assert np.all(window.headline_values == 400.0)
    assert draw_chart(outage, window, START_WALL_NS).startswith(b"\x89PNG")


def test_a_latency_is_drawn_as_it_is() -> None:
    step = finding()

    assert drawn(step) is step
