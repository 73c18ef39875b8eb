"""The outbox: pending notifications in `findings.db`, one row a subject, sink, kind and occurrence.

"confirmed" and "gone" of the first turn tell that it came and that it went; a finding that is up again has a
second turn. One that turns out to be none is taken back as if it had gone. "corrected" tells between the two,
once a turn, that the last word on its cause is another than the one that was told.
"""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection

from soak.core.model import Finding
from soak.core.units import SECOND_NS
from soak.store.findings.rows import Notification, NotificationKind, notification_of

SETTLE_LIMIT_NS = 300 * SECOND_NS
"""So long at most the word that a finding went away waits for the last one on its cause."""

_CAUSE_SEPARATOR = " or "  # of causes: a daemon died in a try, and another try told another one

_ROW = "key = ? AND sink = ? AND kind = ? AND turn = ? AND state = 'pending'"
DUE = """SELECT * FROM outbox AS o WHERE state = 'pending'
    AND (next_at_wall_ns <= ? OR next_at_wall_ns > ?)
    AND NOT EXISTS (SELECT 1 FROM outbox AS first
        WHERE first.key = o.key AND first.sink = o.sink AND first.state = 'pending'
        AND (first.turn, first.kind) < (o.turn, o.kind))
    ORDER BY created_wall_ns, key, sink"""
"""Between two instants; a word waits for the one before it (the kinds sort in their order)."""

LASTING = """SELECT * FROM outbox AS o WHERE sink = ? AND kind <> 'gone' AND state = 'sent'
    AND NOT EXISTS (SELECT 1 FROM outbox AS later
        WHERE later.key = o.key AND later.sink = o.sink
        AND (later.turn, later.kind) > (o.turn, o.kind)
        AND (later.kind = 'gone' OR later.state = 'sent'))
    ORDER BY created_wall_ns, key"""
TRY = f"""UPDATE outbox SET attempts = attempts + 1, next_at_wall_ns = ?, detail = '', so_far = ?,
    cause = ? WHERE {_ROW}"""  # noqa: S608  # the constant above
PUT_OFF = f"UPDATE outbox SET next_at_wall_ns = ?, detail = ?, so_far = ? WHERE {_ROW}"  # noqa: S608  # as above
SETTLE = f"UPDATE outbox SET state = ?, done_wall_ns = ?, detail = ? WHERE {_ROW}"  # noqa: S608  # as above
UNHEARD = f"UPDATE outbox SET cause = ? WHERE {_ROW}"  # noqa: S608  # as above
"""With what the row said before a try that nobody can have heard: what that one said is known to nobody."""

DROP = f"DELETE FROM outbox WHERE {_ROW}"  # noqa: S608  # as above
_HURRY = f"UPDATE outbox SET next_at_wall_ns = ? WHERE {_ROW} AND attempts = 0"  # noqa: S608  # as above
_BEFORE = """SELECT * FROM outbox WHERE key = ? AND sink = ? AND kind < ? AND turn = ?
    ORDER BY kind"""
_BEGUN = "SELECT * FROM outbox WHERE key = ? AND sink = ? AND kind = 'confirmed'"
_ANY_NOTIFICATION = "SELECT 1 FROM outbox WHERE key = ? AND sink = ?"
_NOTICE = "INSERT OR IGNORE INTO outbox VALUES (?,?,?,1,'pending',?,?,0,NULL,'','','')"


def identity(row: Notification) -> tuple[str, str, str, int]:
    return row.key, row.sink, row.kind, row.turn


def joined_causes(told: str, cause: str) -> str:
    """Return what readers may know who may have heard others before: causes joined as they are told."""
    return _CAUSE_SEPARATOR.join(
        dict.fromkeys(filter(None, [*told.split(_CAUSE_SEPARATOR), *cause.split(_CAUSE_SEPARATOR)]))
    )


def other_causes(told: str, cause: str) -> str:
    """Return which of what readers may know is another cause; "" where nothing is."""
    return _CAUSE_SEPARATOR.join(
        one for one in dict.fromkeys(told.split(_CAUSE_SEPARATOR)) if one != cause
    )


