"""Partitions of the cluster: their leaders move, copies of them catch up, or others add some.

Method:  copies that fall behind from a minute before the onset on, and were not behind all along, say that a
         broker catches up; more so where one that was silent answers again. Elections count as moves of
         leaders only where the partition is of this run and had a leader before; first elections, and those
         of other topics, are metadata to work through. Counters have the elections of all topics: where
         partitions are added, they say nothing of moves.
Assumes: a page that reports copies that are behind is their leader's, unless it names whose they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from detectors import affected_brokers
from detectors.causes import background
from detectors.causes.answers import ROUND_TRIPS
from detectors.causes.channel import Shift
from detectors.causes.facts import COPIES, LEADER_CHANGE, LEADER_COUNTERS, MORE, Facts
from detectors.causes.hypothesis import (
    CLEAR,
    DECISIVE,
    FAIR,
    SLIGHT,
    Confirmation,
    Hypothesis,
    Sign,
    ruled_out,
    unmeasured,
)
from detectors.causes.pages import page_name
from detectors.nearby import TimedEvent, between, when
from soak.core import wording
from soak.core.model import Evidence
from soak.core.series import parse_series

NEXT = {
    "under_replicated": "see which replicas catch up, and throttle their replication",
    "leader_move": "read in the controller's log why leaders moved, and move them back",
    "metadata_storm": "find who created or moved topics or partitions of others",
}

_SOON_SECONDS = 30  # after the onset: until then elections belong to one move, or to one storm


def examine(facts: Facts) -> Iterator[Hypothesis]:
    """Give the hypothesis of each cause that lies in the partitions of the cluster."""
    yield _catching_up(facts)
    yield _moved(_own_moves(facts), facts)
    yield _storm(facts)


# --- catching up

_BACK_SECONDS = 60


def _catching_up(facts: Facts) -> Hypothesis:
    """Return what says that a broker copies what it missed from its peers."""
    if not facts.named(*COPIES):
        return unmeasured(
            "under_replicated", "partitions with copies that are behind (probe prometheus)"
        )
    rise, behind, suspect = _most_behind(facts)
    if rise < 1.0:
        is_lasting = behind >= 1.0
        text = (
            "The copies that are behind were so all along." if is_lasting else "No copy was behind."
        )
        return ruled_out("under_replicated", text)
    who = f"broker {suspect}" if suspect else "one broker"
    text = f"Copies of up to {behind:g} partitions of {who} were behind."
    signs = [Sign(FAIR, Evidence(text, {"partitions": behind}))]
    back = _back(suspect, facts)
    if back is not None:
        suspect, k = back
        what = "Broker" if suspect in facts.answers.returned else "The metrics page of"
        text = f"{what} {suspect} answers again, {when(k - facts.onset_k)}."
        signs.append(Sign(CLEAR, Evidence(text, {"from_k": k})))
    more = [one for drive in facts.drives for one in drive.more_work]
    if more:
        signs.append(Sign(SLIGHT, more[0].evidence(facts.change)))
    return Hypothesis("under_replicated", tuple(signs), suspect)


def _most_behind(facts: Facts) -> tuple[float, float, str]:
    """Return how much the partitions of one broker with copies behind rose, and how many there were, at most.

    From a minute before the onset on, above the fewest of all seconds: what is behind all along is not caught
    up. With the broker whose copies they are, where the channel names it: a page is the leader's.
    """
    start = facts.near[0] - _BACK_SECONDS
    found = [(0.0, 0.0, "")]
    for name, one in facts.named(*COPIES).items():
        part = between(one, start, facts.end_k)
        if part.size:
            most, fewest = float(part.max()), float(one.values.min())
            found.append((most - fewest, most, parse_series(name).label("follower")))
    return max(found, key=lambda one: (one[0] >= 1.0 and one[2] != "", *one))


def _back(follower: str, facts: Facts) -> tuple[str, int] | None:
    """Return who began to answer again within the minute before the onset, or with it, and when.

    Without those that are known to be another broker than the one whose copies are behind.
    """
    seen = facts.answers
    brokers = {
        target: seen.returned[target]
        for name in facts.named(*ROUND_TRIPS)
        if (target := parse_series(name).label("target")) in seen.returned
        and _may_be_of(name, follower, facts)
    }
    pages = {
        page_name(name): k
        for name, k in seen.returned_pages.items()
        if _may_be_of(name, follower, facts)
    }
    return max((brokers or pages).items(), key=lambda one: one[1], default=None)


def _may_be_of(name: str, follower: str, facts: Facts) -> bool:
    return not follower or affected_brokers.may_be_of(name, follower, facts.nearby)


# --- leaders and metadata

_BEFORE_SECONDS = 300
_MOST_EXPECTED = 0.1  # of such seconds as near to any instant
_STORM = 20  # partitions elected within seconds, beyond those of the run
_STORM_RATIO = 10.0  # of the usual rate
_MANY = 1_000  # partitions added: work for a broker and its clients, however many it had
_OF_CLUSTER = ("kafka_controller_", "redpanda_cluster_")
"""How metrics begin that count the whole cluster, on the page of one of its brokers."""
_OWNED = "pulsar_topics_count"


def _is_first(event: TimedEvent) -> bool:
    """True for the first election of a partition: it had no leader before, so none moved."""
    return event.event.fields.get("epoch") == 0


def _own_moves(facts: Facts) -> list[TimedEvent]:
    """Return the leaders of this run's topics that moved."""
    return [one for one in facts.events(LEADER_CHANGE) if facts.is_ours(one) and not _is_first(one)]


