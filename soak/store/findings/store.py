"""The findings of a run and their notifications in SQLite (WAL); every write is idempotent.

A finding and the messages it calls for are saved in one transaction, so that neither is ever there
without the other. Open it per use; several processes may.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from soak.core.errors import FindingsBusyError, FindingsError
from soak.core.model import Change, Finding
from soak.core.units import SECOND_NS
from soak.store.findings import outbox
from soak.store.findings.rows import (
    RANK,
    Notification,
    NotificationContent,
    change_of,
    change_row,
    evidence_rows,
    explanations_of,
    finding_of,
    finding_row,
    notification_of,
)
from soak.store.findings.schema import MIGRATIONS, TABLES, VERSION

BUSY_SECONDS = 5.0
MAX_RETRY_WAIT_NS = 900 * SECOND_NS
"""No retry lies further ahead than this; one that does was set before the clock stepped back."""

_CHANGE = "INSERT OR REPLACE INTO changes VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
_CHECKPOINT = "INSERT OR REPLACE INTO checkpoints VALUES (?, ?)"
_NOTICE_PREFIX = "notice."
_FINDING = "INSERT OR REPLACE INTO findings VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"


@dataclass(slots=True)
class FindingsStore:
    """Use it in a `with` block, which opens the file (and creates it when it is missing).

    Raises:
        FindingsError: the file is damaged or of a newer version; `FindingsBusyError`: it is locked.
    """

    path: Path
    _open: sqlite3.Connection | None = field(default=None, init=False, repr=False)

    def __enter__(self) -> Self:
        with _typed_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
            try:
                _prepare(connection, self.path)
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
        """Keep the newest word on each change, by (run, series, raised_k); nothing of a withdrawn one."""
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
                    connection.execute(_CHANGE, change_row(run, change))

    def changes(self, run: str) -> list[Change]:
        rows = self._rows("SELECT * FROM changes WHERE run = ? ORDER BY raised_k, series", (run,))
        return [change_of(row) for row in rows]

    def assign(self, run: str, keys: Mapping[tuple[str, int], str]) -> None:
        """Say which finding each change (its series and raise) belongs to; the first word stays."""
        if not keys:
            return
        with self._transaction() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO members VALUES (?,?,?,?)",
                [(run, series, raised_k, key) for (series, raised_k), key in keys.items()],
            )

    def assigned(self, run: str) -> dict[tuple[str, int], str]:
        """Return the key of the finding that each change belongs to."""
        rows = self._rows("SELECT * FROM members WHERE run = ?", (run,))
        return {(row["series"], row["raised_k"]): row["key"] for row in rows}

    def drop_warning(self, key: str) -> None:
        """Forget a finding that was never confirmed; any other stays."""
        with self._transaction() as connection:
            dropped = connection.execute(
                "DELETE FROM findings WHERE key = ? AND state = 'warning'", (key,)
            )
            if dropped.rowcount:
                for table in ("finding_changes", "causes", "evidence"):
                    connection.execute(f"DELETE FROM {table} WHERE key = ?", (key,))  # noqa: S608  # a name from the line above

    def save_finding(self, finding: Finding, sinks: Sequence[str], now_wall_ns: int) -> None:
        """Keep the newest word on a finding and queue what people are to be told, once.

        Causes and series stay as they are where `finding` has none. A warning never replaces more; that
        a finding is confirmed after it was gone (another series of it is still up), turns out to be none
        about the cluster, or has another cause once that is settled, is told to those who heard otherwise.
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
            if saved is not None and saved.state != "warning" and saved.causes:
                outbox.queue(connection, saved, sinks, now_wall_ns)

    def queue_added(self, run: str, sinks: Sequence[str], since_k: int, now_wall_ns: int) -> None:
        """Queue for sinks that a run did not have before, once, what it found; not what was over by then."""
        with self._transaction() as connection:
            rows = connection.execute("SELECT * FROM findings WHERE run = ?", (run,)).fetchall()
            for finding in [_finding_of_row(connection, row) for row in rows]:
                if finding.state != "warning" and finding.causes:
                    outbox.queue_added(connection, finding, sinks, since_k, now_wall_ns)

    def findings(self, run: str) -> list[Finding]:
        """Return the findings of a run in the order in which they were raised."""
        with self._snapshot() as connection:
            rows = connection.execute(
                "SELECT * FROM findings WHERE run = ? ORDER BY raised_k, key", (run,)
            ).fetchall()
            return [_finding_of_row(connection, row) for row in rows]

    def finding(self, key: str) -> Finding | None:
        with self._snapshot() as connection:
            return _load_finding(connection, key)

    def due(self, now_wall_ns: int) -> list[Notification]:
        """Return what is to be sent now, oldest first; a sequel waits for what it follows."""
        rows = self._rows(outbox.DUE, (now_wall_ns, now_wall_ns + MAX_RETRY_WAIT_NS))
        return [notification_of(row) for row in rows]

    def lasting(self, sink: str) -> list[Notification]:
        """Return what a sink was told of findings that it has not been told more of since."""
        return [notification_of(row) for row in self._rows(outbox.LASTING, (sink,))]

    def owed(self) -> int:
        """Return how many messages are not settled."""
        return int(self._rows("SELECT count(*) FROM outbox WHERE state = 'pending'", ())[0][0])

    def outbox(self, run: str) -> list[Notification]:
        rows = self._rows(
            """SELECT outbox.* FROM outbox JOIN findings USING (key) WHERE run = ?
               ORDER BY created_wall_ns, key, sink, turn, outbox.kind""",
            (run,),
        )
        return [notification_of(row) for row in rows]

    def sent_between(self, sink: str, after_wall_ns: int, wall_ns: int) -> int:
        """Return how many messages a sink has taken after one instant and up to another.

        What lies ahead was sent before the clock stepped back.
        """
        rows = self._rows(
            """SELECT count(*) FROM outbox
               WHERE sink = ? AND state = 'sent' AND done_wall_ns > ? AND done_wall_ns <= ?""",
            (sink, after_wall_ns, wall_ns),
        )
        return int(rows[0][0])

    def begin_try(
        self, row: Notification, now_wall_ns: int, next_at_wall_ns: int
    ) -> NotificationContent | None:
        """Note a try that is about to be made, and what it says; None: it is not owed any more."""
        latest = min(next_at_wall_ns, now_wall_ns + MAX_RETRY_WAIT_NS)
        with self._transaction() as connection:
            word = _load_content(connection, row)
            if row.kind == "corrected" and not word.was:
                connection.execute(outbox.DROP, outbox.identity(row))
                return None
            cause = (
                "" if word.finding is None else outbox.joined_causes(row.cause, word.finding.cause)
            )
            values = (latest, word.so_far, cause, *outbox.identity(row))
            tried = connection.execute(outbox.TRY, values)
            return word if tried.rowcount else None

    def word(self, row: Notification) -> NotificationContent:
        """Return what a message says, tried or not."""
        with self._snapshot() as connection:
            return _load_content(connection, row)

    def mark_sent(self, row: Notification, now_wall_ns: int, detail: str = "") -> None:
        self._write(outbox.SETTLE, ("sent", now_wall_ns, detail, *outbox.identity(row)))

    def mark_never(
        self, row: Notification, now_wall_ns: int, detail: str, *, is_heard: bool = False
    ) -> None:
        """Give up on a message that was refused for good; it stays in the outbox to be seen.

        `row` is as it was before the try, and `is_heard` whether somebody may have got it in that.
        """
        with self._transaction() as connection:
            if not is_heard:
                connection.execute(outbox.UNHEARD, (row.cause, *outbox.identity(row)))
            values = ("never", now_wall_ns, detail, *outbox.identity(row))
            connection.execute(outbox.SETTLE, values)

    def mark_retry(
        self,
        row: Notification,
        now_wall_ns: int,
        next_at_wall_ns: int,
        detail: str,
        so_far: str = "",
        *,
        is_heard: bool = False,
    ) -> None:
        """Put a message off; `row` and `is_heard` as for one that is given up."""
        latest = min(next_at_wall_ns, now_wall_ns + MAX_RETRY_WAIT_NS)
        with self._transaction() as connection:
            if not is_heard:
                connection.execute(outbox.UNHEARD, (row.cause, *outbox.identity(row)))
            values = (latest, detail, so_far, *outbox.identity(row))
            connection.execute(outbox.PUT_OFF, values)

    def save_notice(
        self, key: str, text: str, sinks: Sequence[str], now_wall_ns: int, *, is_over: bool
    ) -> None:
        """Keep what is to be said of the run itself, and queue that it began, or that it is over, once."""
        with self._transaction() as connection:
            connection.execute(_CHECKPOINT, (_NOTICE_PREFIX + key, text))
            outbox.queue_notice(connection, key, sinks, now_wall_ns, is_over=is_over)

    def notice(self, key: str) -> str | None:
        return self.checkpoint(_NOTICE_PREFIX + key)

    def notices(self) -> list[str]:
        """Return all that were kept, in the order of their keys."""
        return list(self.checkpoints(_NOTICE_PREFIX).values())

    def checkpoints(self, prefix: str) -> dict[str, str]:
        """Return all whose names begin so, in their order."""
        rows = self._rows(
            "SELECT name, value FROM checkpoints WHERE substr(name, 1, ?) = ? ORDER BY name",
            (len(prefix), prefix),
        )
        return {str(row["name"]): str(row["value"]) for row in rows}

    def checkpoint(self, name: str) -> str | None:
        rows = self._rows("SELECT value FROM checkpoints WHERE name = ?", (name,))
        return str(rows[0]["value"]) if rows else None

    def set_checkpoint(self, name: str, value: str) -> None:
        self._write(_CHECKPOINT, (name, value))

    def _write(self, statement: str, values: tuple[object, ...]) -> int:
        with self._transaction() as connection:
            return connection.execute(statement, values).rowcount

    def _rows(self, statement: str, values: tuple[object, ...]) -> list[sqlite3.Row]:
        with _typed_errors(self.path):
            return self._connection().execute(statement, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        # IMMEDIATE: waits for its turn at once instead of failing half-way through
        with _typed_errors(self.path), _block(self._connection(), "BEGIN IMMEDIATE") as connection:
            yield connection

    @contextmanager
    def _snapshot(self) -> Iterator[sqlite3.Connection]:
        with _typed_errors(self.path), _block(self._connection(), "BEGIN") as connection:
            yield connection

    def _connection(self) -> sqlite3.Connection:
        if self._open is None:
            raise FindingsError(f"{self.path} is not open; use it in a `with` block")
        return self._open


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a newer layout, create a missing one. Safe when several processes open a new file."""
    connection.row_factory = sqlite3.Row
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > VERSION:
        raise FindingsError(f"{path} is of version {version}; this program reads up to {VERSION}")
    # FULL: a finding that was confirmed survives a power cut; there are few writes.
    connection.execute("PRAGMA synchronous = FULL")
    if version == VERSION:
        return
    connection.execute("PRAGMA journal_mode = WAL")
    with _block(connection, "BEGIN IMMEDIATE"):
        found = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if found < VERSION:
            for statement in MIGRATIONS[found] if found else TABLES:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")


@contextmanager
def _block(connection: sqlite3.Connection, begin: str) -> Iterator[sqlite3.Connection]:
    connection.execute(begin)
    try:
        yield connection
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextmanager
def _typed_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        code = getattr(error, "sqlite_errorcode", 0)  # none where a text is no UTF-8
        if code & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            raise FindingsBusyError(f"{path} is locked by another process: {error}") from error
        raise FindingsError(f"cannot use {path}: {error}") from error
    except (sqlite3.Error, OSError) as error:
        raise FindingsError(f"cannot use {path}: {error}") from error
    except (ValueError, TypeError, KeyError) as error:  # a page that holds together, of other bytes
        raise FindingsError(f"{path} is damaged: {error}") from error


def _withdraw(connection: sqlite3.Connection, run: str, change: Change) -> None:
    for table in ("changes", "members"):
        connection.execute(
            f"DELETE FROM {table} WHERE run = ? AND series = ? AND raised_k = ?",  # noqa: S608  # a name from the line above
            (run, change.series, change.raised_k),
        )


def _save_parts(connection: sqlite3.Connection, finding: Finding) -> None:
    if finding.changes:
        connection.execute("DELETE FROM finding_changes WHERE key = ?", (finding.key,))
        connection.executemany(
            "INSERT INTO finding_changes VALUES (?,?,?)",
            [(finding.key, at, series) for at, series in enumerate(finding.changes)],
        )
    if finding.causes:
        connection.execute("DELETE FROM causes WHERE key = ?", (finding.key,))
        connection.execute("DELETE FROM evidence WHERE key = ?", (finding.key,))
        connection.executemany(
            "INSERT INTO causes VALUES (?,?,?,?)",
            [(finding.key, at, item.cause, item.score) for at, item in enumerate(finding.causes)],
        )
        connection.executemany(
            "INSERT INTO evidence VALUES (?,?,?,?,?)", evidence_rows(finding.key, finding.causes)
        )


def _load_finding(connection: sqlite3.Connection, key: str) -> Finding | None:
    row = connection.execute("SELECT * FROM findings WHERE key = ?", (key,)).fetchone()
    return None if row is None else _finding_of_row(connection, row)


def _load_content(connection: sqlite3.Connection, row: Notification) -> NotificationContent:
    finding = _load_finding(connection, row.key)
    if finding is None:
        return NotificationContent(finding, was="", so_far=row.so_far)
    was = outbox.known_cause(connection, row, finding.cause)
    is_other = row.kind != "confirmed" and bool(outbox.other_causes(row.cause, finding.cause))
    return NotificationContent(finding, was, so_far="" if is_other else row.so_far)


def _finding_of_row(connection: sqlite3.Connection, row: sqlite3.Row) -> Finding:
    key = (row["key"],)
    changes = connection.execute(
        "SELECT series FROM finding_changes WHERE key = ? ORDER BY position", key
    ).fetchall()
    causes = connection.execute("SELECT * FROM causes WHERE key = ? ORDER BY position", key)
    evidence = connection.execute("SELECT * FROM evidence WHERE key = ? ORDER BY position", key)
    explanations = explanations_of(causes.fetchall(), evidence.fetchall())
    return finding_of(row, explanations, tuple(item["series"] for item in changes))
