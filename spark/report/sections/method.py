"""How each number was made."""

from __future__ import annotations

from markupsafe import Markup

from soak.core import wording
from soak.core.plan.plan import STREAM_DETECTOR
from soak.core.units import format_per_duration
from spark.batch.timeline import Timeline
from spark.report.packing import Grid
from spark.report.page import Page, joined, tag

ORDER = 80
TITLE = "How these numbers were made"


def render(page: Page) -> Markup:
    timeline = page.timeline
    detector = timeline.plan.detection.detectors[STREAM_DETECTOR]
    alarms = format_per_duration(detector.false_alarms)
    versions = ", ".join(f"{name} {number}" for name, number in timeline.run.versions.items())
    lines = [
        """Latency counts from the time at which a message was due, not from when it was sent. Each
        second has one histogram with three digits; a plotted quantile is that second's.""",
        f"""Still pictures: one point is {timeline.step} s. Of several seconds counts are summed, of maxima
        the highest is kept, of everything else the median. Missing seconds are left open, never filled.""",
        *_charts(timeline),
        """Latency and rates of several clients: the highest of them in each second, and their sum. Bytes sent
        are messages acknowledged times their mean size.""",
        """The heat map and the distributions before, during and after an incident are counts of all messages,
        by fixed thresholds, eight a decade; before and after are up to 15 min of the soak.""",
        """Incidents are numbered in order of time. The worst is an outage before any other, then that with
        most messages that failed, then that whose slow messages together waited longest. Slow is above the
        limit: the level before it and the smallest step of the plan.""",
        f"""A step is judged on logarithms of the valid seconds of the soak, corrected for their own
        correlation, at a set rate of false alarms: {alarms} over the panel. It is confirmed when it
        lasts, and resolved when the level returns.""",
        """Before and after are medians, of latency in an incident those of a minute. The interval holds the
        onset with 95 % confidence.""",
        """In the offline analysis, changes of several latencies at one time are one step, with the onset
        of the latency that dates it best.""",
        """A cause is named when its evidence passes a bar, else it is unknown. Its score, from 0 to 1, says
        how well the evidence fits that cause alone: scores of rivals do not add up to 1. Causes are judged
        from samples and events alone.""",
        "The audit is computed from the journals: acknowledged sequence intervals against received ones.",
        """A run that lost messages is regressed. One in which more than 1 % of what was due in the soak
        was skipped or failed, or a subscription received nothing for ten seconds, is not clean,
        whatever latency did.""",
        f"Versions: {versions or 'not recorded'}.",
    ]
    return tag("ul", joined([tag("li", line) for line in lines]))


def _charts(timeline: Timeline) -> list[str]:
    grid = Grid.of(timeline.end_k, timeline.step)
    if grid.bucket == 1:
        return ["Charts: every second."]
    length = wording.span(grid.bucket)
    text = f"""Charts: the lowest, middle and highest second of each {length}; around the worst incidents
        every second of latency, rates, and the series that their evidence cites."""
    if timeline.step == 1:
        return [text]
    more = f"""The middle is that of medians over {timeline.step} s; of sums over several clients lowest and
        highest are those of {timeline.step} s."""
    return [text, more]