def _moved(moves: list[TimedEvent], facts: Facts) -> Hypothesis:
    counted = facts.counted_ks(*LEADER_COUNTERS)
    is_growing = counted.size > 0 and background.are_partitions_added(facts)
    if is_growing:  # the counters have the first elections of others as well
        counted = counted[:0]
    ks = np.unique(np.concatenate([np.array([one.k for one in moves], np.int64), counted]))
    first, last = facts.near
    here = ks[(ks >= first) & (ks <= last)]
    if here.size == 0:
        is_logged = bool(facts.named("broker_log_events") or facts.events(LEADER_CHANGE))
        if not is_logged and (is_growing or not facts.named(*LEADER_COUNTERS)):
            return unmeasured("leader_move", "elections of leaders (probe broker_log)")
        others = sum(1 for one in facts.events(LEADER_CHANGE) if first <= one.k <= last)
        foreign = f"; {others} elections of other topics or of new partitions" if others else ""
        return ruled_out(
            "leader_move", f"No leader of this run's topics moved at the onset{foreign}."
        )
    start = max(facts.nearby.k0, first - _BEFORE_SECONDS)
    before = int(np.count_nonzero((ks >= start) & (ks < first)))
    expected = before * (last + 1 - first) / max(1, first - start)
    after = int(np.count_nonzero((ks > last) & (ks < facts.end_k)))
    text = (
        f"Leaders changed in {wording.counted(int(here.size), 'second')} around the onset, first "
        f"{when(int(here[0]) - facts.onset_k)}{_example(int(here[0]), moves)}; in {before} of the "
        f"{first - start} s before, and in {after} since."
    )
    numbers = {"first_k": int(here[0]), "seconds_near": int(here.size), "seconds_before": before}
    strength = FAIR if expected > _MOST_EXPECTED else CLEAR + FAIR
    topics = sorted({str(one.event.fields.get("topic", "")) for one in moves} - {""})
    return Hypothesis(
        "leader_move", (Sign(strength, Evidence(text, numbers)),), ", ".join(topics[:3])
    )


def _example(k: int, moves: list[TimedEvent]) -> str:
    """Return an example, where a broker's log gave one."""
    fields = next((one.event.fields for one in moves if one.k == k), {})
    names = [f"{key} {fields[key]}" for key in ("topic", "partition", "bundle") if key in fields]
    return f" ({', '.join(names)})" if names else ""


