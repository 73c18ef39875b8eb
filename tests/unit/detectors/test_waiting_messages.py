"""Seconds without an acknowledgement: how long a message has waited is the least that its latency will be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from detectors.level_shift import Config
from detectors.panel import Panel
from soak.core.model import Column
from soak.core.series import series_name
from spark.batch.offline_analysis import offline_changes
from tests.support.spark.report_run import timeline
from tests.support.spark.synthetic_run import PRODUCER, Shape

P99 = Column("publish_latency_seconds", (("quantile", "0.99"),), "seconds")
WAITING = Column("publish_waiting_seconds", (), "seconds")
STUTTERS = 900


def confirmed_k(*, waiting: float) -> int | None:
    """Return when a step of p99 is confirmed in which two seconds of three have no acknowledgement."""
    p99 = 0.06 * 10.0 ** np.random.default_rng(8).normal(0.0, 0.12, STUTTERS + 40)
    p99[STUTTERS:] *= 80.0
    panel = Panel(Config())
    for k, latency in enumerate(p99):
        is_silent = k >= STUTTERS and k % 3 > 0
        row = np.array([np.nan, waiting] if is_silent else [latency, 0.0])
        for change in panel.update("produce.0@h", (P99, WAITING), k, row, True, "soak"):
            if change.state == "confirmed" and change.series.endswith(P99.name):
                assert abs(change.onset_k - STUTTERS) <= 1
                return change.raised_k
    return None


def test_latency_that_stutters_is_a_step_as_soon_as_one_that_is_high_in_every_second() -> None:
    found = confirmed_k(waiting=4.0)

    assert found is not None
    assert found - STUTTERS <= 16


@pytest.mark.parametrize("waiting", [0.0, np.nan])
def test_a_message_that_waits_less_than_a_second_says_nothing(waiting: float) -> None:
    slow = confirmed_k(waiting=waiting)

    assert slow is None or slow - STUTTERS > 24


@pytest.mark.parametrize(("waiting", "onsets"), [(4.0, [120, 138]), (0.0, [])])
def test_looking_back_it_is_a_step_too(
    tmp_path: Path, *, waiting: float, onsets: list[int]
) -> None:
    found = timeline(tmp_path, Shape(fault_k=None, deletions_k=None))
    p99, waited = (series_name(PRODUCER, column.name) for column in (P99, WAITING))
    k, values = found.series[p99]
    is_slow = (k >= 120) & (k < 138)
    is_kept = ~is_slow | (k % 6 == 0)
    series = {
        **found.series,
        p99: (k[is_kept], np.where(is_slow, 80.0, 1.0)[is_kept] * values[is_kept]),
        waited: (k, np.where(is_slow, waiting, 0.0)),
    }
    changes = [one for step in offline_changes(replace(found, series=series)) for one in step]

    assert [one.onset_k for one in changes if one.series == p99] == onsets
