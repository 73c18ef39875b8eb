"""The message about a daemon that is missing or back, or about a run that was aborted.

Of other hosts' daemons that is not known: their records come over a topic, by default of that cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

from soak.alerting.heartbeat import CONDUCT, DETECT, Notice, is_remote
from soak.core import wording
from soak.core.ports import Message
from soak.core.units import SECOND_NS, duration_ns
from soak.store.findings.rows import NotificationKind

_UNIT_NAMES = {DETECT: "detect"}  # its unit has another name
_GAP = "What is not recorded is a gap, in which nothing can be found."
_MEANING = {
    DETECT: "Nothing is found until it is back, which then looks at what was recorded.",
    CONDUCT: "No phase begins or ends until it is back.",
}
_REMOTE_MEANING = (
    "What these record on other hosts does not come here any more.",
    "It may wait there until it can be sent; nothing is found in it before.",
)
_BACK = "The run has again what it lacked. What was not recorded is a gap."
_BACK_REMOTE = "What these record on other hosts comes here again, with what waited there."
_MAX_NAMES = 3
_MAX_PLACES = 8
_RESOLVE_AFTER_NS = duration_ns("1d")


@dataclass(frozen=True, slots=True)
class About:
    """The run whose daemons they are."""

    run: str
    plan: str


def compose(silence: Notice, kind: NotificationKind, about: About, now_wall_ns: int) -> Message:
    """Return that the daemons are missed, or as `gone` that they are back; or that the run was given up."""
    is_over = kind == "gone"
    return Message(
        key=f"{silence.key}.{'back' if is_over else 'missed'}",
        subject=f"[soakd] {about.plan}: {wording.printable(_headline(silence, is_over=is_over))}",
        text=_body(silence, about, is_over=is_over),
        follows=f"{silence.key}.missed" if is_over else "",
        at_wall_ns=now_wall_ns,
        labels={
            "about": "soakd",
            "finding": silence.key,
            "plan": about.plan,
            "run": about.run,
            "source": silence.daemons[0] if silence.daemons else silence.host,
        },
        begin_wall_ns=silence.since_wall_ns,
        end_wall_ns=_end_wall_ns(silence, is_over=is_over),
    )


def daemon_names(silence: Notice) -> str:
    """Return who it is, at most three by name: `consume.0@h1`."""
    more = len(silence.daemons) - _MAX_NAMES
    shown = ", ".join(silence.daemons[:_MAX_NAMES])
    return f"{shown} and {more} more" if more > 0 else shown


def _end_wall_ns(silence: Notice, *, is_over: bool) -> int | None:
    """Return when it was over; of a run that was given up a day later, as nobody takes that back."""
    if silence.why:
        return silence.since_wall_ns + _RESOLVE_AFTER_NS
    return silence.until_wall_ns if is_over else None


def _headline(silence: Notice, *, is_over: bool) -> str:
    if silence.why:
        return f"given up: {silence.why}"
    if is_over:
        again = "heard from again" if silence.is_afar else "back"
        return f"{daemon_names(silence)} {again} after {_length(silence)}"
    if silence.is_afar:
        since = wording.moment(silence.since_wall_ns)
        return f"nothing comes from {daemon_names(silence)} since {since}"
    return f"the run lacks {daemon_names(silence)} since {wording.moment(silence.since_wall_ns)}"


def _length(silence: Notice) -> str:
    until_ns = silence.until_wall_ns or silence.since_wall_ns
    return wording.span((until_ns - silence.since_wall_ns) / SECOND_NS)


def _body(silence: Notice, about: About, *, is_over: bool) -> str:
    since = f"{wording.day(silence.since_wall_ns)} {wording.moment(silence.since_wall_ns)}"
    facts = [("lacking", daemon_names(silence)), ("since", since)]
    if silence.why:
        opening = [f"The run has ended before its time: {silence.why}."]
        facts = [("when", since), ("look", f"on {silence.host}: {silence.logs}")]
    elif is_over and silence.until_wall_ns is not None:
        opening = [_BACK_REMOTE if silence.is_afar else _BACK]
        until = wording.moment_with_day(silence.until_wall_ns, silence.since_wall_ns)
        facts.append(("back", f"since {until}, after {_length(silence)}"))
    elif silence.is_afar:
        opening = [*_REMOTE_MEANING]
        facts += _remote_log_commands(silence)
    else:
        opening = [
            "The run goes on without a part of it, which does nothing, or dies again and again.",
            *dict.fromkeys(_MEANING.get(one, _GAP) for one in silence.daemons),
        ]
        looks = list(dict.fromkeys(_log_command(silence, one) for one in silence.daemons))
        facts += [("look", look) for look in looks[:_MAX_PLACES]]
        if len(looks) > _MAX_PLACES:
            facts.append(("", f"and so on for {len(looks) - _MAX_PLACES} more"))
    if not silence.is_afar:
        opening.append("This says nothing about the cluster.")
    if not is_over and silence.until_wall_ns is not None:  # the sink was away
        opening = ["It is over by now, as the next message tells.", "", *opening]
    facts.append(("run", about.run))
    lines = [f"{key:<10}{text}" for key, text in facts]
    return "\n".join(map(wording.printable, [*opening, "", *lines])) + "\n"


def _remote_log_commands(silence: Notice) -> list[tuple[str, str]]:
    """Return where the road from other hosts may be cut."""
    return [
        ("here", _log_command(silence, f"receive@{silence.host}")),
        ("between", "does the cluster of the topic in `ship` answer?"),
        ("there", _log_command(silence, silence.daemons[0])),
    ]


def _log_command(silence: Notice, daemon: str) -> str:
    """Return where the daemon says why; where another host keeps its logs nobody here knows."""
    role, _, host = daemon.partition("@")
    kind = role.partition(".")[0]
    if is_remote(daemon, silence.host):
        if silence.logs:
            return f"on {host}: {role}.log and ship.log in its run folder's logs"
        # a host that only probes has one unit for all that it does
        return f"on {host}: journalctl -t soak-host -t soak-{kind} -t soak-ship -n 50"
    if silence.logs:
        return f"on {silence.host}: tail {silence.logs}/{role}.log"
    return f"on {silence.host}: journalctl -t soak-{_UNIT_NAMES.get(kind, kind)} -n 50"
