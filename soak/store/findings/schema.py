"""The tables of `findings.db`, the version of their layout, and the migrations from older layouts."""

from __future__ import annotations

VERSION = 5  # kept in SQLite's own `user_version`

# which finding a change belongs to, once and for all
_MEMBERS = """CREATE TABLE members (
        run TEXT NOT NULL,
        series TEXT NOT NULL,
        raised_k INTEGER NOT NULL,
        key TEXT NOT NULL,
        PRIMARY KEY (run, series, raised_k)
    ) WITHOUT ROWID"""

_OUTBOX = """CREATE TABLE outbox (
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
        cause TEXT NOT NULL,
        PRIMARY KEY (key, sink, kind, turn)
    ) WITHOUT ROWID"""

_SETTLED = "ALTER TABLE findings ADD COLUMN is_settled INTEGER NOT NULL DEFAULT 0"
_FROM_VERSION_4 = (_SETTLED, "ALTER TABLE outbox ADD COLUMN cause TEXT NOT NULL DEFAULT ''")
_FROM_VERSION_3 = (
    "ALTER TABLE outbox RENAME TO outbox_3",
    _OUTBOX,
    """INSERT INTO outbox SELECT key, sink, kind, 1, state, created_wall_ns, next_at_wall_ns, attempts,
        done_wall_ns, detail, '', '' FROM outbox_3""",
    "DROP TABLE outbox_3",
    _SETTLED,
)
_FROM_VERSION_2 = (
    "ALTER TABLE changes ADD COLUMN period_seconds REAL",
    "ALTER TABLE changes ADD COLUMN burst_seconds REAL",
    *_FROM_VERSION_3,
)

MIGRATIONS = {
    1: ("ALTER TABLE changes ADD COLUMN gone_k INTEGER", _MEMBERS, *_FROM_VERSION_2),
    2: _FROM_VERSION_2,
    3: _FROM_VERSION_3,
    4: _FROM_VERSION_4,
}
"""What brings an older layout to this one."""

TABLES = (
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
        is_settled INTEGER NOT NULL
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
        PRIMARY KEY (key, position)
    ) WITHOUT ROWID""",
    """CREATE TABLE evidence (
        key TEXT NOT NULL,
        cause TEXT NOT NULL,
        position INTEGER NOT NULL,
        text TEXT NOT NULL,
        numbers TEXT NOT NULL,
        PRIMARY KEY (key, cause, position)
    ) WITHOUT ROWID""",
    _OUTBOX,
    """CREATE TABLE checkpoints (
        name TEXT PRIMARY KEY,
        value TEXT NOT NULL
    ) WITHOUT ROWID""",
)
