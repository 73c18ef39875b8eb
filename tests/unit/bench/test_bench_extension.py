"""`make bench-detect`: the line that extends false alarms, the naive peer, and what was recorded."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from tests.bench.detect import extension, naive, recorded
from tests.bench.detect.extension import Noise
from tests.bench.detect.noises import independent

BROKERS = ("kafka", "pulsar")


def test_a_naive_glr_sees_a_step_once_and_is_quiet_before() -> None:
    values = np.random.default_rng(1).standard_normal((400, 3))
    values[300:, 1] += 4.0

    ((row, series),) = naive.alarms(values, 30 * 86_400.0)

    assert series == 1
    assert 300 <= row <= 310


@pytest.mark.long
def test_the_line_of_quiet_noise_is_a_figure_with_its_interval(tmp_path: Path) -> None:
    noise = Noise("white", "", lambda rng, rows, series: 1000.0 + independent(rng, rows, series))
    found = extension.measure(noise, 300, 4, seed=1)
    extension.draw([found], tmp_path / "line.svg")

    (figure,) = extension.figures([found])

    assert [rung.allowed for rung in found.rungs] == [1200 / rate for rate in extension.RATES]
    assert figure.spread[0] <= figure.ours <= figure.spread[1]
    assert (tmp_path / "line.svg").stat().st_size > 1000


@pytest.mark.parametrize("broker", BROKERS)
def test_an_hour_of_each_series_was_recorded(broker: str) -> None:
    paths = sorted(recorded.FOLDER.glob(f"{broker}_*.csv.gz"))

    assert len(paths) == 9
    assert sum(path.stat().st_size for path in paths) < 300_000
    for path in paths:
        assert gzip.decompress(path.read_bytes()).count(b"\n") > 3600


@pytest.mark.parametrize("broker", BROKERS)
def test_what_was_recorded_of_latency_has_quiet_stretches(broker: str) -> None:
    found = recorded.read(recorded.FOLDER / f"{broker}_publish_p99_seconds.csv.gz")

    assert found.values.size > 1000
    assert found.left.max() <= found.values.size
