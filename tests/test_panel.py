"""The online panel: known answers, known nothings, and what must not change them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from detectors.channels import column_of
from detectors.level_shift import Config, Panel
from soak.core.model import Change, Column
from soak.core.units import SECOND_NS

P99 = Column("publish_latency_seconds", (("quantile", "0.99"),), "seconds")
BASELINE = 25 * SECOND_NS
HOUR = 3600 * SECOND_NS


def latencies(seed: int, seconds: int, onset: int | None = None) -> NDArray[np.float64]:
    """p99 of about 4 ms with pauses of the broker's collector, 60 ms from the onset on."""
    rng = np.random.default_rng(seed)
    y = np.log10(0.004) + rng.normal(0.0, 0.15, seconds)
    pauses = rng.random(seconds) < 0.05
    y[pauses] += rng.lognormal(-0.7, 0.4, pauses.sum())
    if onset is not None:
        y[onset:] = np.log10(0.06) + rng.normal(0.0, 0.15, seconds - onset)
    return np.asarray(10.0**y)


def run(
    values: NDArray[np.float64],
    config: Config | None = None,
    *,
    column: Column = P99,
    untrusted: Iterable[int] = (),
    phases: dict[int, str] | None = None,
    k: Iterable[int] | None = None,
) -> list[tuple[int, Change]]:
    """Feed one series; return each change with the second that brought it."""
    panel = Panel(config or Config(baseline=BASELINE))
    seconds = list(k) if k is not None else list(range(values.size))
    bad, found, phase = set(untrusted), [], "soak"
    for row, second in enumerate(seconds):
        phase = (phases or {}).get(second, phase)
        changes = panel.update(
            "produce.0@h", [column], second, values[row : row + 1], second not in bad, phase
        )
        found += [(second, change) for change in changes]
    return found


def confirmed(found: list[tuple[int, Change]]) -> list[tuple[int, Change]]:
    return [(k, change) for k, change in found if change.state == "confirmed"]


def test_a_step_is_confirmed_soon_dated_well_and_told_once() -> None:
    """35 s of 4 ms, then 60 ms: of 100 seeds nearly all within 25 s and 2 s of the onset."""
    values = np.column_stack([latencies(seed, 150, onset=35) for seed in range(100)])
    ups = confirmed(run_beside_each_other(values))

    assert sorted(change.series for _, change in ups) == sorted(
        {change.series for _, change in ups}
    )
    assert {change.direction for _, change in ups} == {"up"}
    assert sum(k - 35 <= 25 for k, _ in ups) >= 95
    assert sum(abs(change.onset_k - 35) <= 2 for _, change in ups) >= 95


def test_before_and_after_are_medians_in_seconds() -> None:
    ((_, change),) = confirmed(run(latencies(1, 150, onset=60)))

    assert change.before == pytest.approx(0.004, rel=0.15)
    assert change.after == pytest.approx(0.06, rel=0.15)
    assert change.interval[0] <= 60 <= change.interval[1]


def run_beside_each_other(
    values: NDArray[np.float64], config: Config | None = None, unit: str = "seconds"
) -> list[tuple[int, Change]]:
    """Feed series of one source, one a column."""
    columns = [Column(P99.metric, (("i", str(i)),), unit) for i in range(values.shape[1])]
    panel = Panel(config or Config(baseline=BASELINE))
    return [
        (k, change)
        for k, row in enumerate(values)
        for change in panel.update("produce.0@h", columns, k, row, True, "soak")
    ]


def test_no_step_is_confirmed_where_there_is_none() -> None:
    """300 seeds of 150 s with pauses."""
    values = np.column_stack([latencies(seed, 150) for seed in range(300)])

    assert confirmed(run_beside_each_other(values)) == []


def noise(kind: str, shape: tuple[int, int], rng: np.random.Generator) -> NDArray[np.float64]:
    normal = rng.normal(size=shape)
    if kind == "student-t":
        return rng.standard_t(3, size=shape)
    if kind == "spikes":
        return normal + (rng.random(shape) < 0.05) * rng.lognormal(1.5, 0.8, shape)
    if kind == "rounded":
        return np.asarray(np.round(0.7 * normal))
    if kind == "autocorrelated":
        for row in range(1, shape[0]):
            normal[row] = 0.6 * normal[row - 1] + 0.8 * normal[row]
    return normal


