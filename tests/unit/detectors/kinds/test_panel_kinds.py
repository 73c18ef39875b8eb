"""The panel of all kinds: drift, spikes and tails as well as steps, resumed at any second."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from detectors.kinds import drift, spikes
from detectors.kinds.recent_rows import Recent
from detectors.level_shift import Config
from detectors.online import panel as online_panel
from detectors.online.panel import Gate
from detectors.panel import Panel, Watched, in_turn, is_name_taken
from soak.core.model import Change, Column
from soak.core.series import series_name
from tests.support.detection import tail_world

CONFIG = Config()
COLUMNS = tuple(
    Column("publish_latency_seconds", (("quantile", quantile),), "seconds")
    for quantile in ("0.5", "0.99", "0.999")
)
P99 = series_name("s", COLUMNS[1].name)


def latencies(y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rows of COLUMNS: the log10 of p99 varies by `y`, the others are noise without a change."""
    others = np.random.default_rng(9).normal(0.0, 0.05, (y.size, 2))
    return 0.01 * 10.0 ** np.column_stack([others[:, 0] - 0.5, y, others[:, 1] + 0.5])


def noise(rows: int) -> NDArray[np.float64]:
    return np.random.default_rng(4).normal(0.0, 0.05, rows)


def fed(
    values: NDArray[np.float64], columns: tuple[Column, ...] = COLUMNS, resumed: Iterable[int] = ()
) -> list[Change]:
    panel, changes = Panel(CONFIG), []
    stops = set(resumed)
    for k, row in enumerate(values):
        if k in stops:
            panel = Panel.from_bytes(panel.to_bytes(), CONFIG)
        changes += panel.update("s", columns, k, row, True, "soak")
    return changes


def confirmed_in(changes: list[Change]) -> set[tuple[str, str]]:
    return {(one.kind, one.series) for one in changes if one.state == "confirmed"}


@pytest.mark.long
def test_a_slow_rise_is_reported_once_as_drift() -> None:
    """From 10 to 40 ms within 70 minutes; that it goes on is the same change."""
    changes = fed(latencies(noise(4800) + np.clip((np.arange(4800) - 600) / 4200, 0.0, 1.0) * 0.6))

    assert confirmed_in(changes) == {("drift", P99)}
    assert len({one.raised_k for one in changes}) == 1


@pytest.mark.long
def test_a_pulse_train_that_begins_is_reported_and_its_end_too() -> None:
    y = noise(2600)
    for tick in range(600, 1700, 52):
        y[tick : tick + 3] += 0.5
    confirmed, resolved = fed(latencies(y))

    assert (confirmed.kind, confirmed.state, confirmed.onset_k) == ("spikes", "confirmed", 600)
    assert (resolved.state, resolved.raised_k) == ("gone", confirmed.raised_k)
    assert confirmed.period_seconds == 52.0


@pytest.mark.long
def test_a_pulse_train_from_the_start_is_no_news_and_hides_no_step() -> None:
    y = noise(2400)
    for tick in range(10, 2400, 52):
        y[tick : tick + 3] += 0.5
    y[1800:] += 0.5

    assert confirmed_in(fed(latencies(y))) == {("step", P99)}


@pytest.mark.long
def test_more_slow_messages_are_a_tail() -> None:
    """Six in a thousand take four times as long: p50 and p99 hardly move."""
    slow = np.where(np.arange(500) >= 330, 0.006, 0.0)
    rows = tail_world.rows(np.random.default_rng(1), 500, slow)

    assert confirmed_in(fed(rows, tail_world.COLUMNS)) == {("tail", tail_world.series("0.999"))}


