"""What clusters that are not ours answer about their settings, and to requests to create topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # their stubs
    AdminClient,
    NewTopic,
)
from confluent_kafka.admin._config import ConfigResource, ConfigSource

from soak.brokers.kafka import rights
from soak.brokers.kafka.broker import KafkaBroker, KafkaGuarantees
from soak.brokers.kafka.config import Config
from soak.brokers.kafka.durability import durability_in_cluster
from soak.brokers.kafka.retention import limits_of_cluster, retention_of
from soak.brokers.kafka.topics import ClusterSettings, TopicSettings, create_topics, read_settings
from soak.core.clock import SystemClock
from soak.core.cluster.durability import SettingValue
from soak.core.cluster.forecast import NEVER
from soak.core.errors import SettingError
from soak.core.plan.plan import Topic
from soak.core.units import SECOND_NS
from tests.support.fakes import FakeClock

CONFIG = Config(bootstrap_servers="b1:9093", common={"sasl.username": "soakd"})
ALL = SettingValue("all", "soakd's default")
DEFAULT_SECONDS = 168 * 3600
REFUSED = KafkaError.CLUSTER_AUTHORIZATION_FAILED
OWN, UNKNOWN = ConfigSource.DYNAMIC_TOPIC_CONFIG.value, ConfigSource.UNKNOWN_CONFIG.value
OF_BROKER = ConfigSource.STATIC_BROKER_CONFIG.value


def done(answer: object) -> Future[Any]:
    """Return an answer that has come; a number is the code of an error."""
    future: Future[Any] = Future()
    if isinstance(answer, int):
        future.set_exception(KafkaException(KafkaError(answer)))
    else:
        future.set_result(answer)
    return future


def entries(source: int, **values: str | None) -> dict[str, SimpleNamespace]:
    """Return settings as a client has them; `_` stands for the dots in their names."""
    return {
        name.replace("_", "."): SimpleNamespace(value=value, source=source)
        for name, value in values.items()
    }


class Describing:
    """An admin client with an answer for each topic and broker."""

    def __init__(self, answers: Mapping[str, object]) -> None:
        self._answers = answers

    def describe_configs(
        self, resources: Sequence[ConfigResource], **_: object
    ) -> dict[ConfigResource, Future[Any]]:
        return {
            one: done(self._answers[f"{one.restype.name.lower()} {one.name}"]) for one in resources
        }


def cluster_of(answers: Mapping[str, object]) -> ClusterSettings:
    """Return what is read of a cluster with these brokers, and with topic t of three copies."""
    brokers = [int(name.split()[1]) for name in answers if name.startswith("broker ")]
    partitions = {0: SimpleNamespace(replicas=[1, 2, 3])}
    metadata = SimpleNamespace(
        brokers=dict.fromkeys(brokers), topics={"t": SimpleNamespace(partitions=partitions)}
    )
    names = ["t"] if "topic t" in answers else []
    return read_settings(cast("AdminClient", Describing(answers)), metadata, names, 1.0)


def test_a_broker_that_tells_its_settings_speaks_where_the_first_does_not() -> None:
    """A broker's id may be any number; a setting that is secret has no value."""
    shown = entries(OF_BROKER, log_retention_ms="5000", ssl_key_password=None)
    cluster = cluster_of({"broker 0": REFUSED, f"broker {2**31 - 1}": shown})

    limits = limits_of_cluster(CONFIG, Topic(), cluster)

    assert limits.keep_seconds == 5
    assert not any("no broker reports" in note for note in limits.notes)
    assert cluster.brokers[2**31 - 1] == {"log.retention.ms": "5000"}
    assert cluster.silent["broker 0"].startswith("broker 0 does not report its settings: ")


@pytest.mark.parametrize("answer", [{}, KafkaError.INVALID_REQUEST, KafkaError.UNSUPPORTED_VERSION])
def test_settings_that_a_managed_cluster_does_not_show_are_unknown(answer: object) -> None:
    """An empty answer is no topic without own settings, and no broker with Kafka's defaults."""
    broker = entries(OF_BROKER, min_insync_replicas="2", log_flush_interval_messages="1")
    cluster = cluster_of({"topic t": answer, "broker 1": broker, "broker 2": answer})
    topic = Topic(name="t", use_existing=True, settings={"retention.ms": "1000"})

    found = durability_in_cluster(ALL, topic, cluster)
    limits = limits_of_cluster(CONFIG, topic, cluster)

    assert (found.copies, found.confirmed, found.is_flushed) == (3, None, None)
    assert (limits.copies, limits.keep_seconds) == (3, DEFAULT_SECONDS)
    assert "topic t does not report its settings: " in limits.notes[0]


