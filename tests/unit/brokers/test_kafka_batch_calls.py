"""Batch calls and the binding's own do the same: what is taken, reported, read, and said in the log."""

from __future__ import annotations

import ctypes
import logging

import confluent_kafka
import numpy as np
import pytest

from soak.brokers.kafka import batch_calls
from soak.brokers.kafka import broker as kafka
from soak.brokers.kafka.batch_calls import BatchProducer
from soak.brokers.kafka.producer import KafkaProducer
from soak.clients.kafka_log import ClientLog
from soak.core.clock import SystemClock
from soak.core.errors import BrokerError
from soak.core.ports import EARLIEST, FAILED_OFFSET, Outgoing, Rows, Topics
from soak.lab.ports import Running

NOBODY = "127.0.0.1:1"
PATIENCE_NS = 30 * 10**9


def library() -> batch_calls.Library:
    found = batch_calls.load_library()
    assert found is not None
    return found


def unreachable(*, has_batches: bool, **settings: str) -> kafka.KafkaBroker:
    names = {name.replace("_", "."): value for name, value in settings.items()}
    config = kafka.Config(bootstrap_servers=NOBODY, producer=names)
    return kafka.KafkaBroker(config, SystemClock(), library() if has_batches else None)


def test_what_lies_at_addresses_is_copied_in_their_order() -> None:
    """Addresses anywhere, unaligned, twice the same."""
    memory = ctypes.create_string_buffer(bytes(range(251)) * 9)
    begin = ctypes.addressof(memory)
    at = [1009, 3, 770, 3]

    found = batch_calls.copy_structs(
        np.array([begin + one for one in at], dtype=np.uint64), np.dtype((np.void, 7))
    )

    assert [bytes(one) for one in found] == [memory.raw[one : one + 7] for one in at]


@pytest.mark.parametrize("has_batches", [True, False])
def test_a_full_queue_takes_the_first_and_refuses_the_rest(*, has_batches: bool) -> None:
    """Ten have room; what was taken fails when the client is closed, each once."""
    broker = unreachable(has_batches=has_batches, queue_buffering_max_messages="10")
    producer = broker.producer(Topics(("t",), 2))

    taken = producer.send(Outgoing([1] * 23, [b"x"] * 23, 100))
    acks = producer.close(0.0)

    assert isinstance(producer, BatchProducer if has_batches else KafkaProducer)
    assert taken == 10
    assert sorted(acks.token.tolist()) == list(range(100, 110))
    assert set(acks.offset.tolist()) == {FAILED_OFFSET}


@pytest.mark.parametrize("is_matrix", [True, False])
def test_what_is_acknowledged_makes_room_also_before_its_reports_are_taken(
    *, is_matrix: bool
) -> None:
    """The queue holds ten messages; all of a hundred go out, to a cluster that librdkafka plays."""
    settings = {
        "bootstrap.servers": NOBODY,
        "test.mock.num.brokers": "1",
        "queue.buffering.max.messages": "10",
    }
    clock, log = SystemClock(), logging.getLogger("played")
    client = confluent_kafka.Producer(settings, logger=log)
    producer = BatchProducer(library(), client, Topics(("t",), 1), clock, ClientLog(log, clock))
    body = np.zeros((100, 32), dtype=np.uint8)
    sent, deadline_ns = 0, clock.mono_ns() + PATIENCE_NS
    while sent < 100 and clock.mono_ns() < deadline_ns:
        left = min(15, 100 - sent)  # more than there is room for
        rows = Rows(body, sent) if is_matrix else None
        payload = list(body[sent : sent + left]) if is_matrix else [b"x" * 32] * left
        sent += producer.send(Outgoing([0] * left, payload, sent, rows=rows))
    acks = producer.close(PATIENCE_NS / 1e9)

    assert sent == 100
    assert sorted(acks.token.tolist()) == list(range(100))
    assert FAILED_OFFSET not in acks.offset.tolist()


@pytest.mark.parametrize("has_batches", [True, False])
def test_a_message_that_the_client_refuses_for_good_is_an_error(*, has_batches: bool) -> None:
    broker = unreachable(has_batches=has_batches, message_max_bytes="1000")
    producer = broker.producer(Topics(("t",), 1))

    with pytest.raises(BrokerError, match=r"the client refuses to send: .*too large"):
        producer.send(Outgoing([0], [b"x" * 2000], 0))
    producer.close(0.0)


