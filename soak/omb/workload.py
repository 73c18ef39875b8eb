"""A workload file to the part of a plan that says what is sent, by how many, and for how long."""

from __future__ import annotations

import re
from collections.abc import Collection
from fractions import Fraction

from soak.core import plugins
from soak.core.plan_load import LARGEST_MESSAGE_BYTES, SMALLEST_MESSAGE_BYTES
from soak.core.plugins import close_to
from soak.core.units import format_duration, format_rate, format_size
from soak.omb import profile
from soak.omb.draft import Draft
from soak.omb.run_facts import KEY_KINDS
from soak.omb.source_file import SourceFile

_MINUTE_NS = 60 * 10**9
_GIB = 2**30
_ENDLESS = "36h"
_MOST_CLIENTS = 1000  # of one producer process
_MOST_CONSUMERS = 100
_MESSAGES_A_PROCESS = 200_000  # a second, on a core: docs/load.md
_SPEED = f"a process sends or reads some {_MESSAGES_A_PROCESS // 1000}k/s"
_BOTH_SIDES = "a run sends and reads"
_TELLING = {
    "backlogDrainRatio": "upstream",
    "warmupProducerRate": "vanlightly",
    "warmupProducerRateSeparationMinutes": "vanlightly",
    "backlogProducerRate": "vanlightly",
    "existingTopicList": "redpanda",
    "existingProduceTopicList": "redpanda",
    "existingConsumeTopicList": "redpanda",
    "consumerOnly": "confluent",
    "sampleRateMillis": "vanlightly",  # and Redpanda's, which refuses what it does not know
}
"""Keys that one dialect alone has, the surest first; the last one two have, and the milder stands."""

_NO_PART = {
    "randomizedPayloadPoolSize": "every message has random bytes of its own here",
    "payloadFile": "the file is not read: messages are random bytes, which do not compress",
    "sampleRateMillis": "every second is recorded here",
    "backlogProducerRate": "there is no rate of its own for the backlog here",
    "warmupProducerRate": "there is no rate of its own for the warm-up here",
    "warmupProducerRateSeparationMinutes": "there is no rate of its own for the warm-up here",
    "existingProduceTopicList": "one topic is used for both; name it in existingTopicList",
    "existingConsumeTopicList": "one topic is used for both; name it in existingTopicList",
}
_EXISTING = ("existingTopicList", "existingProduceTopicList", "existingConsumeTopicList")
_UNSET: tuple[object, ...] = (None, -1, 0, [], "")


def is_one(source: SourceFile) -> bool:
    """Say whether this is a workload: it has two of the keys of one, as `name` alone says nothing."""
    known = frozenset().union(*(profile.load(name).workload_keys for name in _dialects()))
    return len(known & source.values.keys()) > 1


def take(source: SourceFile, draft: Draft, dialect: str | None) -> None:
    """Put a workload into the plan; without a dialect it is told by the keys, else taken as upstream's.

    Raises:
        PlanError: a value is of the wrong kind, or the dialect refuses a key that it does not know.
    """
    told = dialect or next((name for key, name in _TELLING.items() if key in source.values), None)
    known = profile.load(told or "upstream")
    if known.refuses_unknown_keys:
        source.refuse_unknown(known.workload_keys, f"the {told} dialect")
    source.note_unknown(draft, known.workload_keys)
    for key, why in _NO_PART.items():
        if key in known.workload_keys and source.values.get(key) not in _UNSET:
            source.note(draft, key, f"not carried over: {why}")
    draft.put("name", plan_name(source.text("name")))
    _take_topics(source, draft, known.workload_keys)
    _take_messages(source, draft)
    _take_rate(source, draft)
    _take_clients(source, draft)
    _take_times(source, draft, known.warm_up_minutes, is_told=told is not None)


def _dialects() -> list[str]:
    return plugins.names(profile.PACKAGE)


