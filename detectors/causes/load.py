"""More to do: a backlog that is read, other clients, other users of a drive; or less allowed, by a quota.

Method:  a backlog that begins to drain at the onset, and seldom did before; messages to topics that
         are not ours, or bytes or requests at the brokers that grow while what we send and receive stays, so
         that other clients must have sent or read them; a drive that gets more to do, which neither brokers
         nor clients account for; a throttle time in the answers of brokers.
Assumes: brokers report what they take in and give out for all clients, each broker its own part. Of some of
         the brokers it proves little: leaders that move to them bring what they have to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log

import numpy as np
from scipy.special import bdtrc

from detectors.causes import background, channel, drive_facts, places
from detectors.causes.background import Drain
from detectors.causes.channel import Shift, are_calm, risen
from detectors.causes.drive_facts import Drive
from detectors.causes.facts import BACKLOGS, BROKER_BACKLOGS, CLUSTER_BACKLOGS, MORE, Facts
from detectors.causes.hypothesis import (
    CLEAR,
    DECISIVE,
    FAIR,
    SLIGHT,
    Confirmation,
    Hypothesis,
    Sign,
    absent,
    ruled_out,
    unmeasured,
)
from detectors.nearby import TimedEvent, between, when
from soak.core import wording
from soak.core.model import Event, Evidence, Series
from soak.core.series import parse_series, series_name, source_of

NEXT = {
    "catch_up_read": "find the consumers that read old data; limit them with a quota",
    "foreign_load": "find the other clients that send or read more; limit them by quota",
    "noisy_neighbour": "see which other process or tenant writes to that drive: iotop",
    "quota_throttle": "see the quotas of users and clients: kafka-configs.sh --describe",
}

NEXT_OF_OWN_CONSUMER = {
    "catch_up_read": "find out why it received nothing before the onset; what it missed drains by itself",
}

_READ_MORE = 1.1
_STANDS_AROUND_SECONDS = 10  # the peak of a backlog, and the first message after it
_LEAST_STANDING_SECONDS = 5
_MOST_NAMED = 3  # topics or pages
_GROUPS = ("group_id", "consumergroup", "redpanda_group")
"""Labels that name a consumer group."""


def examine(facts: Facts) -> Iterator[Hypothesis]:
    """Give the hypothesis of each cause that is more work, or less allowance."""
    yield _catch_up(facts)
    yield _foreign(facts)
    yield _quota(facts)
    busy = [one for drive in facts.drives if (one := _neighbour(drive, facts))]
    if busy:
        yield max(busy, key=lambda one: one.log_odds)


def _catch_up(facts: Facts) -> Hypothesis:
    drain = background.draining(facts)
    if drain is None:
        if not facts.named(*BACKLOGS):
            return unmeasured("catch_up_read", "backlogs of all consumer groups (probe prometheus)")
        missing = _unread_backlogs(facts)
        which = "known backlog" if missing else "backlog"
        return absent("catch_up_read", f"No {which} began to drain at the onset.", missing)
    received = risen(facts.shifts("received_messages", "consume_rate"), _READ_MORE)
    read = risen(d.shifts[drive_facts.READ] for d in facts.drives if drive_facts.READ in d.shifts)
    reads = [one for one in (received, read) if one is not None]
    signs = [Sign(_strength(drain), _drained(drain, facts.onset_k))]
    stood = _stood_before(drain, facts)
    signs += [] if stood is None else [Sign(0.0, stood)]
    signs += [Sign(SLIGHT, one.evidence(facts.change)) for one in reads]
    fallen = 1.0 - drain.end / drain.peak
    return Hypothesis("catch_up_read", tuple(signs), _reader(drain), fallen)


def _unread_backlogs(facts: Facts) -> str:
    """Return whose backlogs are not known across the onset, "" where those of all consumer groups are."""
    if facts.known_channels(*CLUSTER_BACKLOGS):
        return ""
    pages = {_page(name) for name in facts.known_channels(*BROKER_BACKLOGS)}
    if pages:
        return _unwatched("backlogs", pages, facts)
    is_awaited = bool(facts.named(*CLUSTER_BACKLOGS, *BROKER_BACKLOGS))
    how = ", in more of the seconds since the onset" if is_awaited else " (probe prometheus)"
    return f"backlogs of other consumer groups{how}"


def _strength(drain: Drain) -> float:
    """Return the odds of a drain at the onset: as rare as it is there by chance."""
    return min(DECISIVE, -log(drain.usual_ratio)) if drain.usual_ratio > 0.0 else DECISIVE


def _reader(drain: Drain) -> str:
    """Return whose backlog it is: a consumer group, or what reports it where no group is named."""
    one = parse_series(drain.series)
    group = next(filter(None, map(one.label, _GROUPS)), "")
    return f"group {group}" if group else one.source


def _drained(drain: Drain, onset_k: int) -> Evidence:
    unit = parse_series(drain.series).unit or "messages"
    return Evidence(
        f"A backlog began to drain {when(drain.from_k - onset_k)}: "
        f"{wording.title(drain.series)} of {source_of(drain.series)} fell from "
        f"{wording.amount(drain.peak, unit)} to {wording.amount(drain.end, unit)} "
        f"in {wording.span(drain.seconds)}{_empty_soon(drain)}.{_often(drain)}",
        {"peak": drain.peak, "end": drain.end, "from_k": drain.from_k, "seconds": drain.seconds},
    )


def _empty_soon(drain: Drain) -> str:
    """Return when a backlog is read at the pace of its fall, "" where it is read already."""
    left_seconds = drain.end * drain.seconds / (drain.peak - drain.end)
    return f"; at this pace it is empty {wording.span(left_seconds)} later" if drain.end > 0 else ""


def _often(drain: Drain) -> str:
    """Return how often backlogs fell as much before, "" where none did."""
    if not drain.earlier:
        return ""
    times = wording.counted(drain.earlier, "time")
    return f" Backlogs fell like that {times} in the {wording.span(drain.earlier_seconds)} before."


def _stood_before(drain: Drain, facts: Facts) -> Evidence | None:
    """Return that the reader of a backlog received nothing before it began to read; None where it did."""
    reader = source_of(drain.series)
    series = facts.named("received_messages").get(series_name(reader, "received_messages"))
    if series is None:
        return None
    ks = series.k[series.values > 0.0]
    since = int(np.searchsorted(ks, drain.from_k + _STANDS_AROUND_SECONDS, "right"))
    gaps = [
        (int(end) - int(last) - 1, int(last) + 1)
        for last, end in pairwise(ks[:since].tolist())
        if end >= drain.from_k - _STANDS_AROUND_SECONDS
    ]
    seconds, from_k = max(gaps, default=(0, 0))
    if seconds < _LEAST_STANDING_SECONDS:
        return None
    text = (
        f"{reader} received nothing for {wording.span(seconds)}, "
        f"from {when(from_k - facts.onset_k)} on: that made the backlog."
    )
    return Evidence(text, {"from_k": from_k, "seconds": seconds})


# --- other clients


_Page = tuple[str, str, str]
"""A metrics page: its source, target and instance."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A flow of which each broker reports its own part: `unit` a second, by metric.

    `request`: the one whose bytes it is, on Redpanda's page, which counts all of them in one metric.
    """

    what: str
    unit: str
    metrics: tuple[str, ...]
    request: str = ""


_FLOWS = (
    _Kind(
        "bytes in",
        "bytes",
        ("kafka_server_brokertopicmetrics_bytesin", "pulsar_in_bytes"),
        "produce",
    ),
    _Kind(
        "messages in",
        "messages",
        (
            "kafka_server_brokertopicmetrics_messagesin",
            "pulsar_in_messages",
            "redpanda_kafka_records_produced",
        ),
    ),
    _Kind(
        "bytes out",
        "bytes",
        ("kafka_server_brokertopicmetrics_bytesout", "pulsar_out_bytes"),
        "consume",
    ),
    _Kind("messages out", "messages", ("pulsar_out_messages",)),
    _Kind(
        "requests",
        "requests",
        (
            "kafka_server_brokertopicmetrics_totalproducerequests",
            "kafka_server_brokertopicmetrics_totalfetchrequests",
            "vectorized_kafka_rpc_requests_completed",
        ),
    ),
)
_BY_REQUEST, _REQUEST = "redpanda_kafka_request_bytes", "redpanda_request"


@dataclass(frozen=True, slots=True)
class _Flow:
    """One flow of all pages that report it on both sides of the onset, whoever was touched.

    `missing`: of which brokers it is not known, "" where these are all that the cluster has.
    """

    kind: _Kind
    parts: Sequence[Shift]
    missing: str

    @property
    def before(self) -> float:
        return sum(one.before for one in self.parts)

    @property
    def after(self) -> float:
        return sum(one.after for one in self.parts)

    @property
    def is_grown(self) -> bool:
        """True when their sum grew and one of them rose at the onset: leaders that move shift no sum."""
        least = max(self.before, 1e-9)
        return self.after >= MORE * least and any(one.has_risen for one in self.parts)

    @property
    def most(self) -> Shift:
        return max(self.parts, key=lambda one: one.rise)

    @property
    def pages(self) -> set[_Page]:
        return {_page(one.series) for one in self.parts}

    @property
    def whose(self) -> str:
        if not self.missing:
            return "brokers"
        names = sorted({places.place_of(one.series).name for one in self.parts})
        more = [f"{len(names) - _MOST_NAMED:,} more"] if len(names) > _MOST_NAMED else []
        listed = _listed([*names[:_MOST_NAMED], *more])
        return f"{wording.counted(len(self.pages), 'broker')} watched ({listed})"

    @property
    def text(self) -> str:
        was, became = (wording.amount(one, self.kind.unit) for one in (self.before, self.after))
        return f"{self.kind.what} ({was} a second, then {became})"


def _flow(kind: _Kind, facts: Facts) -> _Flow:
    """Return a flow of all pages."""
    series = facts.named(*kind.metrics)
    for name, one in facts.named(_BY_REQUEST).items():
        if kind.request and parse_series(name).label(_REQUEST) == kind.request:
            series[name] = one
    near = [one for one in series.values() if _is_near(one, facts)]
    parts = [shift for one in near if (shift := facts.shift(one)) is not None]
    pages = {_page(one.series) for one in parts}
    lost = {_page(one.name) for one in near} - pages
    return _Flow(kind, parts, _unwatched(kind.what, pages, facts, lost))


def _is_near(series: Series, facts: Facts) -> bool:
    """True when anything of a channel is known where it is compared."""
    start = channel.start_of(facts.change, facts.nearby, channel.spacing_of(series))
    return between(series, start, facts.end_k).size > 0


def _page(series: str) -> _Page:
    """Return which page a channel is of."""
    one = parse_series(series)
    return one.source, one.label("target"), one.label("instance")


def _unwatched(
    what: str, pages: Collection[_Page], facts: Facts, lost: Collection[_Page] = ()
) -> str:
    """Return of which brokers `what` is not known, "" where these pages are of all that the cluster has.

    Leaders of this run's partitions are some of the brokers: only the cluster says how many there are.
    `lost`: pages that end or begin at the onset.
    """
    left = max(len(lost), facts.least_brokers - len(pages))
    if left > 0:
        return f"{what} of {wording.counted(left, 'broker')} more"
    return "" if facts.cluster_size else f"how many brokers there are, and {what} of each"


def _foreign(facts: Facts) -> Hypothesis:
    rolls = _rolls_of_others(facts)
    if rolls is not None and rolls.log_odds > 0.0:
        return rolls
    written = _written_by_others(facts)
    if written is not None:
        return written
    flows = [one for kind in _FLOWS if (one := _flow(kind, facts)).parts]
    if flows:
        return _by_flows(flows, facts)
    return rolls or _without_pages(facts)


def _by_flows(flows: Sequence[_Flow], facts: Facts) -> Hypothesis:
    """Return what brokers report to take in and give out, compared with what we send and receive."""
    own = [*facts.sent, *facts.shifts("received_messages")]
    is_reading_known = bool(facts.shifts("received_messages"))
    grown = [
        one for one in flows if one.is_grown and ("out" not in one.kind.what or is_reading_known)
    ]
    if not grown and not all(part.is_sparse for one in flows for part in one.parts):
        whole = min(flows, key=lambda one: (one.missing != "", -len(one.pages)))
        stayed = ", ".join(one.text for one in flows)
        text = f"The {whole.whose} did not take in or give out more: {stayed}."
        return absent("foreign_load", text, whole.missing)
    if not (grown and own):
        what = (
            "messages sent by soakd"
            if grown
            else "bytes that the brokers take in, in more of the seconds since the onset"
        )
        return unmeasured("foreign_load", what)
    if facts.has_grown(own):
        more = Evidence("We sent or received more ourselves.")
        return Hypothesis("foreign_load", (Sign(-CLEAR, more),))
    return _grown(max(grown, key=lambda one: one.after / max(one.before, 1e-9)), facts)


def _grown(flow: _Flow, facts: Facts) -> Hypothesis:
    """Return what a flow says that grew: of some brokers little, for leaders may have moved to them."""
    then = (
        "leaders that moved to them would show the same"
        if flow.missing
        else "other clients do that"
    )
    total = Evidence(
        f"The {flow.whose} had more {flow.text} in all, while what we send and receive stayed: {then}.",
        {"before": flow.before, "after": flow.after},
    )
    part = Sign(0.0, flow.most.evidence(facts.change))
    suspect = parse_series(flow.most.series).label("target") or facts.source_host(flow.most.series)
    if flow.missing:
        return Hypothesis(
            "foreign_load", (Sign(FAIR, total), part), suspect, missing=(flow.missing,)
        )
    return Hypothesis("foreign_load", (Sign(DECISIVE, total), part, *_felt(facts)), suspect)


def _felt(facts: Facts) -> list[Sign]:
    felt = [drive for drive in facts.drives if drive.is_guilty]
    if not felt and not facts.is_cpu_guilty:
        return []
    what = [drive.name for drive in felt] + ["CPU"] * facts.is_cpu_guilty
    text = f"It is felt: {', '.join(what)} had more to do or became slower."
    return [Sign(FAIR, Evidence(text))]


_OTHER_TOPIC_GREW = "other_topic_grew"
_LEAST_OF_OURS = 0.1
"""Of what we send: what our own load varies by, and a cluster that carries that hardly feels."""
_LEAST_MESSAGES = 10.0  # a second: fewer load no broker, however little we send


def _written_by_others(facts: Facts) -> Hypothesis | None:
    """Return what the newest offsets of other topics say: others write so many more that it is a load."""
    one = _more_written(facts)
    if one is None or not one.has_risen or facts.has_grown(facts.sent):
        return None
    ours = _sent(facts)
    most, suspect = "", ""
    topic = _most_grown(one, facts)
    if topic is not None:
        before, after = topic.number("before"), topic.number("after")
        most = f", most of it to {topic.fields['topic']} ({before:,.0f} to {after:,.0f})"
        suspect = f"topic {topic.fields['topic']}"
    text = (
        f"Other clients write more: messages to other topics than ours went from {one.before:,.0f} to "
        f"{one.after:,.0f} a second, {when(one.onset_k - facts.onset_k)}{most}; we sent {ours:,.0f}."
    )
    numbers = {"before": one.before, "after": one.after, "onset_k": one.onset_k, "sent": ours}
    is_large = one.rise >= (MORE - 1.0) * (ours + one.before)  # of all messages that are written
    signs = [Sign(DECISIVE if is_large else CLEAR, Evidence(text, numbers)), *_felt(facts)]
    return Hypothesis("foreign_load", tuple(signs), suspect)


def _more_written(facts: Facts) -> Shift | None:
    """Return what others write where that grew, at whatever time, by what may be a load."""
    one = facts.other_writes
    if one is None or not facts.sent or not facts.has_grown([one]):
        return None
    return one if one.rise >= max(_LEAST_MESSAGES, _LEAST_OF_OURS * _sent(facts)) else None


def _sent(facts: Facts) -> float:
    return sum(one.before for one in facts.sent)


def _most_grown(one: Shift, facts: Facts) -> Event | None:
    """Return the event of the topic that grew most when what others write did."""
    spacing = channel.spacing_of(facts.nearby.series[one.series])
    first, last = channel.near(facts.change, 0.0, spacing)
    grown = [
        event.event
        for event in facts.events(_OTHER_TOPIC_GREW)
        if first <= event.k <= last and "topic" in event.event.fields
    ]
    return max(grown, key=_rise, default=None)


def _rise(event: Event) -> float:
    return event.number("after") - event.number("before")


def _without_pages(facts: Facts) -> Hypothesis:
    """Return what is known where brokers do not report what they take in and give out."""
    one = facts.other_writes
    if one is None:
        return unmeasured(
            "foreign_load", "bytes that the brokers take in and give out (probe prometheus)"
        )
    if facts.has_grown(facts.sent):
        more = Evidence("We sent more ourselves.")
        return Hypothesis("foreign_load", (Sign(-CLEAR, more),))
    if one.is_sparse or not facts.sent:
        return unmeasured(
            "foreign_load",
            "messages sent by soakd and written to other topics, in more of the seconds since the onset",
        )
    did = "did not write more" if _more_written(facts) is None else "wrote more at another time"
    text = (
        f"Other clients {did}: messages to those of their topics that we may see went from "
        f"{one.before:,.0f} to {one.after:,.0f} a second."
    )
    against = Sign(-FAIR, Evidence(text, {"before": one.before, "after": one.after}))
    missing = ("what the brokers give out to other clients (probe prometheus)",)
    return Hypothesis("foreign_load", (against,), missing=missing)


_MORE_ROLLS = 3.0
_LEAST_ROLLS = 5
_MOST_P = 0.001


def _rolls_of_others(facts: Facts) -> Hypothesis | None:
    """Return what the logs say: segments of other topics roll far more often, so others write more."""
    if not facts.topics:
        return None
    others = [one for one in facts.events(*background.ROLLS) if not facts.is_ours(one)]
    first, end = facts.near[0], facts.end_k
    start = channel.start_of(facts.change, facts.nearby)
    known = [one for one in others if one.k < first]
    later = _without_copied([one for one in others if first <= one.k < end], known, facts)
    before = _of_one_replica([one for one in known if one.k >= start])
    after = _without_opened(_of_one_replica(later))
    # One more: none in a minute is no rate of zero.
    usual = (len(before) + 1) / max(1, first - start)
    rate = len(after) / max(1, end - first)
    if len(after) < _LEAST_ROLLS or rate < _MORE_ROLLS * usual:
        return None
    share = (end - first) / max(1, end - start)
    # binomial: so many and more of all rolls in this share of the time
    if bdtrc(len(after) - 1, len(before) + len(after), share) > _MOST_P:
        return None
    topics = Counter(str(one.event.fields.get("topic", "")) for one in after)
    names = [name for name, _ in topics.most_common(_MOST_NAMED)]
    text = Evidence(
        f"Others write more: {wording.counted(len(after), 'segment')} of {', '.join(names)} rolled in"
        f" {wording.span(end - first)} from the onset on, {len(before)} in the"
        f" {wording.span(first - start)} before.",
        {"rolls": len(after), "rolls_before": len(before)},
    )
    signs = [Sign(DECISIVE, text)]
    if facts.is_load_steady:
        signs.append(Sign(SLIGHT, Evidence("What we send stayed the same.")))
    return Hypothesis("foreign_load", tuple(signs), f"topic {names[0]}")


def _without_copied(
    rolls: Sequence[TimedEvent], before: Sequence[TimedEvent], facts: Facts
) -> list[TimedEvent]:
    """Return the rolls without those of a broker that was away and copies what was there before."""
    passed: dict[tuple[object, object], dict[tuple[str, object], float]] = {}
    for one in before:
        if (offset := _begin(one)) is not None:
            logs = passed.setdefault(_partition(one), {})
            logs[_log(one)] = max(offset, logs.get(_log(one), offset))
    return [one for one in rolls if not _is_copied(one, passed.get(_partition(one), {}), facts)]


def _is_copied(roll: TimedEvent, passed: Mapping[tuple[str, object], float], facts: Facts) -> bool:
    """True where a segment begins at an offset that the log of another broker had passed already.

    `passed`: the offset that each log of the partition had reached. Where its own had passed it too, the
    topic was created again, unless a broker came back, which may have lost its log.
    """
    offset = _begin(roll)
    if offset is None or offset > max(passed.values(), default=-1.0):
        return False
    return offset > passed.get(_log(roll), -1.0) or bool(facts.answers.returned)


def _of_one_replica(rolls: Sequence[TimedEvent]) -> list[TimedEvent]:
    """Return the rolls of each partition in one log, that with most: each replica rolls what is written."""
    counts = Counter((_partition(one), _log(one)) for one in rolls)
    fullest = {partition: log for (partition, log), _ in reversed(counts.most_common())}
    return [one for one in rolls if fullest[_partition(one)] == _log(one)]


def _log(roll: TimedEvent) -> tuple[str, object]:
    return roll.source, roll.event.fields.get("log", roll.event.fields.get("directory"))


def _partition(roll: TimedEvent) -> tuple[object, object]:
    return roll.event.fields.get("topic"), roll.event.fields.get("partition")


def _begin(roll: TimedEvent) -> float | None:
    """Return the offset at which the new segment begins, None where that is not recorded."""
    names = (name for name in ("offset", "base_offset") if name in roll.event.fields)
    return next((roll.event.number(name) for name in names), None)


def _without_opened(rolls: Sequence[TimedEvent]) -> list[TimedEvent]:
    """Return the rolls without those by which a new leader may have opened a partition.

    Redpanda begins a segment with each term, Pulsar a ledger with each owner: of each partition the first
    roll says nothing of what is written. Kafka's segments have no term and stay with a new leader.
    """
    opened: set[tuple[object, object]] = set()
    found = []
    for one in rolls:
        fields, partition = one.event.fields, _partition(one)
        is_first = partition not in opened
        opened.add(partition)
        if not is_first or ("term" not in fields and one.event.kind not in background.LEDGER_ROLLS):
            found.append(one)
    return found


# --- quotas

_THROTTLE = "throttle_seconds"
"""The wait that brokers asked a client for in their answers, as our own clients report it."""


def _quota(facts: Facts) -> Hypothesis:
    """Return what says that brokers hold clients back: a throttle time in their answers."""
    events = facts.events("throttled", "quota_throttle")
    if not facts.named(_THROTTLE) and not events:
        return unmeasured("quota_throttle", "throttle time in the answers of brokers")
    rose = risen(facts.shifts(_THROTTLE))
    begun = facts.has_begun("throttled", "quota_throttle")
    if rose is None and not begun:
        return ruled_out("quota_throttle", "No broker began to throttle at the onset.")
    signs, suspect = [], ""
    if rose is not None:
        signs.append(Sign(DECISIVE, rose.evidence(facts.change)))
    if begun:
        first = next(one for one in events if one.k >= facts.near[0])
        suspect = str(first.event.fields.get("broker", suspect))
        text = f"Brokers began to throttle this client {when(first.k - facts.onset_k)}."
        signs.append(Sign(DECISIVE, Evidence(text, {"first_k": first.k})))
    if facts.is_drive_innocent and facts.is_cpu_innocent and are_calm(facts.taken_in):
        signs.append(Sign(SLIGHT, Evidence("The brokers' drives and CPU are calm meanwhile.")))
    return Hypothesis("quota_throttle", tuple(signs), suspect)


# --- other users of a drive

_MORE_WORK = 1.5
_LEAST_BUSY_SHARE = 0.1
_LARGER_MESSAGES = 10.0
"""What others write more may be so many times larger than the messages before."""
_WRITES = (drive_facts.WRITTEN, drive_facts.WRITES, drive_facts.FLUSHES)
_READS = (drive_facts.READ, drive_facts.READS)
_WAITS = (
    drive_facts.WRITE_AWAIT,
    drive_facts.READ_AWAIT,
    drive_facts.BUSY,
    drive_facts.QUEUE,
    drive_facts.WEIGHTED,
)


def _neighbour(drive: Drive, facts: Facts) -> Hypothesis | None:
    """Return a drive that got more to do, which neither brokers nor clients account for."""
    reads = drive.most_risen(_READS, _MORE_WORK)
    more = drive.most_risen(_WRITES, _MORE_WORK) or reads
    slower = [one for metric in _WAITS if (one := drive.risen(metric, _MORE_WORK))]
    share = max((one.share(facts.change) for one in slower), default=0.0)
    if more is None or share < _LEAST_BUSY_SHARE:
        return None
    ours = _own_work(facts, more)
    if ours:
        return ruled_out(
            "noisy_neighbour", f"The brokers may have made the work themselves: {ours}."
        )
    unknown = _unknown_work(facts, is_reading=reads is not None)
    if unknown:
        return unmeasured("noisy_neighbour", *unknown)
    worst = max(slower, key=lambda one: one.ratio)
    signs = [
        Sign(CLEAR, more.evidence(facts.change)),
        Sign(0.0, worst.evidence(facts.change)),
        Sign(FAIR if facts.taken_in else 0.0, _stayed_text(facts)),
    ]
    return Hypothesis("noisy_neighbour", tuple(signs), drive.name, share)


def _own_work(facts: Facts, more: Shift) -> str:
    """Return what the brokers may have done themselves; "" if nothing."""
    drain = background.draining(facts)
    work = [*facts.sent, *facts.taken_in, *facts.given_out]
    is_moving = facts.has_begun("leader_change", "isr_shrink") or background.is_copying(facts)
    reasons = (
        (facts.has_grown(work), "more was sent, taken in or given out"),
        (_may_have_written(facts, more), "others wrote more"),
        (drain is not None and not drain.is_usual, "a backlog began to drain"),
        (facts.has_begun(*background.DELETIONS), "deletions began"),
        (is_moving, "leaders or copies moved"),
        (background.may_be_compacting(facts), "a compaction may be running"),
    )
    return ", ".join(text for holds, text in reasons if holds)


def _unknown_work(facts: Facts, *, is_reading: bool) -> list[str]:
    """Return what is not measured of the brokers' own work: without it no other client can be blamed.

    What others send reaches a drive by any broker, for that one writes a copy of what another leads.
    """
    others = facts.other_writes
    pages = {_page(one.series) for one in facts.taken_in if not one.is_sparse}
    are_read = bool(pages) and len(pages) >= facts.least_brokers
    is_written_known = are_read or (others is not None and not others.is_sparse)
    reasons = (
        (not (facts.sent or facts.taken_in), "what we send"),
        (not is_written_known, "what each broker takes in, or what other clients write"),
        (
            facts.is_intake_awaited,
            "bytes that the brokers take in, in more of the seconds since the onset",
        ),
        (is_reading and not facts.given_out, "what the brokers give out"),
    )
    return [text for holds, text in reasons if holds]


def _may_have_written(facts: Facts, more: Shift) -> bool:
    """True when what others write more may be what a drive got more to do."""
    others = _more_written(facts)
    if others is None:
        return False
    before = _sent(facts) + others.before
    return more.ratio <= _LARGER_MESSAGES * (before + others.rise) / max(before, 1.0)


def _backlogs(facts: Facts) -> bool:
    return bool(facts.named(*BACKLOGS))


def _stayed_text(facts: Facts) -> Evidence:
    """Say what speaks against the brokers' own work, and what was not watched that might speak for it."""
    others = facts.other_writes
    flows = {
        "what we send": facts.sent,
        "what other clients write": [others] if others and not facts.has_grown([others]) else [],
        "what the brokers take in": facts.taken_in,
    }
    known = {
        ("backlogs", "no backlog drained"): _backlogs(facts),
        ("leaders", "no move of leaders began"): background.are_leaders_known(facts),
        ("deletions", "no deletion began"): background.are_deletions_known(facts),
    }
    calm = [text for (_, text), is_known in known.items() if is_known]
    if background.are_compactions_known(facts):
        calm.append("no compaction began")
    stayed = _listed([what for what, found in flows.items() if found])
    unknown = [what for (what, _), is_known in known.items() if not is_known]
    rest = f" {_listed(unknown).capitalize()} were not watched." if unknown else ""
    return Evidence(
        "The brokers' own work does not explain it: "
        f"{_listed([f'{stayed} stayed the same across the step', *calm])}.{rest}"
    )


