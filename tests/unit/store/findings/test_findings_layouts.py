"""Layouts of `findings.db`: an older one is migrated with all that it holds, a newer one is refused."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from soak.core.errors import FindingsError
from soak.core.units import SECOND_NS
from soak.store.findings.store import FindingsStore
from tests.support.alerting.findings import CAUSES, NOW, SERIES, change, finding
from tests.support.paths import DATA

LATE = NOW + 3600 * SECOND_NS


def old_file(path: Path, version: int = 5) -> Path:
    """Return a file as a program of that version left it; that of version 5 was made by one."""
    with sqlite3.connect(path) as connection:
        connection.executescript((DATA / "findings_v5.sql").read_text())
        if version <= 4:
            connection.execute("ALTER TABLE findings DROP COLUMN is_settled")
            connection.execute("ALTER TABLE outbox DROP COLUMN cause")
        if version <= 3:
            connection.execute("DELETE FROM outbox WHERE turn > 1")
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
    return path


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_an_older_file_keeps_what_it_holds(tmp_path: Path, version: int) -> None:
    """Findings, changes and pending notifications; opening it twice changes nothing more."""
    path = old_file(tmp_path / "f.db", version)
    for _ in range(2):
        with FindingsStore(path) as store:
            found = store.finding("run1-134")
            pending = [(row.subject, row.kind) for row in store.open_notifications()]

            assert store.changes("run1") == [change("confirmed")]
    assert found == finding(key="run1-134", is_settled=version == 5)
    assert pending == [
        ("run1-130", "resolved"),
        ("run1-131", "opened"),
        ("run1-132", "opened"),
        ("run1-134", "opened"),
        ("run1-135", "corrected"),
        *([("run1-136", "opened")] if version > 3 else []),
        ("run1-probe@h-1790000000", "returned"),
        ("run1-given-up-1790000500", "aborted"),
        ("digest.1790000580", "digest"),
    ]


def test_version_5_says_who_has_got_what(tmp_path: Path) -> None:
    """States become explicit, and a try that reached some recipients is not repeated for them."""
    with FindingsStore(old_file(tmp_path / "f.db")) as store:
        rows = {(row.subject, row.occurrence, row.kind): row for row in store.notifications("run1")}
        digest = store.open_notifications()[-1]

        assert {key: row.state for key, row in rows.items()} == {
            ("run1-130", 1, "opened"): "sent",
            ("run1-130", 1, "resolved"): "pending",
            ("run1-131", 1, "opened"): "deferred",
            ("run1-132", 1, "opened"): "sending",
            ("run1-133", 1, "opened"): "refused",
            ("run1-134", 1, "opened"): "pending",
            ("run1-135", 1, "opened"): "sent",
            ("run1-135", 1, "corrected"): "pending",
            ("run1-136", 1, "opened"): "sent",
            ("run1-136", 1, "resolved"): "sent",
            ("run1-136", 2, "opened"): "pending",
        }
        assert rows["run1-131", 1, "opened"].progress == digest.progress == "a has it"
        assert (digest.created_wall_ns, digest.sink) == (NOW + 580 * SECOND_NS, "mail")
        assert store.last_digest_ns("mail") == NOW - 86_400 * SECOND_NS
        assert store.last_digest_ns("other") == NOW
        assert store.notice("run1-probe@h-1790000000") in store.notices()
        assert len(store.notices()) == 2


def test_damaged_notes_of_version_5_do_not_block_the_file(tmp_path: Path) -> None:
    """A digest of which nothing can be read is dropped; everything else is kept."""
    path = old_file(tmp_path / "f.db")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE checkpoints SET value = '[' WHERE name <> 'stream'")

    with FindingsStore(path) as store:
        assert "digest" not in {row.kind for row in store.open_notifications()}
        assert len(store.open_notifications()) == 8
        assert store.last_digest_ns("mail") is None


def test_a_correction_is_known_to_differ_from_what_version_5_sent(tmp_path: Path) -> None:
    with FindingsStore(old_file(tmp_path / "f.db")) as store:
        (row,) = (one for one in store.due(LATE) if one.kind == "corrected")
        content = store.begin_try(row, LATE, LATE)

        assert content is not None
        assert content.previous_cause == CAUSES[0].cause


def test_an_older_file_gets_room_for_new_columns(tmp_path: Path) -> None:
    """The period of spikes, the finding that a change belongs to, and the cause that a message named."""
    spikes = change(
        "confirmed", raised_k=900, kind="spikes", period_seconds=52.1, burst_seconds=3.0
    )
    with FindingsStore(old_file(tmp_path / "f.db", 1)) as store:
        store.record_changes("run1", [spikes])
        store.assign("run1", {(SERIES, 900): "run1-900"})
        (row,) = (one for one in store.due(LATE) if one.subject == "run1-134")
        store.begin_try(row, LATE, LATE)
        (row,) = (one for one in store.open_notifications() if one.subject == "run1-134")

        assert store.changes("run1")[-1] == spikes
        assert store.assigned("run1") == {(SERIES, 900): "run1-900"}
        assert row.cause == "retention_cliff"


def test_a_message_sent_before_version_5_is_not_corrected(tmp_path: Path) -> None:
    """The cause that it named is not known any more."""
    with FindingsStore(old_file(tmp_path / "f.db", 4)) as store:
        corrected = finding(key="run1-136", causes=(CAUSES[1],), state="gone", resolved_k=200)
        store.save_finding(corrected, ["mail"], LATE)

        rows = [one for one in store.notifications("run1") if one.subject == "run1-136"]
        assert [row.kind for row in rows] == ["opened", "resolved"]


def test_a_message_of_version_9_named_a_cause_and_no_suspect(tmp_path: Path) -> None:
    """Another cause corrects it, another suspect does not."""
    path = tmp_path / "f.db"
    first = finding(is_settled=False)
    with FindingsStore(path) as store:
        for key in ("run1-1", "run1-2"):
            store.save_finding(replace(first, key=key), ["mail"], NOW)
        for row in store.due(NOW):
            store.begin_try(row, NOW, NOW)
            store.mark_sent(row, NOW)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE notifications SET cause = 'retention_cliff'")
        connection.execute("PRAGMA user_version = 9")
    suspected = replace(CAUSES[0], suspect="b3:9092")
    with FindingsStore(path) as store:
        store.save_finding(finding(key="run1-1", causes=(suspected,)), ["mail"], NOW)
        store.save_finding(finding(key="run1-2", causes=CAUSES[1:]), ["mail"], NOW)
        (row,) = store.open_notifications()
        content = store.begin_try(row, NOW, NOW)

    assert (row.subject, row.kind) == ("run1-2", "corrected")
    assert content is not None
    assert content.previous_cause == "retention_cliff"


def test_messages_of_version_10_keep_their_order(tmp_path: Path) -> None:
    """A kind came between the first and the others, which are numbered by their order."""
    path = tmp_path / "f.db"
    gone = finding(state="gone", resolved_k=200)
    with FindingsStore(path) as store:
        for one in (replace(gone, state="confirmed"), gone):
            store.save_finding(one, ["mail"], NOW)
            (row,) = store.due(NOW)
            store.begin_try(row, NOW, NOW)
            store.mark_sent(row, NOW)
        store.save_finding(finding(), ["mail"], NOW)
        store.save_finding(gone, ["other"], NOW)
        rows = store.notifications("run1")
    with sqlite3.connect(path) as connection:
        for step in (1, 2, 3):
            connection.execute("UPDATE notifications SET step = ? WHERE step = ?", (step, step + 1))
        connection.execute("PRAGMA user_version = 10")

    for _ in range(2):
        with FindingsStore(path) as store:
            assert store.notifications("run1") == rows
            assert [one.kind for one in store.due(NOW)] == ["opened", "opened"]
            assert store.unresolved("mail") == []


def test_a_newer_layout_is_refused_and_left_alone(tmp_path: Path) -> None:
    """An older program does not touch what it may not understand."""
    path = tmp_path / "f.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")

    with pytest.raises(FindingsError, match="version 99"), FindingsStore(path):
        pass
