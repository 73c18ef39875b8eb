"""The verdict in one sentence: on the page, in `summary.json` and on the terminal the same."""

from __future__ import annotations

from collections.abc import Iterator

from soak.core import wording
from spark.reports._page import Page

_WORDS = {
    "clean": "Clean: the cluster kept its latency.",
    "inconclusive": "Inconclusive: too little was recorded, or this client was the bottleneck too often.",
}


def headline(page: Page) -> str:
    """Return the verdict and what it rests on: losses, the first finding that counts, or every doubt."""
    if page.verdict == "regressed":
        return f"Regressed: {'; '.join(_regression(page))}."
    if page.verdict == "inconclusive" and page.covered.doubts:
        # what came and went is told once; the coverage has each of its times
        doubts = dict.fromkeys(f"{gap.source}: {gap.why}" for gap in page.covered.doubts)
        return f"Inconclusive: {'; '.join(doubts)}."
    return _WORDS[page.verdict]


def _regression(page: Page) -> Iterator[str]:
    lost = page.timeline.audit["lost"]
    if lost:
        yield f"{wording.counted(lost, 'acknowledged message')} {'was' if lost == 1 else 'were'} lost"
    counting = [one.finding for one in page.told if one.finding.is_about_cluster]
    if not counting:
        return
    found, more = counting[0], len(counting) - 1
    did = "stepped " if found.kind == "step" else ""
    at = page.moment(found.onset_k)
    yield f"{wording.title(found.series)} {did}{wording.moved(found)} at {at}, cause {found.cause}"
    if more:
        yield f"{wording.counted(more, 'more finding')} below"
