"""Layouts of `findings.db`: an older one is brought up to date with what it holds, a newer one refused."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from soak.core.errors import FindingsError
from soak.store.findings.store import FindingsStore
from tests.unit.store.findings.test_findings_store import NOW, SERIES, change, finding


def take_back(path: Path, version: int) -> None:
    """Leave the file as a program of that version would have made it."""
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE findings DROP COLUMN is_settled")
        connection.execute("ALTER TABLE outbox DROP COLUMN cause")
        if version <= 3:
            connection.execute("CREATE TABLE old AS SELECT * FROM outbox")
            connection.execute("DROP TABLE outbox")
            connection.execute("ALTER TABLE old RENAME TO outbox")
            for column in ("turn", "so_far"):
                connection.execute(f"ALTER TABLE outbox DROP COLUMN {column}")
        if version <= 2:
            for column in ("period_seconds", "burst_seconds"):
                connection.execute(f"ALTER TABLE changes DROP COLUMN {column}")
        if version <= 1:
            connection.execute("ALTER TABLE changes DROP COLUMN gone_k")
            connection.execute("DROP TABLE members")
        connection.execute(f"PRAGMA user_version = {version}")


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_an_older_file_keeps_what_it_holds(tmp_path: Path, version: int) -> None:
    """Its findings were not known to be settled, its messages not to have named a cause."""
    path = tmp_path / "f.db"
    found = finding(is_settled=False)
    with FindingsStore(path) as store:
        store.record_changes("run1", [change("confirmed")])
        store.save_finding(found, ["mail"], NOW)
        before = store.outbox("run1")
    take_back(path, version)

    with FindingsStore(path) as store:
        assert store.changes("run1") == [change("confirmed")]
        assert (store.findings("run1"), store.outbox("run1")) == ([found], before)
        assert store.assigned("run1") == {}


def test_an_older_file_gets_room_for_what_is_new(tmp_path: Path) -> None:
    """The period of spikes, which finding a change belongs to, and what people were told."""
    path = tmp_path / "f.db"
    with FindingsStore(path) as store:
        store.save_finding(finding(is_settled=False), ["mail"], NOW)
    take_back(path, 1)
    spikes = change(
        "confirmed", raised_k=900, kind="spikes", period_seconds=52.1, burst_seconds=3.0
    )

    with FindingsStore(path) as store:
        store.record_changes("run1", [spikes])
        store.assign("run1", {(SERIES, 900): "run1-900"})
        store.begin_try(store.due(NOW)[0], NOW, NOW)
        store.save_finding(finding(), ["mail"], NOW)

        assert store.changes("run1") == [spikes]
        assert store.assigned("run1") == {(SERIES, 900): "run1-900"}
        assert [row.cause for row in store.outbox("run1")] == ["retention_cliff"]
        assert store.findings("run1") == [finding()]


def test_what_was_told_before_an_upgrade_is_not_corrected(tmp_path: Path) -> None:
    """Nobody knows any more which cause people were told."""
    path = tmp_path / "f.db"
    with FindingsStore(path) as store:
        store.save_finding(finding(is_settled=False), ["mail"], NOW)
        store.mark_sent(store.due(NOW)[0], NOW)
    take_back(path, 4)

    with FindingsStore(path) as store:
        store.save_finding(finding(causes=(finding().causes[1],)), ["mail"], NOW)

        assert [row.kind for row in store.outbox("run1")] == ["confirmed"]


def test_a_newer_layout_is_refused_and_left_alone(tmp_path: Path) -> None:
    """An older program does not touch what it may not understand."""
    path = tmp_path / "f.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")

    with pytest.raises(FindingsError, match="version 99"), FindingsStore(path):
        pass
