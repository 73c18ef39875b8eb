"""The outbox: which notifications findings, notices, digests and the end of a run call for, in `findings.db`.

A notification is pending until its first try, sending during a try, deferred after a try that is to be
repeated, and ends as sent or refused. A sink gets each kind of an occurrence once and in order: opened,
named, corrected, resolved, revised; missing, returned. `named` says a cause that became known before the
final one, `corrected` the final one. A finding that comes back starts another occurrence. One that turns out
not to be about the cluster is withdrawn by `resolved`, or by `revised` where that was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from sqlite3 import Connection

from soak.core.model import Finding
from soak.core.units import SECOND_NS
from soak.store.findings.named_causes import (
    NamedCause,
    NamedCauses,
    joined,
    named_cause,
    named_causes_text,
    other_causes,
    other_suspects,
)
from soak.store.findings.rows import (
    CORRECTIONS,
    STEPS,
    Notification,
    NotificationKind,
    is_correction,
    is_end,
    notification_of,
)

SETTLE_LIMIT_NS = 15 * SECOND_NS
"""So long the message that a finding is resolved waits for its final cause, or for latency to rise again."""

_OPEN_STATES = "('pending', 'sending', 'deferred')"
_IS_OPEN = f"state IN {_OPEN_STATES}"
_ROW = f"subject = ? AND sink = ? AND occurrence = ? AND kind = ? AND {_IS_OPEN}"

DUE = f"""SELECT * FROM notifications AS n WHERE {_IS_OPEN}
    AND (next_at_wall_ns <= ? OR next_at_wall_ns > ?)
    AND NOT EXISTS (SELECT 1 FROM notifications AS earlier
        WHERE earlier.subject = n.subject AND earlier.sink = n.sink
        AND earlier.state IN {_OPEN_STATES} AND NOT (earlier.state = 'deferred' AND earlier.progress <> '')
        AND (earlier.occurrence, earlier.step) < (n.occurrence, n.step))
    ORDER BY created_wall_ns, subject, sink"""  # noqa: S608  # the constants above
"""Up to one instant, or beyond another one; a notification waits for the earlier ones of its subject.

