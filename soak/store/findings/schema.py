"""The tables of `findings.db`, the version of their layout, and the migrations from older layouts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from functools import cache
from sqlite3 import Connection, connect
from types import NoneType

VERSION = 11  # kept in SQLite's own `user_version`

_MEMBERS = """CREATE TABLE members (
        run TEXT NOT NULL,
        series TEXT NOT NULL,
        raised_k INTEGER NOT NULL,
        key TEXT NOT NULL,
        PRIMARY KEY (run, series, raised_k)
    ) WITHOUT ROWID"""
"""The finding that each change belongs to."""

_NOTIFICATIONS = """CREATE TABLE notifications (
        subject TEXT NOT NULL,
        sink TEXT NOT NULL,
        occurrence INTEGER NOT NULL,
        step INTEGER NOT NULL,
        kind TEXT NOT NULL,
        state TEXT NOT NULL,
        created_wall_ns INTEGER NOT NULL,
        next_at_wall_ns INTEGER NOT NULL,
        attempts INTEGER NOT NULL,
        done_wall_ns INTEGER,
        detail TEXT NOT NULL,
        progress TEXT NOT NULL,
        cause TEXT NOT NULL,
        PRIMARY KEY (subject, sink, occurrence, step)
    ) WITHOUT ROWID"""
"""The outbox. `subject` is the key of a finding, a notice or a digest; `step` orders its kinds."""

_NOTICES = """CREATE TABLE notices (
        key TEXT PRIMARY KEY,
        body TEXT NOT NULL
    ) WITHOUT ROWID"""
"""Facts about the run itself, such as missing heartbeats, as JSON."""

_OUTBOX_OF_VERSION_4 = """CREATE TABLE outbox (
        key TEXT NOT NULL,
        sink TEXT NOT NULL,
        kind TEXT NOT NULL,
        turn INTEGER NOT NULL,
        state TEXT NOT NULL,
        created_wall_ns INTEGER NOT NULL,
        next_at_wall_ns INTEGER NOT NULL,
        attempts INTEGER NOT NULL,
        done_wall_ns INTEGER,
        detail TEXT NOT NULL,
        so_far TEXT NOT NULL,
        PRIMARY KEY (key, sink, kind, turn)
    ) WITHOUT ROWID"""

# Up to version 5 a notice began as `confirmed` and ended as `gone`, and digests were kept as checkpoints:
# `digest.SINK` is the instant of the last one, `digest.SINK.tried` the one that is still to be sent.
_NOTICES_OF_VERSION_5 = """INSERT INTO notices
    SELECT substr(name, 8), value FROM checkpoints WHERE name GLOB 'notice.*'"""
_NOTIFICATIONS_OF_VERSION_5 = """INSERT INTO notifications
    SELECT o.key, sink, turn, CASE kind WHEN 'confirmed' THEN 0 WHEN 'corrected' THEN 1 ELSE 2 END,
        CASE kind
            WHEN 'confirmed' THEN CASE
                WHEN n.key IS NULL THEN 'opened'
                WHEN json_valid(n.body) AND json_extract(n.body, '$.why') <> '' THEN 'aborted'
                ELSE 'missing' END
            WHEN 'gone' THEN CASE WHEN n.key IS NULL THEN 'resolved' ELSE 'returned' END
            ELSE kind END,
        CASE
            WHEN state = 'never' THEN 'refused'
            WHEN state = 'pending' AND attempts > 0 AND detail = '' THEN 'sending'
            WHEN state = 'pending' AND attempts > 0 THEN 'deferred'
            ELSE state END,
        created_wall_ns, next_at_wall_ns, attempts, done_wall_ns, detail, so_far, cause
    FROM outbox AS o LEFT JOIN notices AS n ON n.key = o.key"""
_SENT_DIGESTS_OF_VERSION_5 = """INSERT INTO notifications
    SELECT 'digest.' || (at / 1000000000), sink, 1, 0, 'digest', 'sent', at, at, 1, at, '', '', ''
    FROM (SELECT substr(name, 8) AS sink, CAST(value AS INTEGER) AS at FROM checkpoints
        WHERE name GLOB 'digest.*' AND name NOT GLOB '*.tried')
    WHERE at > 0"""
_PENDING_DIGESTS_OF_VERSION_5 = """INSERT OR IGNORE INTO notifications
    SELECT 'digest.' || (due / 1000000000), sink, 1, 0, 'digest', 'deferred', due, due, 1, NULL, '',
        coalesce(json_extract(note, '$.so_far'), ''), ''
    FROM (SELECT sink, note, json_extract(note, '$.due_wall_ns') AS due
        FROM (SELECT substr(name, 8, length(name) - 13) AS sink,
                CASE WHEN json_valid(value) THEN value ELSE '{}' END AS note
            FROM checkpoints WHERE name GLOB 'digest.*.tried'))
    WHERE due > coalesce((SELECT max(created_wall_ns) FROM notifications AS sent
        WHERE sent.kind = 'digest' AND sent.sink = sink), 0)"""

_MIGRATIONS: Mapping[int, tuple[str, ...]] = {
    1: ("ALTER TABLE changes ADD COLUMN gone_k INTEGER", _MEMBERS),
    2: (
        "ALTER TABLE changes ADD COLUMN period_seconds REAL",
        "ALTER TABLE changes ADD COLUMN burst_seconds REAL",
    ),
    3: (
        "ALTER TABLE outbox RENAME TO outbox_3",
        _OUTBOX_OF_VERSION_4,
        """INSERT INTO outbox SELECT key, sink, kind, 1, state, created_wall_ns, next_at_wall_ns, attempts,
            done_wall_ns, detail, '' FROM outbox_3""",
        "DROP TABLE outbox_3",
    ),
    4: (
        "ALTER TABLE findings ADD COLUMN is_settled INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE outbox ADD COLUMN cause TEXT NOT NULL DEFAULT ''",
    ),
    5: (
        _NOTIFICATIONS,
        _NOTICES,
        _NOTICES_OF_VERSION_5,
        _NOTIFICATIONS_OF_VERSION_5,
        _SENT_DIGESTS_OF_VERSION_5,
        _PENDING_DIGESTS_OF_VERSION_5,
        "DELETE FROM checkpoints WHERE name GLOB 'notice.*' OR name GLOB 'digest.*'",
        "DROP TABLE outbox",
    ),
    6: tuple(
        f"ALTER TABLE {table} ADD COLUMN {name} INTEGER"
        for table in ("changes", "findings")
        for name in ("failed_messages", "late_messages", "due_messages")
    ),
    7: ("ALTER TABLE findings ADD COLUMN worst_k INTEGER",),
    8: (
        "ALTER TABLE causes ADD COLUMN suspect TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE evidence ADD COLUMN is_against INTEGER NOT NULL DEFAULT 0",
    ),
    9: (),  # older programs read no suspects in `notifications.cause`, and no `revised` in its `kind`
    10: (  # `named` became step 1; in two statements, as no two rows may have a step in common meanwhile
        "UPDATE notifications SET step = -1 - step WHERE step > 0",
        "UPDATE notifications SET step = -step WHERE step < 0",
    ),
}
"""By version: the statements that bring a layout to the next one."""

_TABLES = (
    """CREATE TABLE changes (
        run TEXT NOT NULL,
        series TEXT NOT NULL,
        raised_k INTEGER NOT NULL,
        onset_k INTEGER NOT NULL,
        first_k INTEGER NOT NULL,
        last_k INTEGER NOT NULL,
        before REAL,
        after REAL,
        state TEXT NOT NULL,
        confidence REAL NOT NULL,
        kind TEXT NOT NULL,
        gone_k INTEGER,
        period_seconds REAL,
        burst_seconds REAL,
        failed_messages INTEGER,
        late_messages INTEGER,
        due_messages INTEGER,
        PRIMARY KEY (run, series, raised_k)
    ) WITHOUT ROWID""",
    _MEMBERS,
    """CREATE TABLE findings (
        key TEXT PRIMARY KEY,
        run TEXT NOT NULL,
        raised_k INTEGER NOT NULL,
        onset_k INTEGER NOT NULL,
        first_k INTEGER NOT NULL,
        last_k INTEGER NOT NULL,
        series TEXT NOT NULL,
        kind TEXT NOT NULL,
        before REAL,
        after REAL,
        state TEXT NOT NULL,
        confidence REAL NOT NULL,
        is_about_cluster INTEGER NOT NULL,
        gone_k INTEGER,
        saved_wall_ns INTEGER NOT NULL,
        is_settled INTEGER NOT NULL,
        failed_messages INTEGER,
        late_messages INTEGER,
        due_messages INTEGER,
        worst_k INTEGER
    ) WITHOUT ROWID""",
    """CREATE TABLE finding_changes (
        key TEXT NOT NULL,
        position INTEGER NOT NULL,
        series TEXT NOT NULL,
        PRIMARY KEY (key, position)
    ) WITHOUT ROWID""",
    """CREATE TABLE causes (
        key TEXT NOT NULL,
        position INTEGER NOT NULL,
        cause TEXT NOT NULL,
        score REAL NOT NULL,
        suspect TEXT NOT NULL,
        PRIMARY KEY (key, position)
    ) WITHOUT ROWID""",
    """CREATE TABLE evidence (
        key TEXT NOT NULL,
        cause TEXT NOT NULL,
        position INTEGER NOT NULL,
        text TEXT NOT NULL,
        numbers TEXT NOT NULL,
        is_against INTEGER NOT NULL,
        PRIMARY KEY (key, cause, position)
    ) WITHOUT ROWID""",
    _NOTIFICATIONS,
    _NOTICES,
    """CREATE TABLE checkpoints (
        name TEXT PRIMARY KEY,
        value TEXT NOT NULL
    ) WITHOUT ROWID""",
)


def bring_up_to_date(connection: Connection) -> None:
    """Create the tables of a new file, or migrate those of an older layout; call it in a transaction."""
    found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if not found:
        _run(connection, _TABLES)
    for version in range(max(found, 1), VERSION) if found else ():
        _run(connection, _MIGRATIONS[version])
    if found < VERSION:
        connection.execute(f"PRAGMA user_version = {VERSION}")


_TYPES = {"TEXT": str, "INTEGER": int, "REAL": float}


@cache
def cell_types() -> Mapping[str, frozenset[type]]:
    """Return the types of a column's cells by its name: SQLite itself keeps a text in a column of numbers."""
    found: dict[str, frozenset[type]] = {}
    with closing(connect(":memory:")) as connection:
        _run(connection, _TABLES)
        tables = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        ).fetchall()
        for (table,) in tables:
            for _, name, declared, is_required, _, is_key in connection.execute(
                f"PRAGMA table_info({table})"
            ):
                types = (
                    {_TYPES[declared]} if is_required or is_key else {_TYPES[declared], NoneType}
                )
                found[name] = found.get(name, frozenset()) | types
    return found


def _run(connection: Connection, statements: tuple[str, ...]) -> None:
    for statement in statements:
        connection.execute(statement)
