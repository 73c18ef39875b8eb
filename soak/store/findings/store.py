"""The findings of a run and their notifications in SQLite (WAL); every write is idempotent.

A finding and its notifications are saved in one transaction, so that neither exists without the other.
Open the file for each use; several processes may.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from soak.core.errors import FindingsError
from soak.core.model import Change, Finding
from soak.core.units import SECOND_NS
from soak.store.findings import outbox
from soak.store.findings.connection import (
    copy_in_memory,
    prepare_tables,
    refuse_programs,
    transaction,
    typed_errors,
)
from soak.store.findings.named_causes import (
    joined,
    named_cause,
    named_causes_text,
    other_causes,
    other_suspects,
)
from soak.store.findings.rows import (
    RANK,
    Notification,
    NotificationContent,
    NotificationKind,
    change_of,
    evidence_rows,
    explanations_of,
    finding_of,
    finding_row,
    is_correction,
    notification_of,
)

BUSY_SECONDS = 5.0
MAX_RETRY_WAIT_NS = 900 * SECOND_NS
"""No retry lies further ahead; one that does was scheduled before the clock stepped back."""

_CHANGE = (
    "INSERT OR REPLACE INTO changes VALUES (:run, :series, :raised_k, :onset_k, :first_k, :last_k,"
    " :before, :after, :state, :confidence, :kind, :gone_k, :period_seconds, :burst_seconds,"
    " :failed_messages, :late_messages, :due_messages)"
)
_NOTICE = "INSERT OR REPLACE INTO notices VALUES (?, ?)"
_NOTICES = "SELECT body FROM notices WHERE key NOT GLOB '*.end' ORDER BY key"
_FINDING = "INSERT OR REPLACE INTO findings VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"


@dataclass(slots=True)
class FindingsStore:
    """Use it in a `with` block, which opens the file (and creates it when it is missing).

    Raises:
        FindingsError: the file is damaged or has a newer layout; `FindingsBusyError`: it is locked.
    """

    path: Path
    busy_seconds: float = BUSY_SECONDS  # how long to wait for the lock of another process
    # Called at the end of each transaction that writes; an error undoes the transaction. Calls may come from
    # several threads then, one at a time.
    publish: Callable[[sqlite3.Connection], None] | None = None
    is_read_only: bool = False  # a copy in memory is opened, also of a file that is read-only
    _open: sqlite3.Connection | None = field(default=None, init=False, repr=False)

    def __enter__(self) -> Self:
        with typed_errors(self.path):
            if self.is_read_only:
                connection = copy_in_memory(self.path, self.busy_seconds)
            else:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                connection = sqlite3.connect(
                    self.path,
                    timeout=self.busy_seconds,
                    isolation_level=None,
                    check_same_thread=self.publish is None,
                )
            try:
                if self.publish is None:  # else the tables and triggers are ours, in memory
                    refuse_programs(connection, self.path)
                prepare_tables(connection, self.path)
            except BaseException:
                connection.close()
                raise
        self._open = connection
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def record_changes(self, run: str, changes: Sequence[Change]) -> None:
        """Store the newest state of each change, by (run, series, raised_k); delete a withdrawn one."""
        if not changes:
            return
        with self._transaction() as connection:
            for change in changes:
                if change.state == "withdrawn":
                    _withdraw(connection, run, change)
                    continue
                stored = connection.execute(
                    "SELECT state FROM changes WHERE run = ? AND series = ? AND raised_k = ?",
                    (run, change.series, change.raised_k),
                ).fetchone()
                if stored is None or RANK[change.state] >= RANK[stored["state"]]:
                    connection.execute(_CHANGE, {"run": run, **change.to_row()})

    def changes(self, run: str) -> list[Change]:
        rows = self._rows("SELECT * FROM changes WHERE run = ? ORDER BY raised_k, series", (run,))
        with typed_errors(self.path):
            names = tuple(rows[0].keys()) if rows else ()
            return [change_of(names, tuple(row)) for row in rows]

    def assign(self, run: str, keys: Mapping[tuple[str, int], str]) -> None:
        """Assign changes (series and raise) to findings; an earlier assignment stays."""
        if not keys:
            return
        with self._transaction() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO members VALUES (?,?,?,?)",
                [(run, series, raised_k, key) for (series, raised_k), key in keys.items()],
            )

    def assigned(self, run: str) -> dict[tuple[str, int], str]:
        """Return the key of the finding of each change."""
        rows = self._rows("SELECT * FROM members WHERE run = ?", (run,))
        return {(row["series"], row["raised_k"]): row["key"] for row in rows}

    def drop_warning(self, key: str) -> None:
        """Delete a finding that was never confirmed; any other stays."""
        with self._transaction() as connection:
            dropped = connection.execute(
                "DELETE FROM findings WHERE key = ? AND state = 'warning'", (key,)
            )
            if dropped.rowcount:
                for table in ("finding_changes", "causes", "evidence"):
                    connection.execute(f"DELETE FROM {table} WHERE key = ?", (key,))  # noqa: S608  # one of the names above

    def save_finding(self, finding: Finding, sinks: Sequence[str], now_wall_ns: int) -> None:
        """Store the newest state of a finding and queue its notifications, each once.

        The series stay as they are where `finding` has none, and a warning never replaces a confirmed
        finding. Sinks that were notified get a correction when the finding is confirmed again after it was
        resolved, is not about the cluster after all, or has another final cause or suspect.
        """
        with self._transaction() as connection:
            stored = connection.execute(
                "SELECT state FROM findings WHERE key = ?", (finding.key,)
            ).fetchone()
            before = "warning" if stored is None else stored["state"]
            if finding.state == "warning" != before:
                return
            connection.execute(_FINDING, finding_row(finding, now_wall_ns))
            _save_parts(connection, finding)
            saved = _load_finding(connection, finding.key)
            if saved is not None and saved.state != "warning" and _is_to_be_reported(saved):
                outbox.queue_finding(connection, saved, sinks, now_wall_ns)

    def queue_added(self, run: str, sinks: Sequence[str], since_k: int, now_wall_ns: int) -> None:
        """Queue the findings of a run for added sinks, except those resolved before second `since_k`."""
        with self._transaction() as connection:
            rows = connection.execute("SELECT * FROM findings WHERE run = ?", (run,)).fetchall()
            for finding in [_finding_of_row(connection, row) for row in rows]:
                if finding.state != "warning" and _is_to_be_reported(finding):
                    outbox.queue_finding_for_added_sinks(
                        connection, finding, sinks, since_k, now_wall_ns
                    )

    def findings(self, run: str) -> list[Finding]:
        """Return the findings of a run in the order of their raises."""
        with self._snapshot() as connection:
            rows = connection.execute(
                "SELECT * FROM findings WHERE run = ? ORDER BY raised_k, key", (run,)
            ).fetchall()
            parts = {
                table: _parts_by_key(connection, table, run)
                for table in ("finding_changes", "causes", "evidence")
            }
        with typed_errors(self.path):
            return [
                finding_of(
                    row,
                    explanations_of(
                        parts["causes"].get(row["key"], ()), parts["evidence"].get(row["key"], ())
                    ),
                    tuple(item["series"] for item in parts["finding_changes"].get(row["key"], ())),
                )
                for row in rows
            ]

    def has_findings(self, run: str) -> bool:
        with self._snapshot() as connection:
            found = connection.execute("SELECT 1 FROM findings WHERE run = ? LIMIT 1", (run,))
            return found.fetchone() is not None

    def finding(self, key: str) -> Finding | None:
        with self._snapshot() as connection:
            return _load_finding(connection, key)

    def due(self, now_wall_ns: int) -> list[Notification]:
        """Return the notifications to send now, oldest first; each waits for earlier ones of its subject."""
        return self._notifications(outbox.DUE, (now_wall_ns, now_wall_ns + MAX_RETRY_WAIT_NS))

    def open_notifications(self) -> list[Notification]:
        """Return the notifications that are neither sent nor refused."""
        return self._notifications(outbox.OPEN, ())

    def unresolved(self, sink: str) -> list[Notification]:
        """Return the newest notification that a sink got of each subject that is not resolved."""
        return self._notifications(outbox.UNRESOLVED, (sink,))

    def notifications(self, run: str) -> list[Notification]:
        """Return all notifications about the findings of a run."""
        return self._notifications(outbox.OF_RUN, (run,))

    def sent_between(self, sink: str, after_wall_ns: int, wall_ns: int) -> int:
        """Return how many messages a sink took after one instant and up to another; summaries do not count.

        Messages that lie ahead of the second instant were sent before the clock stepped back.
        """
        values = {"sink": sink, "after": after_wall_ns, "until": wall_ns}
        return int(self._rows(outbox.SENT_BETWEEN, values)[0][0])

    def last_sent_ns(self, sink: str, wall_ns: int) -> int | None:
        """Return when a sink took its last message, up to an instant, as `sent_between` counts them."""
        at = self._rows(outbox.LAST_SENT, (sink, wall_ns))[0]["at"]
        return None if at is None else int(at)

    def begin_try(
        self, row: Notification, now_wall_ns: int, next_at_wall_ns: int
    ) -> NotificationContent | None:
        """Store that a try begins, and return what it says; None: the notification is not needed any more."""
        latest = min(next_at_wall_ns, now_wall_ns + MAX_RETRY_WAIT_NS)
        with self._transaction() as connection:
            content = _content(connection, row)
            is_news = bool(content.previous_cause or content.previous_suspect)
            if is_correction(row.kind) and not is_news:
                connection.execute(outbox.DROP, outbox.identity(row))
                return None
            finding = content.finding
            named = () if finding is None else joined(row.named, (named_cause(finding),))
            known = named_causes_text(named)
            values = (latest, content.progress, known, *outbox.identity(row))
            return content if connection.execute(outbox.BEGIN_TRY, values).rowcount else None

    def content(self, row: Notification) -> NotificationContent:
        """Return what a notification says, whether it was tried or not."""
        with self._snapshot() as connection:
            return _content(connection, row)

    def mark_sent(self, row: Notification, now_wall_ns: int, detail: str = "") -> None:
        self._write(outbox.SETTLE, ("sent", now_wall_ns, detail, *outbox.identity(row)))

    def mark_refused(
        self, row: Notification, now_wall_ns: int, detail: str, *, may_have_arrived: bool = False
    ) -> None:
        """Give up a notification that was refused for good; the row stays with its reason.

        `row` is as it was before the try; `may_have_arrived` is True when a reader may have got it then.
        """
        with self._transaction() as connection:
            if not may_have_arrived:
                outbox.restore_named(connection, row)
            values = ("refused", now_wall_ns, detail, *outbox.identity(row))
            connection.execute(outbox.SETTLE, values)

    def mark_deferred(
        self,
        row: Notification,
        now_wall_ns: int,
        next_at_wall_ns: int,
        detail: str,
        progress: str = "",
        *,
        may_have_arrived: bool = False,
    ) -> None:
        """Put a notification off to another try; `row` and `may_have_arrived` are as in `mark_refused`."""
        latest = min(next_at_wall_ns, now_wall_ns + MAX_RETRY_WAIT_NS)
        with self._transaction() as connection:
            if not may_have_arrived:
                outbox.restore_named(connection, row)
            values = (latest, detail, progress, *outbox.identity(row))
            connection.execute(outbox.DEFER, values)

    def save_notice(
        self,
        key: str,
        body: str,
        kind: NotificationKind,
        sinks: Sequence[str],
        now_wall_ns: int,
    ) -> None:
        """Store facts about the run itself and queue the notification about them, once."""
        with self._transaction() as connection:
            connection.execute(_NOTICE, (key, body))
            outbox.queue_notice(connection, key, kind, sinks, now_wall_ns)

    def notice(self, key: str) -> str | None:
        rows = self._rows("SELECT body FROM notices WHERE key = ?", (key,))
        return str(rows[0]["body"]) if rows else None

    def notices(self) -> list[str]:
        """Return the bodies of all notices in the order of their keys."""
        return [str(row["body"]) for row in self._rows(_NOTICES, ())]

    def queue_digest(self, sink: str, due_wall_ns: int) -> None:
        """Queue the digest of an instant; it replaces an earlier one that was not sent."""
        with self._transaction() as connection:
            outbox.queue_digest(connection, sink, due_wall_ns)

    def queue_end(self, run: str, summary: str, sinks: Sequence[str], now_wall_ns: int) -> None:
        """Store what the report of a run says, as JSON, and queue the message about its end, once."""
        with self._transaction() as connection:
            connection.execute(_NOTICE, (_end_key(run), summary))
            outbox.queue_end(connection, run, sinks, now_wall_ns)

    def end_summary(self, run: str) -> str | None:
        """Return what the report of a run says, or None when it is not stored."""
        return self.notice(_end_key(run))

    def last_digest_ns(self, sink: str) -> int | None:
        """Return the instant of the last digest that was sent or refused."""
        at = self._rows(outbox.LAST_DIGEST, (sink,))[0]["at"]
        return None if at is None else int(at)

    def forget_digests_after(self, sink: str, wall_ns: int) -> None:
        """Forget the digests of later instants, which were queued while the clock ran ahead.

        If one was sent, it counts as the digest of `wall_ns`: the next one becomes due after that.
        """
        with self._transaction() as connection:
            outbox.forget_digests_after(connection, sink, wall_ns)

    def _notifications(self, statement: str, values: tuple[object, ...]) -> list[Notification]:
        rows = self._rows(statement, values)
        with typed_errors(self.path):
            return [notification_of(row) for row in rows]

    def _write(self, statement: str, values: tuple[object, ...]) -> int:
        with self._transaction() as connection:
            return connection.execute(statement, values).rowcount

    def _rows(
        self, statement: str, values: tuple[object, ...] | Mapping[str, object]
    ) -> list[sqlite3.Row]:
        with typed_errors(self.path):
            return self._connection().execute(statement, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        # IMMEDIATE: takes the write lock at once instead of failing half-way through
        with (
            typed_errors(self.path),
            transaction(self._connection(), "BEGIN IMMEDIATE") as connection,
        ):
            yield connection
            if self.publish is not None:
                self.publish(connection)

    @contextmanager
    def unpublished(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection in a transaction that is not published."""
        with (
            typed_errors(self.path),
            transaction(self._connection(), "BEGIN IMMEDIATE") as connection,
        ):
            yield connection

    @contextmanager
    def _snapshot(self) -> Iterator[sqlite3.Connection]:
        with typed_errors(self.path), transaction(self._connection(), "BEGIN") as connection:
            yield connection

    def _connection(self) -> sqlite3.Connection:
        if self._open is None:
            raise FindingsError(f"{self.path} is not open; use it in a `with` block")
        return self._open


