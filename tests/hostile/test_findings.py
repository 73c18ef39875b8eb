"""A `findings.db` that others made: no program in it runs, and its cells are of our types or an error."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from soak.core.errors import SoakError
from soak.store.findings.store import FindingsStore
from soak.store.run_folder import read_run
from tests.support.live import written_run
from tests.support.served import served

_ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
_COLUMNS = (
    "key, run, raised_k, onset_k, first_k, last_k, series, kind, before, after, state, confidence, "
    "is_about_cluster, gone_k, saved_wall_ns, is_settled, failed_messages, late_messages, due_messages, "
    "worst_k"
)
_CELLS = "'r1', 1, 1, 1, 1, 's', 'step', 1.0, 2.0, 'confirmed', 1.0, 1, NULL, 1, 1, 0, 0, 0, NULL"
_VIEW = f"CREATE VIEW findings ({_COLUMNS}) AS {_ENDLESS} SELECT 'k' || x, {_CELLS} FROM n"
_REPLACED = "PRAGMA writable_schema = ON; UPDATE sqlite_master SET {} WHERE name = 'findings'"
PROGRAMS = {
    "rows without end": f"DROP TABLE findings; {_VIEW}",
    "no rows for ever": f"DROP TABLE findings; {_VIEW} WHERE x < 0",
    "a computed column": "ALTER TABLE findings ADD COLUMN big AS (hex(zeroblob(400000000)))",
    "the pages of another table": _REPLACED.format(
        "rootpage = (SELECT rootpage FROM sqlite_master WHERE name = 'evidence')"
    ),
}


def findings_of(path: Path, script: str) -> Path:
    """Return findings with one of run r1, on which a script was run."""
    with FindingsStore(path):
        pass
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"INSERT INTO findings VALUES ('k', {_CELLS}); {script}")
        connection.commit()
    return path


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", PROGRAMS)
def test_findings_that_are_a_program_are_an_error_at_once(tmp_path: Path, name: str) -> None:
    """A view may never end, with rows that fill the memory or without any; so may pages in two places."""
    path = findings_of(tmp_path / "findings.db", PROGRAMS[name])

    with (
        pytest.raises(SoakError, match=r"findings\.db"),
        FindingsStore(path, is_read_only=True) as store,
    ):
        store.findings("r1")


@pytest.mark.timeout(20)
def test_a_trigger_of_others_does_not_run(tmp_path: Path) -> None:
    trigger = f"CREATE TRIGGER t AFTER INSERT ON notices BEGIN INSERT INTO members {_ENDLESS} "
    path = findings_of(
        tmp_path / "findings.db", f"{trigger} SELECT 'r1', 's' || x, x, 'k' FROM n; END;"
    )

    with FindingsStore(path) as store, pytest.raises(SoakError, match=r"findings\.db"):
        store.save_notice("n", "{}", "missing", [], 1)


def test_findings_that_only_seem_large_are_not_taken_into_memory(tmp_path: Path) -> None:
    """A file with a hole of 1 GiB takes no space on the drive."""
    path = findings_of(tmp_path / "findings.db", "PRAGMA journal_mode = DELETE")
    with path.open("r+b") as file:
        file.truncate(2**30)
        file.seek(28)  # the number of pages in the header
        file.write((2**30 // 4096).to_bytes(4))

    with (
        pytest.raises(SoakError, match="more than any of ours"),
        FindingsStore(path, is_read_only=True),
    ):
        pytest.fail("it was copied")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("raised_k", "'abc'"), ("onset_k", "1.5"), ("first_k", "x'00'"), ("series", "x'ff'")),
        *(("before", "'x'"), ("gone_k", "'q'"), ("worst_k", "'d'"), ("saved_wall_ns", "'1h'")),
        *(("kind", "'nokind'"), ("state", "'nostate'"), ("state", "'withdrawn'")),
    ],
)
def test_a_cell_that_is_none_of_ours_is_an_error(tmp_path: Path, column: str, value: str) -> None:
    """SQLite keeps any type in any column; a text in place of a second ended the commands that show it."""
    path = findings_of(tmp_path / "findings.db", f"UPDATE findings SET {column} = {value}")

    with (
        FindingsStore(path, is_read_only=True) as store,
        pytest.raises(SoakError, match=r"findings\.db"),
    ):
        store.findings("r1")


@pytest.mark.parametrize("numbers", ["[]", "7", '{"a": []}', '{"a": null}'])
def test_evidence_without_numbers_is_an_error(tmp_path: Path, numbers: str) -> None:
    parts = (
        "INSERT INTO causes VALUES ('k', 0, 'c', 0.5, ''); "
        f"INSERT INTO evidence VALUES ('k', 'c', 0, 't', '{numbers}', 0)"
    )
    path = findings_of(tmp_path / "findings.db", parts)

    with (
        FindingsStore(path, is_read_only=True) as store,
        pytest.raises(SoakError, match=r"findings\.db"),
    ):
        store.findings("r1")


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "script", [PROGRAMS["no rows for ever"], "UPDATE findings SET raised_k = 'abc'"]
)
def test_a_run_whose_findings_cannot_be_read_is_served(tmp_path: Path, script: str) -> None:
    """Its page says so; the request was never answered, and held its connection."""
    run = written_run(tmp_path / "r")
    findings_of(
        run.folder.findings, f"UPDATE findings SET run = '{read_run(run.folder).id}'; {script}"
    )

    with served(tmp_path) as site:
        answer = site.get("/run/r/now.json")

    assert answer.status == 200
    assert "findings.db" in json.loads(answer.body)["unread"]
