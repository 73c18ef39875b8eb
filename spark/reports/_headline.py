"""The verdict in one sentence: on the page, in `summary.json` and on the terminal the same."""

from __future__ import annotations

from collections.abc import Iterator

from soak.core import wording
from spark.coverage import LEAST_COVERAGE, MOST_UNTRUSTED
from spark.reports._page import Page


def headline(page: Page) -> str:
    """Return the verdict and what it rests on: losses, the first finding that counts, or every doubt."""
    so_far = "So far: " if page.timeline.is_running else ""
    if page.verdict == "regressed":
        return f"{so_far}Regressed: {'; '.join(_regression(page))}."
    if page.verdict == "inconclusive":
        return f"{so_far}Inconclusive: {'; '.join(dict.fromkeys(_doubts(page)))}."
    return f"{so_far}Clean: the cluster kept its latency."


def _doubts(page: Page) -> Iterator[str]:
    covered = page.covered
    if covered.ratio < LEAST_COVERAGE:
        yield f"{wording.share_down(covered.ratio, 2)} of the expected records are there, 97 % are needed"
    if covered.untrusted_ratio > MOST_UNTRUSTED:
        share = wording.share_up(covered.untrusted_ratio, 1)
        yield f"the client was the bottleneck in {share} of the soak's seconds, 10 % are allowed"
    # what came and went is told once; the coverage has each of its times
    yield from (f"{gap.source}: {gap.why}" for gap in covered.doubts)


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
