"""Convert workload and driver files of the benchmark into a plan, with notes on what does not fit."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from types import ModuleType
from typing import Any

import yaml

from soak.core.errors import PlanError
from soak.core.plan import plugins
from soak.core.plan import text as plan_text
from soak.core.plan.load import LARGEST_MESSAGE_BYTES, SMALLEST_MESSAGE_BYTES
from soak.core.plan.plugins import close_to
from soak.core.plan.text import Document, KeyPath, parse_yaml
from soak.core.units import format_duration, format_rate, format_size
from soak.omb import result
from soak.omb.run_result import KEY_KINDS

_DRIVERS = "soak.omb.drivers"
_ORDER = ("name", "broker", "topic", "load", "consumers", "phases")
_MINUTE_NS = 60 * 10**9
_GIB = 2**30
_ENDLESS = "36h"
_MAX_CLIENTS = 1000  # of one producer process
_MAX_CONSUMERS = 100
_MESSAGES_PER_PROCESS = 200_000  # a second, on a core: docs/evidence/load.md
_SPEED = f"a process sends or receives about {_MESSAGES_PER_PROCESS // 1000}k/s"
_BOTH_SIDES = "a run both sends and receives"
_DIALECT_KEYS = {
    "backlogDrainRatio": "upstream",
    "warmupProducerRate": "vanlightly",
    "warmupProducerRateSeparationMinutes": "vanlightly",
    "backlogProducerRate": "vanlightly",
    "existingTopicList": "redpanda",
    "existingProduceTopicList": "redpanda",
    "existingConsumeTopicList": "redpanda",
    "consumerOnly": "confluent",
    "sampleRateMillis": "vanlightly",  # also a key of Redpanda's, which refuses unknown keys
}
"""Keys that identify a dialect, the most certain first."""

_IGNORED_KEYS = {
    "randomizedPayloadPoolSize": "each message of soakd has random bytes of its own",
    "payloadFile": "the file is not read: messages are random bytes, which do not compress",
    "sampleRateMillis": "soakd records every second",
    "backlogProducerRate": "soakd has no separate rate for the backlog",
    "warmupProducerRate": "soakd has no separate rate for the warm-up",
    "warmupProducerRateSeparationMinutes": "soakd has no separate rate for the warm-up",
    "existingProduceTopicList": "soakd uses one topic for both; name it in existingTopicList",
    "existingConsumeTopicList": "soakd uses one topic for both; name it in existingTopicList",
}
_EXISTING = ("existingTopicList", "existingProduceTopicList", "existingConsumeTopicList")
_UNSET: tuple[object, ...] = (None, -1, 0, [], "")


@dataclass(slots=True)
class Draft:
    """Sections of a plan as far as the files determine them; `notes` name file, line and key."""

    body: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def put(self, place: str, value: object) -> None:
        """Set a dotted key such as `load.rate`."""
        *sections, key = place.split(".")
        section = self.body
        for name in sections:
            section = section.setdefault(name, {})
        section[key] = value

    def text(self, name: str) -> str:
        """Return the plan, with the notes as comments above it.

        Raises:
            PlanError: the plan is not valid; the message names its key.
        """
        self.body.setdefault("name", "omb")
        if "broker" not in self.body:
            self.put("broker.kafka", {})
            self.notes.append("no driver was given: a lab Kafka is downloaded and started")
        ordered = {key: self.body[key] for key in _ORDER if key in self.body}
        body = yaml.safe_dump(ordered, sort_keys=False, allow_unicode=True, width=100)
        text = "".join(f"# {' '.join(note.split())}\n" for note in self.notes) + body
        plan_text.load(text, name)
        return text


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One mapping of a file, at the key path `place`."""

    document: Document
    place: KeyPath
    values: dict[str, Any]

    def error(self, key: str, message: str) -> PlanError:
        return self.document.error((*self.place, key), message)

    def note(self, draft: Draft, key: str, message: str) -> None:
        """Add a note, with file, line and key, on something that does not fit into the plan."""
        draft.notes.append(str(self.error(key, message)))

    def note_unknown(self, draft: Draft, known: Collection[str]) -> None:
        for key in self.values:
            if key not in known:
                hint = close_to(key, sorted(known))
                self.note(draft, key, f"unknown key, ignored as in the benchmark{hint}")

    def refuse_unknown(self, known: Collection[str], dialect: str) -> None:
        for key in self.values:
            if key not in known:
                hint = close_to(key, sorted(known))
                raise self.error(key, f"unknown key, refused as in the {dialect} dialect{hint}")

    def whole(self, key: str, default: int) -> int:
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, f"{value!r} is not a whole number")
        return value

    def count(self, draft: Draft, key: str, reason: str) -> int:
        """Return a number of at least 1, the default; a smaller one becomes 1, with a note why."""
        value = self.whole(key, 1)
        if value < 1:
            self.note(draft, key, f"{value} becomes 1: {reason}")
        return max(1, value)

    def number(self, key: str, default: float) -> float:
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, f"{value!r} is not a number")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"{value!r} is neither true nor false")
        return value

    def text(self, key: str) -> str:
        value = self.values.get(key)
        if isinstance(value, dict | list):
            raise self.error(key, "must be text")
        return "" if value is None else str(value)

    def part(self, key: str) -> SourceFile:
        """Return the mapping under a key; empty where there is none."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.error(key, "must be a mapping")
        return SourceFile(self.document, (*self.place, key), value or {})


def read_source_file(text: str, name: str) -> SourceFile:
    """Return the mapping of a file.

    Raises:
        PlanError: not YAML, or no mapping of keys.
    """
    document = parse_yaml(text, name)
    if not isinstance(document.value, dict):
        raise document.error((), "neither a workload nor a driver: not a mapping of keys")
    return SourceFile(document, (), document.value)


def import_plan(sources: Sequence[SourceFile], dialect: str | None, name: str) -> str:
    """Return the text of a valid plan, with comments on what could not be carried over.

    `name` is the plan's, for errors in it.

    Raises:
        PlanError: a file is neither workload nor driver, two are of one kind, or a value is wrong.
    """
    drivers = [source for source in sources if "driverClass" in source.values]
    workloads = [source for source in sources if "driverClass" not in source.values]
    for kind, found in (("driver", drivers), ("workload", workloads)):
        if len(found) > 1:
            second = found[1].document
            raise PlanError(f"{second.name}: a second {kind}: a plan is made of one of each")
    draft = Draft()
    for source in workloads:
        if not is_workload(source):
            text = "neither a workload nor a driver: it has too few keys of either"
            raise source.document.error((), text)
        take_workload(source, draft, dialect)
    for source in drivers:
        _driver_of(source).take(source, draft)
        if not workloads:
            draft.put("name", plan_name(source.text("name")))
    return draft.text(name)


def _driver_of(source: SourceFile) -> ModuleType:
    found = source.text("driverClass")
    modules = {name: plugins.load(_DRIVERS, name) for name in plugins.names(_DRIVERS)}
    for module in modules.values():
        if found.startswith(module.PREFIX):
            return module
    raise source.error("driverClass", f"no driver for {found!r}; there are {', '.join(modules)}")


def is_workload(source: SourceFile) -> bool:
    """Return whether this is a workload: it has two keys of one, as `name` alone identifies nothing."""
    known = frozenset().union(
        *(result.load_profile(name).workload_keys for name in result.dialects())
    )
    return len(known & source.values.keys()) > 1


def take_workload(source: SourceFile, draft: Draft, dialect: str | None) -> None:
    """Put a workload into the plan; without a dialect the keys identify it, else it is upstream's.

    Raises:
        PlanError: a value is wrong, or the dialect refuses an unknown key.
    """
    recognised = dialect or next(
        (name for key, name in _DIALECT_KEYS.items() if key in source.values), None
    )
    known = result.load_profile(recognised or "upstream")
    if recognised and known.refuses_unknown_keys:
        source.refuse_unknown(known.workload_keys, recognised)
    source.note_unknown(draft, known.workload_keys)
    for key, reason in _IGNORED_KEYS.items():
        if key in known.workload_keys and source.values.get(key) not in _UNSET:
            source.note(draft, key, f"not carried over: {reason}")
    draft.put("name", plan_name(source.text("name")))
    _take_topics(source, draft, known.workload_keys)
    _take_messages(source, draft)
    _take_rate(source, draft)
    _take_clients(source, draft)
    _take_times(source, draft, known.warm_up_minutes, is_certain=recognised is not None)


def plan_name(text: str) -> str:
    """Return a name that is valid in a plan."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.") or "omb"


