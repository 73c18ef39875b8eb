"""How often a panel alarms where nothing happens, over how often it was allowed to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
import psutil
from numpy.typing import NDArray

from tests.bench.detect.feed import FAR, config, count, feed
from tests.bench.detect.noises import NOISES

HOUR, DAY = 3600.0, 86_400.0
_PANEL_NOISES = 4  # the first of all
_TABLES = 4  # that the greediest noise holds at once


@dataclass(frozen=True, slots=True)
class FalseAlarms:
    """Of one noise at one set rate: alarms allowed, warned and confirmed."""

    noise: str
    every_seconds: float
    allowed: float
    warned: int
    confirmed: int

    @property
    def ratio(self) -> float:
        """Return how many times the set rate was confirmed."""
        return self.confirmed / self.allowed


def counted(noise: str, values: NDArray[np.float64], every_seconds: float) -> FalseAlarms:
    """Return the false alarms on `values` (rows, series), at one in so many seconds and series."""
    chosen = config(every_seconds)
    said = feed(values, chosen)
    rows, series = values.shape
    allowed = series * (rows - chosen.baseline / 1e9) / every_seconds
    return FalseAlarms(
        noise, every_seconds, allowed, count(said, "warning"), count(said, "confirmed")
    )


def measure(
    rows: int, series: int, seed: int, every_seconds: tuple[float, ...] = (HOUR, DAY)
) -> Iterator[FalseAlarms]:
    """Yield the false alarms of each noise and rate, on the same values for all rates of a noise.

    A process a core works them out, each with `rows` x `series` values of its own.
    """
    jobs = [(noise, rows, series, seed, every) for noise in NOISES for every in every_seconds]
    with _pool(rows * series) as pool:
        yield from pool.map(_measured, jobs)


def _pool(values: int) -> ProcessPoolExecutor:
    """Return a process a core, or as many as have room for the making of as many values each."""
    room = psutil.virtual_memory().available // (_TABLES * values * np.dtype(np.float64).itemsize)
    most = max(1, min(len(os.sched_getaffinity(0)), room))
    return ProcessPoolExecutor(most, get_context("spawn"))


def _measured(job: tuple[str, int, int, int, float]) -> FalseAlarms:
    noise, rows, series, seed, every = job
    values = NOISES[noise](np.random.default_rng(seed), rows, series)
    values += FAR
    return counted(noise, values, every)


def quiet_panels(panels: int, series: int, rows: int, seed: int) -> int:
    """Return the confirmed alarms of panels without a change, at one in thirty days over each panel.

    Panels of one noise are fed together, as nothing but the rate knows which series share a panel.
    """
    makes = list(NOISES.values())[:_PANEL_NOISES]
    jobs = [
        (range(first, panels, len(makes)), series, rows, seed)
        for first in range(min(panels, len(makes)))
    ]
    with _pool(rows * series * -(-panels // len(makes))) as pool:
        return sum(pool.map(_on_panels, jobs))


def _on_panels(job: tuple[range, int, int, int]) -> int:
    numbers, series, rows, seed = job
    makes = list(NOISES.values())[:_PANEL_NOISES]
    values = np.hstack(
        [
            makes[panel % len(makes)](np.random.default_rng([seed, panel]), rows, series)
            for panel in numbers
        ]
    )
    values += FAR
    return count(feed(values, config(30 * DAY, series)), "confirmed")
