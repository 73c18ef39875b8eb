"""Checks of topics before any request to a cluster."""

from __future__ import annotations

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