@pytest.mark.parametrize("has_batches", [True, False])
def test_what_the_client_says_is_logged(
    caplog: pytest.LogCaptureFixture, *, has_batches: bool
) -> None:
    """Nobody answers: a producer and a consumer say so, in the same form."""
    caplog.set_level(logging.ERROR)
    clock, topics = SystemClock(), Topics(("t",), 1)
    # each with a log of its own, which leaves out what it has said
    producer = unreachable(has_batches=has_batches).producer(topics)
    consumer = unreachable(has_batches=has_batches).consumer(topics, "audit", {0: EARLIEST})
    waited_for = ["FAIL [soakd#producer", "FAIL [soakd#consumer"]
    deadline_ns = clock.mono_ns() + PATIENCE_NS
    while clock.mono_ns() < deadline_ns and not all(one in caplog.text for one in waited_for):
        producer.serve()
        consumer.receive(10, 0.01)
    producer.close(0.0)
    consumer.close()

    assert [one for one in waited_for if one in caplog.text] == waited_for


def test_a_producer_that_fetches_tokens_has_the_bindings_calls() -> None:
    """A callback of the binding does that, and events would take its place."""
    broker = kafka.KafkaBroker(
        kafka.Config(
            bootstrap_servers=NOBODY,
            common={"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"},
        ),
        SystemClock(),
        library(),
    )

    producer = broker.producer(Topics(("t",), 1))
    producer.close(0.0)

    assert isinstance(producer, KafkaProducer)


def test_a_handle_is_only_taken_from_the_bindings_client() -> None:
    """What the handle says of its owner is the proof that it is one."""
    client = confluent_kafka.Producer({"bootstrap.servers": NOBODY}, logger=logging.getLogger("x"))

    handle = library().handle_of(client)

    assert library().quick.rd_kafka_name(handle).decode().startswith("rdkafka#producer")


@pytest.mark.broker
@pytest.mark.parametrize("has_batches", [True, False])
def test_what_was_sent_is_what_is_read(lab_kafka: Running, *, has_batches: bool) -> None:
    """Rows of a matrix and bytes of any length, none among them, with keys and without, over two topics."""
    config = kafka.Config(bootstrap_servers=lab_kafka.bootstrap_servers)
    broker = kafka.KafkaBroker(config, SystemClock(), library() if has_batches else None)
    topics = Topics((f"soak-batch-a-{has_batches}", f"soak-batch-b-{has_batches}"), 3)
    broker.create_topics(topics, 1, {})
    producer = broker.producer(topics)
    matrix = np.arange(5 * 64, dtype=np.uint8).reshape(5, 64)
    matrix[3] = 0
    odd = [b"", b"a", bytes(range(47)), bytes(range(48)), bytes(range(100))]
    where = [0, 4, 4, 1, 5]

    rows = list(matrix[1:4])
    assert producer.send(Outgoing([2] * 3, rows, 0, rows=Rows(matrix, 1))) == 3
    assert producer.send(Outgoing([1, 3, 3], rows, 3, [b"k1", b"key2", b""], Rows(matrix, 1))) == 3
    assert producer.send(Outgoing(where, odd, 6)) == 5
    acks = producer.close(30)
    expected = {
        0: [odd[0]],
        1: [matrix[1].tobytes(), odd[3]],
        2: [row.tobytes() for row in rows],
        3: [row.tobytes() for row in rows[1:]],
        4: odd[1:3],
        5: [odd[4]],
    }
    consumer = broker.consumer(topics, "audit", dict.fromkeys(range(topics.total), EARLIEST))
    clock = SystemClock()
    deadline_ns = clock.mono_ns() + PATIENCE_NS
    found: dict[int, list[tuple[int, bytes]]] = {at: [] for at in range(topics.total)}
    while sum(map(len, found.values())) < 11 and clock.mono_ns() < deadline_ns:
        batch = consumer.receive(100, 0.1)
        for at, offset, head in zip(
            batch.partition.tolist(), batch.offset.tolist(), batch.heads, strict=True
        ):
            found[at].append((offset, bytes(head)[:48].ljust(48, b"\0")))
    consumer.close()

    assert sorted(acks.token.tolist()) == list(range(11))
    assert (acks.offset >= 0).all()
    assert found == {
        at: [(number, whole[:48].ljust(48, b"\0")) for number, whole in enumerate(payloads)]
        for at, payloads in expected.items()
    }
