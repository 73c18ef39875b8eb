"""How often the interval of a cut holds the onset of its step, looking back, and how far off its onset is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np

from detectors import segmentation
from soak.core.model import Change, Series
from tests.bench.detect.injected import long_run_sd
from tests.bench.detect.noises import NOISES, Make

_ROWS, _FIRST, _LAST = 600, 200, 400  # of a series, and where its step begins
_SMALLEST, _LARGEST = 1.0, 5.0  # step, long-run sd
_KNOWN_ROWS = 20_000  # that the long-run sd of a noise is judged from
_NEAR = 60  # rows within which a cut is that of the step
_SD = 0.05  # of log10
_LEVEL = 0.004  # seconds
_CONFIG = segmentation.Config(smallest_step_ratio=1.005, smallest_step_seconds=0.0)


@dataclass(frozen=True, slots=True)
class Coverage:
    """Of the steps put into one noise: found, held by their intervals, and rows beside the onset."""

    noise: str
    steps: int
    held: int
    errors: tuple[int, ...]  # of those that were found
    allowed: tuple[float, ...]  # for each of them 1 / size^2 + 1

    @property
    def share(self) -> float:
        return self.held / max(1, len(self.errors))


def measure(steps: int, seed: int, noises: Mapping[str, Make] = NOISES) -> list[Coverage]:
    """Put one step of 1 to 5 long-run sd into each of so many series of every noise."""
    return [_covered(name, make, steps, seed) for name, make in noises.items()]


def together(many: list[Coverage]) -> Coverage:
    return Coverage(
        "all",
        sum(one.steps for one in many),
        sum(one.held for one in many),
        tuple(error for one in many for error in one.errors),
        tuple(most for one in many for most in one.allowed),
    )


def median_error(one: Coverage) -> tuple[float, float]:
    """Return the median of the errors, and that of what is allowed."""
    return median(one.errors or [_ROWS]), median(one.allowed or [0.0])


def _covered(name: str, make: Make, steps: int, seed: int) -> Coverage:
    rng = np.random.default_rng(seed)
    known = make(rng, _KNOWN_ROWS, 1)[:, 0]
    sd = long_run_sd(known[np.isfinite(known)])
    table = make(rng, _ROWS, steps)
    held, errors, allowed = 0, [], []
    for column in table.T:
        at, size = int(rng.integers(_FIRST, _LAST)), rng.uniform(_SMALLEST, _LARGEST)
        y = column + np.where(np.arange(_ROWS) < at, 0.0, size * sd)
        k = np.flatnonzero(np.isfinite(y))
        onset = int(k[np.searchsorted(k, at)])  # the first row of the new level that there is
        cut = _nearest(Series(name, k, _LEVEL * 10.0 ** (_SD * y[k])), onset)
        if cut is not None:
            held += cut.interval[0] <= onset <= cut.interval[1]
            errors.append(abs(cut.onset_k - onset))
            allowed.append(1.0 / size**2 + 1.0)
    return Coverage(name, steps, held, tuple(errors), tuple(allowed))


def _nearest(series: Series, onset: int) -> Change | None:
    found = segmentation.detect(series, _CONFIG)
    nearest = min(found, key=lambda change: abs(change.onset_k - onset), default=None)
    return nearest if nearest is None or abs(nearest.onset_k - onset) <= _NEAR else None
