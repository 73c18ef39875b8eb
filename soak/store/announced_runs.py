"""Runs as they are announced on the samples topic: messages without the headers of lines, on partition 0.

One partition, so that who waits for weeks reads an eighth of a topic that is full of records; from its end
on, as what was said before may be of a run that nobody follows any more.
"""

from __future__ import annotations

import logging
from typing import Any

import confluent_kafka
from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition

from soak.clients.kafka_words import said
from soak.core.announcement import Announcement, parse
from soak.core.errors import BrokerError
from soak.core.plan_records import Ship
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.store.samples_clients import MOST_BYTES, Clients

LOG = logging.getLogger("soak.store.announced_runs")
PARTITION = 0  # every topic has it
HEADER = "announces"  # its value is the name of the plan
MOST_AT_ONCE = 1000
_FAREWELL_SECONDS = 2.0
_PRODUCER = {"linger.ms": "0", "acks": "1"}  # it is said again soon
_CONSUMER = {
    "group.id": "soak-samples",  # never joined: the partition is assigned
    "enable.auto.commit": "false",
    "auto.offset.reset": "latest",
    "fetch.max.bytes": str(MOST_BYTES),
    "queued.max.messages.kbytes": str(MOST_BYTES // 1024),
}


class AnnouncedRuns:
    """Hears what is said from now on."""

    def __init__(self, ship: Ship, clock: Clock) -> None:
        self._ship = ship
        self._clients = Clients(ship, "soakd-listens", clock)
        self._client: Any = None
        self._refused = 0

    def open(self) -> None:
        """Begin to listen, anew if need be.

        Raises:
            BrokerError: the cluster does not answer.
        """
        self.close()
        self._clients.ensure_topic()
        self._client = self._clients.made(confluent_kafka.Consumer, _CONSUMER)
        self._client.assign([TopicPartition(self._ship.topic, PARTITION, OFFSET_END)])

    def take(self, timeout_seconds: float) -> list[Announcement]:
        """Return what was said since; while the cluster is away, nothing."""
        found = []
        for message in self._client.consume(MOST_AT_ONCE, timeout_seconds):
            if message.error() is None and HEADER in dict(message.headers() or ()):
                try:
                    found.append(parse(message.value() or b""))
                except ValueError as error:
                    self._refuse(error)
        return found

    def _refuse(self, error: ValueError) -> None:
        self._refused += 1
        if self._refused & (self._refused - 1) == 0:  # the 1st, 2nd, 4th, 8th ...
            LOG.warning("announcement_refused n=%d error=%.200s", self._refused, error)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class Announcer:
    """Says it and goes on at once; what the cluster does not take is said anew the next time."""

    def __init__(self, ship: Ship, clock: Clock) -> None:
        self._ship = ship
        self._clients = Clients(ship, "soakd-announces", clock)
        self._client: Any = None
        self._said = ""

    def say(self, announcement: Announcement) -> None:
        """Send one; the topic must be there."""
        try:
            if self._client is None:
                timeout = {"message.timeout.ms": str(self._ship.timeout // 10**6)}
                self._client = self._clients.made(
                    confluent_kafka.Producer, {**_PRODUCER, **timeout}
                )
            self._client.produce(
                self._ship.topic,
                announcement.to_text().encode(),
                announcement.plan,
                partition=PARTITION,
                headers={HEADER: announcement.plan.encode()},
                on_delivery=self._note,
            )
            self._client.poll(0)
        except (KafkaException, BufferError) as error:
            self._tell(said(error))
        except BrokerError as error:
            self._tell(str(error))

    def close(self) -> None:
        """Wait a moment for what is out, and give up the rest."""
        if self._client is not None:
            self._client.flush(min(_FAREWELL_SECONDS, self._ship.timeout / SECOND_NS))
            self._client.purge()
            self._client.poll(0)
            self._client = None

    def _note(self, error: KafkaError | None, _message: object) -> None:
        self._tell("" if error is None else self._clients.cause.or_else(error.str()))

    def _tell(self, why: str) -> None:
        """Say each kind of trouble once, until it is over."""
        if why and why != self._said:
            LOG.warning("run_not_announced topic=%s error=%s", self._ship.topic, why)
        self._said = why
