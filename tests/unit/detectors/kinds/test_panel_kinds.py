"""The panel of all kinds: drift, spikes and tails beside steps, resumed at any second."""

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
from detectors.panel import Panel, _in_turn, _is_name_taken, _Watched
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
    """Return rows of COLUMNS: the log10 of p99 varies by `y`, the others are calm."""
    calm = np.random.default_rng(9).normal(0.0, 0.05, (y.size, 2))
    return 0.01 * 10.0 ** np.column_stack([calm[:, 0] - 0.5, y, calm[:, 1] + 0.5])


def noise(rows: int) -> NDArray[np.float64]:
    return np.random.default_rng(4).normal(0.0, 0.05, rows)


def fed(
    values: NDArray[np.float64], columns: tuple[Column, ...] = COLUMNS, resumed: Iterable[int] = ()
) -> list[Change]:
    panel, said = Panel(CONFIG), []
    stops = set(resumed)
    for k, row in enumerate(values):
        if k in stops:
            panel = Panel.from_bytes(panel.to_bytes(), CONFIG)
        said += panel.update("s", columns, k, row, True, "soak")
    return said


def told(said: list[Change]) -> set[tuple[str, str]]:
    return {(one.kind, one.series) for one in said if one.state == "confirmed"}


@pytest.mark.long
def test_a_slow_rise_is_reported_once_as_drift() -> None:
    """From 10 to 40 ms within 70 minutes; that it goes on is the same change."""
    said = fed(latencies(noise(4800) + np.clip((np.arange(4800) - 600) / 4200, 0.0, 1.0) * 0.6))

    assert told(said) == {("drift", P99)}
    assert len({one.raised_k for one in said}) == 1


@pytest.mark.long
def test_a_pulse_train_that_begins_is_reported_and_its_end_too() -> None:
    y = noise(2600)
    for tick in range(600, 1700, 52):
        y[tick : tick + 3] += 0.5
    confirmed, gone = fed(latencies(y))

    assert (confirmed.kind, confirmed.state, confirmed.onset_k) == ("spikes", "confirmed", 600)
    assert (gone.state, gone.raised_k) == ("gone", confirmed.raised_k)
    assert confirmed.period_seconds == 52.0


@pytest.mark.long
def test_a_pulse_train_from_the_start_is_no_news_and_hides_no_step() -> None:
    y = noise(2400)
    for tick in range(10, 2400, 52):
        y[tick : tick + 3] += 0.5
    y[1800:] += 0.5
    said = fed(latencies(y))

    assert told(said) == {("step", P99)}


@pytest.mark.long
def test_more_slow_messages_are_a_tail() -> None:
    """Six in a thousand take four times as long: p50 and p99 hardly move."""
    slow = np.where(np.arange(500) >= 330, 0.006, 0.0)
    rows = tail_world.rows(np.random.default_rng(1), 500, slow)
    said = fed(rows, tail_world.COLUMNS)

    assert told(said) == {("tail", tail_world.series("0.999"))}


def test_of_two_kinds_that_begin_in_one_second_one_is_reported_then() -> None:
    """Series and second name a change; the drift is taken back, and seen again."""
    rise = Change(P99, 3600, 600, (300, 900), 0.01, 0.04, "confirmed", 0.99, kind="drift")
    comb = replace(rise, kind="spikes", period_seconds=52.0, burst_seconds=3.0)
    one = _Watched(Recent(), drift.Watch(3, rise), spikes.Watch(standing=comb))
    known, busy = {P99: one}, {"s|other"}
    told = _in_turn(known, [comb, rise], 3600, busy)

    assert (told, busy) == ([comb], {"s|other", P99})
    assert (one.spikes.standing, one.drift.standing) == (comb, None)
    assert _is_name_taken(known, replace(rise, kind="tail"))
    assert not _is_name_taken(known, replace(rise, kind="tail", raised_k=3601))


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
def test_a_clock_set_back_hides_nothing_that_comes_after_it() -> None:
    """Beside a step that was told in seconds that come again, or before a phase began in these."""
    y = noise(400)
    y[200:] += 0.4
    rows, panel = latencies(y), Panel(CONFIG)
    found = [
        change
        for k, row in enumerate(rows)
        for change in panel.update("s", COLUMNS, 1000 + k, row, True, "soak")
    ]
    latency = series_name("s", COLUMNS[1].metric)
    before = panel._near.beside(latency, 1200)
    panel.update("s", COLUMNS, 1100, rows[0], True, "soak", epoch=1)
    gate = Gate()
    for k, phase in ((5000, "catch-up"), (5001, "soak")):
        gate.take(k, 0, phase, is_valid=True)

    assert told(found) == {("step", P99)}
    assert (before, panel._near.beside(latency, 1200)) == ("reported", "none")
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
    (gone,) = [one for one in found if one.kind == "spikes" and one.state == "gone"]

    assert gone.resolved_k == gone.onset_k + 1


def test_the_state_of_the_kinds_is_small() -> None:
    """At most 2 kB a watched series, of which a run has six."""
    panel = Panel(CONFIG)
    for k, row in enumerate(latencies(noise(300))):
        panel.update("s", COLUMNS, k, row, True, "soak")

    assert len(panel.to_bytes()) - len(panel._steps.to_bytes()) < 3 * 2000
