"""Soak and degradation detection for Kafka, Redpanda and Pulsar clusters."""
