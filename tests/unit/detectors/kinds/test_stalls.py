"""Stalls: single seconds in which latency is ten times as high, as while brokers restart in turn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from detectors.kinds import drift, spikes, stalls
from detectors.kinds.recent_rows import Recent
from detectors.minimum_effect import Config
from detectors.panel import Panel, Watched, in_turn
from soak.core.model import Change
from tests.support.examples import examples
from tests.unit.detectors.kinds.test_panel_kinds import COLUMNS, CONFIG, P99, latencies, noise

ROLLING = (600, 601, 618, 619, 634, 635)
"""Three brokers are away for two seconds each, at intervals of about a quarter of a minute."""
BASELINE = 120


def stalled(seconds: Iterable[int], *, rows: int = 900, decades: float = 1.5) -> list[Change]:
    """Return the changes of p99 that the panel of all kinds finds."""
    y = noise(rows)
    y[list(seconds)] += decades
    panel, changes = Panel(CONFIG), []
    for k, row in enumerate(latencies(y)):
        changes += panel.update("s", COLUMNS, k, row, True, "soak")
    return [one for one in changes if one.state in {"confirmed", "gone"}]


def watched(seconds: Iterable[int], *, rows: int = 900, resumed: int | None = None) -> list[Change]:
    """Return what one series with stalls brings, without the other kinds."""
    y = noise(rows)
    y[list(seconds)] += 1.5
    return watched_in(y, resumed)


def watched_in(y: NDArray[np.float64], resumed: int | None = None) -> list[Change]:
    watch, recent, config = stalls.Watch(BASELINE), Recent(), Config()
    found: list[Change] = []
    for k, value in enumerate((y - 2.0).tolist()):
        if k == resumed:
            watch = stalls.Watch.of(watch.to_state())
        found += watch.take(P99, k, value, recent, config)
        recent.take(k, value)
    return found


def test_brokers_that_restart_in_turn_are_one_change() -> None:
    raised, over = stalled(ROLLING)

    assert (raised.kind, raised.series, raised.state) == ("stalls", P99, "confirmed")
    assert raised.onset_k == 600
    assert raised.raised_k == 624, "the fourth second is the 619th, and five calm ones follow"
    assert 0.8 < raised.confidence < 1.0
    assert raised.before == pytest.approx(0.01, rel=0.2)
    assert raised.after / raised.before == pytest.approx(10.0**1.5, rel=0.3)
    assert (over.state, over.raised_k, over.resolved_k) == ("gone", raised.raised_k, 636)


@pytest.mark.parametrize(
    ("seconds", "decades"),
    [
        (ROLLING[:3], 1.5),
        (ROLLING, 0.9),
        ((600, 630, 660, 690, 720), 1.5),
    ],
    ids=["three", "eight times as high", "three a minute"],
)
def test_fewer_or_lower_seconds_are_how_a_cluster_is(
    seconds: Sequence[int], decades: float
) -> None:
    assert stalled(seconds, decades=decades) == []


def test_a_level_is_a_step_and_no_stalls() -> None:
    """Neither when it begins nor when it ends."""
    found = stalled([*range(600, 660)])

    assert {one.kind for one in found} == {"step"}


def test_a_cluster_that_is_somewhat_slower_is_calm_between_the_stalls() -> None:
    """While copies catch up, 1.8 times as slow is neither a stall nor a level yet."""
    y = noise(900)
    y[620:628] += 0.25
    y[list(ROLLING)] += 1.5
    raised, _ = watched_in(y)

    assert (raised.onset_k, raised.raised_k) == (600, 624)


def test_a_level_that_is_too_short_for_a_step_stalls() -> None:
    raised, over = stalled(range(600, 607))

    assert (raised.kind, raised.onset_k, raised.burst_seconds) == ("stalls", 600, 7.0)
    assert over.resolved_k == 607


@pytest.mark.parametrize("gap", [200, 400])
def test_what_comes_often_is_how_the_cluster_is(gap: int) -> None:
    """It is reported three times in two hours, and again when it had become rare."""
    often = [at + second for at in range(600, 600 + 8 * gap, gap) for second in range(4)]
    late = [12_000, 12_001, 12_002, 12_003]

    raised = [one for one in watched([*often, *late], rows=13_000) if one.state == "confirmed"]

    assert [one.onset_k for one in raised] == [600, 600 + gap, 600 + 2 * gap, 12_000]


def test_what_was_there_from_the_start_is_no_news() -> None:
    early = [at + second for at in (70, 400, 800) for second in range(4)]

    assert watched(early, rows=900) == []


def test_a_change_of_another_kind_in_the_same_second_goes_first() -> None:
    """Series and second name a change; the stalls are seen again one second later."""
    watch, recent, config = stalls.Watch(BASELINE), Recent(), Config()
    y = noise(700) - 2.0
    y[list(ROLLING)] += 1.5
    raised: list[Change] = []
    for k, value in enumerate(y.tolist()):
        raised += watch.take(P99, k, value, recent, config)
        recent.take(k, value)
        if raised:
            break
    train = replace(raised[0], kind="spikes", period_seconds=52.0, burst_seconds=3.0)
    known = {P99: Watched(recent, drift.Watch(), spikes.Watch(standing=train), watch)}
    k = raised[0].raised_k
    kept = in_turn(known, [train, *raised], k, set())
    again = watch.take(P99, k + 1, float(y[k + 1]), recent, config)

    assert kept == [train]
    assert [(one.onset_k, one.raised_k) for one in again] == [(600, k + 1)]


def test_a_clock_that_is_set_back_begins_a_baseline_of_its_own() -> None:
    """The seconds of before may come again, and say nothing of how the cluster was."""
    panel, changes = Panel(CONFIG), []
    for epoch, y in enumerate((noise(900), noise(900))):
        y[list(ROLLING)] += 1.5
        for k, row in enumerate(latencies(y)):
            changes += panel.update("s", COLUMNS, k, row, True, "soak", epoch=epoch)
    raised = [one for one in changes if one.state == "confirmed"]

    assert [(one.kind, one.onset_k) for one in raised] == [("stalls", 600)] * 2
    assert all(0.8 < one.confidence < 1.0 for one in raised)


@pytest.mark.parametrize(
    ("series", "is_looked_at"),
    [
        (P99, True),
        (P99.replace("0.99", "0.5"), False),
        (P99.replace("0.99", "0.999"), False),
        (P99.replace("{", '{leader="1",'), False),
    ],
)
def test_the_same_seconds_are_reported_once(series: str, *, is_looked_at: bool) -> None:
    assert stalls.is_watched(series) == is_looked_at


@settings(max_examples=examples(30))
@given(
    seconds=st.sets(st.integers(130, 890), max_size=40),
    resumed=st.integers(1, 899),
)
def test_a_state_that_is_stored_and_read_changes_nothing(seconds: set[int], resumed: int) -> None:
    """Whatever comes: each change is raised once and ends at most once, after it began."""
    found = watched(seconds)

    assert watched(seconds, resumed=resumed) == found
    for one in found:
        assert one.state == "confirmed" or (one.resolved_k or 0) > one.onset_k
    raised = [one.raised_k for one in found if one.state == "confirmed"]
    ended = [one.raised_k for one in found if one.state == "gone"]
    assert raised == sorted(set(raised))
    assert ended in (raised, raised[:-1])