def test_what_a_topic_tells_is_its_own_where_no_source_is_named() -> None:
    """The brokers, which may have another value, do not override it."""
    topic = entries(UNKNOWN, min_insync_replicas="1")
    broker = entries(OF_BROKER, min_insync_replicas="3")

    cluster = cluster_of({"topic t": topic, "broker 1": broker})

    assert cluster.topics[0].own == {"min.insync.replicas": "1"}


def test_defaults_are_assumed_only_where_a_topic_tells_nothing() -> None:
    """Its own retention is known, although no broker may be read."""
    cluster = cluster_of({"topic t": entries(OWN, retention_ms="7000"), "broker 1": REFUSED})

    limits = limits_of_cluster(CONFIG, Topic(name="t", use_existing=True), cluster)

    assert limits.keep_seconds == 7
    assert "assumes Kafka's defaults where the topic reports none, " in limits.notes[0]
    assert limits.max_message_bytes == NEVER, "a managed cluster may take more than Kafka does"


@pytest.mark.parametrize(
    ("broker", "topic", "is_shared"),
    [
        ({"elasticstream.enable": "true"}, {}, True),
        ({"elasticstream.enable": "false"}, {}, False),
        ({}, {"diskless.enable": "true"}, True),
        ({"diskless.enable": "true"}, {"diskless.enable": "false"}, False),
    ],
)
def test_copies_say_nothing_where_messages_are_in_object_storage(
    broker: dict[str, str], topic: dict[str, str], *, is_shared: bool
) -> None:
    """One copy there is not one on the drive of a single broker, and fills none."""
    brokers = {1: {"min.insync.replicas": "1", "log.flush.interval.messages": "9", **broker}}
    cluster = ClusterSettings((TopicSettings("t", 1, topic, topic),), brokers, {})

    found = durability_in_cluster(ALL, Topic(name="t"), cluster)
    limits = retention_of(topic, broker)

    assert (found.lowest, found.highest) == ((1, 4) if is_shared else (1, 1))
    assert (limits.local_bytes == 0) == is_shared


class Creating:
    """An admin client that answers each request to create a topic by the next of its answers."""

    def __init__(self, answers: Mapping[str, Sequence[object]]) -> None:
        self.answers = {name: list(each) for name, each in answers.items()}

    def create_topics(self, new: Sequence[NewTopic], **_: object) -> dict[str, Future[Any]]:
        found = {}
        for one in new:
            waiting = self.answers[one.topic]
            found[one.topic] = done(waiting.pop(0) if len(waiting) > 1 else waiting[0])
        return found


def created(clock: FakeClock, **answers: Sequence[object]) -> dict[str, int]:
    """Return the codes of the errors that are left once topics with these answers were created."""
    admin = cast("AdminClient", Creating(answers))
    refused = create_topics(admin, [NewTopic(name, 1, 1) for name in answers], 1.0, clock)
    return {name: error.args[0].code() for name, error in refused.items()}


def test_topics_above_the_quota_of_a_cluster_are_requested_again() -> None:
    """KIP-599; each of the others is requested once."""
    clock, quota = FakeClock(), KafkaError.THROTTLING_QUOTA_EXCEEDED

    left = created(clock, a=[None, REFUSED], b=[quota, quota, None], c=[REFUSED, None])

    assert left == {"c": REFUSED}
    assert clock.mono_ns() == 2 * SECOND_NS


def test_a_quota_that_stays_exceeded_is_an_error_after_a_minute() -> None:
    clock, quota = FakeClock(), KafkaError.THROTTLING_QUOTA_EXCEEDED

    assert created(clock, a=[quota]) == {"a": quota}
    assert clock.mono_ns() == 60 * SECOND_NS


@pytest.mark.parametrize(
    ("answer", "would_create"),
    [
        (None, True),
        (KafkaError.TOPIC_ALREADY_EXISTS, True),
        (KafkaError.INVALID_REPLICATION_FACTOR, False),
        (REFUSED, False),
    ],
)
def test_the_cluster_says_whether_it_would_create_a_topic(
    answer: object, *, would_create: bool
) -> None:
    """One behind a proxy lists one broker, and one with a broker that is down fewer than it has."""
    admin = cast("AdminClient", Creating({"t": [answer]}))

    assert rights.would_create(admin, NewTopic("t", 1, 3), 1.0) is would_create


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._TIMED_OUT,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
    ],
)
def test_a_cluster_that_is_busy_does_not_refuse_a_topic(code: int) -> None:
    admin = cast("AdminClient", Creating({"t": [code]}))

    assert rights.creation_error(admin, NewTopic("t", 1, 1), CONFIG, 1.0, 1) == ""


