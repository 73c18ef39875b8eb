"""Seconds without an acknowledgement: how long a message has waited is the least that its latency will be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from detectors.level_shift import Config
from detectors.panel import Panel
from soak.core.model import Change, Column
from soak.core.series import series_name
from spark.batch.offline_analysis import offline_changes
from tests.support.spark.report_run import timeline
from tests.support.spark.synthetic_run import PRODUCER, Shape

P99 = Column("publish_latency_seconds", (("quantile", "0.99"),), "seconds")
WAITING = Column("publish_waiting_seconds", (), "seconds")
STUTTERS = 900


def changes_of(rows: Iterable[tuple[float, float]]) -> list[Change]:
    """Return the changes of p99 in seconds with these latencies and waits that were not withdrawn."""
    panel = Panel(Config())
    found = [
        change
        for k, row in enumerate(rows)
        for change in panel.update("produce.0@h", (P99, WAITING), k, np.array(row), True, "soak")
    ]
    return [one for one in found if one.series.endswith(P99.name) and one.state == "confirmed"]


def latencies(level: float, number: int) -> NDArray[np.float64]:
    return level * 10.0 ** np.random.default_rng(8).normal(0.0, 0.05, number)


def acknowledged_each(period: int, level: float, number: int) -> list[tuple[float, float]]:
    """Return seconds of which one in `period` has acknowledgements, after as long a wait."""
    values = latencies(level, number)
    return [(np.nan, float(k % period)) if k % period else (values[k], 0.0) for k in range(number)]


def confirmed_k(*, waiting: float) -> int | None:
    """Return when a step of p99 is confirmed in which two seconds of three have no acknowledgement."""
    p99 = 0.06 * 10.0 ** np.random.default_rng(8).normal(0.0, 0.12, STUTTERS + 40)
    p99[STUTTERS:] *= 80.0
    is_silent = (np.arange(p99.size) >= STUTTERS) & (np.arange(p99.size) % 3 > 0)
    waits = np.where(is_silent, waiting, 0.0)
    changes = changes_of(zip(np.where(is_silent, np.nan, p99), waits, strict=True))
    assert all(abs(one.onset_k - STUTTERS) <= 1 for one in changes)
    return changes[0].raised_k if changes else None


@pytest.mark.long
def test_latency_that_stutters_is_a_step_as_soon_as_one_that_is_high_in_every_second() -> None:
    found = confirmed_k(waiting=4.0)

    assert found is not None
    assert found - STUTTERS <= 16


@pytest.mark.long
@pytest.mark.parametrize("waiting", [0.0, np.nan])
def test_a_message_that_waits_less_than_a_second_says_nothing(waiting: float) -> None:
    slow = confirmed_k(waiting=waiting)

    assert slow is None or slow - STUTTERS > 24


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after", "levels"),
    [
        ([(one, 0.0) for one in latencies(0.06, 900)], acknowledged_each(6, 5.9, 120), (0.06, 5.9)),
        (acknowledged_each(2, 2.0, 900), acknowledged_each(3, 3.4, 300), (2.0, 3.4)),
        (acknowledged_each(3, 3.0, 900), acknowledged_each(5, 5.5, 300), (3.0, 5.5)),
    ],
    ids=["from steady", "from two seconds", "from three seconds"],
)
def test_the_level_is_that_of_the_latencies_though_waits_are_shorter(
    before: list[tuple[float, float]], after: list[tuple[float, float]], levels: tuple[float, float]
) -> None:
    (step,) = changes_of([*before, *after])

    assert (step.before, step.after) == pytest.approx(levels, rel=0.15)
    assert abs(step.onset_k - 900) <= 6


@pytest.mark.long
def test_latency_above_the_wait_does_not_fall_while_nothing_is_acknowledged() -> None:
    """The wait that is recorded ends at ten seconds."""
    silent = [(np.nan, 10.0) if k % 3 else (45.0, 0.0) for k in range(300)]

    assert changes_of([*((one, 0.0) for one in latencies(40.0, 900)), *silent]) == []


@pytest.mark.long
@pytest.mark.parametrize("period", [2, 3, 4])
def test_one_message_that_waits_is_not_the_latency_of_seconds_in_which_none_was_due(
    period: int,
) -> None:
    """At less than a message a second: the others were acknowledged at once."""
    sent = Column("sent_messages", (), "messages")
    panel = Panel(Config())
    found = []
    for k, latency in enumerate(latencies(0.02, 2000)):
        is_due = k % period == 0
        wait = min(10.0, k - 1500.0) if 1500 <= k < 1540 else 0.0
        row = np.array([latency if is_due else np.nan, wait, float(is_due)])
        found += panel.update("produce.0@h", (P99, WAITING, sent), k, row, True, "soak")

    assert [one for one in found if one.series.endswith(P99.name)] == []


@pytest.mark.long
def test_seconds_that_are_known_ahead_change_nothing() -> None:
    """Rows of a batch are judged together: the state is that of one by one, to the bit."""
    rng = np.random.default_rng(0)

    def columns(*thresholds: str) -> tuple[Column, ...]:
        above = "publish_latency_above_messages"
        acked = Column("acked_messages", (), "messages")
        counts = (Column(above, (("threshold", one),), "messages") for one in thresholds)
        return (P99, WAITING, acked, *counts)

    def second(latency: float, wait: float) -> NDArray[np.float64]:
        above = (10 + rng.poisson(3), 1 + rng.poisson(1), 0)
        return np.array([latency, wait, *((0,) * 4 if np.isnan(latency) else (1000, *above))])

    steady = [(one, 0.0) for one in latencies(0.01, 200)]
    first, then = columns("0.01", "0.02", "0.05"), columns("0.011", "0.022", "0.055")
    rows = [(first, second(*one)) for one in (*steady, *acknowledged_each(4, 3.5, 80))]
    rows += [(then, second(*one)) for one in ((np.nan, 5.0), *steady)]  # begun anew, and silent
    alone, together = Panel(Config()), Panel(Config())
    for k, (names, values) in enumerate(rows):
        ahead = [other for others, other in rows[k + 1 : k + 8] if others is names]
        alone.update("produce.0@h", names, k, values, True, "soak")
        given = partial(list[NDArray[np.float64]], ahead)
        together.update("produce.0@h", names, k, values, True, "soak", following=given)

    assert alone.to_bytes() == together.to_bytes()


@pytest.mark.long
@pytest.mark.parametrize(("waiting", "onsets"), [(4.0, [120, 138]), (0.0, [])])
def test_in_the_offline_analysis_it_is_a_step_too(
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
