"""Series that were recorded of a lab Kafka and a lab Pulsar, without what changed in them."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np

from detectors import segmentation
from detectors.quiet_rows import LEAST_LEVEL_ROWS, Quiet, quiet
from soak.core.model import Series
from tests.support.paths import RECORDED

FOLDER = RECORDED / "noise"
SECONDS = "*_seconds.csv.gz"
_STEP = 1.5  # what is cut out


def series(path: Path) -> Series:
    """Return a recorded series as it is, without rows that are missing or not above zero."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    here = [(int(k), float(value)) for k, value in rows if value and float(value) > 0.0]
    k, values = (np.array(column) for column in zip(*here, strict=True))
    return Series(head[1], k.astype(np.int64), values)


def read(path: Path) -> Quiet:
    """Return what is quiet of a series, in the unit of its name: seconds, or a ratio."""
    whole = series(path)
    config = segmentation.Config(
        smallest_step_ratio=_STEP, smallest_step_seconds=0.0, least_rows=LEAST_LEVEL_ROWS
    )
    unit = whole.name.rpartition("_")[2]
    return quiet(whole, unit, segmentation.detect(whole, config))
