"""What Kafka's client says when something fails."""

from __future__ import annotations

from confluent_kafka import KafkaError


def said(error: BaseException) -> str:
    """Return the client's words without its codes."""
    inner = error.args[0] if error.args else error
    return inner.str() if isinstance(inner, KafkaError) else str(inner) or type(error).__name__
