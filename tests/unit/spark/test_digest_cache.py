"""Digests of journal files are kept in the run folder, and made anew when what made them differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from soak.core.plan.phases import Phases
from soak.store.audit import audit_run
from soak.store.run_folder import RunFolder, read_phases, read_plan, read_run
from spark.batch.digest import Scope
from spark.batch.digest_cache import Row, cached_row, digest_row
from spark.batch.timeline import assemble
from tests.support.spark.long_run import LongShape, write_long_run

SOURCE = "produce.0@load"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return write_long_run(
        tmp_path_factory.mktemp("long") / "run",
        LongShape(seconds=660, series=60, segment_seconds=600),
    )


def first(folder: RunFolder) -> Path:
    return folder.journal / SOURCE / "000000.jsonl"


def kept(folder: RunFolder) -> Path:
    return folder.path / "digests" / SOURCE / "000000.parquet"


def scope_of(folder: RunFolder) -> Scope:
    return Scope((), read_phases(folder.phases))


@pytest.mark.long
def test_a_kept_row_is_that_of_the_file(run: RunFolder) -> None:
    scope = scope_of(run)
    made, again = cached_row(first(run), 10, scope), cached_row(first(run), 10, scope)

    assert kept(run).exists()
    assert made.equals(digest_row(first(run), 10, scope))
    assert again.equals(made)


def test_the_newest_file_of_a_source_is_not_kept(run: RunFolder) -> None:
    newest = run.journal / SOURCE / "000001.jsonl"

    assert cached_row(newest, 10, scope_of(run)).equals(digest_row(newest, 10, scope_of(run)))
    assert not (run.path / "digests" / SOURCE / "000001.parquet").exists()


@pytest.mark.long
@pytest.mark.parametrize("what", ["step", "phases", "file", "damage"])
def test_a_row_is_made_anew_when_what_made_it_differs(run: RunFolder, what: str) -> None:
    """Another step, other phases of its seconds, one byte of the journal, or parquet that is none."""
    scope, step, whole = scope_of(run), 10, first(run).read_bytes()
    cached_row(first(run), step, scope)
    if what == "step":
        step = 1
    elif what == "phases":
        scope = replace(scope, phases=Phases(scope.phases.decisions[:1]))
    elif what == "file":
        first(run).write_bytes(whole[:-40] + b"#" + whole[-39:])
    else:
        kept(run).write_bytes(b"no parquet")
    found = cached_row(first(run), step, scope)
    expected = digest_row(first(run), step, scope)
    metadata = pq.read_schema(kept(run)).metadata
    first(run).write_bytes(whole)

    assert found.equals(expected)
    assert metadata[b"soak_seconds"]


def test_phases_of_later_seconds_change_nothing(run: RunFolder) -> None:
    """What a run decided since concerns seconds that the file does not have."""
    scope = scope_of(run)
    cached_row(first(run), 10, scope)
    before = kept(run).stat().st_mtime_ns
    cached_row(first(run), 10, replace(scope, phases=Phases(scope.phases.decisions[:2])))

    assert kept(run).stat().st_mtime_ns == before


@pytest.mark.long
def test_the_audit_of_kept_rows_is_that_of_the_journals(run: RunFolder) -> None:
    def kept_rows(paths: Sequence[Path], step: int, scope: Scope) -> list[Row]:
        return [cached_row(path, step, scope).to_pylist()[0] for path in paths]

    kept_rows([first(run)], 10, scope_of(run))
    audit = audit_run(run, read_run(run), read_plan(run)).verdict()

    assert audit["acked"] == audit["received"] == 640 * 996
    assert assemble(run, kept_rows).audit == audit


@pytest.mark.long
def test_a_folder_that_cannot_be_written_gives_the_row_all_the_same(tmp_path: Path) -> None:
    folder = write_long_run(
        tmp_path / "run", LongShape(seconds=400, series=60, segment_seconds=200)
    )
    (folder.path / "digests").write_text("a file where the folder would be")
    scope = scope_of(folder)

    assert cached_row(first(folder), 10, scope).equals(digest_row(first(folder), 10, scope))
