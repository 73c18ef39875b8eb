"""The benchmark of looking back, on series so short that it takes no time."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.bench.detect import noises, offline, one_cut


@pytest.fixture(autouse=True)
def _without_otava(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs in an environment of its own, if at all."""
    monkeypatch.setattr(one_cut, "OTAVA", Path("/nowhere"))


def test_every_noise_has_its_figures_and_a_goal() -> None:
    found = offline.alone(400)

    assert len(found) == 2 * (len(noises.NOISES) + 1)
    assert all(one.holds is not None for one in found[::2])


@pytest.mark.long
def test_peers_are_measured_on_the_same_series() -> None:
    found = offline.beside(300, 1, one_cut.here)

    assert len(found) == 3 * 4 * len(one_cut.peers())
    assert {"ruptures rbf", "ruptures l2", "naive GLR"} <= set(one_cut.peers())


def test_a_peer_that_takes_too_long_has_no_figures() -> None:
    def late(name: str, y: one_cut.Floats) -> one_cut.Measured:
        raise subprocess.TimeoutExpired(name, y.size)

    assert all(np.isnan(one.peer) for one in offline.beside(100, 1, late))


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in one_cut.METHODS if name != "Otava"])
def test_a_plain_step_is_found(name: str) -> None:
    y = np.random.default_rng(1).normal(0.0, 0.001, 300)
    y[200:] += 1.0

    found = one_cut.here(name, y)

    assert [abs(at - 200) <= 1 for at in found.cuts] == [True]
    assert found.seconds > 0.0


@pytest.mark.long
def test_a_method_in_a_process_of_its_own_says_the_same() -> None:
    y = np.concatenate([np.zeros(50), np.ones(50)])

    assert one_cut.apart("ruptures rbf", y).cuts == one_cut.here("ruptures rbf", y).cuts == [50]


def test_otava_is_left_out_where_it_is_not_installed() -> None:
    assert "Otava" not in one_cut.peers()
