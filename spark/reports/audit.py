"""What became of every message."""

from __future__ import annotations

from markupsafe import Markup

from spark.reports._page import Page, table

ORDER = 60
TITLE = "Audit"

WORDS = {
    "sent": "handed to the client",
    "acked": "acknowledged by the cluster",
    "failed": "given up by the client",
    "received": "received, each once",
    "lost": "acknowledged, never received, not expired",
    "duplicated": "one message at two offsets",
    "reordered": "received after a later message of its lane",
    "expired": "deleted by retention before they were read",
    "reread": "read again after a restart of the consumer",
    "unknown": "sent in the unrecorded second before a kill, or unread at the end",
    "received_unacked": "received although the client gave them up",
    "missed_sends": "due, but later than the backlog allows: not sent",
}


def render(page: Page) -> Markup:
    rows = [
        (key, WORDS.get(key, ""), "not known" if count is None else f"{count:,}")
        for key, count in page.timeline.audit.items()
    ]
    return table(("", "messages", "count"), rows, numeric=2)
