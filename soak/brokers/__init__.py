"""Connections to message brokers: Kafka, Pulsar and Redpanda, each a plug-in found by its name in a plan.

A plug-in exports `Config` (its section of a plan), `connect(config, clock) -> Broker` and
`check_topic(topic)`, and may export `topic_warnings(topic)` and `unchecked_rights(config, topic)`, which
names what a user must be allowed and a check cannot see. The rest of `soak` loads it through
`soak.core.plan.plugins`; plug-ins import `soak.clients` and `soak.core` only. Open `kafka/broker.py` first.
"""