def plan_name(text: str) -> str:
    """Return a name as a plan may have it."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.") or "omb"


def _take_topics(source: SourceFile, draft: Draft, known: Collection[str]) -> None:
    """Take topics to make, or one that is there: beside such a list neither number says anything there."""
    lists = [key for key in _EXISTING if key in known and source.values.get(key)]
    least = 0 if lists else 1
    for key, ours in (("topics", "topic.count"), ("partitionsPerTopic", "topic.partitions")):
        count = source.whole(key, least)
        if count < least:
            raise source.error(key, f"must be at least {least}, not {count}")
        draft.put(ours, max(1, count))
    if lists:
        if source.whole("topics", 0):
            raise source.error("topics", f"must be 0 beside {lists[0]}, as in the redpanda dialect")
        _take_existing(source, draft)


def _take_existing(source: SourceFile, draft: Draft) -> None:
    existing = source.values.get(_EXISTING[0]) or []
    if not isinstance(existing, list):
        raise source.error(_EXISTING[0], "must be a list of topics")
    if len(existing) == 1:
        draft.put("topic.name", str(existing[0]))
        draft.put("topic.use_existing", value=True)
        source.note(draft, _EXISTING[0], "set topic.partitions to as many as it has")
    elif existing:
        draft.put("topic.count", len(existing))
        source.note(draft, _EXISTING[0], "not carried over: a plan names one topic")


def _take_messages(source: SourceFile, draft: Draft) -> None:
    size = source.whole("messageSize", 0)
    fitting = min(max(size, SMALLEST_MESSAGE_BYTES), LARGEST_MESSAGE_BYTES)
    if fitting != size:
        source.note(draft, "messageSize", f"{size} bytes are {fitting} here: see load.message_size")
    draft.put("load.message_size", format_size(fitting))
    if source.flag("useRandomizedPayloads", default=False):
        share = source.number("randomBytesRatio", 0.0)
        if not 0 <= share <= 1:
            raise source.error("randomBytesRatio", f"must lie between 0 and 1, not {share:g}")
        draft.put("load.compressible", round(1.0 - share, 9))
    distributor = source.text("keyDistributor") or "NO_KEY"
    kinds = {theirs: ours for ours, theirs in KEY_KINDS.items()}
    if distributor not in kinds:
        hint = close_to(distributor, list(kinds))
        source.note(draft, "keyDistributor", f"{distributor!r} is unknown: no keys{hint}")
    draft.put("load.keys.kind", kinds.get(distributor, "none"))


def _take_rate(source: SourceFile, draft: Draft) -> None:
    rate = source.whole("producerRate", 0)
    if rate > 0:
        draft.put("load.rate", format_rate(Fraction(rate)))
    else:
        draft.put("phases.ramp.soak_share", 1.0)
        source.note(
            draft, "producerRate", "0 is a search for the highest rate: a ramp before the soak"
        )


def _take_clients(source: SourceFile, draft: Draft) -> None:
    """Both count by topic there; here a process serves all topics, and there are enough for the rate."""
    rate, topics = source.whole("producerRate", 0), draft.body["topic"]["count"]
    for_rate = -(-max(0, rate) // _MESSAGES_A_PROCESS)
    producers = topics * source.count(draft, "producersPerTopic", _BOTH_SIDES)
    processes = max(-(-producers // _MOST_CLIENTS), for_rate)
    each = -(-producers // processes)
    if processes * each > producers:
        text = f"{producers} are {processes * each} here, {each} in each of {processes} processes"
        source.note(draft, "producersPerTopic", f"{text}: {_SPEED}")
    draft.put("load.producers", processes)
    draft.put("load.clients_per_producer", each)
    subscriptions = source.count(draft, "subscriptionsPerTopic", _BOTH_SIDES)
    draft.put("consumers.subscriptions", subscriptions)
    _take_readers(source, draft, topics, for_rate)
    if rate <= 0:
        source.note(draft, "producerRate", f"add load.producers and consumers: {_SPEED}")
    if source.flag("consumerOnly", default=False):
        source.note(
            draft, "consumerOnly", "not carried over: producers keep their rate in a catch-up"
        )


def _take_readers(source: SourceFile, draft: Draft, topics: int, for_rate: int) -> None:
    key = "consumerPerSubscription"
    asked = source.count(draft, key, _BOTH_SIDES)
    processes = min(max(asked, for_rate), _MOST_CONSUMERS)
    if processes < asked:
        source.note(draft, key, f"{asked} are {processes} here: each is a process")
    elif topics > 1:
        source.note(draft, key, f"{asked} a topic there; {processes} here serve all topics")
    elif processes > asked:
        source.note(draft, key, f"{asked} are {processes} here: {_SPEED}")
    draft.put("consumers.per_subscription", processes)


def _take_times(source: SourceFile, draft: Draft, warm_up_minutes: int, *, is_told: bool) -> None:
    warm_up = source.whole("warmupDurationMinutes", warm_up_minutes)
    if "warmupDurationMinutes" not in source.values and not is_told:
        draft.notes.append(
            f"{source.document.name}: no warmupDurationMinutes: {warm_up} min as upstream has it; "
            "Redpanda's and Vanlightly's forks take 30 (--dialect)"
        )
    draft.put("phases.warm_up", format_duration(max(0, warm_up) * _MINUTE_NS))
    minutes = source.whole("testDurationMinutes", 0)
    if minutes <= 0:
        source.note(draft, "testDurationMinutes", f"no end there, {_ENDLESS} here")
    draft.put("phases.soak", format_duration(minutes * _MINUTE_NS) if minutes > 0 else _ENDLESS)
    backlog = source.whole("consumerBacklogSizeGB", 0)
    if backlog > 0:
        subscriptions = draft.body["consumers"]["subscriptions"]
        draft.put("phases.catch_up.backlog_size", format_size(-(-backlog * _GIB // subscriptions)))
        if subscriptions > 1:
            text = f"of {subscriptions} subscriptions together there, of the slowest here: a share"
            source.note(draft, "consumerBacklogSizeGB", text)
        source.note(draft, "consumerBacklogSizeGB", "built after the soak here, before it there")
        if source.number("backlogDrainRatio", 1.0) != 1.0:
            source.note(draft, "backlogDrainRatio", "not carried over: a backlog drains whole here")