def test_of_two_kinds_that_begin_in_one_second_one_is_reported_then() -> None:
    """Series and second name a change; the drift is taken back, and seen again."""
    rise = Change(P99, 3600, 600, (300, 900), 0.01, 0.04, "confirmed", 0.99, kind="drift")
    train = replace(rise, kind="spikes", period_seconds=52.0, burst_seconds=3.0)
    one = Watched(Recent(), drift.Watch(3, rise), spikes.Watch(standing=train), None)
    known, busy = {P99: one}, {"s|other"}
    kept = in_turn(known, [train, rise], 3600, busy)

    assert (kept, busy) == ([train], {"s|other", P99})
    assert (one.spikes.standing, one.drift.standing) == (train, None)
    assert is_name_taken(known, replace(rise, kind="tail"))
    assert not is_name_taken(known, replace(rise, kind="tail", raised_k=3601))


@pytest.mark.long
def test_a_state_that_is_stored_and_read_changes_nothing() -> None:
    """At seconds that share nothing with minutes: in a burst, in a minute, in an alarm."""
    y = noise(1800)
    for tick in range(300, 1500, 52):
        y[tick : tick + 3] += 0.5
    y[1600:] += 0.6
    rows = latencies(y)

    assert fed(rows, resumed=(1, 127, 301, 613, 1205, 1606)) == fed(rows)


def test_a_state_of_steps_alone_is_refused() -> None:
    """Another version wrote it; the journals have all that it was made of."""
    old = online_panel.Panel(CONFIG)
    for k, row in enumerate(latencies(noise(150))):
        old.update("s", COLUMNS, k, row, True, "soak")

    for blob in (old.to_bytes(), b""):
        with pytest.raises(ValueError, match="not a state of format SKPN"):
            Panel.from_bytes(blob, CONFIG)


@pytest.mark.long
def test_a_clock_set_back_hides_no_tail_behind_a_step_of_seconds_that_come_again() -> None:
    """The step was reported of these seconds, but it was another time: the odds show the tail first."""
    chance = np.random.default_rng(1)
    stepped = tail_world.rows(chance, 300, np.zeros(300))
    stepped[200:, :3] *= 2.5
    tailed = tail_world.rows(chance, 500, np.where(np.arange(500) >= 330, 0.006, 0.0))
    panel = Panel(CONFIG)
    before, after = (
        [
            change
            for k, row in enumerate(rows, first_k)
            for change in panel.update("s", tail_world.COLUMNS, k, row, True, "soak", epoch=epoch)
        ]
        for epoch, first_k, rows in ((0, 1000, stepped), (1, 900, tailed))
    )
    raised = [(one.kind, one.series) for one in after if one.state == "warning"]

    assert {kind for kind, _ in confirmed_in(before)} == {"step"}
    assert raised[0] == ("tail", tail_world.series("0.999"))


def test_a_clock_set_back_before_a_phase_began_does_not_hide_its_seconds() -> None:
    gate = Gate()
    for k, phase in ((5000, "catch-up"), (5001, "soak")):
        gate.take(k, 0, phase, is_valid=True)

    assert not gate.take(5002, 0, "soak", is_valid=True).counts
    assert gate.take(4000, 1, "soak", is_valid=True).counts


@pytest.mark.long
def test_a_pulse_train_ends_after_its_onset_though_the_clock_was_set_back() -> None:
    y = noise(2400)
    y[600:1200:40] += 1.0
    panel, found = Panel(CONFIG), []
    for row, values in enumerate(latencies(y)):
        epoch, k = (0, row + 5000) if row < 1200 else (1, row)
        found += panel.update("s", COLUMNS, k, values, True, "soak", epoch=epoch)
    (resolved,) = [one for one in found if one.kind == "spikes" and one.state == "gone"]

    assert resolved.resolved_k == resolved.onset_k + 1


@pytest.mark.long
def test_the_state_of_the_kinds_is_small() -> None:
    """At most 2 kB a watched series, of which a run has six."""
    panel, steps = Panel(CONFIG), online_panel.Panel(CONFIG)
    for k, row in enumerate(latencies(noise(300))):
        panel.update("s", COLUMNS, k, row, True, "soak")
        steps.update("s", COLUMNS, k, row, True, "soak")

    assert len(panel.to_bytes()) - len(steps.to_bytes()) < 3 * 2000
