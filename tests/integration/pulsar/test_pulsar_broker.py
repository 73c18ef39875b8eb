"""The Pulsar broker port against a real Pulsar."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from soak.brokers import pulsar
from soak.brokers.pulsar.broker import broker_address, lookup_path
from soak.brokers.pulsar.consumer import PulsarConsumer
from soak.brokers.pulsar.partition_log import INDEX_BITS
from soak.clients.pulsar_admin import Admin, topic_path
from soak.core.clock import SystemClock
from soak.core.errors import BrokerError
from soak.core.ports import EARLIEST, LATEST, UNKNOWN_OFFSET, Acks, Outgoing, Topics
from soak.core.units import SECOND_NS
from soak.lab.brokers.pulsar import Pulsar
from soak.lab.jars.pulsar_lock import VERSION

pytestmark = pytest.mark.broker
COUNT = 1009  # a prime
PARTITIONS = 2


def connected(lab: Pulsar, **settings: Any) -> pulsar.PulsarBroker:
    return pulsar.connect(pulsar.Config(**{**lab.addresses, **settings}), SystemClock())


@pytest.fixture
def broker(lab_pulsar: Pulsar) -> pulsar.PulsarBroker:
    return connected(lab_pulsar)


@pytest.fixture
def admin(lab_pulsar: Pulsar) -> Admin:
    settings: dict[str, Any] = dict(lab_pulsar.addresses)
    return pulsar.Config(**settings).admin()


@pytest.fixture
def topics(broker: pulsar.PulsarBroker) -> Topics:
    made = Topics((f"soak-test-{secrets.token_hex(4)}",), PARTITIONS)
    broker.create_topics(made, 1, {})
    return made


def send(broker: pulsar.PulsarBroker, topics: Topics, first: int, count: int) -> Acks:
    """Send messages that hold their own number, to the partitions in turn."""
    numbers = range(first, first + count)
    producer = broker.producer(topics)
    payloads = [number.to_bytes(64, "little") for number in numbers]
    outgoing = Outgoing([number % topics.total for number in numbers], payloads, first)
    assert producer.send(outgoing) == count
    return producer.close(30)


def read(
    consumer: PulsarConsumer, is_enough: Callable[[int], bool]
) -> tuple[list[int], list[int], list[int]]:
    """Return numbers, partitions and offsets received until there are enough, or half a minute is over."""
    numbers: list[int] = []
    partitions: list[int] = []
    offsets: list[int] = []
    clock = SystemClock()
    deadline_ns = clock.mono_ns() + 30 * SECOND_NS
    while not is_enough(len(numbers)) and clock.mono_ns() < deadline_ns:
        batch = consumer.receive(4000, 0.05)
        numbers += [int.from_bytes(head, "little") for head in batch.heads]
        partitions += batch.partition.tolist()
        offsets += batch.offset.tolist()
    return numbers, partitions, offsets


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
def test_sent_messages_are_acknowledged_and_received_in_order(
    lab_pulsar: Pulsar, topics: Topics, kind: str
) -> None:
    """Offsets rise in each partition, and are those that were acknowledged."""
    broker = connected(lab_pulsar, consumer={"consumer_type": kind})
    acks = send(broker, topics, 0, COUNT)
    consumer = broker.consumer(topics, "audit-0", dict.fromkeys(range(PARTITIONS), EARLIEST))
    numbers, partitions, offsets = read(consumer, lambda count: count >= COUNT)
    bounds = consumer.log_bounds(range(PARTITIONS))
    consumer.close()

    assert sorted(acks.token.tolist()) == sorted(numbers) == list(range(COUNT))
    known = dict(zip(acks.token.tolist(), acks.offset.tolist(), strict=True))
    assert [known[number] for number in numbers] == offsets
    for at in range(PARTITIONS):
        mine = [offset for offset, where in zip(offsets, partitions, strict=True) if where == at]
        assert (np.diff(mine) > 0).all()
        assert bounds[at][0] <= mine[0]
        assert mine[-1] < bounds[at][1]


def test_reading_goes_on_from_the_positions_given(
    broker: pulsar.PulsarBroker, topics: Topics
) -> None:
    """In the middle of a batch, too: messages below a position are not received again."""
    acks = send(broker, topics, 0, COUNT)
    by_partition = [np.sort(acks.offset[acks.token % PARTITIONS == at]) for at in range(PARTITIONS)]
    positions = {at: int(mine[100]) + 1 for at, mine in enumerate(by_partition)}

    consumer = broker.consumer(topics, "audit-0", positions)
    expected = COUNT - 101 * PARTITIONS
    numbers, _, offsets = read(consumer, lambda count: count >= expected)
    consumer.close()

    assert len(numbers) == expected
    assert sorted(offsets) == sorted(int(one) for mine in by_partition for one in mine[101:])


def test_a_subscription_is_set_back_to_a_position_below_what_it_has_read(
    broker: pulsar.PulsarBroker, topics: Topics
) -> None:
    """The position comes from the journal, which may lag behind the cluster's after a daemon died."""
    acks = send(broker, topics, 0, COUNT)
    first = broker.consumer(topics, "audit-0", dict.fromkeys(range(PARTITIONS), EARLIEST))
    read(first, lambda count: count >= COUNT)
    for _ in range(3):  # messages are acknowledged two seconds later
        first.receive(1, 1.1)
    first.close()
    lowest = {at: int(acks.offset[acks.token % PARTITIONS == at].min()) for at in range(PARTITIONS)}

    again = broker.consumer(topics, "audit-0", lowest)
    numbers, _, _ = read(again, lambda count: count >= COUNT)
    again.close()

    assert sorted(numbers) == list(range(COUNT))


