"""Noise whose size swings is known for it, and judged by the size that it has now."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from detectors import _swing
from detectors._spread import Spread
from detectors.level_shift import Config, Panel
from soak.core.model import Change, Column
from tests.bench.detect import feed as feeding
from tests.bench.detect.noises import autocorrelated

pytestmark = pytest.mark.long

HOUR = 3600
EACH = 10  # series of a noise


def swinging(rows: int, series: int) -> NDArray[np.float64]:
    """Return noise whose sd swings from 0.4 to 2.5 within the hour."""
    wave = np.sin(2.0 * np.pi * np.arange(rows)[:, np.newaxis] / HOUR)
    return np.random.default_rng(3).standard_normal((rows, series)) * 2.5**wave


def fed(values: NDArray[np.float64], every: int = 0) -> tuple[Panel, list[Change]]:
    """Return a panel fed with these values at one alarm an hour, stored and resumed `every` so many rows."""
    config = feeding.config(float(HOUR))
    columns = [Column("x", (("i", str(i)),)) for i in range(values.shape[1])]
    panel, found = Panel(config), list[Change]()
    for k, row in enumerate(feeding.FAR + values):
        if every and k % every == 0:
            panel = Panel.from_bytes(panel.to_bytes(), config)
        found += panel.update("s", columns, k, row, True, "soak")
    return panel, found


def known(swing: float, rows: float) -> Spread:
    spread = Spread.empty(1)
    spread.swing[:], spread.seen[:] = swing, rows
    return spread


@pytest.mark.parametrize(
    ("swing", "rows", "share"),
    [
        (-0.01, 1e5, 0.0),  # by chance less than chance
        (3.0 / 128.0, 1e5, 0.5),  # swings and chance alike
        (0.3, 1e5, 0.93),
        (0.3, 5400.0, 0.46),
        (0.3, 3600.0, 0.0),  # not before an hour
    ],
)
def test_so_much_of_a_local_variance_is_believed(swing: float, rows: float, share: float) -> None:
    assert _swing.share(known(swing, rows))[0] == pytest.approx(share, abs=0.005)


class Hours:
    """Four hours of ten series of each of three noises, and what is known in the last of them."""

    def __init__(self) -> None:
        rows, panel = 4 * HOUR, Panel(feeding.config(float(HOUR)))
        steady = np.random.default_rng(4).standard_normal((rows, EACH))
        steps = np.floor(np.arange(rows) / 1800.0)[:, np.newaxis] % 2 * 8.0
        values = np.hstack([swinging(rows, EACH), steady, steady + steps])
        columns = [Column("x", (("i", str(i)),)) for i in range(3 * EACH)]
        swung, self.alarms = {column.name for column in columns[:EACH]}, 0
        for k, row in enumerate(feeding.FAR + values):
            for one in panel.update("s", columns, k, row, True, "soak"):
                name = one.series.removeprefix("s|")
                self.alarms += one.state == "confirmed" and k >= 2 * HOUR and name in swung
            block = panel._blocks["s"]
            if k == 3 * HOUR + HOUR // 4:
                self.high = _swing.larger(block)
            if k == 3 * HOUR + 3 * HOUR // 4:
                self.low = _swing.larger(block)
        self.share = _swing.share(block.spread)


@pytest.fixture(scope="module")
def hours() -> Hours:
    return Hours()


def test_noise_that_swings_is_known_after_hours_and_other_noise_is_not(hours: Hours) -> None:
    """A step of 8 sd each half hour is one pair of rows."""
    assert hours.share[:EACH].min() > 0.8
    assert hours.share[EACH : 2 * EACH].max() < 0.4
    assert np.median(hours.share[2 * EACH :]) < 0.3


def test_where_noise_is_as_large_as_it_gets_it_counts_as_larger(hours: Hours) -> None:
    """And where it is small, as usual."""
    assert np.median(hours.high[:EACH]) > 1.3
    assert hours.low[:EACH].max() == 1.0


def test_noise_that_swings_alarms_about_as_often_as_it_may_once_it_is_known(hours: Hours) -> None:
    """One an hour and series in two hours; without, it is twice as often and more."""
    assert 0 < hours.alarms <= 1.5 * EACH * 2


def test_a_local_variance_resumes_bit_for_bit_and_needs_half_a_ring() -> None:
    values = swinging(HOUR + 1200, 3)
    values[HOUR : HOUR + 400 : 2, 1] = np.nan  # no two rows follow each other
    values[-100:, 2] = np.nan
    panel, found = fed(values)
    again, same = fed(values, every=397)

    assert (found, panel.to_bytes()) == (same, again.to_bytes())
    assert _swing.local(panel._blocks["s"])[2] == 1.0
    assert _swing.local(panel._blocks["s"])[0] != 1.0


def test_pairs_are_those_of_the_ring() -> None:
    """What is added up row by row is what the ring has, each pair bounded."""
    values = autocorrelated(0.95)(np.random.default_rng(5), 1000, 4)
    values[950:] += 10.0
    block = fed(values)[0]._blocks["s"]
    order = (block.rows + np.arange(128)) % 128
    wide, here = block.wide[order].astype(np.int64), block.here[order]
    most = (12.0 * block.usual_pair).astype(np.int64)
    apart = np.diff(wide, axis=0) ** 2
    both = here[1:] * here[:-1]

    assert (apart > most).any()
    assert np.array_equal(block.pairs, both.sum(axis=0))
    assert np.array_equal(block.rough, (both * np.minimum(apart, most)).sum(axis=0))


def test_a_step_does_not_count_as_larger_noise_where_rows_hang_together() -> None:
    """A step of 8 sd is worth sixty usual pairs in an AR(1) of 0.95; bounded, it is told at once."""
    values = autocorrelated(0.95)(np.random.default_rng(5), 2 * HOUR + 60, EACH)
    values[2 * HOUR :] += 8.0
    panel, found = fed(values)
    waits = [one.raised_k - 2 * HOUR for one in found if one.raised_k >= 2 * HOUR]

    assert np.median(_swing.larger(panel._blocks["s"])) < 1.2
    assert len(waits) >= EACH
    assert np.median(waits) <= 10.0


def test_noise_below_the_smallest_step_teaches_no_swing() -> None:
    rng, panel = np.random.default_rng(6), Panel(Config())
    columns = [Column("x", (), "seconds")]
    for k in range(HOUR):
        panel.update("s", columns, k, 10.0 ** rng.normal(-2.0, 0.02, 1), True, "soak")

    assert panel._blocks["s"].spread.swing[0] == 0.0


def test_seconds_too_far_apart_for_pairs_teach_nothing() -> None:
    values = swinging(1000, 2)
    values[::2, 1] = np.nan
    swing = fed(values)[0]._blocks["s"].spread.swing

    assert swing[0] != 0.0
    assert swing[1] == 0.0
