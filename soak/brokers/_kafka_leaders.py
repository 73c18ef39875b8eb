"""Who leads Kafka's partitions: asked about the run's topics alone, over one connection as long as it lasts.

A new client is a handshake and a login each time, and every topic of a large cluster a tenth of a second
in which the interpreter's lock is held beside the sender.
"""

from __future__ import annotations

import re
from typing import Any, Protocol

import numpy as np
from confluent_kafka.admin import AdminClient
from numpy.typing import NDArray

from soak.clients.kafka_log import Cause, Note
from soak.core.errors import BrokerError
from soak.core.ports import Topics

TOPICS_A_CALL = 100
"""More topics than these are asked about in turn: each is one question."""
_ADDRESS = re.compile(r"[\w.:%-]{1,262}")  # a cluster may say anything, and this becomes a label


class Connect(Protocol):
    def __call__(self, *, error_cb: Note) -> AdminClient:
        """Return a client that asks for topics without having them made.

        Raises:
            BrokerError: it refuses its settings.
        """
        ...


class KafkaLeaders:
    """The answers so far, and the client that got the last one; another is made when that has failed."""

    def __init__(self, connect: Connect, where: str, timeout_seconds: float) -> None:
        self._connect = connect
        self._where = where
        self._timeout_seconds = timeout_seconds
        self._admin: AdminClient | None = None
        self._cause = Cause()
        self._leaders: dict[str, NDArray[np.int64]] = {}  # by topic
        self._addresses: dict[int, str] = {}  # by node id
        self._next = 0

    def leaders(self, topics: Topics) -> NDArray[np.int64]:
        """Return each partition's leader, shape (total,), -1 where none leads or it was not asked for yet.

        Raises:
            BrokerError: the cluster did not answer in time.
        """
        if self._admin is None:
            self._cause = Cause()
            self._admin = self._connect(error_cb=self._cause.note)
        try:
            for step in range(min(TOPICS_A_CALL, len(topics.names))):
                name = topics.names[(self._next + step) % len(topics.names)]
                answer = self._cause.metadata(self._admin, self._where, self._timeout_seconds, name)
                self._leaders[name] = _leaders_of(answer, name, topics.partitions)
            self._note_addresses(answer)  # each answer lists all nodes
            self._admin.poll(0)  # what it was told meanwhile would else be kept
        except BrokerError:
            self._admin = None
            raise
        self._next += TOPICS_A_CALL
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
    for partition, told in there[topic].partitions.items() if topic in there else ():
        if partition < partitions:
            found[partition] = told.leader
    return found
