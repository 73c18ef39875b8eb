"""`soak detect`, the report of a run and `soak omb analyse` find the same changes in the same numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from detectors import level_shift
from soak.app.analysis import series_files
from soak.app.analysis.detect import detect_offline
from soak.app.analysis.omb import latency_rises
from soak.core.model import Change, Series
from soak.omb.result import END_TO_END, PUBLISH, Floats, Result, statistic_name
from spark.batch.offline_analysis import changes_together

STEP = 10  # seconds, of the samples of a benchmark and the buckets of a report
SAMPLES = 240
QUANTILES = {"p50": 1.0, "p99": 4.0, "p99.9": 12.0}

Found = list[tuple[int, tuple[int, int]]]
"""Onset and interval of each rise, in rows."""


def latencies(seed: int) -> dict[str, Floats]:
    """Return latencies by name: threefold for a while, and fourfold at the end."""
    rng = np.random.default_rng(seed)
    ratio = np.ones(SAMPLES)
    ratio[60:110] = 3.0
    ratio[170:] = 4.0
    return {
        statistic_name(family, quantile): 0.02
        * scale
        * ratio
        * 10.0 ** (0.04 * rng.normal(size=SAMPLES))
        for family in (PUBLISH, END_TO_END)
        for quantile, scale in QUANTILES.items()
    }


def by_soak_detect(columns: dict[str, Floats], folder: Path) -> Found:
    path = folder / "latencies.csv"
    lines = [",".join(["seconds", *columns])]
    for row in range(SAMPLES):
        cells = [repr(float(values[row])) for values in columns.values()]
        lines.append(",".join([str(STEP * row), *cells]))
    path.write_text("\n".join(lines) + "\n")
    return _rises(detect_offline(series_files.read_together(path, [])), 1)


def by_the_report(columns: dict[str, Floats]) -> Found:
    many = [Series(name, STEP * np.arange(SAMPLES), values) for name, values in columns.items()]
    return _rises(changes_together(many, level_shift.Config()), STEP)


def by_omb_analyse(columns: dict[str, Floats]) -> Found:
    result = Result(
        dialect="upstream",
        workload="steady",
        driver="Kafka",
        facts={},
        step_seconds=float(STEP),
        seconds=STEP * np.arange(1.0, SAMPLES + 1),
        samples=columns,
        totals={},
        distributions={},
    )
    return [(one.change.onset_k, one.change.interval) for one in latency_rises(result)]


def _rises(found: list[tuple[Change, ...]], unit: int) -> Found:
    first = [step[0] for step in found if step[0].kind == "step"]
    return [
        (one.onset_k // unit, (one.interval[0] // unit, one.interval[1] // unit))
        for one in first
        if one.direction == "up"
    ]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_all_three_commands_find_the_same_changes(tmp_path: Path, seed: int) -> None:
    columns = latencies(seed)
    found = by_soak_detect(columns, tmp_path)

    assert [onset for onset, _ in found] == [60, 170]
    assert by_the_report(columns) == found
    assert by_omb_analyse(columns) == found