def _storm(facts: Facts) -> Hypothesis:
    """Return the elections of other topics, and of new partitions, that began at the onset.

    Where leaders of the run moved then too, those of other topics are a part of that move.
    """
    first, last = facts.near
    is_move = any(first <= one.k <= last + _SOON_SECONDS for one in _own_moves(facts))
    other = [
        one
        for one in facts.events(LEADER_CHANGE)
        if _is_first(one) or not (is_move or facts.is_ours(one))
    ]
    grown = _partitions_grown(facts)
    if not other and grown is None:
        if not background.are_leaders_known(facts):
            return unmeasured(
                "metadata_storm",
                "elections of leaders (probe broker_log), partitions of the cluster (probe prometheus)",
            )
        return ruled_out(
            "metadata_storm", "No leader of another topic or new partition was elected."
        )
    soon = [one for one in other if first <= one.k <= last + _SOON_SECONDS]
    elected = {_partition(one) for one in soon}
    before = [one for one in other if one.k < first]
    seconds = max(1, first - facts.nearby.k0)
    usual = len(before) / seconds * (last + _SOON_SECONDS - first)
    is_storm = len(elected) >= _STORM and len(soon) >= _STORM_RATIO * usual
    starts_here = any(one.k <= last for one in soon)
    signs, suspect = [], ""
    if is_storm and starts_here:
        topics = Counter(topic for topic, _ in elected)
        suspect = f"topic {topics.most_common(1)[0][0]}" if topics else ""
        text = (
            f"{len(elected)} partitions of other topics, or new ones, got a leader within seconds, the first "
            f"{when(soon[0].k - facts.onset_k)}, most of them of {suspect}. In the {seconds} s before, "
            f"{len(before)} did."
        )
        signs.append(Sign(DECISIVE, Evidence(text, {"partitions": len(elected)})))
    if grown is not None:
        # so many make all that follows, such as CPU and pauses
        is_large = grown.ratio >= MORE or grown.rise >= _MANY
        signs.append(Sign(DECISIVE if is_large else CLEAR, grown.evidence(facts.change)))
    if not signs:
        text = f"Only {len(elected)} partitions of other topics were elected at the onset."
        return ruled_out("metadata_storm", text)
    return Hypothesis("metadata_storm", tuple(signs), suspect)


def _partitions_grown(facts: Facts) -> Shift | None:
    """Return where partitions were added; a broker that has just started loads what it had.

    What one page counts of the whole cluster counts whosever page it is. Topics that move between Pulsar's
    brokers are added to none.
    """
    of_each = [one for one in background.PARTITIONS if not one.startswith(_OF_CLUSTER)]
    of_cluster = [one for one in background.PARTITIONS if one.startswith(_OF_CLUSTER)]
    is_owned_more = _more_owned(facts) >= _STORM
    found = [
        one
        for one in (*facts.shifts_everywhere(*of_cluster), *facts.shifts(*of_each))
        if _are_many(one) and one.before > 0.0 and (one.metric != _OWNED or is_owned_more)
    ]
    return max(found, key=lambda one: one.rise, default=None)


def _more_owned(facts: Facts) -> float:
    """Return how many topics Pulsar's brokers own more in all; what a page had that ends is others' then."""
    more = 0.0
    for series in facts.named(_OWNED).values():
        shift = facts.shift(series)
        if shift is not None:
            more += shift.rise
        else:
            more -= float(between(series, facts.nearby.k0, facts.near[0])[-1:].sum())
    return more


def _are_many(one: Shift) -> bool:
    """True for so many more at the onset that they count as a share of what was there, or by their number."""
    if one.has_risen:
        return one.rise >= _STORM
    is_sudden = one.is_at_onset and not (one.is_usual or one.is_gradual)
    return is_sudden and one.delta >= one.clear and one.rise >= _MANY


def _partition(one: TimedEvent) -> tuple[str, str]:
    fields = one.event.fields
    return str(fields.get("topic", "")), str(fields.get("partition", fields.get("bundle", "")))


# --- how to confirm them

_TOOLS = "from {a host with the cluster's tools}"
CONFIRM = {
    "under_replicated": Confirmation(
        _TOOLS,
        "kafka-topics.sh --bootstrap-server {server}{admin} --describe --under-replicated-partitions",
        "1 partition or more, and fewer from call to call",
    ),
    "leader_move": Confirmation(
        _TOOLS,
        "kafka-topics.sh --bootstrap-server {server}{admin} --describe --topic {run_topic}",
        "1 partition or more whose Leader is not the first of its Replicas",
        is_lasting=True,
    ),
    "metadata_storm": Confirmation(
        _TOOLS,
        "kafka-topics.sh --bootstrap-server {server}{admin} --describe | grep -c Leader:",
        f"{_STORM} partitions or more above an earlier count",
        f"{_STORM} partitions or more above the {{{background.PARTITIONS[0]}}} before the onset",
    ),
}
CONFIRM_ON_PULSAR = {
    "under_replicated": Confirmation(
        _TOOLS,
        "bookkeeper shell listunderreplicated",
        "1 ledger or more, and fewer from call to call",
    ),
    "leader_move": Confirmation(
        _TOOLS,
        "pulsar-admin topics partitioned-lookup {run_topic}",
        "1 partition or more at another broker than before",
    ),
    "metadata_storm": Confirmation(
        _TOOLS,
        "pulsar-admin topics list {namespace} | wc -l",
        f"{_STORM} topics or more above an earlier count",
    ),
}
