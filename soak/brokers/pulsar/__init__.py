"""Pulsar through its C++ client and its admin interface; only the plug-in loader imports it. Open `broker` first.

One module an aspect: `producer`, `consumer` and `partition_log` carry and locate messages, `durability` and
`retention` read what a cluster guarantees and how much it keeps.
"""

from soak.brokers.pulsar.broker import Config, PulsarBroker, check_topic, connect
from soak.brokers.pulsar.durability import read_durability
from soak.brokers.pulsar.retention import assumed_retention, read_retention, stored_size

__all__ = [
    "Config",
    "PulsarBroker",
    "assumed_retention",
    "check_topic",
    "connect",
    "read_durability",
    "read_retention",
    "stored_size",
]
