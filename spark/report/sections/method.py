"""How each number was made."""

from __future__ import annotations

from markupsafe import Markup

from soak.core.plan.plan import STREAM_DETECTOR
from soak.core.units import format_per_duration
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
        f"""One point is {timeline.step} s. Of several seconds counts are summed, of maxima the highest
        is kept, of everything else the median. Missing seconds are left open, never filled.""",
        f"""A step is judged on logarithms of the valid seconds of the soak, corrected for their own
        correlation, at a set rate of false alarms: {alarms} over the panel. It is confirmed when it
        lasts, and resolved when the level returns.""",
        "Before and after are medians. The interval holds the onset with 95 % confidence.",
        """In the offline analysis, changes of several latencies at one time are one step, with the onset
        of the latency that dates it best.""",
        """A cause is named when its evidence passes a bar, else it is unknown. Causes are judged from
        samples and events alone.""",
        "The audit is computed from the journals: acknowledged sequence intervals against received ones.",
        """A run that lost messages is regressed. One in which more than 1 % of what was due in the soak
        was skipped or failed, or a subscription received nothing for ten seconds, is not clean,
        whatever latency did.""",
        f"Versions: {versions or 'not recorded'}.",
    ]
    return tag("ul", joined([tag("li", line) for line in lines]))