@dataclass(frozen=True, slots=True)
class FindingsFile:
    """The findings of a run in a file of its folder; the process that sends holds the lock of that folder."""

    path: Path

    def exists(self) -> bool:
        return self.path.exists()

    def open(self) -> FindingsStore:
        return FindingsStore(self.path)

    def claim(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing: each use of the file closes it."""


def _end_key(run: str) -> str:
    """Return the key of what the report says, among notices, whose keys end with their second."""
    return f"{run}.end"


def _is_to_be_reported(finding: Finding) -> bool:
    """True once it has a cause, be it `unknown`; an outage does not wait for one."""
    return bool(finding.causes) or finding.kind == "outage"


def _withdraw(connection: sqlite3.Connection, run: str, change: Change) -> None:
    for table in ("changes", "members"):
        connection.execute(
            f"DELETE FROM {table} WHERE run = ? AND series = ? AND raised_k = ?",  # noqa: S608  # one of the names above
            (run, change.series, change.raised_k),
        )


def _save_parts(connection: sqlite3.Connection, finding: Finding) -> None:
    if finding.changes:
        connection.execute("DELETE FROM finding_changes WHERE key = ?", (finding.key,))
        connection.executemany(
            "INSERT INTO finding_changes VALUES (?,?,?)",
            [(finding.key, at, series) for at, series in enumerate(finding.changes)],
        )
    connection.execute("DELETE FROM causes WHERE key = ?", (finding.key,))
    connection.execute("DELETE FROM evidence WHERE key = ?", (finding.key,))
    connection.executemany(
        "INSERT INTO causes VALUES (?,?,?,?,?)",
        [
            (finding.key, at, item.cause, item.score, item.suspect)
            for at, item in enumerate(finding.causes)
        ],
    )
    connection.executemany(
        "INSERT INTO evidence VALUES (?,?,?,?,?,?)", evidence_rows(finding.key, finding.causes)
    )


def _load_finding(connection: sqlite3.Connection, key: str) -> Finding | None:
    row = connection.execute("SELECT * FROM findings WHERE key = ?", (key,)).fetchone()
    return None if row is None else _finding_of_row(connection, row)


def _content(connection: sqlite3.Connection, row: Notification) -> NotificationContent:
    finding = _load_finding(connection, row.subject)
    if finding is None:
        return NotificationContent(None, previous_cause="", progress=row.progress)
    now = named_cause(finding)
    cause, suspect = outbox.previously_named(connection, row, now)
    is_other = bool(other_causes(row.named, now) or other_suspects(row.named, now))
    progress = "" if is_other and row.kind != "opened" else row.progress
    return NotificationContent(finding, cause, progress, suspect)


def _parts_by_key(
    connection: sqlite3.Connection, table: str, run: str
) -> dict[str, list[sqlite3.Row]]:
    """Return the rows of a table that are parts of a run's findings, in one query: there may be thousands."""
    found: dict[str, list[sqlite3.Row]] = {}
    for row in connection.execute(
        f"SELECT part.* FROM {table} AS part JOIN findings USING (key) "  # noqa: S608  # one of ours
        "WHERE run = ? ORDER BY part.position",
        (run,),
    ):
        found.setdefault(row["key"], []).append(row)
    return found


def _finding_of_row(connection: sqlite3.Connection, row: sqlite3.Row) -> Finding:
    key = (row["key"],)
    changes = connection.execute(
        "SELECT series FROM finding_changes WHERE key = ? ORDER BY position", key
    ).fetchall()
    causes = connection.execute("SELECT * FROM causes WHERE key = ? ORDER BY position", key)
    evidence = connection.execute("SELECT * FROM evidence WHERE key = ? ORDER BY position", key)
    explanations = explanations_of(causes.fetchall(), evidence.fetchall())
    return finding_of(row, explanations, tuple(item["series"] for item in changes))
