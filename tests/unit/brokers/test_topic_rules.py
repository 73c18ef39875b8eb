"""Checks of topics before any request to a cluster."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest

from soak.brokers import kafka, pulsar, redpanda
from soak.brokers.kafka.topics import partition_warnings
from soak.core.clock import SystemClock
from soak.core.errors import SettingError
from soak.core.plan.plan import Topic
from tests.support.pages import pages


@pytest.mark.parametrize(
    "settings",
    [
        {
            "retention.ms": "-1",
            "cleanup.policy": "compact,delete",
            "min.cleanable.dirty.ratio": ".5",
        },
        {"redpanda.iceberg.mode": "disabled", "write.caching": "true"},
        {"confluent.tier.enable": "true", "message.downconversion.enable": "false"},
    ],
)
def test_settings_of_any_vendor_are_accepted(settings: dict[str, str]) -> None:
    """The cluster checks values, and settings with the prefix of a vendor."""
    kafka.check_topic(Topic(settings=settings))
    redpanda.check_topic(Topic(settings=settings))


@pytest.mark.parametrize("broker", [kafka, redpanda])
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("retension.ms", "; did you mean 'retention.ms'?"),
        ("errors.deadletterqueue.topic.name", ""),  # of a newer cluster
        ("diskless.enable", ""),  # of a vendor
    ],
)
def test_a_setting_that_is_not_known_here_is_a_warning(
    broker: ModuleType, name: str, hint: str
) -> None:
    """Only the cluster knows all of its settings, and may refuse it."""
    topic = Topic(settings={name: "x", "retention.ms": "5", "redpanda.new": "y"})
    broker.check_topic(topic)

    (warning,) = broker.topic_warnings(topic)

    assert warning.startswith(f"topic.settings.{name} is no setting known here{hint}")


@pytest.mark.parametrize(
    "settings", [{"retention.ms": ""}, {"segment.bytes": "1MiB"}, {"retention.bytes": "none"}]
)
def test_a_value_that_is_no_number_is_refused(settings: dict[str, str]) -> None:
    """An empty one, too: the cluster would not create the topic."""
    with pytest.raises(SettingError, match="must be a whole number"):
        kafka.check_topic(Topic(settings=settings))


@pytest.mark.parametrize(
    ("broker", "settings"),
    [
        (kafka, {"retention.ms": "7d", "cleanup.policy": "delete", "segment.bytes": "1MiB"}),
        (pulsar, {"bookkeeperEnsemble": "three", "messageTTL": "60", "maxProducers": "3"}),
    ],
)
def test_every_fault_of_a_topic_is_named(broker: ModuleType, settings: dict[str, str]) -> None:
    """Its name once, however many topics there are."""
    with pytest.raises(SettingError) as caught:
        broker.check_topic(Topic(name="a b", count=3, settings=settings))

    first, _, last = settings
    places = [one.place for one in (caught.value, *caught.value.others)]
    assert places == [("name",), ("settings", first), ("settings", last)]


def test_a_policy_that_soakd_cannot_set_is_refused_with_what_to_do() -> None:
    """Pulsar may have it, below a path of its own."""
    with pytest.raises(SettingError, match=r"known: .*messageTTL.*; set others on the namespace"):
        pulsar.check_topic(Topic(settings={"maxProducers": "3"}))


@pytest.mark.parametrize("name", ["", "a.b_c-D9", "a" * 249, "..a"])
def test_a_name_valid_in_kafka_is_accepted(name: str) -> None:
    kafka.check_topic(Topic(name=name))


@pytest.mark.parametrize("name", [".", "..", "a" * 250, "a/b", "a b", "é"])
def test_a_name_invalid_in_kafka_is_refused(name: str) -> None:
    with pytest.raises(SettingError, match="at most 249 letters"):
        kafka.check_topic(Topic(name=name))


@pytest.mark.parametrize("name", ["", "orders", "ordersé", "persistent://t/n/orders"])
def test_a_name_valid_in_pulsar_is_accepted(name: str) -> None:
    pulsar.check_topic(Topic(name=name))


@pytest.mark.parametrize(
    "name", ["a/b", "a b", "t/n/a", "non-persistent://t/n/a", "persistent://t/a", "a-partition-0"]
)
def test_a_name_with_another_meaning_in_pulsar_is_refused(name: str) -> None:
    with pytest.raises(SettingError) as error:
        pulsar.check_topic(Topic(name=name))

    assert error.value.place == ("name",)


def topic_of(*partitions: tuple[int, list[int], list[int]]) -> SimpleNamespace:
    """Return a topic of metadata: of each partition the leader, the replicas and those in sync."""
    return SimpleNamespace(
        partitions={
            number: SimpleNamespace(leader=leader, replicas=replicas, isrs=isrs)
            for number, (leader, replicas, isrs) in enumerate(partitions)
        }
    )


def test_partitions_without_a_leader_and_copies_out_of_sync_are_warnings() -> None:
    """Of all topics, with their names."""
    healthy = (1, [1, 2], [1, 2])
    topics = {
        "a": topic_of(healthy, (-1, [2], [])),
        "b": topic_of((1, [1, 2], [1]), healthy),
        "c": topic_of(*[(-1, [2], [])] * 6),
    }

    leaderless, behind = partition_warnings(topics)

    assert leaderless.startswith("a-1, c-0, c-1, c-2, c-3 and 2 more have no leader: ")
    assert behind.startswith("b-0 has fewer copies in sync than replicas: ")


def test_a_healthy_cluster_has_no_warnings() -> None:
    """Nor one without topics."""
    assert partition_warnings({"a": topic_of((1, [1, 2], [2, 1]))}) == []
    assert partition_warnings({}) == []


@pytest.mark.parametrize(
    ("replication", "settings", "expected"),
    [
        (1, {}, ""),
        (3, {}, "the cluster has 1 bookie: set it to at most 1"),
        (3, {"bookkeeperEnsemble": "1"}, ""),
        (1, {"bookkeeperEnsemble": "2"}, ": set topic.settings.bookkeeperEnsemble to at most 1"),
        (3, {"bookkeeperEnsemble": "three"}, ""),  # a fault of its own
    ],
)
def test_pulsar_needs_as_many_bookies_as_the_ensemble(
    replication: int, settings: dict[str, str], expected: str
) -> None:
    """Three copies on one bookie cannot be written."""
    with pages({"/admin/v2/bookies/all": '{"bookies": [{"bookieId": "b:3181"}]}'}) as url:
        config = pulsar.Config(service_url="pulsar://127.0.0.1:1", admin_url=url)
        broker = pulsar.connect(config, SystemClock())
        why = broker.replication_error(Topic(replication=replication, settings=settings))

    assert expected in why
    assert bool(expected) == bool(why)


def test_a_cluster_that_lists_no_bookies_is_not_short_of_them() -> None:
    """Such as one that keeps its ledgers in object storage."""
    with pages({"/admin/v2/bookies/all": '{"bookies": []}'}) as url:
        config = pulsar.Config(service_url="pulsar://127.0.0.1:1", admin_url=url)

        assert pulsar.connect(config, SystemClock()).replication_error(Topic(replication=3)) == ""
