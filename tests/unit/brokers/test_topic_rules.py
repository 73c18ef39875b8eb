"""Checks of topics before any request to a cluster."""

from __future__ import annotations

from types import ModuleType

import pytest

from soak.brokers import kafka, pulsar, redpanda
from soak.core.errors import SettingError
from soak.core.plan.plan import Topic


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
