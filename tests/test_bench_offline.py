"""The benchmark of looking back, on series so short that it takes no time."""

from __future__ import annotations

import numpy as np

from tests.bench.detect import noises, offline


def test_every_noise_has_its_figures_and_a_goal() -> None:
    found = offline.alone(400)

    assert len(found) == 2 * (len(noises.NOISES) + 1)
    assert all(one.holds is not None for one in found[::2])


def test_peers_are_measured_on_the_same_series() -> None:
    found = offline.beside(300, 1)

    assert len(found) == 2 * 4 * len(offline.peers())
    assert {"ruptures rbf", "ruptures l2"} <= set(offline.peers())


def test_a_peer_finds_a_plain_step() -> None:
    y = np.concatenate([np.zeros(50), np.ones(50)]) + 0.001 * np.random.default_rng(1).normal(
        size=100
    )

    assert [cut(y) for cut in (offline.ours, offline.rbf, offline.l2)] == [1, 1, 1]
