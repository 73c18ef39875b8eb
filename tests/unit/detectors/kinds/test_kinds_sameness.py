"""What must change nothing: the order of series, their unit, when it was, for kinds beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from detectors.level_shift import Config
from detectors.offline.steps import Config as Steps
from detectors.offline.steps import detect_together
from detectors.panel import Panel
from soak.core.model import Change, Column, Finding, Series
from spark.batch import offline_analysis

COLUMNS = tuple(
    Column(f"{latency}_latency_seconds", (("quantile", quantile),), "seconds")
    for latency in ("publish", "end_to_end")
    for quantile in ("0.5", "0.99", "0.999")
)
Names = tuple[str, str, str, int, int, tuple[int, int]]


@pytest.fixture(scope="module")
def latencies() -> NDArray[np.float64]:
    """Return rows of COLUMNS: a pulse train in one p99, a step of the other's p50, and one of a p99.9."""
    y = np.random.default_rng(3).normal(0.0, 0.05, (700, 6)) + np.array([0, 0.5, 1, 0, 0.5, 1])
    for tick in range(250, 640, 20):
        y[tick : tick + 2, 1] += 0.5
    y[600:, 2] += 0.5
    y[450:, 3] += 0.6
    return np.asarray(0.01 * 10.0**y)


def fed(
    values: NDArray[np.float64], order: Sequence[int] = range(6), first_k: int = 0
) -> list[Change]:
    panel = Panel(Config(smallest_step_seconds=0.0))
    columns = tuple(COLUMNS[at] for at in order)
    return [
        change
        for k, row in enumerate(values[:, list(order)])
        for change in panel.update("s", columns, first_k + k, row, True, "soak")
    ]


def names(said: Sequence[Change]) -> list[Names]:
    """Return what was said, when and of which series, without levels and in no order of series."""
    return sorted(
        (one.kind, one.series, one.state, one.raised_k, one.onset_k, one.interval) for one in said
    )


@pytest.fixture(scope="module")
def said(latencies: NDArray[np.float64]) -> list[Change]:
    return fed(latencies)


@pytest.mark.long
def test_permuting_the_columns_permutes_what_is_said(
    latencies: NDArray[np.float64], said: list[Change]
) -> None:
    assert {one.kind for one in said} == {"step", "spikes", "tail"}
    assert names(fed(latencies, (4, 2, 0, 5, 3, 1))) == names(said)


@pytest.mark.long
def test_neither_unit_nor_time_changes_what_is_said(
    latencies: NDArray[np.float64], said: list[Change]
) -> None:
    """Ten times as slow, and two hours later."""
    later = fed(10.0 * latencies, first_k=7200)
    moved = [
        replace(
            one,
            raised_k=one.raised_k - 7200,
            onset_k=one.onset_k - 7200,
            interval=(one.interval[0] - 7200, one.interval[1] - 7200),
        )
        for one in later
    ]

    assert names(moved) == names(said)
    assert [one.before for one in later] == pytest.approx([10.0 * one.before for one in said])


def test_the_order_of_series_that_are_cut_together_does_not_matter() -> None:
    rng = np.random.default_rng(5)
    many = []
    for name, size in (("a", 0.0), ("b", 0.3), ("c", 0.8)):
        y = rng.normal(0.0, 0.05, 600)
        y[300:] += size
        many.append(Series(name, np.arange(600), 0.01 * 10.0**y))

    found, turned = (detect_together(one, Steps()) for one in (many, many[::-1]))

    assert found == turned
    assert [change.onset_k for step in found for change in step] == [300, 300]


def test_a_step_found_online_that_the_offline_analysis_calls_a_drift_is_reported_as_that() -> None:
    """Under its own key; where the offline analysis has a step too, it stays a step."""
    drift = Change("s|p99", 5400, 600, (300, 900), 0.01, 0.04, "confirmed", 0.99, kind="drift")
    step = replace(drift, kind="step", raised_k=1500, onset_k=1490, interval=(1488, 1492))
    finding = Finding(
        "run-1500",
        "run",
        1500,
        1490,
        (1488, 1492),
        "s|p99",
        "step",
        0.01,
        0.02,
        "confirmed",
        0.9,
        True,
    )
    course = offline_analysis._drift_of(finding, [], [drift])
    assert course is not None
    found = offline_analysis._as_drift(finding, course)

    assert (found.key, found.kind, found.onset_k, found.after) == ("run-1500", "drift", 600, 0.04)
    assert offline_analysis._drift_of(finding, [step], [drift]) is None
    assert offline_analysis._drift_of(replace(finding, after=0.005), [], [drift]) is None
