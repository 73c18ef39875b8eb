"""What one method says of a whole series, in a process of its own: its cuts, CPU seconds and memory.

    python -m tests.bench.detect.one_cut NAME FILE.npy

Of a file with many series, one a column, it says the cuts of each, and not what they cost.

Each method has its own price of a cut, as its documentation gives it. Otava asks for another numpy than ours:
it has an environment of its own, which `make otava` installs. Memory is what the process grew by at its peak.
"""

from __future__ import annotations

import importlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import log
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

OTAVA = Path("build/otava")
ABSENT = "Otava left out: `make otava` installs it"
OURS, OTAVAS, SCALED = "ours", "Otava", "ruptures rbf, scaled"
_RBF_WIDTH = 0.01
_LASTING = 10  # rows, as long as a change must last to be confirmed in most noise
_EVERY_SECONDS = 3600.0  # between two false alarms, of the naive GLR
_MOST_SECONDS = 900  # of a method

Floats = NDArray[np.float64]
Method = Callable[[Floats], list[int]]
"""Takes a series on log10 without holes and returns the first rows of new levels."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a method found, and what it cost; `grown_bytes` is beyond its imports."""

    cuts: list[int]
    seconds: float
    grown_bytes: int


def ours(y: Floats) -> list[int]:
    segmentation = importlib.import_module("detectors.segmentation")
    model = importlib.import_module("soak.core.model")
    config = segmentation.Config(smallest_step_ratio=1.005, smallest_step_seconds=0.0)
    series = model.Series("p99", np.arange(y.size), 0.004 * 10.0 ** (y - np.median(y)))
    return [int(change.onset_k) for change in segmentation.detect(series, config)]


def rbf(y: Floats) -> list[int]:
    return _rbf(y, _RBF_WIDTH, 3, log(y.size))


def rbf_scaled(y: Floats) -> list[int]:
    """The same for noise of any size: as wide as the noise of a row, levels that last, a price of 3 ln n."""
    return _rbf(y, _noise(y), _LASTING, 3.0 * log(y.size))


def _rbf(y: Floats, width: float, least_rows: int, price: float) -> list[int]:
    kernel = importlib.import_module("ruptures").KernelCPD
    model = kernel("rbf", min_size=least_rows, params={"gamma": 0.5 / width**2})
    return [int(at) for at in model.fit(y.reshape(-1, 1)).predict(pen=price)[:-1]]


def _noise(y: Floats) -> float:
    """Return the sd of a row as its neighbours tell it, 1 where they are alike."""
    return float(np.median(np.abs(np.diff(y)))) / 0.954 or 1.0


def l2(y: Floats) -> list[int]:
    """Least squares, the noise judged from neighbours, the price of Schwarz's criterion."""
    kernel = importlib.import_module("ruptures").KernelCPD
    scaled = ((y - np.median(y)) / _noise(y)).reshape(-1, 1)
    model = kernel("linear", min_size=3).fit(scaled)
    return [int(at) for at in model.predict(pen=2.0 * log(y.size))[:-1]]


def glr(y: Floats) -> list[int]:
    naive = importlib.import_module("tests.bench.detect.naive")
    return [row for row, _ in naive.alarms(y.reshape(-1, 1), _EVERY_SECONDS)]


def otava(y: Floats) -> list[int]:
    # a list: of an array, Otava 0.8 takes all of it for each of its windows
    found, _ = importlib.import_module("otava.analysis").compute_change_points(y.tolist())
    return sorted(int(one.index) for one in found)


METHODS: Mapping[str, Method] = {
    OURS: ours,
    "ruptures rbf": rbf,
    SCALED: rbf_scaled,
    "ruptures l2": l2,
    "naive GLR": glr,
    OTAVAS: otava,
}


def peers() -> list[str]:
    """Return the names of those that are installed."""
    return [
        name for name in METHODS if name not in (OURS, SCALED) and (name != OTAVAS or is_there())
    ]


def peers_on_pieces() -> list[str]:
    """Return those that are asked about short pieces whose noise has the same size."""
    return [SCALED, *([OTAVAS] if is_there() else [])]


def is_there() -> bool:
    """True where Otava is installed."""
    return (OTAVA / ".installed").exists()


def here(name: str, y: Floats) -> Measured:
    """Measure in this process; what it needs has been imported before."""
    before, start = _peak_bytes(), time.process_time()
    cuts = METHODS[name](y)
    return Measured(cuts, time.process_time() - start, _peak_bytes() - before)


def apart(name: str, y: Floats) -> Measured:
    """Measure in a process of its own.

    Raises:
        subprocess.SubprocessError: the method failed, or took longer than anyone waits.
    """
    return Measured(**_asked(name, y))


def of_columns(name: str, table: Floats) -> list[list[int]]:
    """Return the cuts of each column, found in one process of its own.

    Raises:
        subprocess.SubprocessError: the method failed, or took longer than anyone waits.
    """
    found: list[list[int]] = _asked(name, table)
    return found


def _asked(name: str, values: Floats) -> Any:
    python = str(OTAVA / "bin/python") if name == OTAVAS else sys.executable
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "series.npy"
        np.save(path, values)
        words = [python, "-m", "tests.bench.detect.one_cut", name, str(path)]
        done = subprocess.run(words, check=True, capture_output=True, timeout=_MOST_SECONDS)
    return json.loads(done.stdout)


def _peak_bytes() -> int:
    """Return the most memory that this process has held; that of its parent does not count."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    line = next(one for one in status.read_text().splitlines() if one.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def main(words: Sequence[str]) -> None:
    name, path = words
    METHODS[name](np.random.default_rng(0).normal(0.0, 0.05, 60))  # imports are no part of it
    values = np.load(path)
    if values.ndim == 1:
        said: object = asdict(here(name, values))
    else:
        said = [METHODS[name](column) for column in np.ascontiguousarray(values.T)]
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1:])
