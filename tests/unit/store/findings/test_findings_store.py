"""The findings store: idempotent, transactional, and each notification queued once."""

from __future__ import annotations

import dataclasses
import math
import sqlite3
from pathlib import Path

import pytest

from soak.core.errors import FindingsBusyError, FindingsError
from soak.core.model import Evidence, Explanation, Finding
from soak.core.units import SECOND_NS
from soak.store.findings.rows import NotificationContent
from soak.store.findings.store import MAX_RETRY_WAIT_NS, FindingsStore
from tests.support.alerting.findings import CAUSES, NOW, SERIES, change, finding


def dump(path: Path) -> list[str]:
    with sqlite3.connect(path) as connection:
        return list(connection.iterdump())


def test_a_finding_is_read_as_it_was_saved(tmp_path: Path) -> None:
    """Causes keep their order and their evidence."""
    with FindingsStore(tmp_path / "f.db") as store:
        store.save_finding(finding(), ["mail"], NOW)

        assert store.findings("run1") == [finding()]
        assert store.finding("run1-130") == finding()
        assert store.findings("other") == []


def test_the_state_of_a_change_never_goes_back(tmp_path: Path) -> None:
    """A batch that is delivered again with an older state changes nothing."""
    with FindingsStore(tmp_path / "f.db") as store:
        store.record_changes("run1", [change("confirmed", after=0.07)])
        store.record_changes("run1", [change("warning")])

        assert store.changes("run1") == [change("confirmed", after=0.07)]


def test_a_withdrawn_change_leaves_nothing(tmp_path: Path) -> None:
    with FindingsStore(tmp_path / "f.db") as store:
        store.record_changes("run1", [change("warning")])
        store.assign("run1", {(SERIES, 130): "run1-130"})
        store.record_changes("run1", [change("withdrawn")])

        assert (store.changes("run1"), store.assigned("run1")) == ([], {})


def test_the_first_assignment_of_a_change_stays(tmp_path: Path) -> None:
    with FindingsStore(tmp_path / "f.db") as store:
        store.assign("run1", {(SERIES, 130): "run1-130"})
        store.assign("run1", {(SERIES, 130): "run1-131", (SERIES, 140): "run1-131"})

        assert store.assigned("run1") == {(SERIES, 130): "run1-130", (SERIES, 140): "run1-131"}


def test_only_a_warning_can_be_dropped(tmp_path: Path) -> None:
    with FindingsStore(tmp_path / "f.db") as store:
        store.save_finding(finding("warning", key="run1-1"), ["mail"], NOW)
        store.save_finding(finding("confirmed"), ["mail"], NOW)
        for key in ("run1-1", "run1-130"):
            store.drop_warning(key)

        assert store.findings("run1") == [finding("confirmed")]


def test_a_finding_that_is_open_again_cancels_a_resolved_message(tmp_path: Path) -> None:
    """As long as that was not sent."""
    with FindingsStore(tmp_path / "f.db") as store:
        store.save_finding(finding("gone", resolved_k=200), ["mail"], NOW)
        store.save_finding(finding("warning"), ["mail"], NOW)
        store.save_finding(finding("confirmed"), ["mail"], NOW)

        assert store.findings("run1") == [finding("confirmed")]
        assert [row.kind for row in store.notifications("run1")] == ["opened"]


def test_saving_everything_twice_changes_nothing(tmp_path: Path) -> None:
    """The content of the whole file stays the same."""
    path = tmp_path / "f.db"

    def deliver() -> list[str]:
        with FindingsStore(path) as store:
            store.record_changes("run1", [change("warning"), change("confirmed")])
            store.save_finding(finding("warning"), ["mail"], NOW)
            store.save_finding(finding("confirmed"), ["mail"], NOW)
        return dump(path)

    assert deliver() == deliver()


def test_a_notification_is_queued_once_for_each_sink_and_kind(tmp_path: Path) -> None:
    with FindingsStore(tmp_path / "f.db") as store:
        for _ in range(3):
            store.save_finding(finding("confirmed"), ["mail", "hook"], NOW)
        store.save_finding(finding("gone", resolved_k=200), ["mail", "hook"], NOW + 1)

        kinds = sorted((row.sink, row.kind) for row in store.notifications("run1"))
        assert kinds == [
            ("hook", "opened"),
            ("hook", "resolved"),
            ("mail", "opened"),
            ("mail", "resolved"),
        ]


@pytest.mark.parametrize(
    "quiet",
    [
        finding("warning"),
        finding("confirmed", causes=()),
        finding("confirmed", is_about_cluster=False),
    ],
    ids=["warning", "not attributed", "not about the cluster"],
)
def test_an_uncertain_finding_is_not_sent(tmp_path: Path, quiet: Finding) -> None:
    """A warning, a finding without its cause, and one about the client."""
    with FindingsStore(tmp_path / "f.db") as store:
        store.save_finding(quiet, ["mail"], NOW)

        assert store.notifications("run1") == []


