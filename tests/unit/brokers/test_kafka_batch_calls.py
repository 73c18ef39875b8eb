"""Batched calls and the public API of the client behave the same, and the fallback is chosen safely."""

from __future__ import annotations

import ctypes
import logging
import subprocess
import sys
from pathlib import Path

import confluent_kafka
import numpy as np
import pytest

from soak.brokers import kafka
from soak.brokers.kafka.batch_calls import (
    check_versions,
    copy_structs,
    installed_versions,
    load_library,
)
from soak.brokers.kafka.consumer import BatchFetch
from soak.brokers.kafka.producer import BatchProducer, KafkaProducer
from soak.clients.kafka_log import ClientLog
from soak.clients.kafka_throttle import ThrottleTimes
from soak.core.clock import SystemClock
from soak.core.errors import BrokerError, NotAvailableError
from soak.core.ports import EARLIEST, FAILED_OFFSET, Outgoing, Rows, Topics
from tests.support.paths import ROOT

NOBODY = "127.0.0.1:1"
LIMIT_NS = 30 * 10**9


def unreachable(*, has_batches: bool, **settings: str) -> kafka.KafkaBroker:
    names = {name.replace("_", "."): value for name, value in settings.items()}
    config = kafka.Config(bootstrap_servers=NOBODY, producer=names)
    library = load_library() if has_batches else None
    return kafka.KafkaBroker(config, SystemClock(), kafka.KafkaGuarantees(config), library)


def test_the_installed_versions_pass_the_self_test() -> None:
    check_versions(*installed_versions())
    broker = kafka.connect(kafka.Config(bootstrap_servers=NOBODY), SystemClock())

    assert load_library() is load_library()
    assert broker.client_facts()["batched_calls"] == "used"
    assert broker.client_facts()["confluent-kafka"] == installed_versions()[0]


@pytest.mark.parametrize("versions", [("99.0.0", "2.16.0"), ("2.16.1", "99.0.0"), ("", "")])
def test_an_unknown_version_is_refused_by_its_name(versions: tuple[str, str]) -> None:
    with pytest.raises(NotAvailableError, match="is not a verified version") as error:
        check_versions(*versions)

    assert f"confluent-kafka {versions[0]} with librdkafka {versions[1]}" in str(error.value)


@pytest.mark.long
def test_an_unknown_version_falls_back_without_reading_memory(tmp_path: Path) -> None:
    """In a process where the client has another version, and any use of ctypes would end it."""
    script = tmp_path / "unknown.py"
    script.write_text(
        "import confluent_kafka, ctypes\n"
        "confluent_kafka.__version__ = '99.0.0'\n"
        "ctypes.PyDLL = ctypes.CDLL = None\n"
        "from soak.brokers import kafka\n"
        "from soak.core.clock import SystemClock\n"
        "from soak.core.ports import Topics\n"
        f"config = kafka.Config(bootstrap_servers='{NOBODY}')\n"
        "for _ in range(2): broker = kafka.connect(config, SystemClock())\n"
        "producer = broker.producer(Topics(('t',), 1))\n"
        "producer.close(0.0)\n"
        "print(type(producer).__name__, broker.client_facts()['batched_calls'])\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, cwd=ROOT
    )

    assert done.stdout.strip() == (
        "KafkaProducer not used: confluent-kafka 99.0.0 with librdkafka "
        f"{installed_versions()[1]} is not a verified version"
    )
    assert done.stderr.count("batched_calls_not_used") == 1


def test_structures_are_copied_from_their_addresses_in_order() -> None:
    """Addresses are unaligned, and one is repeated."""
    memory = ctypes.create_string_buffer(bytes(range(251)) * 9)
    begin = ctypes.addressof(memory)
    at = [1009, 3, 770, 3]

    found = copy_structs(
        np.array([begin + one for one in at], dtype=np.uint64), np.dtype((np.void, 7))
    )

    assert [bytes(one) for one in found] == [memory.raw[one : one + 7] for one in at]


@pytest.mark.parametrize("has_batches", [True, False])
def test_a_full_queue_takes_the_first_and_refuses_the_rest(*, has_batches: bool) -> None:
    """Ten messages fit; those taken fail when the client is closed, each once."""
    broker = unreachable(has_batches=has_batches, queue_buffering_max_messages="10")
    producer = broker.producer(Topics(("t",), 2))

    taken = producer.send(Outgoing([1] * 23, [b"x"] * 23, 100))
    acks = producer.close(0.0)

    assert isinstance(producer, BatchProducer if has_batches else KafkaProducer)
    assert taken == 10
    assert sorted(acks.token.tolist()) == list(range(100, 110))
    assert set(acks.offset.tolist()) == {FAILED_OFFSET}


@pytest.mark.parametrize("is_matrix", [True, False])
def test_acknowledged_messages_make_room_before_their_reports_are_taken(*, is_matrix: bool) -> None:
    """The queue holds ten messages; all of a hundred go out, to a mock cluster of librdkafka."""
    settings = {
        "bootstrap.servers": NOBODY,
        "test.mock.num.brokers": "1",
        "queue.buffering.max.messages": "10",
    }
    clock, log = SystemClock(), logging.getLogger("mock")
    client = confluent_kafka.Producer(settings, logger=log)
    producer = BatchProducer(
        load_library(),
        client,
        Topics(("t",), 1),
        clock,
        ClientLog(log, clock),
        ThrottleTimes(clock),
    )
    body = np.zeros((100, 32), dtype=np.uint8)
    sent, deadline_ns = 0, clock.mono_ns() + LIMIT_NS
    while sent < 100 and clock.mono_ns() < deadline_ns:
        left = min(15, 100 - sent)  # more than there is room for
        rows = Rows(body, sent) if is_matrix else None
        payload = list(body[sent : sent + left]) if is_matrix else [b"x" * 32] * left
        sent += producer.send(Outgoing([0] * left, payload, sent, rows=rows))
    acks = producer.close(LIMIT_NS / 1e9)

    assert sent == 100
    assert sorted(acks.token.tolist()) == list(range(100))
    assert FAILED_OFFSET not in acks.offset.tolist()


