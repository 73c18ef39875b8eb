"""Convert findings, changes and notifications to rows of `findings.db` and back."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from sqlite3 import Cursor, Row
from typing import Literal, get_args

from soak.core import json_text
from soak.core.model import Change, Evidence, Explanation, Finding, Kind
from soak.store.findings.named_causes import NamedCauses, causes_text, parse_named_causes
from soak.store.findings.schema import cell_types

NotificationKind = Literal[
    "opened",
    "named",
    "corrected",
    "resolved",
    "revised",
    "missing",
    "returned",
    "aborted",
    "digest",
    "ended",
]
NotificationState = Literal["pending", "sending", "deferred", "sent", "refused"]
STEPS: dict[NotificationKind, int] = {
    "opened": 0,
    "missing": 0,
    "aborted": 0,
    "digest": 0,
    "ended": 0,
    "named": 1,
    "corrected": 2,
    "resolved": 3,
    "returned": 3,
    "revised": 4,
}
"""The order of the kinds within one occurrence of a subject."""
CORRECTIONS: dict[NotificationKind, NotificationKind] = {
    "opened": "corrected",
    "named": "corrected",
    "resolved": "revised",
}
"""Which kind gives the final cause where an earlier one named another."""
NEWS_OF_CAUSES: frozenset[NotificationKind] = frozenset({"named", *CORRECTIONS.values()})
"""The kinds that are sent because another cause is known; `named` comes before the cause is final."""
_KINDS = frozenset(get_args(Kind))
RANK = {"warning": 0, "confirmed": 1, "gone": 2}
"""The state of a change never goes back, so that a batch delivered twice changes nothing."""


@dataclass(frozen=True, slots=True)
class Notification:
    """One message to one sink; (subject, sink, occurrence, kind) is its identity."""

    subject: str  # the key of a finding, a notice or a digest, or the run
    sink: str
    kind: NotificationKind
    occurrence: int  # from 1; one more each time that the finding comes back
    state: NotificationState
    created_wall_ns: int
    next_at_wall_ns: int
    attempts: int  # counted when a try begins
    detail: str  # the answer to the last try
    done_wall_ns: int | None = None  # when it was sent or refused
    progress: str = ""  # what the sink noted at its last try, such as which recipients have it
    named: NamedCauses = ()  # what readers know from it, or may know

    @property
    def cause(self) -> str:
        """Return the causes that readers know from it, or may know, joined by "or"."""
        return causes_text(self.named)


@dataclass(frozen=True, slots=True)
class NotificationContent:
    """What a notification about a finding says now.

    `previous_cause` is the other cause that its readers know, or may know, "" if there is none, and
    `previous_suspect` another place that they know as the suspect of the same cause. A correction that named
    something else to some readers goes to all of them again: its `progress` is empty then.
    """

    finding: Finding | None  # None: it is not stored
    previous_cause: str
    progress: str
    previous_suspect: str = ""


def is_end(kind: NotificationKind) -> bool:
    """True for a kind that says that its subject is over."""
    return STEPS[kind] >= STEPS["resolved"]


def is_correction(kind: NotificationKind) -> bool:
    """True for a kind that says what an earlier message named otherwise, or did not know."""
    return kind in NEWS_OF_CAUSES


def checked_rows() -> Callable[[Cursor, tuple[object, ...]], Row]:
    """Return a row factory for a connection; a file or topic of others may hold cells of any type.

    It raises ValueError for a cell of another type than its column has.
    """
    known = cell_types()
    columns: object = None
    right: set[tuple[type, ...]] = set()  # what rows of these columns were found to be

    def row(cursor: Cursor, values: tuple[object, ...]) -> Row:
        nonlocal columns
        if cursor.description is not columns:
            columns = cursor.description
            right.clear()
        types = tuple(map(type, values))
        if types not in right:
            for column, found in zip(cursor.description, types, strict=True):
                if column[0] in known and found not in known[column[0]]:
                    raise ValueError(f"{column[0]} is of type {found.__name__}")
            right.add(types)
        return Row(cursor, values)

    return row


def finding_row(finding: Finding, now_wall_ns: int) -> tuple[object, ...]:
    return (
        finding.key,
        finding.run,
        finding.raised_k,
        finding.onset_k,
        *finding.interval,
        finding.series,
        finding.kind,
        finding.before,
        finding.after,
        finding.state,
        finding.confidence,
        int(finding.is_about_cluster),
        finding.resolved_k,
        now_wall_ns,
        int(finding.is_settled),
        finding.failed_messages,
        finding.late_messages,
        finding.due_messages,
        finding.worst_k,
    )


def finding_of(row: Row, causes: tuple[Explanation, ...], changes: tuple[str, ...]) -> Finding:
    _check_words(row["kind"], row["state"])
    return Finding(
        key=row["key"],
        run=row["run"],
        raised_k=row["raised_k"],
        onset_k=row["onset_k"],
        interval=(row["first_k"], row["last_k"]),
        series=row["series"],
        kind=row["kind"],
        before=_number(row["before"]),
        after=_number(row["after"]),
        state=row["state"],
        confidence=row["confidence"],
        is_about_cluster=bool(row["is_about_cluster"]),
        causes=causes,
        changes=changes,
        resolved_k=row["gone_k"],
        is_settled=bool(row["is_settled"]),
        failed_messages=row["failed_messages"],
        late_messages=row["late_messages"],
        due_messages=row["due_messages"],
        worst_k=row["worst_k"],
    )


def evidence_rows(key: str, causes: Sequence[Explanation]) -> Iterable[tuple[object, ...]]:
    for explanation in causes:
        speaks_for = len(explanation.evidence)
        for position, evidence in enumerate((*explanation.evidence, *explanation.against)):
            # one that is infinite could not be read again, and is in the text
            known = {
                name: one
                for name, one in evidence.numbers.items()
                if not isinstance(one, float) or math.isfinite(one)
            }
            numbers = json.dumps(known, sort_keys=True)
            is_against = int(position >= speaks_for)
            yield key, explanation.cause, position, evidence.text, numbers, is_against


def explanations_of(causes: Sequence[Row], evidence: Sequence[Row]) -> tuple[Explanation, ...]:
    """Return the causes in their order, each with its evidence; both are sorted by position."""
    if not causes:
        return ()
    return _explanations(
        tuple((row["cause"], row["score"], row["suspect"]) for row in causes),
        tuple((row["cause"], row["is_against"], row["text"], row["numbers"]) for row in evidence),
    )


@lru_cache(maxsize=10_000)  # thousands of findings are read at each look, and few have changed
def _explanations(
    causes: tuple[tuple[str, float, str], ...], evidence: tuple[tuple[str, int, str, str], ...]
) -> tuple[Explanation, ...]:
    sides: dict[tuple[str, bool], tuple[Evidence, ...]] = defaultdict(tuple)
    for cause, is_against, text, written in evidence:
        numbers = {} if written == "{}" else json_text.loads(written)
        if not isinstance(numbers, dict) or not all(
            isinstance(one, float | int | str) for one in numbers.values()
        ):
            raise ValueError("numbers of evidence are no numbers")
        sides[cause, bool(is_against)] += (Evidence(text, numbers),)
    return tuple(
        Explanation(cause, score, sides[cause, False], sides[cause, True], suspect)
        for cause, score, suspect in causes
    )


@lru_cache(maxsize=10_000)  # as above
def change_of(names: tuple[str, ...], values: tuple[object, ...]) -> Change:
    """Return a change from the names and values of the columns of its row."""
    change = Change.from_row(dict(zip(names, values, strict=True)))
    _check_words(change.kind, change.state)
    return change


def _check_words(kind: str, state: str) -> None:
    if kind not in _KINDS or state not in RANK:
        raise ValueError(f"{kind!r:.40} and {state!r:.40} are no kind and state of a change")


def notification_of(row: Row) -> Notification:
    return Notification(
        subject=row["subject"],
        sink=row["sink"],
        kind=row["kind"],
        occurrence=row["occurrence"],
        state=row["state"],
        created_wall_ns=row["created_wall_ns"],
        next_at_wall_ns=row["next_at_wall_ns"],
        attempts=row["attempts"],
        detail=row["detail"],
        done_wall_ns=row["done_wall_ns"],
        progress=row["progress"],
        named=parse_named_causes(row["cause"]),
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else value  # SQLite keeps NaN as NULL
