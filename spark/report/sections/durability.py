"""What an acknowledgement promised: the durability level of the target and the settings that decide it."""

from __future__ import annotations

from markupsafe import Markup

from soak.core.cluster.durability import value_text
from spark.report.page import Page, joined, table, tag

ORDER = 65
TITLE = "Durability"


def render(page: Page) -> Markup:
    found = page.durability
    if "settings" not in found:
        return tag("p", "The durability level of this target was not read.")
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
