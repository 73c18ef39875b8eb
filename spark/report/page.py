"""What every section of the report receives, the shared markup, and the headline."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from detectors.objectives import Standing
from soak.core import wording
from soak.core.model import Change, Finding
from soak.core.plan.load import process_index
from soak.core.plan.plan import OUTAGE_DETECTOR
from soak.core.ports import Each, each_here
from soak.core.series import parse_series, source_of
from soak.core.units import SECOND_NS
from spark.batch.coverage import LEAST_COVERAGE, MOST_UNTRUSTED, Coverage
from spark.batch.offline_analysis import Judged
from spark.batch.peaks import NO_PEAKS, Peaks
from spark.batch.timeline import Timeline, leader_addresses
from spark.report.busy_hosts import busy_hosts_of
from spark.report.summary import (
    Verdict,
    affected,
    is_counted,
    missed,
    span_of,
    worst_first,
)

DAY_SECONDS = 86_400
MOST_DETAILED = 30
"""So many incidents, the worst ones, have charts of their own."""


@dataclass(frozen=True, slots=True)
class Page:
    """A run, judged. `drill` is what was injected, for the reader's eyes only.

    `durability` is what the target guaranteed, as in `durability.json`, and `forecast` what
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
    peaks: Peaks = NO_PEAKS  # of the soak, outside of what is shown
    standings: Sequence[Standing] = ()  # of the plan's objectives
    each: Each = each_here  # how a section works on many things

    def moment(self, k: float) -> str:
        """Return the time of day, UTC; of a run that has one twice with the day: `11-22 03:12:41Z`."""
        at_ns = self.timeline.wall_ns(k)
        day = f"{wording.day(at_ns)[5:]} " if self.timeline.end_k > DAY_SECONDS else ""
        return day + wording.moment(at_ns)

    @property
    def times(self) -> str:
        """Return from when to when the run was recorded, UTC, for the title of a chart."""
        first, end = (self.timeline.wall_ns(k) for k in (0, self.timeline.end_k))
        return (
            f"{wording.day(first)} {wording.moment(first)} to {wording.moment_with_day(end, first)}"
        )

    @property
    def shown(self) -> list[Judged]:
        """Return the findings that the page shows, in order of time."""
        found = [one for one in self.judged if one.finding.state != "warning"]
        return sorted(found, key=lambda one: one.finding.onset_k)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Return first second and first after it of each incident; a missed objective has none."""
        return [
            span_of(self.timeline, one) for one in self.shown if one.finding.kind != "objective"
        ]


# --- What things are called, and where they are.


def ranked(page: Page) -> list[Judged]:
    """Return the incidents that the page shows, worst first."""
    return worst_first(page.shown)


def numbered(page: Page) -> list[Judged]:
    """Return the incidents in the order of their numbers: that of time; those without charts come last."""
    worst = ranked(page)
    parts = worst[:MOST_DETAILED], worst[MOST_DETAILED:]
    return [one for part in parts for one in sorted(part, key=lambda one: one.finding.onset_k)]


def number_of_worst(page: Page) -> int:
    """Return the number of the worst incident; 0: there is none."""
    worst = ranked(page)[:1]
    return numbered(page).index(worst[0]) + 1 if worst else 0


def broker_names(timeline: Timeline) -> str:
    """Return the addresses of the cluster: those that clients saw, else those that the plan names."""
    found = sorted({one for one in leader_addresses(timeline).values() if one})
    if not found:
        found = [one for one in timeline.plan.broker_config.addresses.values() if one][:1]
    return shown_name(
        f"{timeline.plan.broker_kind.capitalize()} at {', '.join(map(str, found))}", 160
    )


def source_text(page: Page, source: str) -> str:
    """Return a source in words: `producer 0 on host`, `consumer 3 of subscription 1 on host`, or the host.

    Of a daemon without a host the same without `on host`.
    """
    daemon, at, host = source.partition("@")
    who, _, number = daemon.partition(".")
    if who == "probe" and at:
        return shown_name(host, 60)
    if who not in {"produce", "consume"} or not number.isdigit():
        return shown_name(source, 60)
    on = f" on {shown_name(host, 50)}" if at else ""
    if who == "produce":
        return f"producer {number}{on}"
    subscription = page.timeline.plan.consumers.subscription_of(process_index(source))
    return f"consumer {number} of subscription {subscription}{on}"


def clients_text(page: Page, series: Sequence[str]) -> str:
    """Return the clients of which these series are: the only one by its name, or how many there are."""
    sources = sorted(set(map(source_of, series)))
    if len(sources) < 2:  # noqa: PLR2004  # nothing to count
        return source_text(page, sources[0]) if sources else "no client"
    is_sent = all(one.startswith("produce.") for one in sources)
    return f"{len(sources)} {'producers' if is_sent else 'consumers'}"


def titled(page: Page, title: str, who: str) -> Markup:
    """Return the heading of a drawn chart: what it shows, of whom, and from when to when."""
    return tag("h3", joined([f"{title} ", tag("small", f"{who}, {page.times}")]))


def where(page: Page, series: str, addresses: Mapping[str, str]) -> str:
    """Return what measured a series: the client, and the broker whose partitions it is about, or the host."""
    leader = parse_series(series).label("leader")
    address = shown_name(addresses.get(leader, ""), 60)
    return source_text(page, source_of(series)) + (
        f", broker {address}" if leader and address else ""
    )


def plain(page: Page, text: str) -> str:
    """Return a text with the names of sources, such as `produce.0@host`, in words."""
    names = sorted(page.timeline.seconds, key=len, reverse=True)
    if not any(name in text for name in names):
        return text
    pattern = re.compile("|".join(map(re.escape, names)))
    return pattern.sub(lambda found: source_text(page, found[0]), text)


def covered_text(page: Page) -> str:
    """Return `99.86% of the expected records are there`, in the same words and digits everywhere."""
    return f"{wording.share_down(page.covered.ratio, 2)} of the expected records are there"


def in_microseconds(text: str) -> str:
    """Return a text of the page with `µs` for the `us` of mails and terminals, not in `<pre>`."""
    return "".join(
        part if part.startswith("<pre") else _US.sub("µs", part) for part in _PRE.split(text)
    )


_PRE, _US = re.compile(r"(?s)(<pre\b.*?</pre>)"), re.compile(r"(?<=\d )us\b")


def rate_with_bytes(timeline: Timeline, rate: float) -> str:
    """Return a rate in messages and in bytes: `400/s, 400 KiB/s`."""
    size = wording.amount(rate * timeline.plan.load.mean_size, "bytes")
    return f"{wording.amount(rate, '')}/s, {size}/s"


def shown_name(name: str, width: int) -> str:
    """Return a name from outside so that it can be read: controls and marks of direction are spelled out."""
    spelt = "".join(
        f"\u2039U+{ord(one):04X}\u203a" if unicodedata.category(one) in _HIDDEN else one
        for one in name[: 4 * width]
    )
    if len(spelt) <= width and len(name) <= 4 * width:
        return spelt
    return f"{spelt[: width - 16]}\u2026 ({len(name):,} characters)"


_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def what_text(found: Finding) -> str:
    """Return what changed; of an outage how long it was, as `waited_text` says what it did to messages."""
    if found.kind == "outage":
        return wording.level_text(found.series, found.kind, found.before, found.after)
    return wording.what_text(found)


def waited_text(page: Page, found: Finding) -> str:
    """Return how many messages failed in an outage or waited too long; "" where none, or not known."""
    outages = page.timeline.plan.detection.detectors[OUTAGE_DETECTOR]
    limit = wording.amount(outages.limit / SECOND_NS, "seconds")
    waited = f"waited longer than {limit}, the limit of the outage detector"
    counts = [(found.failed_messages, "failed"), (found.late_messages, waited)]
    parts = [f"{count:,} {did}" for count, did in counts if count]
    if not parts or found.due_messages is None:
        return ""
    end = "now" if found.resolved_k is None else "the end of the outage"
    due = wording.counted(found.due_messages, "message")
    return f"Of the {due} due from the start of the run to {end}, {' and '.join(parts)}"


# --- Markup that sections share.


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
    found = tag("table", tag("thead", tag("tr", head)) + tag("tbody", lines))
    return tag("div", found, class_="wide", tabindex=0)  # where it is too wide, keys scroll it


# --- The verdict in one sentence: on the page, in `summary.json` and on the terminal the same.


def headline(page: Page) -> str:
    """Return the verdict and what it rests on: losses, the worst incident, or every blocker."""
    so_far = "So far: " if page.timeline.is_running else ""
    if page.verdict == "regressed":
        return plain(page, f"{so_far}Regressed: {'; '.join(_regression(page))}.")
    others = list(_not_counted(page))
    if page.verdict == "inconclusive":
        why = dict.fromkeys([*_blockers(page), *others])
        return plain(page, f"{so_far}Inconclusive: {'; '.join(why)}.")
    if others:
        text = f"{so_far}Clean: no incident counts against the cluster; {'; '.join(others)}."
        return plain(page, text)
    return f"{so_far}Clean: the cluster kept its latency."


def _not_counted(page: Page) -> Iterator[str]:
    """Give the worst incident that does not count and is no blocker, and how many more there are."""
    named = [one.finding.key for one in missed(page.judged)]
    others = [
        one
        for one in ranked(page)
        if not is_counted(page.timeline, one) and one.finding.key not in named
    ]
    if not others:
        return
    worst, more = others[0], len(others) - 1
    why = f"cause {wording.cause_text(worst.finding.cause)}"
    if worst.acknowledged is not None:
        why = f"acknowledged: {shown_name(worst.acknowledged, 160)}"
    yield f"not counted: {_sentence(page, worst)}, {why}"
    if more:
        yield f"{wording.counted(more, 'more incident')} below"


def _blockers(page: Page) -> Iterator[str]:
    covered = page.covered
    if covered.ratio < LEAST_COVERAGE:
        yield f"{covered_text(page)}, 97 % are needed"
    if covered.invalid_ratio > MOST_UNTRUSTED:
        share = wording.share_up(covered.invalid_ratio, 2)
        yield f"the load generator was the bottleneck in {share} of the soak's seconds, 10 % are allowed"
    for one in missed(page.judged):
        what, cause = what_text(one.finding), wording.cause_text(one.finding.cause)
        busy = busy_hosts_of(page.timeline, one.finding)
        if busy:
            hosts = shown_name(", ".join(busy), 160)
            yield f"{what}, cause {cause}, and hardly any CPU was left on {hosts}, which made the load"
        else:
            yield f"{what}, and the cause is not the cluster: {cause}"
    # what came and went is reported once; the coverage has each of its times
    yield from (f"{gap.source}: {gap.why}" for gap in covered.blockers)


def _regression(page: Page) -> Iterator[str]:
    lost = page.timeline.audit["lost"]
    if lost:
        yield f"{wording.counted(lost, 'acknowledged message')} {'was' if lost == 1 else 'were'} lost"
    every = ranked(page)
    counting = [one for one in every if is_counted(page.timeline, one)]
    if not counting:
        return
    worst, more, others = counting[0], len(every) - 1, len(every) - len(counting)
    yield f"{_sentence(page, worst)}, cause {wording.cause_text(worst.finding.cause)}"
    if more:
        which = "" if others == more else f"{others:,} of them "
        left_out = f", {which}not counted" if others else ""
        yield f"{wording.counted(more, 'more incident')} below{left_out}"


def _sentence(page: Page, one: Judged) -> str:
    """Return what changed, when, for how long, and how many messages it hit.

    An outage has a length of its own, and latency is back to normal later; a missed objective is judged over
    the whole run.
    """
    found, (begin_k, end_k) = one.finding, span_of(page.timeline, one)
    at, is_over = page.moment(begin_k), found.resolved_k is not None
    if found.kind == "objective":
        return f"{what_text(found)} at {at}"
    what = what_text(found)
    hit = f", {wording.counted(affected(one), 'message')} hit" if affected(one) else ""
    if found.kind == "outage":
        back = f"back to normal at {page.moment(end_k)}" if is_over else "not over"
        return f"{what} from {at} on, {back}{hit}"
    if found.kind == "step":
        what = f"{wording.title(found.series)} stepped {wording.change_text(found)}"
    length = f"for {wording.span(end_k - begin_k)}" + ("" if is_over else ", not over")
    return f"{what} at {at} {length}{hit}"