def _take_topics(source: SourceFile, draft: Draft, known: Collection[str]) -> None:
    """Put in the topics to create, or an existing one; with a list of these the numbers have no meaning."""
    lists = [key for key in _EXISTING if key in known and source.values.get(key)]
    least = 0 if lists else 1
    for key, plan_key in (("topics", "topic.count"), ("partitionsPerTopic", "topic.partitions")):
        count = source.whole(key, least)
        if count < least:
            raise source.error(key, f"must be at least {least}, not {count}")
        draft.put(plan_key, max(1, count))
    if lists:
        if source.whole("topics", 0):
            raise source.error(
                "topics", f"must be 0 together with {lists[0]}, as in the redpanda dialect"
            )
        _take_existing(source, draft)


def _take_existing(source: SourceFile, draft: Draft) -> None:
    existing = source.values.get(_EXISTING[0]) or []
    if not isinstance(existing, list):
        raise source.error(_EXISTING[0], "must be a list of topics")
    if len(existing) == 1:
        draft.put("topic.name", str(existing[0]))
        draft.put("topic.use_existing", value=True)
        source.note(draft, _EXISTING[0], "set topic.partitions to the number that it has")
    elif existing:
        draft.put("topic.count", len(existing))
        source.note(draft, _EXISTING[0], "not carried over: a plan names only one existing topic")


