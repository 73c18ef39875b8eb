"""Which seconds count, and what a panel keeps: over gaps, other columns, and when it is stored."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from detectors.level_shift import Config
from detectors.online.panel import Panel
from soak.core.model import Change, Column
from soak.core.series import series_name
from soak.core.units import SECOND_NS
from tests.bench.detect import feed as feeding
from tests.support.detection.panel_world import BASELINE, P99, confirmed, latencies, run


def test_invalid_seconds_neither_raise_nor_teach() -> None:
    values = latencies(6, 300)
    values[100:160] = 0.5

    assert confirmed(run(values, invalid=range(100, 160))) == []


def test_a_planned_phase_and_its_edges_raise_nothing() -> None:
    values = latencies(6, 300)
    values[100:165] = 0.5

    assert confirmed(run(values, phases={0: "soak", 100: "catch-up", 160: "soak"})) == []


def test_seconds_that_come_twice_change_nothing() -> None:
    values = latencies(7, 150, onset=60)
    twice = np.repeat(values, 2)

    assert confirmed(run(twice, k=np.repeat(np.arange(150), 2).tolist())) == confirmed(run(values))


def test_a_short_gap_freezes_the_state_and_a_step_in_it_is_found() -> None:
    values = latencies(8, 200, onset=80)
    k = [*range(80), *range(140, 260)]
    ((_, change),) = confirmed(run(values, k=k))

    assert change.onset_k in {140, 141}


def test_after_a_long_gap_the_level_is_learnt_anew() -> None:
    values = latencies(8, 200, onset=80)
    k = [*range(80), *range(1000, 1120)]

    assert confirmed(run(values, k=k)) == []


COLUMNS = [
    P99,
    Column("publish_latency_seconds", (("quantile", "0.5"),), "seconds"),
    Column("process_cpu_ratio", unit="ratio"),
]


def feed(panel: Panel, rows: Iterable[int], values: NDArray[np.float64]) -> list[Change]:
    found = []
    for k in rows:
        found += panel.update("p@h", COLUMNS, k, values[k], k % 37 != 0, "soak")
    return found


def table(seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    steady = 10.0 ** rng.normal(-3.0, 0.1, 420)
    cpu = rng.normal(0.3, 0.05, 420)
    cpu[200:] += 0.6
    return np.column_stack([latencies(seed, 420, onset=150), steady, cpu])


@lru_cache(maxsize=3)
def fed_at_once(seed: int) -> tuple[list[Change], bytes]:
    whole = Panel(Config(baseline=BASELINE))
    return feed(whole, range(420), table(seed)), whole.to_bytes()


@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2), cuts=st.lists(st.integers(0, 420), max_size=6))
@pytest.mark.long
def test_a_panel_that_is_stored_and_resumed_goes_on_bit_for_bit(seed: int, cuts: list[int]) -> None:
    values, config = table(seed), Config(baseline=BASELINE)

    found, blob, last = [], Panel(config).to_bytes(), 0
    for cut in [*sorted(cuts), 420]:
        panel = Panel.from_bytes(blob, config)
        found += feed(panel, range(last, cut), values)
        blob, last = panel.to_bytes(), cut

    assert (found, blob) == fed_at_once(seed)


@pytest.mark.long
def test_a_panel_resumes_bit_for_bit_for_hours_and_over_values_without_a_logarithm() -> None:
    """A drift, a series that leaves log10, and one that is away for a while."""
    config, columns = Config(baseline=BASELINE), (Column("x"), P99, Column("y"))
    rng = np.random.default_rng(9)
    values = rng.standard_normal((2500, 3)) * [1.0, 0.001, 1.0] + [1000.0, 0.004, 50.0]
    values[:, 0] += 0.01 * np.arange(2500)
    values[1500:, 1] += 0.02

    def found(*stops: int) -> tuple[list[Change], bytes]:
        panel, changes = Panel(config), list[Change]()
        for k, row in enumerate(values):
            if k in stops:
                panel = Panel.from_bytes(panel.to_bytes(), config)
            shown = 2 if 900 <= k < 1000 else 3
            changes += panel.update("s", columns[:shown], k, row[:shown], True, "soak")
        return changes, panel.to_bytes()

    assert found(7, 64, 71, 72, 73, 905, 1507, 2001) == found()


@pytest.mark.long
def test_changes_of_many_series_in_one_row_keep_their_order_when_resumed() -> None:
    """Thirty series, each raised and taken back time and again, several in one row."""
    columns = [Column("x", (("i", str(i)),)) for i in range(30)]
    values = 1000.0 + np.random.default_rng(5).standard_normal((600, 30))
    config = feeding.config(60.0)

    def said(*, resumed: bool) -> tuple[list[Change], bytes]:
        panel, found = Panel(config), []
        for k, row in enumerate(values):
            if resumed and k % 7 == 0:
                panel = Panel.from_bytes(panel.to_bytes(), config)
            found += panel.update("s", columns, k, row, True, "soak")
        return found, panel.to_bytes()

    assert said(resumed=True) == said(resumed=False)


def test_series_that_are_away_keep_their_order_over_a_clock_that_was_set_back() -> None:
    """Which makes them equally long away; the panel is stored in between."""
    config, columns = Config(baseline=BASELINE), {name: Column(name) for name in "abcd"}
    values = np.random.default_rng(1).standard_normal((70, 4))

    def state(*, resumed: bool) -> bytes:
        panel = Panel(config)
        for row, each in enumerate(values):
            if resumed and row == 65:
                panel = Panel.from_bytes(panel.to_bytes(), config)
            names = "abcd" if row < 40 else "abc" if row < 50 else "ac"
            epoch, k = (0, 1000 + row) if row < 60 else (1, 440 + row)
            here = [columns[name] for name in names]
            panel.update("s", here, k, each[: len(here)], True, "soak", epoch=epoch)
        return panel.to_bytes()

    assert state(resumed=True) == state(resumed=False)


@pytest.mark.long
def test_the_order_of_series_does_not_matter() -> None:
    values = table(2)
    forwards = feed(Panel(Config(baseline=BASELINE)), range(420), values)
    panel, backwards = Panel(Config(baseline=BASELINE)), []
    for k in range(420):
        backwards += panel.update("p@h", COLUMNS[::-1], k, values[k, ::-1], k % 37 != 0, "soak")

    def key(change: Change) -> tuple[int, str, str]:
        return change.raised_k, change.series, change.state

    assert sorted(forwards, key=key) == sorted(backwards, key=key)


@pytest.mark.long
def test_a_new_column_leaves_the_known_series_alone() -> None:
    values = table(2)
    config = Config(baseline=BASELINE)
    panel, found = Panel(config), []
    for k in range(420):
        shown = 2 if k < 60 else 3
        found += panel.update("p@h", COLUMNS[:shown], k, values[k, :shown], k % 37 != 0, "soak")
    p99 = series_name("p@h", P99.name)

    assert [c for c in found if c.series == p99] == [
        c for c in feed(Panel(config), range(420), values) if c.series == p99
    ]


@pytest.mark.long
def test_a_probe_that_starts_anew_with_fewer_columns_keeps_its_levels() -> None:
    """Its first seconds have no column, then they grow; the step comes after."""
    values, config = table(2), Config(baseline=BASELINE)
    panel, found = Panel(config), []
    for k in range(420):
        shown = {140: 0, 141: 1, 142: 2}.get(k, 3)
        found += panel.update("p@h", COLUMNS[:shown], k, values[k, :shown], k % 37 != 0, "soak")
    ups = {c.series: c.onset_k for c in found if c.state == "confirmed"}

    assert abs(ups[series_name("p@h", P99.name)] - 150) <= 3
    assert abs(ups["p@h|process_cpu_ratio"] - 200) <= 2


@pytest.mark.long
def test_a_series_without_a_column_is_forgotten_after_ten_minutes() -> None:
    """Its pending warning is taken back, and the state does not keep it; resumed or not."""
    config = Config(baseline=BASELINE, confirm=30 * SECOND_NS)
    values = latencies(3, 150, onset=100)
    other = Column("x", (), "seconds")
    panel, k = Panel(config), 0
    found: list[Change] = []
    while not found:
        taken = np.array([values[k], 1.0])
        found += panel.update("p@h", [P99, other], k, taken, True, "soak")
        k += 1
    lost = []
    for later in range(k, k + 1300):
        lost += panel.update("p@h", [other], later, np.array([1.0]), True, "soak")
        if later % 100 == 0:
            panel = Panel.from_bytes(panel.to_bytes(), config)

    assert [(c.series, c.raised_k, c.state) for c in lost] == [
        (found[0].series, found[0].raised_k, "withdrawn")
    ]
    assert P99.name.encode() not in panel.to_bytes()


@pytest.mark.long
@pytest.mark.parametrize("after", [1.0, 15.0])
def test_a_step_of_a_series_that_was_forgotten_is_gone_when_it_comes_back_lower(
    after: float,
) -> None:
    """A leader moves away for a quarter of an hour; an open change is still open, or gone."""
    config, columns = Config(baseline=BASELINE), [Column("x", (), "seconds"), P99]
    values = 10.0 ** np.random.default_rng(3).normal(np.log10(0.004), 0.05, 1300)
    values[150:] *= 15.0
    values[1150:] *= after / 15.0
    panel, found = Panel(config), []
    for k in range(1300):
        shown = 1 if 200 <= k < 1150 else 2
        if k % 97 == 0:
            panel = Panel.from_bytes(panel.to_bytes(), config)
        found += panel.update(
            "p@h", columns[:shown], k, np.array([1.0, values[k]])[:shown], True, "soak"
        )
    states = [(c.raised_k, c.state) for c in found]

    assert len({raised_k for raised_k, _ in states}) == 1
    assert [state for _, state in states] == ["warning", "confirmed"] + ["gone"] * (after == 1.0)


@pytest.mark.long
def test_columns_that_change_all_the_time_take_bounded_room() -> None:
    panel = Panel(Config(baseline=BASELINE))
    for k in range(360):
        column = Column("x", (("i", str(k)),), "seconds")
        panel.update("s", [column], k, np.ones(1), True, "soak")

    assert len(panel.to_bytes()) <= 300 * 2048


def test_a_long_gap_withdraws_what_was_pending() -> None:
    values = latencies(8, 230, onset=80)
    k = [*range(115), *range(1000, 1115)]
    config = Config(baseline=BASELINE, confirm=60 * SECOND_NS)
    states = [change.state for _, change in run(values, config, k=k)]

    assert states == ["warning", "withdrawn"]


def test_a_new_start_with_a_clock_set_back_goes_on_at_once() -> None:
    """The same seconds of an older start are repeats; a step after the new start is found."""
    values, panel, found = latencies(8, 300, onset=200), Panel(Config(baseline=BASELINE)), []
    for row in range(300):
        epoch, k = (1, row + 1000) if row < 100 else (2, row + 900 - 50)
        for _ in range(2):
            taken = values[row : row + 1]
            found += panel.update("p@h", [P99], k, taken, True, "soak", epoch=epoch)
    old = panel.update("p@h", [P99], 5000, values[:1], True, "soak", epoch=1)
    ups = [change for change in found if change.state == "confirmed"]

    assert old == []
    assert [abs(change.onset_k - 1050) <= 2 for change in ups] == [True]


def test_a_change_that_is_gone_ends_after_its_onset_though_the_clock_was_set_back() -> None:
    values, panel, found = latencies(8, 260, onset=100), Panel(Config(baseline=BASELINE)), []
    values[150:] = latencies(9, 110)
    for row in range(260):
        epoch, k = (1, row + 1000) if row < 150 else (2, row + 500)
        found += panel.update("p@h", [P99], k, values[row : row + 1], True, "soak", epoch=epoch)
    (gone,) = [change for change in found if change.state == "gone"]

    assert gone.resolved_k is not None
    assert gone.resolved_k > gone.onset_k


@pytest.mark.long
@pytest.mark.parametrize("odd", [np.inf, -np.inf])
def test_a_latency_that_is_not_finite_is_no_value(odd: float) -> None:
    states = []
    for missing in (np.nan, odd):
        values, panel = latencies(8, 300, onset=200), Panel(Config(baseline=BASELINE))
        values[::7] = missing
        for k in range(300):
            panel.update("p@h", [P99], k, values[k : k + 1], True, "soak")
        states.append(panel.to_bytes())

    assert states[0] == states[1]


@pytest.mark.long
def test_the_state_takes_at_most_a_kilobyte_a_series() -> None:
    columns = [Column("x", (("i", str(i)),), "seconds") for i in range(100)]
    panel = Panel(Config(baseline=BASELINE))
    rng = np.random.default_rng(0)
    for k in range(700):
        panel.update("s", columns, k, rng.lognormal(-5, 0.3, 100), True, "soak")

    assert len(panel.to_bytes()) <= 100 * 1024


@pytest.mark.parametrize("blob", [b"", b"\x63abcdefgh"])
def test_bytes_of_another_format_are_refused(blob: bytes) -> None:
    """Neither an empty state nor foreign bytes are taken for one."""
    with pytest.raises(ValueError, match="not a state of format SKST"):
        Panel.from_bytes(blob, Config())


@pytest.mark.parametrize("version", [1, 255, 256, 300, 70_000])
def test_a_state_of_another_version_is_refused_by_its_number(version: int) -> None:
    """The version is a whole number of 32 bits: it goes on beyond a byte."""
    blob = Panel(Config()).to_bytes()
    other = blob[:4] + version.to_bytes(4, "little") + blob[8:]

    with pytest.raises(ValueError, match=f"the state has version {version}, this program reads"):
        Panel.from_bytes(other, Config())
