"""What people are owed on a finding: one row a sink, kind and turn, each word once and in its order.

"confirmed" and "gone" of the first turn tell that it came and that it went; a finding that is up again has a
second turn. One that turns out to be none is taken back as if it had gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection

from soak.core.model import Finding
from soak.store.findings_rows import OutboxKind, OutboxRow, outbox_of

_ROW = "key = ? AND sink = ? AND kind = ? AND turn = ? AND state = 'pending'"
DUE = """SELECT * FROM outbox AS o WHERE state = 'pending'
    AND (next_at_wall_ns <= ? OR next_at_wall_ns > ?)
    AND NOT EXISTS (SELECT 1 FROM outbox AS first
        WHERE first.key = o.key AND first.sink = o.sink AND first.state = 'pending'
        AND (first.turn, first.kind) < (o.turn, o.kind))
    ORDER BY created_wall_ns, key, sink"""
"""Between two instants; a word waits for the one before it ("confirmed" sorts before "gone")."""

LASTING = """SELECT * FROM outbox AS o WHERE sink = ? AND kind = 'confirmed' AND state = 'sent'
    AND NOT EXISTS (SELECT 1 FROM outbox AS later
        WHERE later.key = o.key AND later.sink = o.sink
        AND (later.turn, later.kind) > (o.turn, o.kind))
    ORDER BY created_wall_ns, key"""
TRY = f"UPDATE outbox SET attempts = attempts + 1, next_at_wall_ns = ? WHERE {_ROW}"  # noqa: S608  # the constant above
PUT_OFF = f"UPDATE outbox SET next_at_wall_ns = ?, detail = ?, so_far = ? WHERE {_ROW}"  # noqa: S608  # as above
SETTLE = f"UPDATE outbox SET state = ?, done_wall_ns = ?, detail = ? WHERE {_ROW}"  # noqa: S608  # as above


def identity(row: OutboxRow) -> tuple[str, str, str, int]:
    return row.key, row.sink, row.kind, row.turn


def queue(connection: Connection, finding: Finding, sinks: Sequence[str], now_wall_ns: int) -> None:
    """Queue what the newest word on a finding calls for, after what was queued before."""
    for sink in sinks:
        rows = connection.execute(
            "SELECT * FROM outbox WHERE key = ? AND sink = ? ORDER BY turn, kind",
            (finding.key, sink),
        )
        _queue(connection, finding, sink, [outbox_of(row) for row in rows], now_wall_ns)


def _queue(
    connection: Connection,
    finding: Finding,
    sink: str,
    queued: Sequence[OutboxRow],
    now_wall_ns: int,
) -> None:
    def add(kind: OutboxKind, turn: int) -> None:
        connection.execute(
            "INSERT INTO outbox VALUES (?,?,?,?,'pending',?,?,0,NULL,'','')",
            (finding.key, sink, kind, turn, now_wall_ns, now_wall_ns),
        )

    is_up = finding.is_about_cluster and finding.state == "confirmed"
    if not queued:
        if finding.is_about_cluster:
            add("confirmed", 1)  # also of one that went away meanwhile
        if finding.is_about_cluster and not is_up:
            add("gone", 1)
        return
    last = queued[-1]
    if (last.kind == "confirmed") == is_up:
        return
    is_first_word = len(queued) == 1 and finding.is_about_cluster
    if last.is_untold and not is_first_word:  # the word before it holds again
        connection.execute(f"DELETE FROM outbox WHERE {_ROW}", identity(last))  # noqa: S608  # the constant above
    elif is_up:
        add("confirmed", last.turn + 1)
    else:
        add("gone", last.turn)
