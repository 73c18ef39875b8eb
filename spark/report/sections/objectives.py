"""The objectives of the plan: how many minutes or messages were bad, and what is left of each budget."""

from __future__ import annotations

from markupsafe import Markup

from detectors.objectives import Standing
from soak.core import wording
from spark.batch.outcomes import state_of
from spark.report.page import Page, joined, table, tag

ORDER = 15
TITLE = "Objectives"


def render(page: Page) -> Markup:
    if not page.standings:
        return tag("p", "The plan states no objectives.")
    note = (
        "Only the soak counts, without the seconds in which a client itself was at fault. A minute is bad "
        "when too many of its messages were above the limit, failed or were skipped, and in an outage."
    )
    headings = ("objective", "state", "bad", "judged", "budget", "left")
    rows = [_row(page, one) for one in page.standings]
    return joined([table(headings, rows, numeric=2), tag("p", note)])


def _row(page: Page, one: Standing) -> tuple[str, ...]:
    state, unit = state_of(one), one.objective.unit
    if one.missed_k is not None:
        state = f"missed since {page.moment(one.missed_k)}"
    return (
        str(one.objective),
        state,
        wording.counted(one.bad, unit.removesuffix("s")),
        f"{one.judged:,} of {one.whole:,}",
        wording.amount(one.budget, unit),
        wording.amount(max(one.left, 0.0), unit),
    )