def test_a_new_or_deleted_subscription_starts_at_the_positions_given(
    broker: pulsar.PulsarBroker, topics: Topics
) -> None:
    """At a message in one partition, behind the last entry in the other."""
    acks = send(broker, topics, 0, 10)
    offset = dict(zip(acks.token.tolist(), acks.offset.tolist(), strict=True))
    end = (offset[9] >> INDEX_BITS) + 1 << INDEX_BITS
    consumer = broker.consumer(topics, "audit-0", {0: offset[4], 1: end})
    send(broker, topics, 10, 2)
    numbers, _, _ = read(consumer, lambda count: count >= 5)
    consumer.close_for_good()

    assert sorted(numbers) == [4, 6, 8, 10, 11]
    assert consumer.redelivered_total <= 2  # those before it in the entry that holds the message


def test_a_consumer_keeps_its_subscription_until_it_closes_for_good(
    broker: pulsar.PulsarBroker, admin: Admin, topics: Topics
) -> None:
    """Without it a broker deletes messages that the next consumer needs."""
    begin = dict.fromkeys(range(PARTITIONS), EARLIEST)
    path = topic_path(f"persistent://public/default/{topics.names[0]}-partition-0")

    broker.consumer(topics, "audit-0", begin).close()
    left = admin.get(f"{path}/subscriptions")
    broker.consumer(topics, "audit-0", begin).close_for_good()

    assert left == ["audit-0"]
    assert admin.get(f"{path}/subscriptions") == []


def test_a_paused_consumer_lags_and_catches_up(broker: pulsar.PulsarBroker, topics: Topics) -> None:
    """It receives nothing while it is paused; the lag counts unread messages, and is 0 at the end."""
    consumer = broker.consumer(topics, "audit-0", dict.fromkeys(range(PARTITIONS), EARLIEST))
    consumer.pause(is_paused=True)
    acks = send(broker, topics, 0, COUNT)
    begin = dict.fromkeys(range(PARTITIONS), EARLIEST)
    paused = consumer.receive(4000, 3.0)  # the watcher polls meanwhile
    waiting = consumer.lag(begin)
    consumer.pause(is_paused=False)
    read(consumer, lambda count: count >= COUNT)
    end = {
        at: int(acks.offset[acks.token % PARTITIONS == at].max()) + 1 for at in range(PARTITIONS)
    }
    left = consumer.lag(end)
    consumer.close()

    assert len(paused.heads) == 0
    assert waiting is not None
    assert waiting > 0
    assert left == 0


