"""Kafka through librdkafka; only the plug-in loader and `soak.brokers.redpanda` import it. Open `broker` first.

One module an aspect: `producer` and `consumer` use the public client API, `batch_calls` replaces both by calls
for whole batches, `durability` and `retention` read what a cluster guarantees and how much it keeps.
"""

from soak.brokers.kafka.broker import Config, KafkaBroker, check_topic, connect, named
from soak.brokers.kafka.durability import read_durability
from soak.brokers.kafka.retention import assumed_retention, read_retention, stored_size

__all__ = [
    "Config",
    "KafkaBroker",
    "assumed_retention",
    "check_topic",
    "connect",
    "named",
    "read_durability",
    "read_retention",
    "stored_size",
]