def test_an_outage_is_sent_before_its_cause_is_known(tmp_path: Path) -> None:
    outage = finding(causes=(), kind="outage", failed_messages=3, late_messages=0, due_messages=90)
    with FindingsStore(tmp_path / "f.db") as store:
        store.save_finding(outage, ["mail"], 1)

        assert [row.kind for row in store.due(2**62)] == ["opened"]
        assert store.finding(outage.key) == outage


def test_a_later_save_without_series_keeps_the_known_ones(tmp_path: Path) -> None:
    with FindingsStore(tmp_path / "f.db") as store:
        store.save_finding(finding("confirmed"), ["mail"], NOW)
        store.save_finding(finding("gone", changes=(), resolved_k=200), ["mail"], NOW)

        (found,) = store.findings("run1")
        assert (found.state, len(found.changes)) == ("gone", 1)
        assert [row.kind for row in store.notifications("run1")] == ["opened", "resolved"]


def states(store: FindingsStore) -> list[tuple[str, int, str]]:
    return [(row.kind, row.occurrence, row.state) for row in store.notifications("run1")]


def send_due(store: FindingsStore) -> None:
    """Send the due notifications, and those that become due by that."""
    while rows := store.due(NOW):
        store.mark_sent(rows[0], NOW)


def test_a_sent_finding_that_is_the_clients_is_withdrawn_once(tmp_path: Path) -> None:
    cleared = finding("confirmed", is_about_cluster=False)
    with FindingsStore(tmp_path / "f.db") as store:
        store.save_finding(finding("confirmed"), ["mail"], NOW)
        send_due(store)
        store.save_finding(cleared, ["mail"], NOW)
        store.save_finding(cleared, ["mail"], NOW)
        send_due(store)
        store.save_finding(finding("gone", is_about_cluster=False, resolved_k=200), ["mail"], NOW)

        assert states(store) == [("opened", 1, "sent"), ("resolved", 1, "sent")]


def test_a_finding_that_was_not_tried_is_withdrawn_silently(tmp_path: Path) -> None:
    """A try that was begun may have arrived."""
    with FindingsStore(tmp_path / "f.db") as store:
        for key in ("run1-130", "run1-140"):
            store.save_finding(finding("confirmed", key=key), ["mail"], NOW)
        store.begin_try(store.due(NOW)[0], NOW, NOW)
        for key in ("run1-130", "run1-140"):
            store.save_finding(finding(key=key, is_about_cluster=False), ["mail"], NOW)

        rows = [(row.subject, row.kind) for row in store.notifications("run1")]
        assert rows == [("run1-130", "opened"), ("run1-130", "resolved")]


def test_a_finding_that_comes_back_starts_another_occurrence(tmp_path: Path) -> None:
    """Unless it was open and resolved again between two rounds."""
    with FindingsStore(tmp_path / "f.db") as store:
        for _ in range(2):
            store.save_finding(finding("confirmed"), ["mail"], NOW)
            store.save_finding(finding("gone", resolved_k=200), ["mail"], NOW)
            send_due(store)

        assert states(store) == [
            ("opened", 1, "sent"),
            ("resolved", 1, "sent"),
        ], "up and gone again between two rounds is no news"
        store.save_finding(finding("confirmed"), ["mail"], NOW)
        send_due(store)
        store.save_finding(finding("gone", resolved_k=200), ["mail"], NOW)
        assert states(store)[2:] == [("opened", 2, "sent"), ("resolved", 2, "pending")]


def test_unresolved_notifications_are_known_by_sink(tmp_path: Path) -> None:
    with FindingsStore(tmp_path / "f.db") as store:
        for key in ("run1-1", "run1-2", "run1-3"):
            store.save_finding(finding(key=key), ["hook", "mail"], NOW)
        for row in store.due(NOW):
            if row.sink == "hook" and row.subject != "run1-3":
                store.mark_sent(row, NOW)
        store.save_finding(finding("gone", key="run1-2", resolved_k=200), ["hook", "mail"], NOW)

        assert [row.subject for row in store.unresolved("hook")] == ["run1-1"]
        assert store.unresolved("mail") == []


def test_a_try_is_counted_before_it_is_made(tmp_path: Path) -> None:
    """A settled notification is not tried."""
    with FindingsStore(tmp_path / "f.db") as store:
        store.save_finding(finding(), ["mail"], NOW)
        (row,) = store.due(NOW)
        begun = store.begin_try(row, NOW, NOW + SECOND_NS)
        due_at_once = store.due(NOW)
        store.mark_sent(row, NOW)

        assert (begun, due_at_once) == (
            NotificationContent(finding(), previous_cause="", progress=""),
            [],
        )
        assert store.begin_try(row, NOW, NOW) is None
        assert [sent.attempts for sent in store.notifications("run1")] == [1]


def test_messages_sent_while_the_clock_ran_ahead_are_not_counted(tmp_path: Path) -> None:
    hour = 3600 * SECOND_NS
    with FindingsStore(tmp_path / "f.db") as store:
        store.save_finding(finding(), ["mail"], NOW)
        store.mark_sent(store.due(NOW)[0], NOW + 48 * hour)

        assert store.sent_between("mail", NOW - hour, NOW) == 0
        assert store.sent_between("mail", NOW + 47 * hour, NOW + 48 * hour) == 1
        assert store.last_sent_ns("mail", NOW) is None
        assert store.last_sent_ns("mail", NOW + 48 * hour) == NOW + 48 * hour


