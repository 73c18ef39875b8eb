"""Whether Kafka topics hold messages before a run sends its first: retention counts those, too."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # its stubs

from soak.brokers._kafka_durability import Config
from soak.clients import secret
from soak.clients.kafka_log import ClientLog
from soak.clients.kafka_words import said
from soak.core.clock import SystemClock
from soak.core.errors import BrokerError
from soak.core.units import SECOND_NS

LOG = logging.getLogger("soak.brokers.kafka")


def is_empty(config: Config, topics: Sequence[str]) -> bool:
    """Return whether every log of these topics ends where it begins; False where one does not tell.

    Raises:
        BrokerError: the cluster does not answer.
    """
    ours = {"client.id": "soakd", "log_level": "3", "bootstrap.servers": config.bootstrap_servers}
    settings: dict[str, Any] = secret.resolved({**ours, **config.common})
    admin, limit = AdminClient(settings, logger=ClientLog(LOG, SystemClock())), _seconds(config)
    try:
        seen = admin.list_topics(timeout=limit).topics
    except KafkaException as error:
        raise BrokerError(f"cannot tell whether the topics are empty: {said(error)}") from error
    places = [
        TopicPartition(name, at) for name in topics if name in seen for at in seen[name].partitions
    ]
    try:
        starts = _offsets(admin, places, OffsetSpec.earliest(), limit)  # type: ignore[no-untyped-call]  # the client's
        return starts == _offsets(admin, places, OffsetSpec.latest(), limit)  # type: ignore[no-untyped-call]  # the client's
    except (KafkaException, TimeoutError):
        return False


def _offsets(
    admin: AdminClient, places: Sequence[TopicPartition], wanted: OffsetSpec, limit: float
) -> dict[tuple[str, int], int]:
    if not places:
        return {}
    found = admin.list_offsets(dict.fromkeys(places, wanted), request_timeout=limit)
    return {(at.topic, at.partition): int(one.result(limit).offset) for at, one in found.items()}


def _seconds(config: Config) -> float:
    return config.timeout / SECOND_NS