def _listed(parts: list[str]) -> str:
    return " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)


# --- how to confirm them

_TOOLS = "from {a host with the cluster's tools}"
_ALL_GROUPS = "kafka-consumer-groups.sh --bootstrap-server {server}{admin} --describe --all-groups"
_QUOTAS = "kafka-configs.sh --bootstrap-server {server}{admin} --describe"
_DRAINED = f"that falls from call to call, by {background.FALLEN:.0%} or more in all"
CONFIRM = {
    "catch_up_read": Confirmation(_TOOLS, _ALL_GROUPS, f"a LAG {_DRAINED}"),
    "foreign_load": Confirmation(
        _TOOLS,
        _ALL_GROUPS,
        f"another topic whose LOG-END-OFFSET or CURRENT-OFFSET grows by {_LEAST_OF_OURS:.0%} "
        "of the plan's rate or more",
        f"another topic whose LOG-END-OFFSET or CURRENT-OFFSET grows by {{rate*{_LEAST_OF_OURS:g}}} "
        "a second or more",
    ),
    "noisy_neighbour": Confirmation(
        "on {the broker's host}, as root",
        "iotop -oPa",
        f"another process with {_MORE_WORK - 1:.0%} of the broker's bytes or more",
    ),
    "quota_throttle": Confirmation(
        _TOOLS,
        f"for t in users clients; do {_QUOTAS} --entity-type $t; done; "
        f"{_QUOTAS} --entity-type users --entity-type clients",
        "a producer_byte_rate or consumer_byte_rate below the plan's bytes a second for each broker",
        is_lasting=True,
    ),
}
CONFIRM_OF_OWN_CONSUMER = {
    "catch_up_read": Confirmation(
        "on {the load host}",
        "{soak} watch {run_dir}",
        "a lag that falls to 0, and more received than sent until then",
    ),
}
CONFIRM_ON_PULSAR = {
    "catch_up_read": Confirmation(
        _TOOLS, "pulsar-admin topics partitioned-stats {topic}", f"a msgBacklog {_DRAINED}"
    ),
    "foreign_load": Confirmation(
        _TOOLS,
        "pulsar-admin topics partitioned-stats {topic}",
        f"a msgRateIn of another topic of {_LEAST_OF_OURS:.0%} of the plan's rate or more",
    ),
    "quota_throttle": Confirmation(
        _TOOLS,
        "pulsar-admin namespaces get-publish-rate {namespace}",
        "a limit below the plan's rate",
    ),
}
