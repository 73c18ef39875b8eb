"""What was recorded and what was not, and what the detector can see on the noise that was."""

from __future__ import annotations

from collections import Counter

from markupsafe import Markup

from detectors import calibration
from detectors.calibration import FalseAlarms, Power, Quiet
from detectors.level_shift import Config
from soak.core import wording
from soak.core.plan.plan import STREAM_DETECTOR
from soak.core.series import source_of
from soak.core.units import format_per_duration
from soak.store.admission import read_refused
from spark.batch.calibration import quiet_seconds
from spark.batch.coverage import Gap
from spark.report.page import Page, covered_text, joined, plain, source_text, table, tag

ORDER = 70
TITLE = "Coverage, and what the detector can see"

MOST_ROWS = 200
MOST_SECONDS = 3600  # of the soak, so that a report of 36 h waits for this a few seconds
FALSE_ALARM_VALUES, POWER_VALUES = 400_000, 300_000
_SHARE = 18  # latencies whose steps one task puts in
WITHIN_SECONDS = (60, 600, 3600)


_REASONS = {
    "schedule_lag": "the producer sent late",
    "queue_full": "the producer's queue was full while its processor was busy",
    "callback_delay": "the producer took acknowledgements late",
    "consumer_pause": "the consumer paused",
    "catching_up": "the consumer caught up",
    "clock_step": "the wall clock was set",
    "suspend": "the host slept",
}
"""Why a second is invalid, by the code in the journals."""


def _missing(gap: Gap) -> str:
    """Return how long there is no record; "-" for what happened in a moment."""
    seconds = gap.to_k - gap.from_k
    return f"{seconds} s" if seconds else "-"


def render(page: Page) -> Markup:
    certain = tag("h3", "What the detector would find, and how often it would be wrong")
    return joined([_coverage(page), *_refused(page), certain, _calibration(page)])


def _refused(page: Page) -> list[Markup]:
    """Return what was refused of the records of other hosts, and whether they had to be signed."""
    folder, ship = page.timeline.folder, page.timeline.plan.ship
    found = read_refused(folder.refused)
    parts = []
    if ship is not None and not ship.key:
        text = (
            f"Records of other hosts came over topic {ship.topic} without a signature: all who may write to "
            "it may have sent them."
        )
        parts.append(tag("p", text))
    if found:
        count = sum(one.count for one in found)
        parts.append(tag("h3", "What was refused"))
        parts.append(
            tag("p", f"{count:,} lines were refused; nothing in this report comes from them.")
        )
        rows = [(one.source, one.reason, one.place, f"{one.count:,}") for one in found[:MOST_ROWS]]
        parts.append(table(("source", "why", "the first at", "lines"), rows, numeric=3))
    return parts


def _coverage(page: Page) -> Markup:
    covered = page.covered
    text = (
        f"{covered_text(page)} (97 % are needed), "
        f"{covered.invalid_seconds} s, {wording.share_up(covered.invalid_ratio, 2)} of the soak, are invalid "
        "(10 % are allowed)."
    )
    rows = [
        (
            source_text(page, gap.source),
            page.moment(gap.from_k),
            _missing(gap),
            plain(page, gap.why),
        )
        for gap in covered.gaps[:MOST_ROWS]
    ]
    reasons = Counter(
        (source, why) for source, found in page.timeline.invalid.items() for why in found.values()
    )
    invalid = [
        (
            source_text(page, source),
            f"{_REASONS[why]} ({why})" if why in _REASONS else why,
            f"{count} s",
        )
        for (source, why), count in reasons.most_common()
    ]
    parts = [tag("p", text)]
    if rows:
        parts.append(table(("source", "from", "missing", "why"), rows))
    if len(covered.gaps) > MOST_ROWS:
        parts.append(tag("p", f"{len(covered.gaps) - MOST_ROWS} more are in summary.json."))
    if invalid:
        parts.append(
            table(("source", "invalid because of", "seconds of the whole run"), invalid, numeric=2)
        )
    return joined(parts)


def _calibration(page: Page) -> Markup:
    timeline = page.timeline
    config = timeline.plan.detection.detectors[STREAM_DETECTOR]
    journal = timeline.folder.journal
    many = quiet_seconds(journal, timeline.soak_spans, config, MOST_SECONDS, page.each)
    if not many:
        least = wording.span(calibration.LEAST_ROWS)
        return tag("p", f"Too short to say: no latency has {least} of quiet seconds.")
    shares = [many[at : at + _SHARE] for at in range(0, len(many), _SHARE)]
    wanted = [("alarms", many, config), *(("power", share, config) for share in shares)]
    alarms, *found = page.each(_simulated, wanted)
    assert isinstance(alarms, FalseAlarms)
    powers = [one for share in found if not isinstance(share, FalseAlarms) for one in share]
    parts = [_power_table(page, powers), tag("p", _alarm_text(alarms, config))]
    return joined([*parts, tag("p", _HOW, class_="soft")])


def _simulated(wanted: tuple[str, list[Quiet], Config]) -> FalseAlarms | list[Power]:
    what, many, config = wanted
    if what == "alarms":
        return calibration.false_alarms(many, config, values=FALSE_ALARM_VALUES, seed=0)
    return calibration.power(many, config, WITHIN_SECONDS, values=POWER_VALUES, seed=0)


def _alarm_text(found: FalseAlarms, config: Config) -> str:
    low, middle, high = (
        wording.amount(one, "")
        for one in found.ratio.of(calibration.MONTH_NS / config.false_alarms)
    )
    advice = _ADVICE if found.ratio.low > 1.0 else ""
    return f"""False alarms: with noise like this run's, a panel of {config.panel_size} series takes noise for
        a step {middle} times a month (95 %: {low} to {high}). The plan sets
        {format_per_duration(config.false_alarms)}.{advice}"""


_ADVICE = """ That is more than set: the seconds between the incidents had troubles of their own, such as
        those of the other peaks."""

_HOW = """Both are simulated: blocks of this run's quiet seconds, put together at random, went through the
    detector. So low a rate of false alarms cannot be counted; it is extended from higher ones, and the
    interval holds what that leaves open. It is that of half an hour: later the threshold follows the noise,
    towards the rate that is set. Drift, spikes and shares of slow messages are not simulated."""


def _power_table(page: Page, found: list[Power]) -> Markup:
    times = [f"found within {wording.span(seconds)}" for seconds in WITHIN_SECONDS]
    rows = [
        (
            f"{wording.title(one.series)} of {source_text(page, source_of(one.series))}",
            wording.amount(one.before, one.unit),
            *(_nearest(one, after) for after in one.after),
        )
        for one in found
    ]
    return joined(
        [
            tag(
                "p",
                "A step from the usual level to this one or above is found in nine of ten cases:",
            ),
            table(("latency", "usual level", *times), rows, numeric=1),
        ]
    )


def _nearest(one: Power, after: float | None) -> str:
    if not one.is_known:
        return "not known"
    return "none of those tried" if after is None else wording.amount(after, one.unit)
