"""What brokers take in and give out for all clients, summed over their pages, and whether it is old data.

Method:  a flow is summed second by second, where each of its pages is known: leaders that move shift no sum,
         and a page that is silent for a while hides nothing. A rise is sudden where it is one from right
         before the onset on, and twice what a slope before leads to. More that is given out alone is old
         data where the backlog of a consumer group falls from the onset on, by however little of it, or where
         the brokers' drives read about as much more.
Assumes: brokers report what they take in and give out for all clients, each broker its own part. A backlog
         that is read for hours falls by a tenth of what we send, or faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np

from detectors.causes import background, channel, drive_facts, places
from detectors.causes.background import Drain
from detectors.causes.channel import Shift
from detectors.causes.facts import BROKER_BACKLOGS, CLUSTER_BACKLOGS, MORE, Facts
from detectors.nearby import between
from soak.core import wording
from soak.core.model import Series
from soak.core.series import is_client, parse_series, source_of

_MOST_NAMED = 3  # pages
_HELD = 2  # spacings that a value counts for: pages answer a second apart
_BY_SLOPE = 0.5  # of a rise


@dataclass(frozen=True, slots=True)
class Kind:
    """A flow of which each broker reports its own part: `unit` a second, by metric.

    `request`: the one whose bytes it is, on Redpanda's page, which counts all of them in one metric.
    """

    what: str
    unit: str
    metrics: tuple[str, ...]
    request: str = ""

    @property
    def is_written(self) -> bool:
        return self.what.endswith(" in")

    @property
    def is_read(self) -> bool:
        return self.what.endswith(" out")


_KINDS = (
    Kind(
        "bytes in",
        "bytes",
        ("kafka_server_brokertopicmetrics_bytesin", "pulsar_in_bytes"),
        "produce",
    ),
    Kind(
        "messages in",
        "messages",
        (
            "kafka_server_brokertopicmetrics_messagesin",
            "pulsar_in_messages",
            "redpanda_kafka_records_produced",
        ),
    ),
    Kind(
        "bytes out",
        "bytes",
        ("kafka_server_brokertopicmetrics_bytesout", "pulsar_out_bytes"),
        "consume",
    ),
    Kind("messages out", "messages", ("pulsar_out_messages",)),
    # Not Kafka's fetches: those of followers are among them, once for each partition that a fetch asks for,
    # and one is answered the sooner, the more partitions a broker leads.
    Kind(
        "requests",
        "requests",
        (
            "kafka_server_brokertopicmetrics_totalproducerequests",
            "vectorized_kafka_rpc_requests_completed",
        ),
    ),
)
_BY_REQUEST, _REQUEST = "redpanda_kafka_request_bytes", "redpanda_request"


@dataclass(frozen=True, slots=True)
class Flow:
    """One flow of all pages that report it on both sides of the onset, whoever was touched.

    `total`: their sum. `is_sudden`: it rose from right before the onset, if it did. `missing`: of which
    brokers it is not known, "" where these are all that the cluster has.
    """

    kind: Kind
    parts: Sequence[Shift]
    total: Shift
    is_sudden: bool
    missing: str

    @property
    def before(self) -> float:
        return self.total.before

    @property
    def after(self) -> float:
        return self.total.after

    @property
    def ratio(self) -> float:
        return self.after / max(self.before, 1e-9)

    @property
    def is_grown(self) -> bool:
        """True when their sum grew at the onset: leaders that move shift no sum."""
        return self.total.has_risen and self.ratio >= MORE and self.is_sudden

    @property
    def most(self) -> Shift:
        return max(self.parts, key=lambda one: one.rise)

    @property
    def pages(self) -> set[background.Page]:
        return {background.page_of(one.series) for one in self.parts}

    @property
    def whose(self) -> str:
        if not self.missing:
            return "brokers"
        names = sorted({places.place_of(one.series).name for one in self.parts})
        more = [f"{len(names) - _MOST_NAMED:,} more"] if len(names) > _MOST_NAMED else []
        listed = wording.listed([*names[:_MOST_NAMED], *more])
        return f"{wording.counted(len(self.pages), 'broker')} watched ({listed})"

    @property
    def text(self) -> str:
        was, became = (wording.amount(one, self.kind.unit) for one in (self.before, self.after))
        return f"{self.kind.what} ({was} a second, then {became})"


def known(facts: Facts) -> list[Flow]:
    """Return the flows of which enough is known, of the brokers that report them."""
    found = (_flow(kind, facts) for kind in _KINDS)
    return [one for one in found if one is not None]


def grown(flows: Sequence[Flow], facts: Facts) -> list[Flow]:
    """Return the flows that grew at the onset; of what is given out only where our own part is known."""
    is_reading_known = bool(facts.shifts("received_messages"))
    return [one for one in flows if one.is_grown and (is_reading_known or not one.kind.is_read)]


def own(facts: Facts) -> list[Shift]:
    """Return what this run sends and receives."""
    return [*facts.sent, *facts.shifts("received_messages")]


def is_sudden(series: Series, rise: Shift, facts: Facts) -> bool:
    """True unless a rise began before the onset: as a slope, or as a step of its own.

    That a slope goes on is seen of more values after the onset (`Shift.is_gradual`): of fewer, what the slope
    before leads to by then must make less than half of the rise.
    """
    n, spacing = channel.LEAST_VALUES, channel.spacing_of(series)
    lag = round(facts.nearby.lag_seconds.get(series.name, 0.0))
    first, _ = channel.near(facts.change, spacing=spacing)
    begin = max(facts.change.interval[1], first) + lag
    before = between(series, channel.start_of(facts.change, facts.nearby, spacing), first)
    after = between(series, begin, facts.end_k)
    earlier, just = before[-2 * n : -n], before[-n:]
    if rise.after < MORE * float(np.median(just)):
        return False
    if after.size >= 2 * n or earlier.size < n:
        return True
    floor = channel.floor_of(series.name)
    was, level, became = (
        log(max(one, floor))
        for one in (float(np.median(earlier)), float(np.median(just)), rise.after)
    )
    values = (n + after.size) / 2 + (begin - first) / spacing  # from the middle to the middle
    return (level - was) * values / n < _BY_SLOPE * (became - level)


def _flow(kind: Kind, facts: Facts) -> Flow | None:
    """Return a flow of all pages; None where too little of it is known."""
    series = facts.named(*kind.metrics)
    for name, one in facts.named(_BY_REQUEST).items():
        if kind.request and parse_series(name).label(_REQUEST) == kind.request:
            series[name] = one
    near = [one for one in series.values() if _is_near(one, facts)]
    parts = [shift for one in near if (shift := facts.shift(one)) is not None]
    if not parts:
        return None
    whole = _sum([series[one.series] for one in parts])
    total = facts.shift(whole)
    if total is None:
        return None
    pages = {background.page_of(one.series) for one in parts}
    lost = {background.page_of(one.name) for one in near} - pages
    missing = background.unread_pages(kind.what, pages, facts, lost)
    return Flow(kind, parts, total, is_sudden(whole, total, facts), missing)


def _is_near(series: Series, facts: Facts) -> bool:
    """True when anything of a channel is known where it is compared."""
    start = channel.start_of(facts.change, facts.nearby, channel.spacing_of(series))
    return between(series, start, facts.end_k).size > 0


def _sum(parts: Sequence[Series]) -> Series:
    """Return the sum of channels in the seconds in which all are known, by the name of the rarest."""
    rarest = min(parts, key=lambda one: one.k.size)
    total, is_known = np.zeros(rarest.k.size), np.ones(rarest.k.size, np.bool_)
    for one in parts:
        at = np.searchsorted(one.k, rarest.k, "right") - 1
        is_known &= (at >= 0) & (rarest.k - one.k[at] < _HELD * channel.spacing_of(one))
        total += one.values[at]
    return Series(rarest.name, rarest.k[is_known], total[is_known])


# --- old data

_LEAST_VALUES = 3
_STEADY = 0.5  # of all that a backlog moves by, its fall
_ABOUT = 0.5  # of what is given out more, or as many times it: a drive reads ahead, and some is in memory


@dataclass(frozen=True, slots=True)
class OldData:
    """Old data that others read: the flow, the backlog that falls if one is known, and the drives' reads."""

    flow: Flow
    backlog: Drain | None
    reads: Sequence[Shift]


