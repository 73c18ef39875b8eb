"""What every section of the report is given, and the markup they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from soak.core import wording
from spark.coverage import Coverage
from spark.summary import Judged, Verdict
from spark.timeline import Timeline

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

    def moment(self, k: float) -> str:
        """Return the time of day, UTC; of a run that has one twice with the day: `11-22 03:12:41Z`."""
        at_ns = self.timeline.wall_ns(k)
        day = f"{wording.day(at_ns)[5:]} " if self.timeline.end_k > DAY_SECONDS else ""
        return day + wording.moment(at_ns)

    @property
    def told(self) -> list[Judged]:
        """Return the findings that people are told of, in order of time."""
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
