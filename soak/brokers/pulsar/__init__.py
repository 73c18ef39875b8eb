"""Pulsar through its C++ client and its admin interface. Open `broker` first.

`producer`, `consumer` and `partition_log` send, receive and locate messages; `durability` and `retention`
read what a cluster guarantees and how long it retains messages. Only the plug-in loader imports this
package.
"""

from soak.brokers.pulsar.broker import PulsarBroker, connect
from soak.brokers.pulsar.client import Config
from soak.brokers.pulsar.topics import check_topic

__all__ = ["Config", "PulsarBroker", "check_topic", "connect"]
