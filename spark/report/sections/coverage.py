"""What was recorded and what was not: gaps with their source, invalid seconds with their reason."""

from __future__ import annotations

from collections import Counter

from markupsafe import Markup

from soak.core import wording
from spark.batch.coverage import Gap
from spark.report.page import Page, joined, table, tag

ORDER = 70
TITLE = "Coverage"

MOST_ROWS = 200


def _missing(gap: Gap) -> str:
    """Return how long there is no record; "-" for what happened in a moment."""
    seconds = gap.to_k - gap.from_k
    return f"{seconds} s" if seconds else "-"


def render(page: Page) -> Markup:
    covered = page.covered
    text = (
        f"{wording.share_down(covered.ratio, 2)} of the expected records are there (97 % are needed), "
        f"{wording.share_up(covered.invalid_ratio, 1)} of the soak's seconds are invalid "
        "(10 % are allowed)."
    )
    rows = [
        (gap.source, page.moment(gap.from_k), _missing(gap), gap.why)
        for gap in covered.gaps[:MOST_ROWS]
    ]
    reasons = Counter(
        (source, why) for source, found in page.timeline.invalid.items() for why in found.values()
    )
    doubts = [(source, why, f"{count} s") for (source, why), count in reasons.most_common()]
    parts = [tag("p", text)]
    if rows:
        parts.append(table(("source", "from", "missing", "why"), rows))
    if len(covered.gaps) > MOST_ROWS:
        parts.append(tag("p", f"{len(covered.gaps) - MOST_ROWS} more are in summary.json."))
    if doubts:
        parts.append(table(("source", "invalid because of", "seconds"), doubts, numeric=2))
    return joined(parts)
