"""The benchmark's Kafka driver: settings of Java's client, in properties syntax, under four keys."""

from __future__ import annotations

from soak.omb.java_client import convert_section, parse_properties, with_defaults
from soak.omb.plan_import import Draft, SourceFile

PREFIX = "io.openmessaging.benchmark.driver.kafka."

KEYS = frozenset(
    {
        "name",
        "driverClass",
        "replicationFactor",
        "reset",
        "topicConfig",
        "commonConfig",
        "producerConfig",
        "consumerConfig",
    }
)
_SERVERS = "bootstrap.servers"
_REPLICATION = "a plan states the number of copies, and no default of the brokers"


def take(source: SourceFile, draft: Draft) -> None:
    """Put the driver into the plan's broker and topic."""
    source.note_unknown(draft, KEYS)
    fill(source, draft, "kafka")


def fill(source: SourceFile, draft: Draft, kind: str) -> None:
    """Put the keys that all drivers of Kafka's protocol have into the plan's broker of this kind."""
    draft.put("topic.replication", source.count(draft, "replicationFactor", _REPLICATION))
    topic = parse_properties(source, "topicConfig")
    if topic:
        draft.put("topic.settings", topic)
    common = convert_section(source, "commonConfig", draft)
    producer = convert_section(source, "producerConfig", draft)
    consumer = convert_section(source, "consumerConfig", draft)
    servers = [part.pop(_SERVERS) for part in (common, producer, consumer) if _SERVERS in part]
    if not servers:
        raise source.error("commonConfig", f"has no {_SERVERS}")
    draft.put(f"broker.{kind}.bootstrap_servers", servers[0])
    producer = with_defaults(producer, common, draft, source.document.name)
    for part, settings in (("common", common), ("producer", producer), ("consumer", consumer)):
        if settings:
            draft.put(f"broker.{kind}.{part}", settings)
    if source.flag("reset", default=False):
        source.note(draft, "reset", "not carried over: a run deletes only topics that it created")