Not for one that waits for some of its recipients: the others have it, and need not wait with these.
"""
OPEN = f"SELECT * FROM notifications WHERE {_IS_OPEN} ORDER BY created_wall_ns, subject, sink"  # noqa: S608  # as above
_END = STEPS["resolved"]
UNRESOLVED = f"""SELECT * FROM notifications AS n
    WHERE sink = ? AND step < {_END} AND kind NOT IN ('digest', 'ended') AND state = 'sent'
    AND NOT EXISTS (SELECT 1 FROM notifications AS later
        WHERE later.subject = n.subject AND later.sink = n.sink
        AND (later.occurrence, later.step) > (n.occurrence, n.step)
        AND (later.step = {_END} OR later.state = 'sent'))
    ORDER BY created_wall_ns, subject"""  # noqa: S608  # as above
OF_RUN = """SELECT n.* FROM notifications AS n JOIN findings AS f ON f.key = n.subject WHERE run = ?
    ORDER BY created_wall_ns, subject, sink, occurrence, step"""
SENT_BETWEEN = f"""SELECT count(*) FROM notifications WHERE sink = :sink
    AND kind NOT IN ('digest', 'ended')
    AND (state = 'sent' AND done_wall_ns > :after AND done_wall_ns <= :until
        OR {_IS_OPEN} AND progress <> '' AND created_wall_ns > :after AND created_wall_ns <= :until)"""  # noqa: S608  # as above
"""One that some recipients have counts since it was queued, until all have it or it is given up."""
LAST_SENT = """SELECT max(done_wall_ns) AS at FROM notifications WHERE sink = ?
    AND kind NOT IN ('digest', 'ended') AND state = 'sent' AND done_wall_ns <= ?"""
LAST_DIGEST = f"""SELECT max(created_wall_ns) AS at FROM notifications
    WHERE sink = ? AND kind = 'digest' AND NOT {_IS_OPEN}"""  # noqa: S608  # as above
_FORGET_DIGESTS = f"""DELETE FROM notifications
    WHERE sink = ? AND kind = 'digest' AND created_wall_ns > ? AND {_IS_OPEN}"""  # noqa: S608  # as above
_MOVE_DIGESTS = """UPDATE OR REPLACE notifications SET subject = ?, created_wall_ns = ?
    WHERE sink = ? AND kind = 'digest' AND created_wall_ns > ?"""

BEGIN_TRY = f"""UPDATE notifications SET state = 'sending', attempts = attempts + 1, next_at_wall_ns = ?,
    detail = '', progress = ?, cause = ? WHERE {_ROW}"""  # noqa: S608  # as above
DEFER = f"""UPDATE notifications SET state = 'deferred', next_at_wall_ns = ?, detail = ?, progress = ?
    WHERE {_ROW}"""  # noqa: S608  # as above
SETTLE = f"UPDATE notifications SET state = ?, done_wall_ns = ?, detail = ? WHERE {_ROW}"  # noqa: S608  # as above
DROP = f"DELETE FROM notifications WHERE {_ROW}"  # noqa: S608  # as above

_INSERT = """INSERT OR IGNORE INTO notifications
    VALUES (?, ?, ?, ?, ?, 'pending', ?, ?, 0, NULL, '', '', '')"""
_OF_SUBJECT = """SELECT * FROM notifications WHERE subject = ? AND sink = ?
    ORDER BY occurrence, step"""
_EARLIER_STEPS = """SELECT * FROM notifications
    WHERE subject = ? AND sink = ? AND occurrence = ? AND step < ? ORDER BY step"""
_RESTORE_NAMED = f"UPDATE notifications SET cause = ? WHERE {_ROW}"  # noqa: S608  # as above
_HURRY = f"UPDATE notifications SET next_at_wall_ns = ? WHERE {_ROW} AND state = 'pending'"  # noqa: S608  # as above
_REPLACE_DIGESTS = f"""DELETE FROM notifications
    WHERE sink = ? AND kind = 'digest' AND {_IS_OPEN} AND created_wall_ns <> ?"""  # noqa: S608  # as above


def identity(row: Notification) -> tuple[str, str, int, str]:
    return row.subject, row.sink, row.occurrence, row.kind


def restore_named(connection: Connection, row: Notification) -> None:
    """Undo what a try named that certainly reached no reader; `row` is as it was before the try."""
    connection.execute(_RESTORE_NAMED, (named_causes_text(row.named), *identity(row)))


def previously_named(connection: Connection, row: Notification, now: NamedCause) -> tuple[str, str]:
    """Return the other causes, and other suspects of this one, that readers know.

    They know them from the earlier notifications of the occurrence. One that was sent to all replaces those
    before it; a correction may have reached some readers in one of its own tries.
    """
    known: NamedCauses = ()
    earlier = (row.subject, row.sink, row.occurrence, STEPS[row.kind])
    for before in map(notification_of, connection.execute(_EARLIER_STEPS, earlier)):
        known = before.named if before.state == "sent" else joined(known, before.named)
    if is_correction(row.kind):
        known = joined(known, row.named)
    return other_causes(known, now), other_suspects(known, now)


def queue_finding(
    connection: Connection, finding: Finding, sinks: Sequence[str], now_wall_ns: int
) -> None:
    """Queue the notifications that the current state of a finding calls for."""
    for sink in sinks:
        queued = _of_subject(connection, finding.key, sink)
        _queue_finding(connection, finding, sink, queued, now_wall_ns)


def queue_finding_for_added_sinks(
    connection: Connection, finding: Finding, sinks: Sequence[str], since_k: int, now_wall_ns: int
) -> None:
    """Queue as `queue_finding` does, but skip a finding that was resolved before second `since_k`."""
    was_resolved = finding.resolved_k is not None and finding.resolved_k < since_k
    for sink in sinks:
        if not was_resolved or _of_subject(connection, finding.key, sink):
            queue_finding(connection, finding, [sink], now_wall_ns)


def queue_notice(
    connection: Connection,
    key: str,
    kind: NotificationKind,
    sinks: Sequence[str],
    now_wall_ns: int,
) -> None:
    """Queue a notification about the run itself.

    `returned` is queued only where `missing` was sent or tried; it cancels one that was not.
    """
    for sink in sinks:
        earlier = _of_subject(connection, key, sink)
        if kind == "returned" and (not earlier or earlier[0].state == "pending"):
            for row in earlier:
                connection.execute(DROP, identity(row))
        else:
            _insert(connection, key, sink, kind, now_wall_ns)


def queue_digest(connection: Connection, sink: str, due_wall_ns: int) -> None:
    """Queue the digest of an instant; it replaces an earlier one that was not sent."""
    connection.execute(_REPLACE_DIGESTS, (sink, due_wall_ns))
    _insert(connection, _digest_subject(due_wall_ns), sink, "digest", due_wall_ns)


def forget_digests_after(connection: Connection, sink: str, wall_ns: int) -> None:
    """Forget the digests of later instants; if one was sent, it counts as the digest of `wall_ns`."""
    connection.execute(_FORGET_DIGESTS, (sink, wall_ns))
    connection.execute(_MOVE_DIGESTS, (_digest_subject(wall_ns), wall_ns, sink, wall_ns))


def queue_end(connection: Connection, run: str, sinks: Sequence[str], now_wall_ns: int) -> None:
    """Queue the message about the end of a run, once."""
    for sink in sinks:
        _insert(connection, run, sink, "ended", now_wall_ns)


def _digest_subject(due_wall_ns: int) -> str:
    return f"digest.{due_wall_ns // SECOND_NS}"


def _of_subject(connection: Connection, subject: str, sink: str) -> list[Notification]:
    return [notification_of(row) for row in connection.execute(_OF_SUBJECT, (subject, sink))]


def _insert(
    connection: Connection,
    subject: str,
    sink: str,
    kind: NotificationKind,
    now_wall_ns: int,
    *,
    occurrence: int = 1,
    wait_ns: int = 0,
) -> None:
    values = (subject, sink, occurrence, STEPS[kind], kind, now_wall_ns, now_wall_ns + wait_ns)
    connection.execute(_INSERT, values)


def _queue_finding(
    connection: Connection,
    finding: Finding,
    sink: str,
    queued: Sequence[Notification],
    now_wall_ns: int,
) -> None:
    def add(kind: NotificationKind, occurrence: int) -> None:
        is_early = kind == "resolved" and not finding.is_settled
        wait_ns = SETTLE_LIMIT_NS if is_early else 0
        _insert(
            connection, finding.key, sink, kind, now_wall_ns, occurrence=occurrence, wait_ns=wait_ns
        )

    is_open = finding.is_about_cluster and finding.state == "confirmed"
    if not queued:
        if finding.is_about_cluster:
            add("opened", 1)  # also when it was resolved before it could be sent
        if finding.is_about_cluster and not is_open:
            add("resolved", 1)
        return
    last = queued[-1]
    if is_end(last.kind) != is_open:  # the last one says the state as it is
        if last.kind == "resolved" and finding.is_settled:
            connection.execute(_HURRY, (now_wall_ns, *identity(last)))
        if (news := _news_of_cause(finding, queued)) is not None:
            add(news, last.occurrence)
        return
    is_only_opening = len(queued) == 1 and finding.is_about_cluster
    if last.state == "pending" and not is_only_opening:  # the notification before it is true again
        connection.execute(DROP, identity(last))
        _queue_finding(connection, finding, sink, queued[:-1], now_wall_ns)
    elif is_open:
        add("opened", last.occurrence + 1)
    else:
        add("resolved", last.occurrence)


def _news_of_cause(finding: Finding, queued: Sequence[Notification]) -> NotificationKind | None:
    """Return the kind of message that the cause calls for, None where readers know it from the last one."""
    last = queued[-1]
    if last.kind in CORRECTIONS and _is_corrected(finding, queued):
        return CORRECTIONS[last.kind]
    return "named" if last.kind == "opened" and _is_named(finding, last) else None


def _is_corrected(finding: Finding, queued: Sequence[Notification]) -> bool:
    """True when the final cause differs from the one that was sent last, or is being sent.

    Another suspect of the same cause is sent as well, unless there was a correction before.
    """
    last, now = queued[-1], named_cause(finding)
    known = last.named
    if last.kind == "named" and last.state == "refused":  # readers know what the opening said
        known = joined(queued[-2].named, known)
    was_corrected = any(row.kind in CORRECTIONS.values() for row in queued)
    is_other_suspect = bool(other_suspects(known, now)) and not was_corrected
    return finding.is_settled and (bool(other_causes(known, now)) or is_other_suspect)


def _is_named(finding: Finding, opened: Notification) -> bool:
    """True when a cause is known that is not the one of the opening, before the final cause is."""
    is_other = bool(other_causes(opened.named, named_cause(finding)))
    return is_other and finding.is_cause_known and not finding.is_settled