def test_an_error_of_a_partition_is_noted_and_the_others_are_read() -> None:
    """Partition 9 does not exist; the binding's own callback would end the process.

    The client reports it by its callback, or in a message's place, as it happens to come.
    """
    settings = {"bootstrap.servers": NOBODY, "test.mock.num.brokers": "1", "log_level": "0"}
    producer = confluent_kafka.Producer(settings)
    producer.produce("t", b"x" * 64, partition=0)
    producer.flush(LIMIT_NS / 1e9)
    (server,) = producer.list_topics(timeout=LIMIT_NS / 1e9).brokers.values()
    group = {"group.id": "g", "log_level": "0", "bootstrap.servers": f"{server.host}:{server.port}"}
    client = confluent_kafka.Consumer(group)
    clock = SystemClock()
    noted: list[confluent_kafka.KafkaError] = []
    fetch = BatchFetch(load_library(), client, Topics(("t",), 16), [0, 9], clock, noted.append)
    client.assign([confluent_kafka.TopicPartition("t", at, 0) for at in (0, 9)])
    partitions: list[str] = []
    read, deadline_ns = 0, clock.mono_ns() + LIMIT_NS
    while not (read and noted) and clock.mono_ns() < deadline_ns:
        fetched = fetch.take(100, 0.1)
        read += fetched.partition.size
        noted += [one.error for one in fetched.errors]
        partitions += [one.partition for one in fetched.errors]
    fetch.close()
    client.close()

    assert read == 1
    assert {error.name() for error in noted} == {"_UNKNOWN_PARTITION"}
    assert partitions == ["t-9"] or "t [9]" in noted[0].str()


@pytest.mark.parametrize("has_batches", [True, False])
def test_a_message_that_the_client_refuses_for_good_is_an_error(*, has_batches: bool) -> None:
    broker = unreachable(has_batches=has_batches, message_max_bytes="1000")
    producer = broker.producer(Topics(("t",), 1))

    with pytest.raises(BrokerError, match=r"the client refuses to send: .*too large"):
        producer.send(Outgoing([0], [b"x" * 2000], 0))
    producer.close(0.0)


def test_a_producer_that_may_not_be_idempotent_is_told_what_to_do() -> None:
    """A cluster before Kafka 2.8 wants a right of its own for it; librdkafka can be made to fail so."""
    clock, log = SystemClock(), logging.getLogger("mock")
    settings = {"bootstrap.servers": NOBODY, "enable.idempotence": "true"}
    client = confluent_kafka.Producer(settings, logger=log)
    library, topics = load_library(), Topics(("t",), 1)
    producer = BatchProducer(
        library, client, topics, clock, ClientLog(log, clock), ThrottleTimes(clock)
    )
    fail = library.long.rd_kafka_test_fatal_error
    fail.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
    fail(library.handle_of(client), confluent_kafka.KafkaError.CLUSTER_AUTHORIZATION_FAILED, b"no")

    with pytest.raises(BrokerError, match=r"authorization failed; grant IdempotentWrite on the"):
        producer.send(Outgoing([0], [b"x"], 0))
    producer.close(0.0)


@pytest.mark.parametrize("has_batches", [True, False])
def test_log_lines_of_the_client_are_logged(
    caplog: pytest.LogCaptureFixture, *, has_batches: bool
) -> None:
    """No broker answers: a producer and a consumer log it in the same form."""
    caplog.set_level(logging.ERROR)
    clock, topics = SystemClock(), Topics(("t",), 1)
    # each with a log of its own, which skips repeated lines
    producer = unreachable(has_batches=has_batches).producer(topics)
    consumer = unreachable(has_batches=has_batches).consumer(topics, "audit", {0: EARLIEST})
    waited_for = ["FAIL [soakd#producer", "FAIL [soakd#consumer"]
    deadline_ns = clock.mono_ns() + LIMIT_NS
    while clock.mono_ns() < deadline_ns and not all(one in caplog.text for one in waited_for):
        producer.serve()
        consumer.receive(10, 0.01)
    producer.close(0.0)
    consumer.close()

    assert [one for one in waited_for if one in caplog.text] == waited_for


@pytest.mark.parametrize("has_batches", [True, False])
def test_a_refused_connection_is_an_error_of_a_batch(*, has_batches: bool) -> None:
    """The client reports it to a callback, which it calls from within `receive`."""
    clock = SystemClock()
    consumer = unreachable(has_batches=has_batches).consumer(
        Topics(("t",), 1), "audit", {0: EARLIEST}
    )
    deadline_ns = clock.mono_ns() + LIMIT_NS
    found: set[tuple[str, str]] = set()
    while clock.mono_ns() < deadline_ns and (NOBODY, "_TRANSPORT") not in found:
        found |= {(error.broker, error.code) for error in consumer.receive(10, 0.01).errors}
    consumer.close()

    assert (NOBODY, "_TRANSPORT") in found


def test_a_producer_that_refreshes_tokens_uses_the_public_api() -> None:
    """A callback of the binding refreshes them, which events would replace."""
    common = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    config = kafka.Config(bootstrap_servers=NOBODY, common=common)
    broker = kafka.connect(config, SystemClock())

    producer = broker.producer(Topics(("t",), 1))
    producer.close(0.0)

    assert isinstance(producer, KafkaProducer)
    assert broker.client_facts()["batched_calls"].startswith("not used: tokens of OAUTHBEARER")
