"""Other clients of the cluster: they write more to topics of their own, or read more.

Method:  messages to topics that are not ours, or bytes or requests at the brokers (`traffic`), grow while
         what we send and receive stays, so that other clients must have sent or read them; or segments of
         others roll far more often. Rolls are those of one replica, without copies of what was there before
         and without the first by which a new leader may have opened a partition; partitions must roll again,
         for those that fill or age alike all roll once in the same seconds.
Assumes: brokers report what they take in and give out for all clients, each broker its own part. Of some of
         the brokers it proves little, for leaders that move to them bring what they have to do, unless each
         says that it leads as many partitions as before. A reader of old data is `catch_up_read`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from scipy.special import bdtrc

from detectors.causes import background, channel, traffic
from detectors.causes.channel import Shift
from detectors.causes.facts import MORE, Facts
from detectors.causes.hypothesis import (
    CLEAR,
    DECISIVE,
    FAIR,
    SLIGHT,
    Confirmation,
    Hypothesis,
    Sign,
    absent,
    unmeasured,
)
from detectors.causes.traffic import Flow
from detectors.nearby import TimedEvent, when
from soak.core import wording
from soak.core.model import Event, Evidence
from soak.core.series import parse_series

NEXT = {
    "foreign_load": "find the other clients that send or read more; limit them by quota",
}

_MOST_NAMED = 3  # topics


def examine(facts: Facts) -> Iterator[Hypothesis]:
    """Give whether other clients load the cluster."""
    yield _foreign(facts)


def _foreign(facts: Facts) -> Hypothesis:
    writing = _rolls_of_others(facts) or _written_by_others(facts)
    if writing is not None:
        return writing
    flows = traffic.known(facts)
    return _by_flows(flows, facts) if flows else _without_pages(facts)


# --- what brokers take in and give out


def _by_flows(flows: Sequence[Flow], facts: Facts) -> Hypothesis:
    """Return what brokers report to take in and give out, compared with what we send and receive."""
    own, grown = traffic.own(facts), traffic.grown(flows, facts)
    if not grown and not all(one.total.is_sparse for one in flows):
        whole = min(flows, key=lambda one: (one.missing != "", -len(one.pages)))
        stayed = ", ".join(one.text for one in flows)
        if facts.has_grown(one.total for one in flows):
            text = f"What the {whole.whose} took in or gave out grew at another time: {stayed}."
            missing = (whole.missing,) if whole.missing else ()
            return Hypothesis("foreign_load", (Sign(-FAIR, Evidence(text)),), missing=missing)
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
    found = _grown(max(grown, key=lambda one: one.ratio), facts)
    if traffic.old_data(flows, facts) is None:
        return found
    old = Evidence("They write no more than before, and what they read more is old data.")
    return replace(found, signs=(*found.signs, Sign(-DECISIVE, old)))


def _grown(flow: Flow, facts: Facts) -> Hypothesis:
    """Return what a flow says that grew: of some brokers little, for leaders may have moved to them."""
    led = _led_by(flow, facts) if flow.missing else None
    may_be_moved = bool(flow.missing) and led is None
    then = (
        "leaders that moved to them would show the same"
        if may_be_moved
        else "other clients do that"
    )
    total = Evidence(
        f"The {flow.whose} had more {flow.text} in all, while what we send and receive stayed: {then}.",
        {"before": flow.before, "after": flow.after},
    )
    signs = [Sign(FAIR if may_be_moved else CLEAR if flow.missing else DECISIVE, total)]
    if led is not None:
        text = f"They lead as many partitions as before ({led:,.0f})."
        signs.append(Sign(0.0, Evidence(text, {"led": led})))
    signs.append(Sign(0.0, flow.most.evidence(facts.change)))
    signs += [] if may_be_moved else _felt(facts)
    suspect = parse_series(flow.most.series).label("target") or facts.source_host(flow.most.series)
    missing = (flow.missing,) if flow.missing else ()
    return Hypothesis("foreign_load", tuple(signs), suspect, missing=missing)


_LED = "kafka_server_replicamanager_leadercount"


def _led_by(flow: Flow, facts: Facts) -> float | None:
    """Return how many partitions the brokers of a flow lead; None where that changed or is not known."""
    counts = {background.page_of(one.series): one for one in facts.shifts_everywhere(_LED)}
    stayed = [
        one.after
        for page in flow.pages
        if (one := counts.get(page)) is not None
        and not one.is_sparse
        and one.before == one.after > 0.0
        and abs(one.delta) < one.clear
    ]
    return sum(stayed) if len(stayed) == len(flow.pages) else None


def _felt(facts: Facts) -> list[Sign]:
    felt = [drive for drive in facts.drives if drive.is_guilty]
    if not felt and not facts.is_cpu_guilty:
        return []
    what = [drive.name for drive in felt] + ["CPU"] * facts.is_cpu_guilty
    text = f"It is felt: {', '.join(what)} had more to do or became slower."
    return [Sign(FAIR, Evidence(text))]


# --- what others write to their topics

_OTHER_TOPIC_GREW = "other_topic_grew"


def _written_by_others(facts: Facts) -> Hypothesis | None:
    """Return what the newest offsets of other topics say: others write so many more that it is a load."""
    one = background.more_written(facts)
    if one is None or not one.has_risen or facts.has_grown(facts.sent):
        return None
    if not traffic.is_sudden(facts.nearby.series[one.series], one, facts):
        return None
    ours = background.sent_before(facts)
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
    did = (
        "did not write more"
        if background.more_written(facts) is None
        else "wrote more at another time"
    )
    text = (
        f"Other clients {did}: messages to those of their topics that we may see went from "
        f"{one.before:,.0f} to {one.after:,.0f} a second."
    )
    against = Sign(-FAIR, Evidence(text, {"before": one.before, "after": one.after}))
    missing = ("what the brokers give out to other clients (probe prometheus)",)
    return Hypothesis("foreign_load", (against,), missing=missing)


# --- segments of others that roll

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
    rolls = _of_one_replica(later)
    again = len(rolls) - len({_partition(one) for one in rolls})
    after = _without_opened(rolls)
    # One more: none in a minute is no rate of zero.
    usual = (len(before) + 1) / max(1, first - start)
    rate = len(after) / max(1, end - first)
    if again < _LEAST_ROLLS or rate < _MORE_ROLLS * usual:
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


# --- how to confirm it

CONFIRM = {
    "foreign_load": Confirmation(
        "from {a host with the cluster's tools}",
        "kafka-consumer-groups.sh --bootstrap-server {server}{admin} --describe --all-groups",
        f"another topic whose LOG-END-OFFSET or CURRENT-OFFSET grows by {background.LEAST_OF_OURS:.0%} "
        "of the plan's rate or more",
        "another topic whose LOG-END-OFFSET or CURRENT-OFFSET grows by "
        f"{{rate*{background.LEAST_OF_OURS:g}}} a second or more",
    ),
}
CONFIRM_ON_PULSAR = {
    "foreign_load": Confirmation(
        "from {a host with the cluster's tools}",
        "pulsar-admin topics partitioned-stats {topic}",
        f"a msgRateIn of another topic of {background.LEAST_OF_OURS:.0%} of the plan's rate or more",
    ),
}
