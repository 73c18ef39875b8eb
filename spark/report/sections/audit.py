"""What became of every message, and what an acknowledgement guaranteed."""

from __future__ import annotations

from markupsafe import Markup

from soak.core import wording
from soak.core.cluster.durability import value_text
from spark.report.page import Page, joined, table, tag
from spark.report.sections import setup

ORDER = 60
TITLE = "Audit and durability"

WORDS = {
    "sent": ("sent", "handed to the client"),
    "acked": ("acknowledged", "acknowledged by the cluster"),
    "failed": ("failed", "given up by the client"),
    "received": ("received", "received, each once a subscription"),
    "lost": ("lost", "acknowledged, never received, neither expired nor unknown"),
    "duplicated": ("duplicated", "one message at two offsets"),
    "reordered": ("reordered", "received after a later message of its producer stream"),
    "expired": ("expired", "deleted by retention before they were read"),
    "reread": (
        "read again",
        "read again at the same offset, after a restart of the consumer or a step back in the log",
    ),
    "unknown": ("unknown", "of an interval that was not recorded, or unread at the end"),
    "received_unacked": ("failed, yet received", "received although the client gave them up"),
    "received_unplanned": (
        "received by others",
        "received by consumers that the plan does not have",
    ),
    "missed_sends": ("skipped", "due, but later than the backlog allows"),
}
"""Name and meaning of each count of the audit, by its key in `summary.json`."""

_DECIDING = {
    "kafka": "the topic's replication, min.insync.replicas and flush settings, and the producer's acks",
    "pulsar": "the namespace's quorums, and whether bookies sync their journals",
}
"""What decides the durability level, by the kind of broker."""

READING = ("received", "lost", "duplicated", "reordered", "reread", "expired", "unknown")
"""The counts that are shown for each subscription, where there are several."""


def render(page: Page) -> Markup:
    return joined([not_audited(page), _audit(page), tag("h3", "Durability"), _durability(page)])


def not_audited(page: Page) -> Markup:
    """Return why the page says nothing of losses; empty where the audit was made."""
    why = page.timeline.not_audited
    if not why:
        return Markup()
    return tag("p", joined([tag("b", "Not audited"), f": {why}. Nothing is known of losses."]))


def _audit(page: Page) -> Markup:
    rows = [
        (*WORDS.get(key, (key, "")), wording.known(count))
        for key, count in page.timeline.audit.items()
    ]
    whole = table(("outcome", "messages", "count"), rows, numeric=2)
    each = page.timeline.audit_by_subscription
    if len(each) == 1:
        return whole
    lines = [
        (str(number), *(wording.known(counts[key]) for key in READING))
        for number, counts in enumerate(each)
    ]
    return whole + table(("subscription", *(WORDS[key][0] for key in READING)), lines, numeric=1)


def _durability(page: Page) -> Markup:
    found = page.durability
    if "settings" not in found:
        wanted = _DECIDING.get(page.timeline.plan.broker_kind, "settings of topic and cluster")
        text = (
            "The durability level of this target was not read when the load began: it follows from "
            f'{wanted}. What the plan sets of them is under "{setup.TITLE}".'
        )
        return tag("p", text)
    level = found["level"] or f"between {found['lowest']} and {found['highest']}"
    text = (
        f"Level {level} of 4 when the load began: replication {found['replication']['state']} "
        f"({found['replication']['reason']}), local {found['local']['state']} "
        f"({found['local']['reason']}). Runs at other levels are not comparable with this one."
    )
    rows = [
        (
            one["name"],
            value_text(one["value"]),
            one["where"],
            " and ".join(one["decides"]) or "nothing",
            one["change"],
        )
        for one in found["settings"]
    ]
    headings = ("setting", "value", "read from", "decides", "stronger")
    parts = [tag("p", text), *(tag("p", note) for note in found["notes"])]
    return joined([*parts, table(headings, rows)] if rows else parts)
