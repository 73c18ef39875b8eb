"""Other clients of a lab's Kafka: `python -m soak.lab.other_clients SERVERS write|read|overwrite|usual ...`.

They know nothing of the run and nothing of them is audited. Each form runs until it is killed.
"""

from __future__ import annotations

import fnmatch
import math
import random
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

_MESSAGE_BYTES = 16_384
_TICK_SECONDS = 0.05
_KEYS = 200  # of a topic that is compacted
_REQUEST_SECONDS = 20
_IDLE_SECONDS = 0.5

# What is usual on the cluster: messages a second, over a period, and how long consumers stay.
_TOPICS = ("usual-orders", "usual-clicks")
_COMPACTED = "usual-state"
_LOW_RATE, _HIGH_RATE = 4.0, 24.0
_WAVE_SECONDS = 1200.0
_STAY_SECONDS = 90.0
_USUAL_BYTES = 2_048


def write(servers: str, topic: str, bytes_per_second: int) -> None:
    """Write to a topic at this rate."""
    producer = _producer(servers, {"linger.ms": 5, "batch.size": 1_000_000})
    body = random.randbytes(_MESSAGE_BYTES)
    sent, begin = 0, time.monotonic()
    while True:
        allowed = (time.monotonic() - begin) * bytes_per_second
        while sent < allowed:
            _send(producer, topic, body, None)
            sent += len(body)
        producer.poll(_TICK_SECONDS)


def overwrite(servers: str, topic: str, size: int) -> None:
    """Write this many bytes under few keys, as fast as the brokers take them, and then slowly."""
    producer = _producer(servers, {"linger.ms": 5, "batch.size": 1_000_000})
    body, sent = random.randbytes(_MESSAGE_BYTES), 0
    while True:
        _send(producer, topic, body, str(random.randrange(_KEYS)))
        sent += len(body)
        if sent > size:
            producer.poll(_TICK_SECONDS)  # so that segments end, which are compacted then


def read(servers: str, pattern: str) -> None:
    """Read all topics whose name matches from the beginning, again and again."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "other-reader",  # never committed
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    while True:
        topics = consumer.list_topics(timeout=_REQUEST_SECONDS).topics
        places = [
            Place(name, partition, OFFSET_BEGINNING)
            for name in fnmatch.filter(topics, pattern)
            for partition in topics[name].partitions
        ]
        consumer.assign(places)
        ended: set[int] = set()
        while len(ended) < len(places):
            messages = consumer.consume(1_000, timeout=_IDLE_SECONDS)
            for message in messages:
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # the library's only name of it
                    ended.add(hash((message.topic(), message.partition())))


def usual(servers: str, seed: int) -> None:
    """Keep a cluster as busy as others do: a wave of messages, a compacted topic, groups that come and go."""
    rng = random.Random(seed)
    _create_usual_topics(servers)
    producer = _producer(servers, {"linger.ms": 20})
    body, begin = rng.randbytes(_USUAL_BYTES), time.monotonic()
    consumer: Consumer | None = None
    change_at, due = 0.0, 0.0
    while True:
        now = time.monotonic() - begin
        phase = 0.5 - 0.5 * math.cos(2 * math.pi * now / _WAVE_SECONDS)
        due += (
            _TICK_SECONDS * (_LOW_RATE + (_HIGH_RATE - _LOW_RATE) * phase) * rng.uniform(0.5, 1.5)
        )
        while due >= 1.0:
            due -= 1.0
            _send(producer, rng.choice(_TOPICS), body, None)
            _send(producer, _COMPACTED, body, str(rng.randrange(_KEYS)))
        if now >= change_at:
            consumer = _another_group(servers, consumer, rng)
            change_at = now + rng.expovariate(1 / _STAY_SECONDS)
        if consumer is not None:
            consumer.consume(200, timeout=0)
        producer.poll(_TICK_SECONDS)


def _another_group(servers: str, consumer: Consumer | None, rng: random.Random) -> Consumer | None:
    """Close the consumer that reads, or begin one in one of three groups."""
    if consumer is not None:
        consumer.close()
        return None
    settings = {"bootstrap.servers": servers, "group.id": f"usual-{rng.randrange(3)}"}
    found = Consumer({**settings, "auto.offset.reset": "earliest"})
    found.subscribe(list(_TOPICS))
    return found


def _create_usual_topics(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    replicas = min(3, len(admin.list_topics(timeout=_REQUEST_SECONDS).brokers))
    limits = {"retention.ms": "600000", "segment.bytes": str(2**22)}
    compacted = {"cleanup.policy": "compact", "segment.bytes": str(2**22), "segment.ms": "60000"}
    wanted = [NewTopic(name, 3, replicas, config=limits) for name in _TOPICS]
    wanted.append(NewTopic(_COMPACTED, 3, replicas, config=compacted))
    for name, done in admin.create_topics(wanted, request_timeout=_REQUEST_SECONDS).items():
        try:
            done.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise SystemExit(f"cannot create {name}: {error}") from error


def _producer(servers: str, settings: Mapping[str, int]) -> Producer:
    # what fails is given up: others have their own troubles
    return Producer({"bootstrap.servers": servers, "message.timeout.ms": 30_000, **settings})


def _send(producer: Producer, topic: str, body: bytes, key: str | None) -> None:
    """Send, and wait while the client's queue is full."""
    while True:
        with suppress(BufferError):
            producer.produce(topic, body, key)
            return
        producer.poll(_TICK_SECONDS)


def main() -> None:
    servers, form, *words = sys.argv[1:]
    forms: Mapping[str, Callable[[], None]] = {
        "write": lambda: write(servers, words[0], int(words[1])),
        "overwrite": lambda: overwrite(servers, words[0], int(words[1])),
        "read": lambda: read(servers, words[0]),
        "usual": lambda: usual(servers, int(words[0])),
    }
    forms[form]()


if __name__ == "__main__":
    main()
