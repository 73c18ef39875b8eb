"""The message about a missing or returned heartbeat, or about a run that was aborted.

It says nothing about the cluster, except that records of other hosts may arrive over a topic of that cluster.
"""

from __future__ import annotations

import shlex

from soak.alerting.document import Document, Facts, Paragraphs, Tone, as_html, as_text
from soak.alerting.heartbeat import CONDUCT, DETECT, Notice, is_remote
from soak.core import wording
from soak.core.ports import Message
from soak.core.units import SECOND_NS, duration_ns
from soak.store.findings.rows import NotificationKind

_UNIT_NAMES = {DETECT: "detect"}  # the unit has another name
_GAP = "Nothing can be detected in the time that they do not record."
_MEANING = {
    DETECT: "The detector reports nothing until it is back; it then catches up.",
    CONDUCT: "No phase begins or ends until the conductor is back.",
}
_MISSING = "The run continues without these daemons, which hang or crash at each start."
_MISSING_REMOTE = (
    "Records of these daemons on other hosts do not arrive any more.",
    "They may wait there to be sent; until then nothing is detected in them.",
)
_RETURNED = "The daemons are back. The time without records stays a gap in the run."
_RETURNED_REMOTE = "Records of these daemons arrive again, with those that waited on their hosts."
_MAX_NAMES = 3
_MAX_PLACES = 8
_RESOLVE_AFTER_NS = duration_ns("1d")


def compose(
    notice: Notice, kind: NotificationKind, run: str, plan: str, now_wall_ns: int
) -> Message:
    """Return the message about a notice; its key keeps the words of older versions, as in `message`."""
    is_returned = kind == "returned"
    document = _document(notice, kind, run)
    return Message(
        key=f"{notice.key}.{'back' if is_returned else 'missed'}",
        subject=wording.printable(f"[soakd] {_headline(notice, kind)} - {plan}"),
        text=as_text(document),
        html=as_html(document),
        follows=f"{notice.key}.missed" if is_returned else "",
        at_wall_ns=now_wall_ns,
        labels={
            "about": "soakd",
            "finding": notice.key,
            "plan": plan,
            "run": run,
            "source": notice.daemons[0] if notice.daemons else notice.host,
        },
        begin_wall_ns=notice.since_wall_ns,
        end_wall_ns=_end_wall_ns(notice, kind),
    )


def daemon_names(notice: Notice) -> str:
    """Return the daemons, at most three by name: `consume.0@h1`."""
    more = len(notice.daemons) - _MAX_NAMES
    shown = ", ".join(notice.daemons[:_MAX_NAMES])
    return f"{shown} and {more} more" if more > 0 else shown


def _end_wall_ns(notice: Notice, kind: NotificationKind) -> int | None:
    """Return when it ended; for an aborted run a day later, as nothing resolves that alert."""
    if notice.why:
        return notice.since_wall_ns + _RESOLVE_AFTER_NS
    return notice.until_wall_ns if kind == "returned" else None


def _headline(notice: Notice, kind: NotificationKind) -> str:
    if notice.why:
        return f"run aborted: {notice.why}"
    daemons = daemon_names(notice)
    if kind == "returned":
        if notice.is_remote:
            return f"records from {daemons} arrive again after {_length(notice)}"
        return f"heartbeat of {daemons} is back after {_length(notice)}"
    since = wording.moment(notice.since_wall_ns)
    return f"no {'records' if notice.is_remote else 'heartbeat'} from {daemons} since {since}"


def _length(notice: Notice) -> str:
    until_ns = notice.until_wall_ns or notice.since_wall_ns
    return wording.span((until_ns - notice.since_wall_ns) / SECOND_NS)


def _document(notice: Notice, kind: NotificationKind, run: str) -> Document:
    since = f"{wording.day(notice.since_wall_ns)} {wording.moment(notice.since_wall_ns)}"
    facts = [("missing", daemon_names(notice)), ("since", since)]
    if notice.why:
        opening = [f"The run was aborted: {notice.why}."]
        facts = [("when", since), ("logs", f"on {notice.host}: {notice.logs}")]
    elif kind == "returned" and notice.until_wall_ns is not None:
        opening = [_RETURNED_REMOTE if notice.is_remote else _RETURNED]
        until = wording.moment_with_day(notice.until_wall_ns, notice.since_wall_ns)
        facts.append(("back", f"at {until}, after {_length(notice)}"))
    elif notice.is_remote:
        opening = [*_MISSING_REMOTE]
        facts += _remote_log_commands(notice)
    else:
        opening = [
            _MISSING,
            *dict.fromkeys(_MEANING.get(one, _GAP) for one in notice.daemons),
        ]
        facts += _log_commands(notice)
    if not notice.is_remote:
        opening.append("This says nothing about the cluster.")
    late: list[str] = []
    if kind == "missing" and notice.until_wall_ns is not None:  # the sink was unavailable meanwhile
        late = ["This is resolved by now, see the next message."]
    facts.append(("run", run))
    badge, tone = _badge(notice, kind)
    return Document(
        badge,
        tone,
        _headline(notice, kind),
        [Paragraphs(late), Paragraphs(opening), Facts(facts, copied=("logs",))],
    )


def _badge(notice: Notice, kind: NotificationKind) -> tuple[str, Tone]:
    if notice.why:
        return "Run aborted", "bad"
    return ("Back", "good") if kind == "returned" else ("Not recording", "warning")


def _log_commands(notice: Notice) -> list[tuple[str, str]]:
    commands = list(dict.fromkeys(_log_command(notice, one) for one in notice.daemons))
    facts = [("logs", command) for command in commands[:_MAX_PLACES]]
    if len(commands) > _MAX_PLACES:
        facts.append(("logs", f"and {len(commands) - _MAX_PLACES} more"))
    return facts


def _remote_log_commands(notice: Notice) -> list[tuple[str, str]]:
    """Return where the path of records from other hosts may be interrupted."""
    return [
        ("logs", _log_command(notice, f"receive@{notice.host}")),
        ("cluster", "check that the cluster of the topic in `ship` is up"),
        ("logs", _log_command(notice, notice.daemons[0])),
    ]


def _log_command(notice: Notice, daemon: str) -> str:
    """Return where to read the log of a daemon; the log folder of another host is not known here."""
    role, _, host = daemon.partition("@")
    kind = role.partition(".")[0]
    if is_remote(daemon, notice.host):
        if notice.logs:
            return f"on {host}: {role}.log and ship.log in the log folder of its run"
        # a probe host has one unit for all daemons
        return f"on {host}: journalctl -t soak-host -t soak-{kind} -t soak-ship -n 50"
    if notice.logs:
        return f"on {notice.host}: tail {shlex.quote(f'{notice.logs}/{role}.log')}"
    return f"on {notice.host}: journalctl -t soak-{_UNIT_NAMES.get(kind, kind)} -n 50"