def _take_messages(source: SourceFile, draft: Draft) -> None:
    size = source.whole("messageSize", 0)
    fitting = min(max(size, SMALLEST_MESSAGE_BYTES), LARGEST_MESSAGE_BYTES)
    if fitting != size:
        source.note(draft, "messageSize", f"{size} bytes become {fitting}: see load.message_size")
    draft.put("load.message_size", format_size(fitting))
    if source.flag("useRandomizedPayloads", default=False):
        share = source.number("randomBytesRatio", 0.0)
        if not 0 <= share <= 1:
            raise source.error("randomBytesRatio", f"must lie between 0 and 1, not {share:g}")
        draft.put("load.compressible", round(1.0 - share, 9))
    distributor = source.text("keyDistributor") or "NO_KEY"
    kinds = {benchmark: kind for kind, benchmark in KEY_KINDS.items()}
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
            draft,
            "producerRate",
            "0 is a search for the highest rate: it becomes a ramp before the soak",
        )


def _take_clients(source: SourceFile, draft: Draft) -> None:
    """Put in producers and consumers: the benchmark counts by topic, a process of soakd serves all topics."""
    rate, topics = source.whole("producerRate", 0), draft.body["topic"]["count"]
    for_rate = -(-max(0, rate) // _MESSAGES_PER_PROCESS)
    producers = topics * source.count(draft, "producersPerTopic", _BOTH_SIDES)
    processes = max(-(-producers // _MAX_CLIENTS), for_rate)
    each = -(-producers // processes)
    if processes * each > producers:
        text = f"{producers} become {processes * each}, {each} in each of {processes} processes"
        source.note(draft, "producersPerTopic", f"{text}: {_SPEED}")
    draft.put("load.producers", processes)
    draft.put("load.clients_per_producer", each)
    subscriptions = source.count(draft, "subscriptionsPerTopic", _BOTH_SIDES)
    draft.put("consumers.subscriptions", subscriptions)
    _take_consumers(source, draft, topics, for_rate)
    if rate <= 0:
        source.note(draft, "producerRate", f"add load.producers and consumers: {_SPEED}")
    if source.flag("consumerOnly", default=False):
        source.note(
            draft, "consumerOnly", "not carried over: producers keep their rate during a catch-up"
        )


def _take_consumers(source: SourceFile, draft: Draft, topics: int, for_rate: int) -> None:
    key = "consumerPerSubscription"
    asked = source.count(draft, key, _BOTH_SIDES)
    processes = min(max(asked, for_rate), _MAX_CONSUMERS)
    if processes < asked:
        source.note(draft, key, f"{asked} become {processes}: each is a process")
    elif topics > 1:
        source.note(
            draft, key, f"{asked} a topic in the benchmark; {processes} in soakd serve all topics"
        )
    elif processes > asked:
        source.note(draft, key, f"{asked} become {processes}: {_SPEED}")
    draft.put("consumers.per_subscription", processes)


def _take_times(
    source: SourceFile, draft: Draft, warm_up_minutes: int, *, is_certain: bool
) -> None:
    warm_up = source.whole("warmupDurationMinutes", warm_up_minutes)
    if "warmupDurationMinutes" not in source.values and not is_certain:
        draft.notes.append(
            f"{source.document.name}: no warmupDurationMinutes: {warm_up} min, the default upstream; "
            "Redpanda's and Vanlightly's forks have 30 (--dialect)"
        )
    draft.put("phases.warm_up", format_duration(max(0, warm_up) * _MINUTE_NS))
    minutes = source.whole("testDurationMinutes", 0)
    if minutes <= 0:
        source.note(draft, "testDurationMinutes", f"no end in the benchmark, {_ENDLESS} in soakd")
    draft.put("phases.soak", format_duration(minutes * _MINUTE_NS) if minutes > 0 else _ENDLESS)
    backlog = source.whole("consumerBacklogSizeGB", 0)
    if backlog > 0:
        subscriptions = draft.body["consumers"]["subscriptions"]
        draft.put("phases.catch_up.backlog_size", format_size(-(-backlog * _GIB // subscriptions)))
        if subscriptions > 1:
            text = f"the benchmark counts {subscriptions} subscriptions together, soakd the slowest: a share"
            source.note(draft, "consumerBacklogSizeGB", text)
        source.note(
            draft, "consumerBacklogSizeGB", "built after the soak; in the benchmark before it"
        )
        if source.number("backlogDrainRatio", 1.0) != 1.0:
            source.note(
                draft, "backlogDrainRatio", "not carried over: a backlog always drains completely"
            )
