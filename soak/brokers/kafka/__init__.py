"""Kafka through librdkafka. Open `broker` first.

`producer` and `consumer` have two forms each: one uses the public API of the client, the other calls for
whole batches that `batch_calls` opens. `durability` and `retention` read what a cluster guarantees and how
long it retains messages. Only the plug-in loader and `soak.brokers.redpanda` import this package.
"""

from soak.brokers.kafka.broker import KafkaBroker, KafkaGuarantees, connect
from soak.brokers.kafka.config import Config
from soak.brokers.kafka.rights import unchecked_rights
from soak.brokers.kafka.topics import check_topic, topic_warnings

__all__ = [
    "Config",
    "KafkaBroker",
    "KafkaGuarantees",
    "check_topic",
    "connect",
    "topic_warnings",
    "unchecked_rights",
]
