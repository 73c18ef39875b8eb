"""The findings of a run in two compacted Kafka topics that all hosts of a fleet share.

Each process keeps a view of its run in memory: the database of `store`, with the same statements, so it
queues and sends the same messages. It reads the topics from the beginning, then what is new. Each transaction
that changes the view is one in Kafka: `soak.findings` gets a record for each finding, change, assignment and
notice, `soak.outbox` one for each notification. A key is `[run, kind, ...identity]`. A record without a value
deletes its key, also when a run expires.
"""

from __future__ import annotations

import json
import logging
import re
import sqlite3
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from soak.core import json_text
from soak.core.errors import FindingsBusyError, FindingsError
from soak.core.model import Change, Finding
from soak.core.plan.plan import Plan
from soak.core.ports import Clock
from soak.core.retry import Backoff
from soak.core.units import SECOND_NS
from soak.store.findings import schema
from soak.store.findings.port import Findings, FindingsPlace
from soak.store.findings.rows import Notification, NotificationContent, NotificationKind
from soak.store.findings.store import FindingsFile, FindingsStore
from soak.store.findings.topic_log import (
    FINDINGS_TOPIC,
    OUTBOX_TOPIC,
    FindingsLog,
    KafkaFindingsLog,
    LogRecord,
    NotOwnerError,
    TurnLostError,
    Write,
)
from soak.store.run_folder import RunFolder

LOG = logging.getLogger(__name__)
TOPIC_VERSION = schema.VERSION
"""Of the values, which hold rows of the tables: a program refuses those of a newer layout.

Versions 1 and 9 are layout 9. Rows of versions up to 10 differ in the steps of notifications alone.
"""
_STEPS_VERSION = 11
"""Since this version the step of a notification is one higher, unless it is the first."""
MAX_TURNS = 20
"""So often a write is retried because another process wrote at the same time."""
REREAD_NS = 12 * 3600 * SECOND_NS
"""A view that was not refreshed for so long is read again: Kafka forgets deletions after a day."""
EXPIRE_PERIOD_NS = 3600 * SECOND_NS
MAX_DELETED = 10_000
"""Records in one transaction; the client's queue takes ten times as many."""

