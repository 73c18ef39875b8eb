"""Soak and degradation detection for Kafka, Redpanda and Pulsar clusters.

The layers of this package, and the roads through it, are drawn in docs/explanation/architecture.md.
"""