def test_resolved_is_due_only_after_opened(tmp_path: Path) -> None:
    with FindingsStore(tmp_path / "f.db") as store:
        store.save_finding(finding("gone", resolved_k=200), ["mail"], NOW)
        (first,) = store.due(NOW)
        assert store.begin_try(first, NOW, NOW + SECOND_NS)
        store.mark_deferred(first, NOW, NOW + 60 * SECOND_NS, "451 try later")
        assert store.due(NOW + SECOND_NS) == []

        (again,) = store.due(NOW + 60 * SECOND_NS)
        assert (again.kind, again.attempts, again.detail) == ("opened", 1, "451 try later")
        store.mark_sent(again, NOW)
        assert [row.kind for row in store.due(NOW + 60 * SECOND_NS)] == ["resolved"]


def test_a_settled_notification_stays_settled(tmp_path: Path) -> None:
    with FindingsStore(tmp_path / "f.db") as store:
        store.save_finding(finding(), ["mail"], NOW)
        (row,) = store.due(NOW)
        store.mark_sent(row, NOW, "250 ok")
        store.mark_refused(row, NOW, "550 no such user")
        store.save_finding(finding(), ["mail"], NOW)

        assert store.due(NOW + MAX_RETRY_WAIT_NS) == []
        assert [(sent.state, sent.detail) for sent in store.notifications("run1")] == [
            ("sent", "250 ok")
        ]


def test_a_retry_is_due_after_the_wall_clock_stepped_back(tmp_path: Path) -> None:
    with FindingsStore(tmp_path / "f.db") as store:
        store.save_finding(finding(), ["mail"], NOW)
        (row,) = store.due(NOW)
        store.mark_deferred(row, NOW, NOW + SECOND_NS, "")

        assert len(store.due(NOW - 2 * MAX_RETRY_WAIT_NS)) == 1


def test_a_failed_save_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "f.db"
    twice = dataclasses.replace(finding(), causes=(CAUSES[0], CAUSES[0]))
    with FindingsStore(path) as store, pytest.raises(FindingsError, match=r"f\.db"):
        store.save_finding(twice, ["mail"], NOW)

    with FindingsStore(path) as store:
        assert (store.findings("run1"), store.notifications("run1")) == ([], [])


@pytest.mark.parametrize("damage", [b"not a database, but long enough to look" * 99, None])
def test_a_damaged_file_is_a_typed_error(tmp_path: Path, damage: bytes | None) -> None:
    path = tmp_path / "f.db"
    with FindingsStore(path) as store:
        store.save_finding(finding(), ["mail"], NOW)
    whole = path.read_bytes()
    path.write_bytes(damage or whole[:4096] + b"\xff" * (len(whole) - 4096))

    with pytest.raises(FindingsError, match=r"f\.db"), FindingsStore(path) as store:
        store.findings("run1")


def test_damaged_numbers_of_evidence_are_a_typed_error(tmp_path: Path) -> None:
    """The page is intact, and holds other bytes: whoever reads all findings learns which file it is."""
    path = tmp_path / "f.db"
    with FindingsStore(path) as store:
        store.save_finding(finding(), ["mail"], NOW)
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE evidence SET numbers = '.{'")

        with pytest.raises(FindingsError, match=r"f\.db is damaged"):
            store.findings("run1")


@pytest.mark.parametrize("cause", ["[", "[1]", '[["a"]]', '[["a", 1]]', '["ab"]'])
def test_a_damaged_cause_of_a_notification_is_a_typed_error(tmp_path: Path, cause: str) -> None:
    path = tmp_path / "f.db"
    with FindingsStore(path) as store:
        store.save_finding(finding(), ["mail"], NOW)
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE notifications SET cause = ?", (cause,))

        with pytest.raises(FindingsError, match=r"f\.db is damaged"):
            store.due(NOW)


def test_an_infinite_number_of_evidence_is_left_out(tmp_path: Path) -> None:
    """JSON has none: the finding could not be read again."""
    evidence = Evidence("All of it is new.", {"ratio": math.inf, "rise": math.nan, "seconds": 23})
    found = dataclasses.replace(finding(), causes=(Explanation("load", 0.8, (evidence,)),))
    with FindingsStore(tmp_path / "f.db") as store:
        store.save_finding(found, ["mail"], NOW)
        (stored,) = store.findings("run1")

    assert stored.causes[0].evidence[0].numbers == {"seconds": 23}


def test_a_locked_file_is_busy_not_damaged(tmp_path: Path) -> None:
    path = tmp_path / "f.db"
    with FindingsStore(path):
        pass
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with FindingsStore(path, busy_seconds=0.0) as store, pytest.raises(FindingsBusyError):
        store.queue_digest("mail", NOW)
    other.close()


def test_a_reader_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "f.db"
    with FindingsStore(path) as store:
        store.save_finding(finding(), ["mail"], NOW)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with FindingsStore(path, busy_seconds=0.0) as store:
        assert store.findings("run1") == [finding()]
    other.close()