_STAMP = re.compile(r'"saved_wall_ns":\d+')  # when a finding was stored
_TURN_BACKOFF = Backoff(SECOND_NS // 50, SECOND_NS // 2)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Kind:
    """Which rows make one record; the first table has its main row."""

    topic: str
    tables: tuple[str, ...]
    columns: tuple[str, ...]  # that identify the rows in each of the tables


_KINDS: Mapping[str, _Kind] = {
    "change": _Kind(FINDINGS_TOPIC, ("changes",), ("series", "raised_k")),
    "member": _Kind(FINDINGS_TOPIC, ("members",), ("series", "raised_k")),
    "finding": _Kind(
        FINDINGS_TOPIC, ("findings", "finding_changes", "causes", "evidence"), ("key",)
    ),
    "notice": _Kind(FINDINGS_TOPIC, ("notices",), ("key",)),
    "notification": _Kind(
        OUTBOX_TOPIC, ("notifications",), ("subject", "sink", "occurrence", "kind")
    ),
}


def findings_place(folder: RunFolder, plan: Plan, run: str, clock: Clock) -> FindingsPlace:
    """Return where the findings of a run are, by its plan; no file and no cluster is used yet."""
    if plan.store is None:
        return FindingsFile(folder.findings)
    return FindingsTopics(run, KafkaFindingsLog(plan.store, run, clock), clock, plan.store.keep)


@dataclass(slots=True)
class FindingsTopics:
    """The findings of one run in the topics; one thread at a time may use it."""

    run: str
    log: FindingsLog
    clock: Clock
    keep_ns: int  # this run expires when nothing was written of it for so long
    _view: FindingsStore | None = None
    _read_ns: int = 0  # when the view was last refreshed, on the monotonic clock
    _expires_ms: dict[str, int] = field(default_factory=dict)  # by run
    _deleted: dict[str, int] = field(default_factory=dict)  # what `_expires_ms` was then, by run
    _expire_ns: int = 0
    _renew_ns: int = 0

    def exists(self) -> bool:
        return True

    @contextmanager
    def open(self) -> Iterator[Findings]:
        """Yield the findings as the topics have them now."""
        self.refresh()
        if self.clock.mono_ns() >= self._renew_ns:
            self._renew_ns = self.clock.mono_ns() + EXPIRE_PERIOD_NS
            self._renew()
        yield _TopicFindings(self)

    def claim(self) -> bool:
        """Return whether this process owns the outbox of the run; the owner deletes runs that expired."""
        if not self.log.claim():
            return False
        if self.clock.mono_ns() >= self._expire_ns:
            self._expire_ns = self.clock.mono_ns() + EXPIRE_PERIOD_NS
            self._expire()
        return True

    def close(self) -> None:
        self.log.close()
        self._forget()

    def findings_in(self, records: Iterable[LogRecord]) -> list[Finding]:
        """Return the findings that these records of the run say, in a view that is forgotten.

        Raises:
            FindingsError: one of them cannot be read.
        """
        self._open_view()
        view = self.view()
        try:
            self._apply(records)
            return view.findings(self.run)
        finally:
            view.__exit__(None, None, None)
            self._view = None

    def view(self) -> FindingsStore:
        """Return the view as it is; `refresh` comes first."""
        if self._view is None:
            raise FindingsError("the findings topics were not read yet")
        return self._view

    def refresh(self, *, to_end: bool = False) -> None:
        """Read what is new in the topics, with `to_end` as `FindingsLog.read_new` says.

        Raises:
            FindingsError: they cannot be read, or have a record that this program cannot read.
        """
        now_ns = self.clock.mono_ns()
        if self._view is not None and now_ns - self._read_ns > REREAD_NS:
            self._forget()
        records = self.log.read_new(to_end=to_end)
        if self._view is None:
            self._open_view()
        try:
            self._apply(records)
        except FindingsError:
            self._forget()  # records that were read and not applied would be missing
            raise
        self._read_ns = now_ns

    def write(self, work: Callable[[FindingsStore], _T]) -> _T:
        """Do work that writes; it is done again where another process wrote meanwhile.

        Raises:
            FindingsError: nothing was written; `FindingsBusyError`: others write all the time.
        """
        was_refused = False
        for turn in range(1, MAX_TURNS + 1):
            try:
                # Work that turns out to write nothing needs no turn, and so the first try takes none.
                if turn > 1 and not self.log.has_turn:
                    self._take_turn()
                return work(self.view())
            except TurnLostError:
                if turn > 1:
                    self.clock.sleep_until(self.clock.mono_ns() + _TURN_BACKOFF.wait_ns(turn - 1))
            except NotOwnerError:
                # Another daemon that joins or leaves makes a new generation of the group; the owner stays.
                if was_refused or not self.log.claim():
                    raise
                was_refused = True
        raise FindingsBusyError("other processes write to the findings topics all the time")

    def _take_turn(self) -> None:
        """Become the only writer, and read all that was written before."""
        self.log.take_turn()
        try:
            self.refresh(to_end=True)
        except FindingsError:
            self.log.end_turn()
            raise

    def _open_view(self) -> None:
        view = FindingsStore(Path(":memory:"), publish=self._publish)
        view.__enter__()
        with view.unpublished() as connection:
            connection.execute("CREATE TABLE touched (id TEXT PRIMARY KEY) WITHOUT ROWID")
            connection.execute(
                "CREATE TABLE published (id TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
            )
            for kind, one in _KINDS.items():
                for statement in _triggers(kind, one):
                    connection.execute(statement)
        self._view = view

    def _forget(self) -> None:
        """Read everything again the next time, also before the next write."""
        self.log.rewind()
        self.log.end_turn()
        self._expires_ms.clear()
        if self._view is not None:
            self._view.__exit__(None, None, None)
            self._view = None

    def _apply(self, records: Iterable[LogRecord]) -> None:
        with self.view().unpublished() as connection:
            for record in records:
                name = _parse_key(record.key)
                if name is None:
                    LOG.warning("record_skipped place=%r reason=%r", record.place, "not of soakd")
                    continue
                known_ms = self._expires_ms.get(name[0], 0)
                self._expires_ms[name[0]] = max(known_ms, record.expires_ms)
                if name[0] == self.run:
                    _apply_record(connection, record, name[1:])
            connection.execute("DELETE FROM touched")

    def _renew(self) -> None:
        """Write one record again where half of the time is over: a run that is quiet may go on."""
        now_ms = self.clock.wall_ns() // 10**6
        expires_ms = self._expires_ms.get(self.run)
        if expires_ms is None or expires_ms - now_ms > self.keep_ns // 10**6 // 2:
            return
        try:
            self.write(self._write_again)
        except FindingsError as error:  # it may be read all the same
            LOG.warning("run_not_renewed run=%s error=%s", self.run, error)

    def _write_again(self, view: FindingsStore) -> None:
        with view.unpublished() as connection:
            rows = connection.execute("SELECT id, value FROM published LIMIT 1").fetchall()
        records = [self._record(json_text.loads(row[0]), row[1]) for row in rows]
        if records:
            self.log.write(records)

    def _expire(self) -> None:
        """Delete the records of runs of which nothing was written for as long as their plans keep them."""
        self.refresh()
        now_ms = self.clock.wall_ns() // 10**6
        expired = {
            run: at_ms
            for run, at_ms in self._expires_ms.items()
            if run != self.run and at_ms < now_ms and self._deleted.get(run) != at_ms
        }
        if not expired:
            return
        records: list[Write] = [(*place, None) for place in self._keys_of(expired)]
        LOG.info("runs_expired runs=%s records=%d", ",".join(sorted(expired)), len(records))
        for first in range(0, len(records), MAX_DELETED):
            self._write_records(records[first : first + MAX_DELETED])
        self._deleted |= expired

    def _write_records(self, records: Sequence[Write]) -> None:
        self.write(lambda _view: self.log.write(records))

    def _keys_of(self, runs: Container[str]) -> list[tuple[str, bytes]]:
        """Return topic and key of what is stored of other runs: read for this, as it may be a lot to keep."""
        self._forget()
        found: set[tuple[str, bytes]] = set()
        try:
            for record in self.log.read_new():
                name = _parse_key(record.key)
                if name is not None and name[0] in runs:
                    place = record.topic, record.key
                    (found.discard if record.value is None else found.add)(place)
        finally:
            self._forget()
        self.refresh()
        return sorted(found)

    def _publish(self, connection: sqlite3.Connection) -> None:
        """Write what the current transaction changed; an error undoes it in the view too."""
        touched = [str(row[0]) for row in connection.execute("SELECT id FROM touched ORDER BY id")]
        connection.execute("DELETE FROM touched")
        records: list[Write] = []
        for text in touched:
            name: list[Any] = json_text.loads(text)
            value = _value_of(connection, name)
            known = connection.execute(
                "SELECT value FROM published WHERE id = ?", (text,)
            ).fetchone()
            if _without_stamp("" if known is None else known[0]) == _without_stamp(value or ""):
                continue  # a batch that is delivered again
            records.append(self._record(name, value))
            _note_published(connection, text, value)
        if records:
            self.log.write(records)

    def _record(self, name: Sequence[Any], value: str | None) -> Write:
        key = _compact([self.run, *name]).encode()
        return _KINDS[name[0]].topic, key, None if value is None else value.encode()


def findings_by_run(log: FindingsLog, clock: Clock) -> dict[str, list[Finding] | str]:
    """Return the findings of every run in the topics; of a run that cannot be read the reason.

    Raises:
        FindingsError: the topics cannot be read.
    """
    records: dict[str, list[LogRecord]] = {}
    for record in log.read_new():
        name = _parse_key(record.key)
        if name is not None:
            records.setdefault(name[0], []).append(record)
    found: dict[str, list[Finding] | str] = {}
    for run in sorted(records):
        topics = FindingsTopics(run, log, clock, 0)
        try:
            found[run] = topics.findings_in(records[run])
        except FindingsError as error:
            found[run] = str(error)
    return found


def _triggers(kind: str, one: _Kind) -> Iterator[str]:
    for table in one.tables:
        for event, rows in (("INSERT", ("NEW",)), ("UPDATE", ("OLD", "NEW")), ("DELETE", ("OLD",))):
            notes = "".join(
                f"INSERT OR IGNORE INTO touched VALUES (json_array('{kind}', "  # noqa: S608  # constants of this module
                f"{', '.join(f'{row}.{column}' for column in one.columns)})); "
                for row in rows
            )
            yield f"CREATE TRIGGER touch_{table}_{event} AFTER {event} ON {table} BEGIN {notes}END"


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _without_stamp(value: str) -> str:
    return _STAMP.sub("", value)


def _where(one: _Kind) -> str:
    return " AND ".join(f"{column} = ?" for column in one.columns)


def _parse_key(key: bytes) -> list[Any] | None:
    """Return run, kind and identity; None where the key is not one of soakd."""
    try:
        name = json_text.loads(key.decode())
    except ValueError:
        return None
    is_known = (
        isinstance(name, list)
        and len(name) > 1
        and isinstance(name[0], str)
        and all(isinstance(one, str | int) for one in name)
        and name[1] in _KINDS
    )
    return name if is_known and len(name) == 2 + len(_KINDS[name[1]].columns) else None


def _value_of(connection: sqlite3.Connection, name: Sequence[Any]) -> str | None:
    """Return the value of a record; None where its rows are deleted."""
    one = _KINDS[name[0]]
    rows = {
        table: [
            dict(row)
            for row in connection.execute(f"SELECT * FROM {table} WHERE {_where(one)}", name[1:])  # noqa: S608  # constants of this module
        ]
        for table in one.tables
    }
    return _compact({"v": TOPIC_VERSION, "rows": rows}) if rows[one.tables[0]] else None


def _note_published(connection: sqlite3.Connection, text: str, value: str | None) -> None:
    if value is None:
        connection.execute("DELETE FROM published WHERE id = ?", (text,))
    else:
        connection.execute("INSERT OR REPLACE INTO published VALUES (?, ?)", (text, value))


def _apply_record(connection: sqlite3.Connection, record: LogRecord, name: Sequence[Any]) -> None:
    """Make the rows of a record what it says."""
    one = _KINDS[name[0]]
    value = None if record.value is None else record.value.decode(errors="replace")
    for table in one.tables:
        connection.execute(f"DELETE FROM {table} WHERE {_where(one)}", name[1:])  # noqa: S608  # constants of this module
    rows = {} if value is None else _rows_of(record, value)
    try:
        for table in one.tables:
            for row in rows.get(table, ()):
                names = ", ".join(f":{column}" for column in _columns(connection, table))
                connection.execute(f"INSERT OR REPLACE INTO {table} VALUES ({names})", row)  # noqa: S608  # as above
    except (sqlite3.Error, TypeError) as error:
        raise _damaged(record, str(error)) from error
    _note_published(connection, _compact(name), value)


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [str(row["name"]) for row in connection.execute(f"PRAGMA table_info({table})")]


def _rows_of(record: LogRecord, value: str) -> Mapping[str, Any]:
    try:
        body = json_text.loads(value)
        version, rows = body["v"], body["rows"]
    except (ValueError, TypeError, KeyError) as error:
        raise _damaged(record, repr(error)) from error
    if not isinstance(version, int) or version > TOPIC_VERSION:
        raise FindingsError(
            f"{record.place}: the value has schema version {version}, this program reads up to "
            f"{TOPIC_VERSION}: upgrade soakd on this host"
        )
    if not isinstance(rows, dict):
        raise _damaged(record, "rows is no object")
    if version < _STEPS_VERSION:
        _renumber_steps(record, rows)
    return rows


def _renumber_steps(record: LogRecord, rows: Mapping[str, Any]) -> None:
    try:
        for row in rows.get("notifications", ()):
            row["step"] += row["step"] > 0
    except (TypeError, KeyError) as error:
        raise _damaged(record, repr(error)) from error


def _damaged(record: LogRecord, why: str) -> FindingsError:
    key = record.key.decode(errors="replace")
    return FindingsError(
        f"{record.place}: the value is damaged ({why}); write a record with the key {key} and no value to "
        "delete it"
    )


@dataclass(frozen=True, slots=True)
class _TopicFindings:
    """The port on a view: reads see it as it was opened, writes go to the topics first."""

    topics: FindingsTopics

    def record_changes(self, run: str, changes: Sequence[Change]) -> None:
        if changes:
            self.topics.write(lambda view: view.record_changes(run, changes))

    def changes(self, run: str) -> list[Change]:
        return self.topics.view().changes(run)

    def assign(self, run: str, keys: Mapping[tuple[str, int], str]) -> None:
        if keys:
            self.topics.write(lambda view: view.assign(run, keys))

    def assigned(self, run: str) -> dict[tuple[str, int], str]:
        return self.topics.view().assigned(run)

    def drop_warning(self, key: str) -> None:
        self.topics.write(lambda view: view.drop_warning(key))

    def save_finding(self, finding: Finding, sinks: Sequence[str], now_wall_ns: int) -> None:
        self.topics.write(lambda view: view.save_finding(finding, sinks, now_wall_ns))

    def queue_added(self, run: str, sinks: Sequence[str], since_k: int, now_wall_ns: int) -> None:
        self.topics.write(lambda view: view.queue_added(run, sinks, since_k, now_wall_ns))

    def findings(self, run: str) -> list[Finding]:
        return self.topics.view().findings(run)

    def has_findings(self, run: str) -> bool:
        return self.topics.view().has_findings(run)

    def finding(self, key: str) -> Finding | None:
        return self.topics.view().finding(key)

    def due(self, now_wall_ns: int) -> list[Notification]:
        return self.topics.view().due(now_wall_ns)

    def open_notifications(self) -> list[Notification]:
        return self.topics.view().open_notifications()

    def unresolved(self, sink: str) -> list[Notification]:
        return self.topics.view().unresolved(sink)

    def notifications(self, run: str) -> list[Notification]:
        return self.topics.view().notifications(run)

    def sent_between(self, sink: str, after_wall_ns: int, wall_ns: int) -> int:
        return self.topics.view().sent_between(sink, after_wall_ns, wall_ns)

    def last_sent_ns(self, sink: str, wall_ns: int) -> int | None:
        return self.topics.view().last_sent_ns(sink, wall_ns)

    def begin_try(
        self, row: Notification, now_wall_ns: int, next_at_wall_ns: int
    ) -> NotificationContent | None:
        return self.topics.write(lambda view: view.begin_try(row, now_wall_ns, next_at_wall_ns))

    def content(self, row: Notification) -> NotificationContent:
        return self.topics.view().content(row)

    def mark_sent(self, row: Notification, now_wall_ns: int, detail: str = "") -> None:
        self.topics.write(lambda view: view.mark_sent(row, now_wall_ns, detail))

    def mark_refused(
        self, row: Notification, now_wall_ns: int, detail: str, *, may_have_arrived: bool = False
    ) -> None:
        self.topics.write(
            lambda view: view.mark_refused(
                row, now_wall_ns, detail, may_have_arrived=may_have_arrived
            )
        )

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
        self.topics.write(
            lambda view: view.mark_deferred(
                row,
                now_wall_ns,
                next_at_wall_ns,
                detail,
                progress,
                may_have_arrived=may_have_arrived,
            )
        )

    def save_notice(
        self,
        key: str,
        body: str,
        kind: NotificationKind,
        sinks: Sequence[str],
        now_wall_ns: int,
    ) -> None:
        self.topics.write(lambda view: view.save_notice(key, body, kind, sinks, now_wall_ns))

    def notice(self, key: str) -> str | None:
        return self.topics.view().notice(key)

    def notices(self) -> list[str]:
        return self.topics.view().notices()

    def queue_digest(self, sink: str, due_wall_ns: int) -> None:
        self.topics.write(lambda view: view.queue_digest(sink, due_wall_ns))

    def queue_end(self, run: str, summary: str, sinks: Sequence[str], now_wall_ns: int) -> None:
        self.topics.write(lambda view: view.queue_end(run, summary, sinks, now_wall_ns))

    def end_summary(self, run: str) -> str | None:
        return self.topics.view().end_summary(run)

    def last_digest_ns(self, sink: str) -> int | None:
        return self.topics.view().last_digest_ns(sink)

    def forget_digests_after(self, sink: str, wall_ns: int) -> None:
        self.topics.write(lambda view: view.forget_digests_after(sink, wall_ns))
