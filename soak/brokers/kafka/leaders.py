"""The leaders of partitions, and the addresses of nodes, as a Kafka cluster last answered them."""

from __future__ import annotations

import re
from typing import Any, Protocol

import numpy as np
from confluent_kafka.admin import AdminClient
from numpy.typing import NDArray

from soak.clients.kafka_log import ErrorCallback, ErrorCause
from soak.core.errors import BrokerError
from soak.core.ports import Topics

LEADER_TOPICS_PER_CALL = 100
"""More topics than these are looked up in turn: each is one request."""
_ADDRESS = re.compile(r"[\w.:%-]{1,262}")  # a cluster may answer anything, and this becomes a label


class ConnectAdmin(Protocol):
    def __call__(self, *, error_cb: ErrorCallback) -> AdminClient:
        """Return a client whose requests create no topics.

        Raises:
            BrokerError: it refuses its settings.
        """
        ...


class LeaderCache:
    """The leaders as last answered, and one client for all requests; it is replaced after a failure.

    A new client each time would cost a handshake and a login.
    """

    def __init__(self, connect: ConnectAdmin, where: str, timeout_seconds: float) -> None:
        self._connect = connect
        self._where = where
        self._timeout_seconds = timeout_seconds
        self._admin: AdminClient | None = None
        self._cause = ErrorCause()
        self._leaders: dict[str, NDArray[np.int64]] = {}  # by topic
        self._addresses: dict[int, str] = {}  # by node id
        self._next = 0

    def leaders(self, topics: Topics) -> NDArray[np.int64]:
        """Return each partition's leader, shape (total,), -1 where there is none or it is not known yet.

        Raises:
            BrokerError: the cluster did not answer in time.
        """
        if self._admin is None:
            self._cause = ErrorCause()
            self._admin = self._connect(error_cb=self._cause.note)
        try:
            for step in range(min(LEADER_TOPICS_PER_CALL, len(topics.names))):
                name = topics.names[(self._next + step) % len(topics.names)]
                answer = self._cause.metadata(self._admin, self._where, self._timeout_seconds, name)
                self._leaders[name] = _leaders_of(answer, name, topics.partitions)
            self._note_addresses(answer)  # each answer lists all nodes
            self._admin.poll(0)  # serves its callbacks, which would pile up
        except BrokerError:
            self._admin = None
            raise
        self._next += LEADER_TOPICS_PER_CALL
        unknown = np.full(topics.partitions, -1, dtype=np.int64)
        return np.concatenate([self._leaders.get(name, unknown) for name in topics.names])

    def address(self, number: int) -> str:
        """Return the host and port that a node had when it was last listed, "" of one that never was."""
        return self._addresses.get(number, "")

    def _note_addresses(self, answer: Any) -> None:  # noqa: ANN401
        for number, node in answer.brokers.items():
            address = f"{node.host}:{node.port}"
            if _ADDRESS.fullmatch(address):
                self._addresses[number] = address


def _leaders_of(answer: Any, topic: str, partitions: int) -> NDArray[np.int64]:  # noqa: ANN401
    found = np.full(partitions, -1, dtype=np.int64)
    there = answer.topics
    for partition, metadata in there[topic].partitions.items() if topic in there else ():
        if partition < partitions:
            found[partition] = metadata.leader
    return found