def old_data(flows: Sequence[Flow], facts: Facts) -> OldData | None:
    """Return what says that others read old data; None where nothing does, or where they write more too."""
    found = grown(flows, facts)
    read = [one for one in found if one.kind.is_read]
    is_writing_known = any(one.kind.is_written for one in flows)
    if not (read and is_writing_known) or any(one.kind.is_written for one in found):
        return None
    if facts.has_grown(own(facts)):
        return None
    backlog, reads = _read_backlog(facts), _reads(read, facts)
    if backlog is None and not reads:
        return None
    return OldData(max(read, key=lambda one: one.ratio), backlog, reads)


def _read_backlog(facts: Facts) -> Drain | None:
    """Return the backlog of others that falls most from the onset on, or None."""
    drain = background.draining(facts)
    if drain is not None and not drain.is_usual and not is_client(source_of(drain.series)):
        return drain
    backlogs = facts.named(*CLUSTER_BACKLOGS, *BROKER_BACKLOGS).values()
    found = [one for series in backlogs if (one := _falling(series, facts)) is not None]
    return max(found, key=lambda one: one.peak - one.end, default=None)


def _falling(series: Series, facts: Facts) -> Drain | None:
    """Return a backlog that has its peak at the onset and falls from there on.

    It falls by little where a consumer is set back to the beginning of a large topic: that takes hours.
    """
    spacing = channel.spacing_of(series)
    lag = facts.nearby.lag_seconds.get(series.name, 0.0)
    first, last = channel.near(facts.change, lag, spacing)
    start = channel.start_of(facts.change, facts.nearby, spacing)
    low, high = np.searchsorted(series.k, [start, facts.end_k])
    k, values = series.k[low:high], series.values[low:high]
    if values.size < _LEAST_VALUES:
        return None
    at = values.size - 1 - int(np.argmax(values[::-1]))  # the last of several equal ones
    since = values[at:]
    if since.size < _LEAST_VALUES or not first - spacing <= int(k[at]) <= last:
        return None
    peak, end, seconds = float(since[0]), float(since[-1]), int(k[-1] - k[at])
    least = background.LEAST_OF_OURS * background.sent_before(facts) * seconds
    is_steady = peak - end >= _STEADY * float(np.abs(np.diff(since)).sum())
    if not is_steady or peak - end < least:
        return None
    return Drain(series.name, peak, end, int(k[at]), seconds)


def _reads(read: Sequence[Flow], facts: Facts) -> list[Shift]:
    """Return what drives read more, where that is about what brokers give out more."""
    given = max((one.total.rise for one in read if one.kind.unit == "bytes"), default=0.0)
    found = [one for drive in facts.drives if (one := drive.risen(drive_facts.READ)) is not None]
    total = sum(one.rise for one in found)
    return found if 0.0 < _ABOUT * given <= total <= given / _ABOUT else []