QUIET = Config(
    false_alarms=HOUR, panel_size=1, smallest_step_ratio=1.0001, smallest_step_seconds=0.0
)


def test_false_alarms_stay_at_the_set_rate() -> None:
    """100 series of a kind, half an hour each, at one alarm an hour and series: 50 are allowed, not 100."""
    kinds = ["independent", "autocorrelated", "student-t", "spikes", "rounded"]
    shape = (1800 + 120, 100)
    values = np.hstack([noise(kind, shape, np.random.default_rng(5)) for kind in kinds])
    alarms = confirmed(run_beside_each_other(100.0 + values, QUIET, unit=""))

    told = Counter(kinds[int(column_of(c.series).labels[0][1]) // 100] for _, c in alarms)
    assert {kind: count for kind, count in told.items() if count > 100} == {}


@pytest.mark.parametrize(("correlation", "most"), [(0.8, 1), (0.95, 8)])
def test_correlated_noise_is_soon_known_for_what_it_is(correlation: float, most: int) -> None:
    """40 series of 10 minutes, at one alarm in 30 days over 100 series; and one alarm draws no others."""
    values = np.random.default_rng(3).standard_normal((600, 40))
    for k in range(1, 600):
        values[k] = correlation * values[k - 1] + np.sqrt(1.0 - correlation**2) * values[k]
    config = replace(QUIET, false_alarms=30 * 24 * HOUR, panel_size=100)

    assert len(confirmed(run_beside_each_other(1000.0 + values, config, unit=""))) <= most


def test_half_a_standard_deviation_is_seen_in_minutes() -> None:
    """After half an hour of independent noise, at one alarm in 30 days: nearly all within 250 s."""
    values = 1000.0 + noise("independent", (2100, 40), np.random.default_rng(6))
    values[1800:] += 0.5
    config = replace(QUIET, false_alarms=30 * 24 * HOUR)
    found = confirmed(run_beside_each_other(values, config, unit=""))

    assert [k for k, _ in found if k < 1800] == []
    assert sum(k < 2050 for k, _ in found) >= 34


def test_a_step_of_rows_that_hang_together_is_seen_however_many_of_their_sd_it_has() -> None:
    """An AR(1) of 0.9: 8 sd of a row are less than 2 of what means of minutes go by."""
    rng = np.random.default_rng(8)
    values = rng.standard_normal((760, 40))
    for k in range(1, 760):
        values[k] = 0.9 * values[k - 1] + np.sqrt(1.0 - 0.9**2) * values[k]
    values[700:] += 8.0
    config = replace(QUIET, false_alarms=30 * 24 * HOUR)
    found = confirmed(run_beside_each_other(1000.0 + values, config, unit=""))

    assert len({change.series for k, change in found if k >= 700}) >= 36


@pytest.mark.parametrize("rounded", [0, 1])
def test_a_cluster_that_acknowledges_nothing_any_more_is_told_while_it_lasts(rounded: int) -> None:
    """The wait of the oldest message, in whole seconds; some are a second late before."""
    waits = np.zeros(400)
    waits[100:300:47] = rounded
    waits[330:] = np.minimum(np.arange(70) + 1.0, 10.0)
    found = run(waits, column=Column("publish_waiting_seconds", (), "seconds"))
    ((k, change),) = confirmed(found)

    assert (change.before, change.direction, change.onset_k) == (0.0, "up", 330)
    assert k <= 330 + 20


def test_one_slow_second_or_a_stall_of_five_is_no_step() -> None:
    """Of 200 seeds, each with both."""
    values = np.column_stack([latencies(seed, 150) for seed in range(200)])
    values[60] = 3.0
    values[90:95] = 1.0

    assert confirmed(run_beside_each_other(values)) == []


def test_a_step_below_the_smallest_is_not_reported() -> None:
    rng = np.random.default_rng(2)
    values = 10.0 ** (np.log10(0.004) + rng.normal(0.0, 0.02, 600))
    values[300:] *= 1.3

    assert run(values) == []


def test_a_change_of_less_than_a_millisecond_is_not_reported() -> None:
    rng = np.random.default_rng(2)
    values = 10.0 ** (np.log10(0.0001) + rng.normal(0.0, 0.02, 600))
    values[300:] *= 5.0

    assert run(values) == []


def test_a_step_that_goes_away_is_gone_under_the_same_raise() -> None:
    values = latencies(3, 400)
    values[100:200] = latencies(4, 100, onset=0)
    found = run(values)
    up = next(change for _, change in confirmed(found) if change.direction == "up")
    k, gone = next((k, change) for k, change in found if change.state == "gone")

    assert (gone.series, gone.raised_k, gone.onset_k) == (up.series, up.raised_k, up.onset_k)
    assert 200 < k <= 230
    assert gone.gone_k == k


def test_both_steps_of_a_stair_are_gone_once_the_level_lies_below_the_first() -> None:
    """A latency that grows under an overload is told in steps; the second began far above where all ends."""
    values = latencies(3, 400)
    values[100:130] *= 100.0
    values[130:200] *= 1000.0
    found = run(values)
    ups = [change.raised_k for _, change in confirmed(found) if change.direction == "up"]
    gone = [change.raised_k for _, change in found if change.state == "gone"]

    assert len(ups) == 2
    assert sorted(gone) == ups


def test_a_step_that_stays_is_never_gone() -> None:
    states = [change.state for _, change in run(latencies(3, 900, onset=100))]

    assert states == ["warning", "confirmed"]


def test_untrusted_seconds_neither_raise_nor_teach() -> None:
    values = latencies(6, 300)
    values[100:160] = 0.5

    assert confirmed(run(values, untrusted=range(100, 160))) == []


def test_a_planned_phase_and_its_edges_raise_nothing() -> None:
    values = latencies(6, 300)
    values[100:165] = 0.5

    assert confirmed(run(values, phases={0: "soak", 100: "catch-up", 160: "soak"})) == []


def test_seconds_told_twice_change_nothing() -> None:
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


def test_missing_values_are_no_values() -> None:
    values = latencies(9, 300, onset=120)
    values[np.random.default_rng(1).random(300) < 0.3] = np.nan
    ((_, change),) = confirmed(run(values))

    assert abs(change.onset_k - 120) <= 3


@pytest.mark.parametrize("unit", ["", "ratio", "messages", "bytes"])
def test_other_units_are_judged_as_they_are(unit: str) -> None:
    rng = np.random.default_rng(3)
    values = 1000.0 + rng.normal(0.0, 50.0, 200)
    values[100:] += 1000.0
    ((_, change),) = confirmed(run(values, column=Column("x", unit=unit)))

    assert abs(change.onset_k - 100) <= 1


def test_the_scale_of_a_series_without_least_change_does_not_matter() -> None:
    rng = np.random.default_rng(3)
    values = 1000.0 + rng.normal(0.0, 50.0, 200)
    values[100:] += 1000.0
    found = [
        [(k, c.state, c.onset_k, c.interval) for k, c in run(scale * values, column=Column("x"))]
        for scale in (1.0, 2.0**20, 2.0**-20)
    ]

    assert found[0] == found[1] == found[2]


def test_series_that_never_move_raise_nothing_until_they_do() -> None:
    values = np.zeros(200)
    values[100:] = 3.0
    ((_, change),) = confirmed(run(values, column=Column("retention_deletions")))

    assert (change.onset_k, change.before, change.after) == (100, 0.0, 3.0)


def test_counts_above_thresholds_and_maxima_are_not_followed() -> None:
    values = latencies(1, 150, onset=60)
    above = Column("publish_latency_above_messages", (("threshold", "0.001"),), "messages")
    largest = Column("publish_latency_seconds", (("quantile", "max"),), "seconds")

    assert run(values, column=above) == []
    assert run(values, column=largest) == []


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
def test_a_panel_that_is_stored_and_resumed_goes_on_bit_for_bit(seed: int, cuts: list[int]) -> None:
    values, config = table(seed), Config(baseline=BASELINE)

    found, blob, last = [], Panel(config).to_bytes(), 0
    for cut in [*sorted(cuts), 420]:
        panel = Panel.from_bytes(blob, config)
        found += feed(panel, range(last, cut), values)
        blob, last = panel.to_bytes(), cut

    assert (found, blob) == fed_at_once(seed)


def test_the_order_of_series_does_not_matter() -> None:
    values = table(2)
    forwards = feed(Panel(Config(baseline=BASELINE)), range(420), values)
    panel, backwards = Panel(Config(baseline=BASELINE)), []
    for k in range(420):
        backwards += panel.update("p@h", COLUMNS[::-1], k, values[k, ::-1], k % 37 != 0, "soak")

    def key(change: Change) -> tuple[int, str, str]:
        return change.raised_k, change.series, change.state

    assert sorted(forwards, key=key) == sorted(backwards, key=key)


def test_a_new_column_leaves_the_known_series_alone() -> None:
    values = table(2)
    config = Config(baseline=BASELINE)
    panel, found = Panel(config), []
    for k in range(420):
        shown = 2 if k < 60 else 3
        found += panel.update("p@h", COLUMNS[:shown], k, values[k, :shown], k % 37 != 0, "soak")
    p99 = f"p@h|{P99.name}"

    assert [c for c in found if c.series == p99] == [
        c for c in feed(Panel(config), range(420), values) if c.series == p99
    ]


def test_a_probe_that_starts_anew_with_fewer_columns_keeps_its_levels() -> None:
    """Its first seconds have no column, then they grow; the step comes after."""
    values, config = table(2), Config(baseline=BASELINE)
    panel, found = Panel(config), []
    for k in range(420):
        shown = {140: 0, 141: 1, 142: 2}.get(k, 3)
        found += panel.update("p@h", COLUMNS[:shown], k, values[k, :shown], k % 37 != 0, "soak")
    ups = {c.series: c.onset_k for c in found if c.state == "confirmed"}

    assert abs(ups[f"p@h|{P99.name}"] - 150) <= 3
    assert abs(ups["p@h|process_cpu_ratio"] - 200) <= 2


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


def test_columns_that_change_all_the_time_take_bounded_room() -> None:
    panel = Panel(Config(baseline=BASELINE))
    for k in range(360):
        column = Column("x", (("i", str(k)),), "seconds")
        panel.update("s", [column], k, np.ones(1), True, "soak")

    assert len(panel.to_bytes()) <= 300 * 2048


def test_a_warning_that_does_not_come_true_is_withdrawn() -> None:
    """A stall of 18 s where 30 s are asked for: every warning gets its last word."""
    values = np.column_stack([latencies(seed, 200) for seed in range(20)])
    values[90:108] = 1.0
    config = Config(baseline=BASELINE, confirm=30 * SECOND_NS)
    found = [change for _, change in run_beside_each_other(values, config)]
    warned = [(c.series, c.raised_k) for c in found if c.state == "warning"]
    ended = [(c.series, c.raised_k) for c in found if c.state in {"withdrawn", "confirmed"}]

    assert len(warned) >= 10
    assert sorted(warned) == sorted(ended)
    assert any(c.state == "withdrawn" for c in found)


def test_a_stall_of_nine_seconds_does_not_even_warn() -> None:
    values = np.column_stack([latencies(seed, 150) for seed in range(20)])
    values[90:99] = 1.0

    assert run_beside_each_other(values) == []


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
        inc, k = (1, row + 1000) if row < 100 else (2, row + 900 - 50)
        for _ in range(2):
            taken = values[row : row + 1]
            found += panel.update("p@h", [P99], k, taken, True, "soak", inc=inc)
    old = panel.update("p@h", [P99], 5000, values[:1], True, "soak", inc=1)
    ups = [change for change in found if change.state == "confirmed"]

    assert old == []
    assert [abs(change.onset_k - 1050) <= 2 for change in ups] == [True]


def test_the_state_takes_at_most_a_kilobyte_a_series() -> None:
    columns = [Column("x", (("i", str(i)),), "seconds") for i in range(100)]
    panel = Panel(Config(baseline=BASELINE))
    rng = np.random.default_rng(0)
    for k in range(700):
        panel.update("s", columns, k, rng.lognormal(-5, 0.3, 100), True, "soak")

    assert len(panel.to_bytes()) <= 100 * 1024


@pytest.mark.parametrize("blob", [b"", b"\x07abcdefgh"])
def test_bytes_of_another_version_are_refused(blob: bytes) -> None:
    with pytest.raises(ValueError, match="not the state of a panel"):
        Panel.from_bytes(blob, Config())


@pytest.mark.parametrize(
    "wrong",
    [
        {"false_alarms": SECOND_NS},
        {"panel_size": 0},
        {"smallest_step_ratio": 1.0},
        {"smallest_step_seconds": -1.0},
        {"baseline": 5 * SECOND_NS},
        {"confirm": 0},
    ],
)
def test_settings_out_of_bounds_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Config(**wrong)