def known_cause(connection: Connection, row: Notification, cause: str) -> str:
    """Return what is not `cause` and was told before a sequel in its turn, or may have been; "": nothing.

    A word that all have got takes the place of those before; a correction's own tries may have told some.
    """
    known = ""
    for before in map(notification_of, connection.execute(_BEFORE, identity(row))):
        known = before.cause if before.state == "sent" else joined_causes(known, before.cause)
    return other_causes(
        joined_causes(known, row.cause) if row.kind == "corrected" else known, cause
    )


def queue(connection: Connection, finding: Finding, sinks: Sequence[str], now_wall_ns: int) -> None:
    """Queue what the newest word on a finding calls for, after what was queued before."""
    for sink in sinks:
        rows = connection.execute(
            "SELECT * FROM outbox WHERE key = ? AND sink = ? ORDER BY turn, kind",
            (finding.key, sink),
        )
        _queue(connection, finding, sink, [notification_of(row) for row in rows], now_wall_ns)


def queue_added(
    connection: Connection, finding: Finding, sinks: Sequence[str], since_k: int, now_wall_ns: int
) -> None:
    """Queue as `queue` does, but that a finding came and went before `since_k` is news to nobody."""
    was_over = finding.gone_k is not None and finding.gone_k < since_k
    for sink in sinks:
        known = connection.execute(_ANY_NOTIFICATION, (finding.key, sink)).fetchone()
        if known is not None or not was_over:
            queue(connection, finding, [sink], now_wall_ns)


def queue_notice(
    connection: Connection, key: str, sinks: Sequence[str], now_wall_ns: int, *, is_over: bool
) -> None:
    """Queue that something about the run itself began, or is over: not where nobody has heard of it yet."""
    for sink in sinks:
        begun = connection.execute(_BEGUN, (key, sink)).fetchone()
        if not is_over:
            connection.execute(_NOTICE, (key, sink, "confirmed", now_wall_ns, now_wall_ns))
        elif begun is not None and notification_of(begun).is_untold:
            connection.execute(DROP, identity(notification_of(begun)))
        elif begun is not None:
            connection.execute(_NOTICE, (key, sink, "gone", now_wall_ns, now_wall_ns))


def _queue(
    connection: Connection,
    finding: Finding,
    sink: str,
    queued: Sequence[Notification],
    now_wall_ns: int,
) -> None:
    def add(kind: NotificationKind, turn: int) -> None:
        is_early = kind == "gone" and not finding.is_settled
        next_at_ns = now_wall_ns + (SETTLE_LIMIT_NS if is_early else 0)
        connection.execute(
            "INSERT INTO outbox VALUES (?,?,?,?,'pending',?,?,0,NULL,'','','')",
            (finding.key, sink, kind, turn, now_wall_ns, next_at_ns),
        )

    is_up = finding.is_about_cluster and finding.state == "confirmed"
    if not queued:
        if finding.is_about_cluster:
            add("confirmed", 1)  # also of one that went away meanwhile
        if finding.is_about_cluster and not is_up:
            add("gone", 1)
        return
    last = queued[-1]
    if (last.kind != "gone") == is_up:
        if last.kind == "confirmed" and _is_corrected(finding, last):
            add("corrected", last.turn)
        elif last.kind == "gone" and finding.is_settled:
            connection.execute(_HURRY, (now_wall_ns, *identity(last)))
        return
    is_first_word = len(queued) == 1 and finding.is_about_cluster
    if last.is_untold and not is_first_word:  # the word before it holds again
        connection.execute(DROP, identity(last))
        _queue(connection, finding, sink, queued[:-1], now_wall_ns)
    elif is_up:
        add("confirmed", last.turn + 1)
    else:
        add("gone", last.turn)


def _is_corrected(finding: Finding, told: Notification) -> bool:
    """True when the last word on a cause is not the one that was told, or is being told."""
    return finding.is_settled and bool(other_causes(told.cause, finding.cause))
