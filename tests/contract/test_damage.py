"""Files that somebody spoilt: a clear error or a marked gap, never a traceback, never a number made up.

Some of them in the fast tests; a thousand by `make test-damage`.
"""

from __future__ import annotations

import random
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from soak.app.analysis import omb
from soak.app.plan_files import load_plan
from soak.core.errors import SoakError
from soak.core.journal_format import DamagedLineError, decode
from soak.core.model import Record
from soak.omb import plan_import
from soak.runtime.context import PhaseFile
from soak.store.audit import audit_run
from soak.store.findings.store import FindingsStore
from soak.store.journal.history import History
from soak.store.journal.reader import (
    SourceReader,
    complete_size,
    last_record,
    lines,
    read_source,
    segments,
    sources,
)
from soak.store.run_folder import read_plan, read_run
from spark.batch.digest import digest
from tests.support.alerting.findings import NOW, change, finding
from tests.support.damage import spoil
from tests.support.omb.plans import KAFKA, PULSAR, WORKLOAD
from tests.support.paths import RECORDED, ROOT
from tests.support.spark.synthetic_run import Shape, write_synthetic_run

PLANS = [ROOT / "configs/reference.yaml", *sorted((ROOT / "configs/plans").glob("*.yaml"))]
RESULTS = sorted((RECORDED / "omb").glob("*.json"))
SEED, FEW = 20261122, 4
_NAMED = re.compile(r"\w+\.(yaml|json|jsonl|db)\b|journal of version")  # which file it is

Spoilt = Callable[[Path, random.Random], str]
"""Spoils one file below a folder and has it read; returns what became of it."""


def plans(folder: Path, rng: random.Random) -> str:
    path = folder / "plan.yaml"
    path.write_bytes(spoil(rng.choice(PLANS).read_bytes(), rng))
    load_plan(path)
    return "read"


def journals(folder: Path, rng: random.Random) -> str:
    """Every line that is whole is read, every other one is a gap with its place."""
    run = write_synthetic_run(folder / "run", Shape(seconds=26, warm_up=3, drain=3, rate=20))
    source = rng.choice(sources(run.journal))
    (path,) = segments(run.journal / source)
    path.write_bytes(spoil(path.read_bytes(), rng))
    reader = SourceReader(run.journal / source)
    found = {(record.epoch, record.k) for record, _ in read_source(run.journal, source, reader)}
    last_record(run.journal, source)
    digest(path, 1)
    History(run.journal).window(0, 26)
    audit_run(run, read_run(run), read_plan(run)).verdict(is_loss_known=True)
    kept, spoilt = _whole(path)
    without_columns = sum("no columns line" in one.reason for one in reader.damage)
    assert len(reader.damage) - without_columns == spoilt
    assert found <= kept
    assert len(kept) - len(found) <= without_columns
    return "gap" if reader.damage else "read"


def _whole(path: Path) -> tuple[set[tuple[int, int]], int]:
    """Return the seconds whose lines are whole, and how many lines are not: the slow twin of the reader."""
    kept, spoilt = set(), 0
    for raw in lines(path, 0, complete_size(path)):
        try:
            line = decode(raw)
        except DamagedLineError:
            spoilt += 1
            continue
        if isinstance(line, Record):
            kept.add((line.epoch, line.k))
    return kept, spoilt


def databases(folder: Path, rng: random.Random) -> str:
    path = folder / "findings.db"
    with FindingsStore(path) as store:
        store.record_changes("run1", [change(raised_k=k) for k in range(130, 140)])
        for number in range(10):
            store.save_finding(finding(key=f"run1-{number}"), ["mail", "webhook"], NOW)
    path.write_bytes(spoil(path.read_bytes(), rng))
    for side in ("-wal", "-shm"):
        path.with_name(path.name + side).unlink(missing_ok=True)
    with FindingsStore(path) as store:
        store.findings("run1")
        store.changes("run1")
        store.finding("run1-3")
        for row in store.due(NOW):
            store.mark_sent(row, NOW)
        store.save_finding(finding(key="run1-99"), ["mail"], NOW)
    return "read"


def results(folder: Path, rng: random.Random) -> str:
    path = folder / "result.json"
    path.write_bytes(spoil(rng.choice(RESULTS).read_bytes(), rng))
    found, _ = omb.read_files([path])
    for _, result in found:
        omb.latency_rises(result)
    return "read"


def workloads(folder: Path, rng: random.Random) -> str:
    texts = [WORKLOAD.encode(), rng.choice((KAFKA, PULSAR)).encode()]
    at = rng.randrange(2)
    texts[at] = spoil(texts[at], rng)
    paths = [folder / "workload.yaml", folder / "driver.yaml"]
    for path, raw in zip(paths, texts, strict=True):
        path.write_bytes(raw)
    _, found = omb.read_files(paths)
    plan_import.import_plan(found, None, "plan.yaml")
    return "read"


def run_files(folder: Path, rng: random.Random) -> str:
    run = write_synthetic_run(folder / "run", Shape(seconds=26, warm_up=3, drain=3, rate=1))
    path = rng.choice([run.plan, run.run_json, run.phases])
    path.write_bytes(spoil(path.read_bytes(), rng))
    read_run(run)
    read_plan(run)
    PhaseFile(run.phases).poll().at(3)
    return "read"


SUBJECTS: tuple[Spoilt, ...] = (plans, journals, databases, results, workloads, run_files)


def count(tmp_path: Path, spoilt: Spoilt, first: int, number: int) -> Counter[str]:
    """Spoil so many files, and count what became of them; one that fails stays, in a folder of its seed."""
    tally = Counter[str]()
    for seed in range(first, first + number):
        folder = tmp_path / f"{spoilt.__name__}-{seed}"
        folder.mkdir()
        message = ""
        try:
            fate = spoilt(folder, random.Random(seed))
        except SoakError as error:
            fate, message = "error", str(error)
        tally[fate] += 1
        assert fate != "error" or _NAMED.search(message), message
        shutil.rmtree(folder)
    return tally


@pytest.mark.long
@pytest.mark.parametrize("spoilt", SUBJECTS)
def test_a_damaged_file_is_an_error_or_a_gap(tmp_path: Path, spoilt: Spoilt) -> None:
    """Whatever is wrong with it."""
    tally = count(tmp_path, spoilt, SEED, FEW)

    assert tally.total() == FEW


@pytest.mark.damage
@pytest.mark.parametrize("spoilt", SUBJECTS)
def test_a_thousand_damaged_files_are(tmp_path: Path, spoilt: Spoilt) -> None:
    """The same, more often; what became of them is printed."""
    number = -(-1000 // len(SUBJECTS))
    tally = count(tmp_path, spoilt, 0, number)
    print(f"\n{spoilt.__name__}: {dict(tally)}")  # noqa: T201  # the figures

    assert tally.total() == number
