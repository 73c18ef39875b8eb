"""The other methods of `make bench-detect`, against textbook values and counts by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.bench.detect import peers
from tests.bench.detect.feed import Alarm

_ONLINE = """
def run(values, unit, every, panel, ratio, seconds, confirm):
    return [(values.shape[0] - 1, 1, 7, -1)]
"""
_OFFLINE = """
from dataclasses import dataclass

@dataclass
class Change:
    row: int

def detect(values, spacing, ratio, alpha):
    return [Change(int(abs(values[1:] - values[:-1]).argmax()) + 1)]
"""


def test_the_limit_of_a_cusum_is_that_of_the_textbook() -> None:
    """Montgomery, Introduction to Statistical Quality Control: slack 0.5, limit 5, one in 465."""
    assert peers.cusum_limit(465.0) == pytest.approx(5.0, abs=0.01)


def test_a_cusum_counts_what_exceeds_half_a_standard_deviation() -> None:
    """Learnt mean 0 and sd 1; each 1.5 adds 1, so the third exceeds 2.5. Then all is learnt anew."""
    y = np.array([-1.0, 1.0, -1.0, 1.0, *[1.5] * 12])
    values = np.column_stack([y, -y, np.full(y.size, 3.0)])

    found = peers.cusum(values, np.full(3, 2.5), learn_rows=4)

    assert found == [Alarm(6, 0, is_up=True), Alarm(6, 1, is_up=False)]


def test_a_moving_average_limit_alarms_when_it_begins_to_be_exceeded() -> None:
    """Averages of three rows that include the newest: 2 where 4 comes first, then 3."""
    values = np.array([[1.0], [1.0], [1.0], [4.0], [4.0], [1.0], [np.nan], [1.0], [9.0], [40.0]])

    found = peers.moving_average(values, times=1.5, window=3)

    assert [one.row for one in found] == [3, 8]


@pytest.mark.parametrize("name", [peers.RBF, peers.PELT])
def test_a_plain_step_is_found_by_ruptures(name: str) -> None:
    y = np.random.default_rng(1).normal(0.0, 0.001, 300)
    y[200:] += 1.0

    found = peers.offline_methods(None)[name](y)

    assert [abs(at - 200) <= 1 for at in found] == [True]


def test_reference_programs_are_taken_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "online_detector.py").write_text(_ONLINE)
    (tmp_path / "offline_detector.py").write_text(_OFFLINE)

    online = peers.online_methods(tmp_path)[peers.REFERENCE]
    offline = peers.offline_methods(tmp_path)[peers.REFERENCE]

    assert online(np.zeros((20, 2)), "", 3600.0) == [Alarm(19, 1, is_up=False)]
    assert offline(np.repeat([0.0, 1.0], 23)) == [23]


def test_a_program_that_is_not_there_is_no_method(tmp_path: Path) -> None:
    assert peers.REFERENCE not in peers.online_methods(tmp_path)
    assert peers.REFERENCE not in peers.offline_methods(None)


def test_without_peers_there_is_one_method() -> None:
    assert list(peers.online_methods(None, with_peers=False)) == ["ours"]
    assert list(peers.offline_methods(None, with_peers=False)) == ["ours"]
