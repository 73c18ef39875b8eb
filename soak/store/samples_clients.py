"""Clients of the samples topic: by the plan's settings, telling why nobody answers; and the topic itself."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewTopic

from soak.clients import secret
from soak.clients.kafka_log import Cause, ClientLog
from soak.clients.kafka_words import said
from soak.core.errors import BrokerError
from soak.core.plan_records import Ship
from soak.core.ports import Clock
from soak.core.units import SECOND_NS

LOG = logging.getLogger("soak.store.samples_clients")
PARTITIONS = 8  # of a topic that is made; an existing one is taken as it is
MOST_BYTES = 16 * 2**20  # of a line
_CLIENT = {
    "log_level": "3",
    "reconnect.backoff.ms": "500",  # its 100 cost a hundredth of a core while nobody answers
    "reconnect.backoff.max.ms": "2000",
}
_KEPT_MS = 7 * 24 * 3600 * 1000  # of a topic that is made, whatever the cluster's default
_EXISTS = KafkaError.TOPIC_ALREADY_EXISTS


class Clients:
    """Makes clients that tell why nobody answers; `cause` is that of the newest."""

    def __init__(self, ship: Ship, name: str, clock: Clock) -> None:
        self._ship = ship
        self._name = name
        self._log = ClientLog(LOG, clock)
        self._has_asked = False  # how the topic is cleaned up
        self.cause = Cause()

    def made(self, kind: type[Any], settings: Mapping[str, str]) -> Any:  # noqa: ANN401  # a client
        """Return a client of this kind; what the plan says goes over our own settings.

        Raises:
            BrokerError: a secret is not where the plan says, or the client refuses its settings.
        """
        self.cause = Cause()
        ours = {"client.id": self._name, **_CLIENT, **settings}
        given: dict[str, Any] = {**ours, **secret.resolved(self._ship.client)}
        given["bootstrap.servers"] = self._ship.bootstrap_servers
        try:
            return kind({**given, "error_cb": self.cause.note}, logger=self._log)
        except KafkaException as error:
            raise BrokerError(f"the client refuses its settings: {said(error)}") from error

    def ask(self) -> None:
        """Ask the cluster for its topics, to know that it answers.

        Raises:
            BrokerError: it does not, or a secret is not where the plan says.
        """
        admin = self.made(AdminClient, {})
        self.cause.metadata(admin, self._ship.bootstrap_servers, self._ship.timeout / SECOND_NS)

    def ensure_topic(self) -> None:
        """Make the topic unless it is there.

        Raises:
            BrokerError: the cluster does not answer, or refuses to.
        """
        ship, timeout = self._ship, self._ship.timeout / SECOND_NS
        admin = self.made(AdminClient, {})
        if ship.topic in self.cause.metadata(admin, ship.bootstrap_servers, timeout).topics:
            self._warn_of_compaction(admin, timeout)
            return
        new = NewTopic(
            ship.topic,
            num_partitions=PARTITIONS,
            replication_factor=-1,  # as the cluster has it by default
            config={
                "max.message.bytes": str(MOST_BYTES),
                "cleanup.policy": "delete",  # compaction would keep one line a source: its key
                "retention.ms": str(_KEPT_MS),
            },
        )
        try:
            admin.create_topics([new], operation_timeout=timeout)[ship.topic].result(timeout)
        except (KafkaException, TimeoutError) as error:
            told = error.args[0] if error.args else None
            is_there = isinstance(told, KafkaError) and told.code() == _EXISTS
            if not is_there:  # another host may have been faster
                raise BrokerError(f"cannot create topic {ship.topic}: {said(error)}") from error

    def _warn_of_compaction(self, admin: Any, timeout: float) -> None:  # noqa: ANN401  # a client
        """Say once of an existing topic that it will keep one line a source, where we may know it."""
        if self._has_asked:
            return
        topic = ConfigResource(ConfigResource.Type.TOPIC, self._ship.topic)
        with contextlib.suppress(
            KafkaException, TimeoutError
        ):  # who may write need not see settings
            found = admin.describe_configs([topic], request_timeout=timeout)[topic].result(timeout)
            self._has_asked = True
            policy = found["cleanup.policy"].value if "cleanup.policy" in found else ""
            if "compact" in policy:
                LOG.error("topic_is_compacted topic=%s cleanup_policy=%s", self._ship.topic, policy)