def test_a_rule_of_the_cluster_is_a_fault_in_its_own_words() -> None:
    """Such as of a managed one, which fixes the number of copies."""
    error = KafkaError(KafkaError.POLICY_VIOLATION, "Topic replication factor must be 3")
    failed: Future[Any] = Future()
    failed.set_exception(KafkaException(error))
    admin = SimpleNamespace(create_topics=lambda *_, **__: {"t": failed})

    found = rights.creation_error(cast("AdminClient", admin), NewTopic("t", 1, 1), CONFIG, 1.0, 1)

    assert found == "cannot create topic t: Topic replication factor must be 3"


def test_the_grant_for_a_run_without_a_name_covers_any_run() -> None:
    """Also where it has several topics: the next run has other names."""
    admin = cast("AdminClient", Creating({"soak-check-0": [REFUSED]}))

    found = rights.creation_error(admin, NewTopic("soak-check-0", 1, 1), CONFIG, 1.0, 1)

    assert "--topic soak- --resource-pattern-type prefixed" in found


def test_a_topic_that_is_listed_without_partitions_has_an_unknown_number_of_copies() -> None:
    """As in the answer of a broker that has just learnt of it: no copies would be the lowest level."""
    brokers = {1: {"min.insync.replicas": "2", "log.flush.interval.messages": "1"}}
    cluster = ClusterSettings((TopicSettings("t", 0, {}, {}),), brokers, {})

    found = durability_in_cluster(ALL, Topic(name="t"), cluster)

    assert (found.copies, found.lowest, found.highest) == (None, 2, 4)


@pytest.mark.parametrize(("would_create", "expected"), [(True, ""), (False, "has 1 broker: ")])
def test_copies_are_compared_with_brokers_unless_the_cluster_would_create_them(
    expected: str, *, would_create: bool
) -> None:
    """With a mock cluster of librdkafka, which has one broker."""
    config = Config(bootstrap_servers="127.0.0.1:1", common={"test.mock.num.brokers": "1"})
    broker = KafkaBroker(
        config, SystemClock(), KafkaGuarantees(config), would_create=lambda *_: would_create
    )

    found = broker.replication_error(Topic(replication=3))

    assert expected in found
    assert bool(expected) == bool(found)


def test_whether_the_cluster_has_so_many_copies_is_asked_without_what_it_would_refuse() -> None:
    """A wrong setting or name says nothing about them."""
    config = Config(bootstrap_servers="127.0.0.1:1", common={"test.mock.num.brokers": "1"})
    asked: list[NewTopic] = []

    def would_create(_admin: object, new: NewTopic, _seconds: float) -> bool:
        asked.append(new)
        return True

    broker = KafkaBroker(config, SystemClock(), KafkaGuarantees(config), would_create=would_create)
    wrong = Topic(name="a b", replication=3, settings={"retention.ms": "7d"})

    assert broker.replication_error(wrong) == ""
    assert [(new.topic, new.replication_factor, new.config) for new in asked] == [
        ("soak-check", 3, {})
    ]


def test_every_wrong_setting_is_named_and_what_the_client_refuses() -> None:
    """The client tries the sections that have no fault otherwise."""
    config = Config(
        common={"sasl.password": "x", "log_levl": "3"},
        producer={"acks": "7", "transactional.id": "t"},
    )
    of_consumer = Config(producer={"lingr.ms": "5"}, consumer={"fetch.wait.max.ms": "soon"})

    def wrong(config: Config) -> list[tuple[str, ...]]:
        broker = KafkaBroker(config, SystemClock(), KafkaGuarantees(config))
        with pytest.raises(SettingError) as caught:
            broker.check_settings()
        return [one.place for one in (caught.value, *caught.value.others)]

    assert wrong(config) == [
        ("common", "sasl.password"),
        ("common", "log_levl"),
        ("producer", "acks"),
        ("producer", "transactional.id"),
    ]
    assert wrong(of_consumer) == [("producer", "lingr.ms"), ()]


def test_brokers_are_connected_to_at_the_addresses_that_the_cluster_names() -> None:
    """Those of a mock cluster of librdkafka take connections: that is no fault, and no warning."""
    settings = {"bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": "2", "log_level": "0"}
    holder = confluent_kafka.Producer(settings)
    node = next(iter(holder.list_topics(timeout=30).brokers.values()))
    config = Config(bootstrap_servers=f"{node.host}:{node.port}")
    broker = KafkaBroker(config, SystemClock(), KafkaGuarantees(config))

    broker.check()

    assert broker.cluster_warnings() == []
