"""The benchmark's Kafka driver: settings of Java's client, in properties syntax, under four keys."""

from __future__ import annotations

from soak.omb import java_client
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
_REPLICATION = "a plan says how many copies there are, and leaves it to no broker"


def take(source: SourceFile, draft: Draft) -> None:
    """Put the driver into the plan's broker and topic."""
    source.note_unknown(draft, KEYS)
    fill(source, draft, "kafka")


def fill(source: SourceFile, draft: Draft, kind: str) -> None:
    """Put what all drivers of Kafka's protocol say into the plan's broker of this kind."""
    draft.put("topic.replication", source.count(draft, "replicationFactor", _REPLICATION))
    topic = java_client.parse_properties(source.text("topicConfig"))
    if topic:
        draft.put("topic.settings", topic)
    common = java_client.convert_section(source, "commonConfig", draft)
    producer = java_client.convert_section(source, "producerConfig", draft)
    consumer = java_client.convert_section(source, "consumerConfig", draft)
    servers = [part.pop(_SERVERS) for part in (common, producer, consumer) if _SERVERS in part]
    if not servers:
        raise source.error("commonConfig", f"names no {_SERVERS}")
    draft.put(f"broker.{kind}.bootstrap_servers", servers[0])
    producer = java_client.with_defaults(producer, common, draft, source.document.name)
    for part, settings in (("common", common), ("producer", producer), ("consumer", consumer)):
        if settings:
            draft.put(f"broker.{kind}.{part}", settings)
    if source.flag("reset", default=False):
        source.note(draft, "reset", "not carried over: a run deletes no topic that it did not make")
