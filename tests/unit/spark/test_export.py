"""`soak export`: what was measured comes out as parquet, value by value, and the page about it is right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from soak.core.errors import RunFolderError
from soak.core.model import Change
from soak.core.series import series_name
from soak.core.units import SECOND_NS
from soak.store.findings.store import FindingsStore
from soak.store.journal.reader import read_source, sources
from soak.store.run_folder import RunFolder
from spark.batch import export
from spark.batch.export import CHANGES, DAMAGED, EVENTS, FINDINGS, SAMPLES
from tests.support.alerting.findings import finding
from tests.support.paths import ROOT
from tests.support.spark.synthetic_run import (
    CONSUMER,
    PRODUCER,
    START_WALL_NS,
    Shape,
    write_synthetic_run,
)

PAGE = ROOT / "docs/how-to/export.md"
SHAPE = Shape(seconds=60, fault_k=None, gaps=((CONSUMER, range(30, 33)),), damaged_k=40)


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    return write_synthetic_run(tmp_path / "run", SHAPE)


def _samples(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / "samples")


@pytest.mark.long
def test_every_measured_value_is_exported_once(run_folder: RunFolder, tmp_path: Path) -> None:
    found = export.export(run_folder, tmp_path / "out")

    samples = _samples(tmp_path / "out")
    expected = {
        (series_name(source, column.name), record.epoch, record.k): value
        for source in sources(run_folder.journal)
        for record, columns in read_source(run_folder.journal, source)
        for column, value in zip(columns, record.values, strict=True)
        if not np.isnan(value)
    }
    keys = zip(samples["series"], samples["epoch"], samples["k"], strict=True)

    assert found.samples == len(samples) == len(expected)
    assert dict(zip(keys, samples["value"], strict=True)) == expected


@pytest.mark.long
def test_a_row_says_when_in_which_phase_and_whether_it_is_valid(tmp_path: Path) -> None:
    shape = Shape(seconds=60, fault_k=None, invalid=range(40, 42))
    folder = write_synthetic_run(tmp_path / "run", shape)

    export.export(folder, tmp_path / "out")

    samples = _samples(tmp_path / "out")
    mine = samples[(samples["source"] == PRODUCER) & (samples["metric"] == "sent_messages")]
    by_k = mine.set_index("k")
    assert by_k.loc[19, "phase"] == "warm-up"
    assert by_k.loc[20, "phase"] == "soak"
    assert by_k.index[~by_k["valid"]].tolist() == [40, 41]
    assert by_k["time"].to_dict()[20] == pd.Timestamp(START_WALL_NS + 21 * SECOND_NS, tz="UTC")


def test_gaps_have_no_rows_and_damage_is_an_event(run_folder: RunFolder, tmp_path: Path) -> None:
    export.export(run_folder, tmp_path / "out")

    samples = _samples(tmp_path / "out")
    events = pd.read_parquet(tmp_path / "out/events.parquet")
    of_consumer = samples[samples["source"] == CONSUMER]
    of_producer = samples[samples["source"] == PRODUCER]
    damaged = events[events["kind"] == DAMAGED]
    assert sorted(set(range(60)) - set(of_consumer["k"])) == [30, 31, 32]
    assert sorted(set(range(60)) - set(of_producer["k"])) == [40]
    assert damaged["source"].tolist() == [PRODUCER]


def test_findings_and_changes_are_those_of_the_store(run_folder: RunFolder, tmp_path: Path) -> None:
    """With the words of reports: what is over is resolved."""
    stored = finding("gone", run="synthetic-1", onset_k=50, resolved_k=55)
    rise = Change(stored.series, 53, 50, (49, 51), 0.01, 0.15, "confirmed", 0.99)
    with FindingsStore(run_folder.findings) as store:
        store.save_finding(stored, (), START_WALL_NS)
        store.record_changes("synthetic-1", [rise])

    export.export(run_folder, tmp_path / "out")

    (incident,) = pq.read_table(tmp_path / "out/findings.parquet").to_pylist()
    (change,) = pq.read_table(tmp_path / "out/changes.parquet").to_pylist()
    assert (incident["key"], incident["state"]) == (stored.key, "resolved")
    assert incident["onset"].timestamp() == START_WALL_NS / SECOND_NS + 50
    assert (change["raised_k"], change["after"], change["state"]) == (53, 0.15, "confirmed")


def test_a_run_without_journals_gives_empty_tables(run_folder: RunFolder, tmp_path: Path) -> None:
    run_folder.journal.rename(run_folder.path / "moved")

    found = export.export(run_folder, tmp_path / "out")

    assert (found.samples, found.events) == (0, 0)
    assert pq.read_schema(tmp_path / "out/events.parquet").names == EVENTS.names


def test_a_folder_that_exists_is_left_alone(run_folder: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()

    with pytest.raises(RunFolderError, match="exists"):
        export.export(run_folder, tmp_path / "out")

    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("schema", [SAMPLES, EVENTS, FINDINGS, CHANGES])
def test_the_page_says_what_each_column_means(schema: Any) -> None:
    """Every column stands in the first cell of a row."""
    cells = re.findall(r"^\| (`.*?) \|", PAGE.read_text(), flags=re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", " ".join(cells)))

    assert set(schema.names) <= named


def test_the_example_with_pandas_works(run_folder: RunFolder, tmp_path: Path) -> None:
    """The page's own code: medians by minute of the soak's p99."""
    export.export(run_folder, tmp_path / "out")
    names: dict[str, Any] = {"folder": tmp_path / "out", "source": CONSUMER}

    exec(example("pandas"), names)

    assert len(names["p99"]) == 60 - 20 - 3 - SHAPE.drain
    assert names["by_minute"].notna().any()


def example(library: str) -> str:
    """Return the code of the page that imports a library."""
    blocks: list[str] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    return next(block for block in blocks if library in block)
