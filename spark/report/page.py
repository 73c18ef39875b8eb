"""What every section of the report receives, the shared markup, and the headline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from detectors.objectives import Standing
from soak.core import wording
from soak.core.model import Change
from soak.core.ports import Each, each_here
from spark.batch.coverage import LEAST_COVERAGE, MOST_UNTRUSTED, Coverage
from spark.batch.offline_analysis import Judged
from spark.batch.timeline import Timeline
from spark.report.summary import Verdict

DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class Page:
    """A run, judged. `drill` is what was injected, for the reader's eyes only.

    `durability` is what the target promised, as in `durability.json`, and `forecast` what
    `forecast.json` says.
    """

    timeline: Timeline
    judged: Sequence[Judged]
    covered: Coverage
    verdict: Verdict
    drill: Mapping[str, Any] | None
    durability: Mapping[str, Any] = field(default_factory=dict)
    forecast: Mapping[str, Any] = field(default_factory=dict)
    improvements: Sequence[Change] = ()  # falls of latency that belong to no finding
    standings: Sequence[Standing] = ()  # of the plan's objectives
    each: Each = each_here  # how a section works on many things

    def moment(self, k: float) -> str:
        """Return the time of day, UTC; of a run that has one twice with the day: `11-22 03:12:41Z`."""
        at_ns = self.timeline.wall_ns(k)
        day = f"{wording.day(at_ns)[5:]} " if self.timeline.end_k > DAY_SECONDS else ""
        return day + wording.moment(at_ns)

    @property
    def shown(self) -> list[Judged]:
        """Return the findings that the page shows, in order of time."""
        found = [one for one in self.judged if one.finding.state != "warning"]
        return sorted(found, key=lambda one: one.finding.onset_k)


def tag(name: str, content: object = "", **attributes: object) -> Markup:
    """Return an element; content and attributes are escaped unless they are markup already."""
    pairs = (
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), value)
        for key, value in attributes.items()
    )
    element = Markup("<{}{}>{}</{}>")
    word = Markup(name)  # noqa: S704  # names are ours
    return element.format(word, Markup("").join(pairs), content, word)


def joined(parts: Sequence[object]) -> Markup:
    """Return parts side by side, each escaped unless it is markup."""
    return Markup("").join(parts)  # type: ignore[arg-type]  # it escapes what is no markup


def table(
    headings: Sequence[str], rows: Sequence[Sequence[object]], *, numeric: int = 99
) -> Markup:
    """Return a table; columns from `numeric` on are set right-aligned."""
    head = joined([tag("th", heading, scope="col") for heading in headings])
    body = [
        joined(
            [
                tag("td", cell, class_="number" if at >= numeric else "text")
                for at, cell in enumerate(row)
            ]
        )
        for row in rows
    ]
    lines = joined([tag("tr", row) for row in body])
    return tag(
        "div", tag("table", tag("thead", tag("tr", head)) + tag("tbody", lines)), class_="wide"
    )


# --- The verdict in one sentence: on the page, in `summary.json` and on the terminal the same.


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
    if covered.invalid_ratio > MOST_UNTRUSTED:
        share = wording.share_up(covered.invalid_ratio, 1)
        yield f"the load generator was the bottleneck in {share} of the soak's seconds, 10 % are allowed"
    # what came and went is told once; the coverage has each of its times
    yield from (f"{gap.source}: {gap.why}" for gap in covered.doubts)


def _regression(page: Page) -> Iterator[str]:
    lost = page.timeline.audit["lost"]
    if lost:
        yield f"{wording.counted(lost, 'acknowledged message')} {'was' if lost == 1 else 'were'} lost"
    counting = [one.finding for one in page.shown if one.finding.is_about_cluster]
    if not counting:
        return
    found, more = counting[0], len(counting) - 1
    what, at = wording.what_text(found), page.moment(found.onset_k)
    if found.kind == "step":
        what = f"{wording.title(found.series)} stepped {wording.change_text(found)}"
    when = f", from {at} on" if found.kind == "outage" else f" at {at}"
    yield f"{what}{when}, cause {found.cause}"
    if more:
        yield f"{wording.counted(more, 'more finding')} below"
