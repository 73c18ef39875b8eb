"""Which Kafka topics are the same as before, by the ids that a cluster gives them; and their end."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from soak.clients.kafka_words import said
from soak.core.errors import BrokerError


def identities(admin: AdminClient, names: Sequence[str], timeout_seconds: float) -> dict[str, str]:
    """Return each topic's id, without those that are not there; "" where a cluster has none (before 2.8).

    Raises:
        BrokerError: the cluster did not answer in time, or lets us not ask.
    """
    if not names:
        return {}
    asked = TopicCollection(list(names))
    found: dict[str, str] = {}
    for name, future in admin.describe_topics(asked, request_timeout=timeout_seconds).items():
        try:
            number = future.result(timeout_seconds).topic_id
        except (KafkaException, TimeoutError) as error:
            if not _is_unknown(error):
                raise BrokerError(f"cannot describe topic {name}: {said(error)}") from error
        else:
            bits = number.get_most_significant_bits(), number.get_least_significant_bits()
            found[name] = str(number) if any(bits) else ""
    return found


def delete(admin: AdminClient, names: Sequence[str], timeout_seconds: float) -> None:
    """Delete topics; raises `BrokerError` when the cluster refuses or does not answer in time."""
    if not names:
        return
    deleted = admin.delete_topics(list(names), operation_timeout=timeout_seconds)
    for name, future in deleted.items():
        try:
            future.result(timeout_seconds)
        except (KafkaException, TimeoutError) as error:
            if not _is_unknown(error):
                raise BrokerError(f"cannot delete topic {name}: {said(error)}") from error


def _is_unknown(error: Exception) -> bool:
    told = error.args[0] if error.args else None
    return isinstance(told, KafkaError) and told.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
