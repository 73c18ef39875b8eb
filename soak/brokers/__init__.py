"""Connections to message brokers: Kafka, Pulsar and Redpanda, each a plug-in found by its name in a plan.

A plug-in exports `Config` (its section of a plan), `connect(config, clock) -> Broker`, `check_topic` and,
where its clients can have a name, `named`. `soak.app`, the daemons and the lab import it through
`soak.core.plugins`; plug-ins import only `soak.clients` and `soak.core`. Open `kafka/broker.py` first.
"""