def test_a_consumer_from_the_latest_offset_skips_existing_messages(
    broker: pulsar.PulsarBroker, topics: Topics
) -> None:
    """A topic that existed before the run may hold other messages."""
    send(broker, topics, 0, 10)
    consumer = broker.consumer(topics, "audit-0", dict.fromkeys(range(PARTITIONS), LATEST))
    send(broker, topics, 10, 10)
    numbers, _, _ = read(consumer, lambda count: count >= 10)
    consumer.close()

    assert sorted(numbers) == list(range(10, 20))


def test_a_duplicate_dropped_by_the_broker_is_acknowledged_without_an_offset(
    lab_pulsar: Pulsar,
) -> None:
    """With deduplication the message id of a known sequence number is (-1,-1,-1,-1)."""
    named = {"producer_name": "once", "batching_enabled": "false"}
    broker = connected(lab_pulsar, producer=named)
    topics = Topics((f"soak-test-{secrets.token_hex(4)}",), 1)
    broker.create_topics(topics, 1, {"deduplicationEnabled": "true"})
    send(broker, topics, 0, 7)  # sequence numbers 0 to 6
    again = connected(lab_pulsar, producer={**named, "initial_sequence_id": "1"})

    acks = send(again, topics, 0, 6)  # 2 to 7

    assert (acks.offset == UNKNOWN_OFFSET).tolist() == [True] * 5 + [False]


def test_a_subscription_of_another_consumer_is_refused(
    lab_pulsar: Pulsar, broker: pulsar.PulsarBroker, topics: Topics
) -> None:
    """After the time that the connection of a killed consumer may take to close."""
    begin = dict.fromkeys(range(PARTITIONS), EARLIEST)
    first = broker.consumer(topics, "audit-0", begin)

    with pytest.raises(BrokerError, match="another consumer has 'audit-0'"):
        connected(lab_pulsar, timeout=SECOND_NS).consumer(topics, "audit-0", begin)
    first.close()


def test_several_topics_are_numbered_through(broker: pulsar.PulsarBroker) -> None:
    """Two topics of three partitions have six indices."""
    name = f"soak-test-{secrets.token_hex(4)}"
    topics = Topics((f"{name}-0", f"{name}-1"), 3)
    broker.create_topics(topics, 1, {})
    send(broker, topics, 0, COUNT)
    consumer = broker.consumer(topics, "audit-0", dict.fromkeys(range(6), EARLIEST))
    numbers, partitions, _ = read(consumer, lambda count: count >= COUNT)
    consumer.close()

    assert [number % 6 for number in numbers] == partitions
    assert len(numbers) == COUNT


def test_a_leader_is_known_by_its_address(
    lab_pulsar: Pulsar, broker: pulsar.PulsarBroker, admin: Admin, topics: Topics
) -> None:
    """It is the same in the list of brokers and in a lookup."""
    address = lab_pulsar.admin_url.partition("://")[2]

    named = {broker.leader_name(number) for number in broker.leaders(topics).tolist()}
    partition = f"persistent://public/default/{topics.names[0]}-partition-0"
    looked_up = broker_address(partition, admin.get(lookup_path(partition)))

    assert named == {address}
    assert looked_up == address


def test_existing_topics_are_known(broker: pulsar.PulsarBroker, topics: Topics) -> None:
    """The request creates none."""
    (name,) = topics.names

    for _ in range(2):
        assert broker.existing([name, f"{name}-not"]) == [name]
    with pytest.raises(BrokerError, match="exists already"):
        broker.create_topics(topics, 1, {})


def test_a_check_reaches_both_addresses(lab_pulsar: Pulsar, broker: pulsar.PulsarBroker) -> None:
    """The error names a wrong one."""
    broker.check()

    nowhere = connected(lab_pulsar, service_url="pulsar://127.0.0.1:1", timeout=SECOND_NS)
    with pytest.raises(BrokerError, match=r"no Pulsar broker answered at pulsar://127\.0\.0\.1:1"):
        nowhere.check()
    nowhere = connected(lab_pulsar, admin_url="http://127.0.0.1:1")
    with pytest.raises(BrokerError, match="the Pulsar admin interface at"):
        nowhere.check()


def test_a_broker_says_which_release_of_pulsar_it_is(broker: pulsar.PulsarBroker) -> None:
    assert list(broker.broker_versions().values()) == [VERSION]
