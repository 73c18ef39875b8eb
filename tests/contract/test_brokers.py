"""Every broker plug-in: the parts of the port that need no cluster."""

from __future__ import annotations

import dataclasses

import pytest

from soak.core.clock import SystemClock
from soak.core.plan import plugins
from soak.core.plan.load import Load
from soak.core.plan.plan import Topic
from soak.core.ports import Broker

BROKERS = plugins.names("soak.brokers")


def connected(name: str) -> Broker:
    """Return a broker at an address where none listens."""
    module = plugins.load("soak.brokers", name)
    fields = {field.name for field in dataclasses.fields(module.Config)}
    settings = {"bootstrap_servers": "127.0.0.1:1"} if "bootstrap_servers" in fields else {}
    broker: Broker = module.connect(module.Config(**settings), SystemClock())
    return broker


@pytest.mark.parametrize("name", BROKERS)
def test_a_broker_states_the_versions_of_its_client(name: str) -> None:
    broker = connected(name)
    versions = broker.client_versions()

    assert versions
    assert all(versions.values())
    assert versions.items() <= broker.client_facts().items()


@pytest.mark.parametrize("name", BROKERS)
def test_a_broker_forecasts_retention_without_a_cluster(name: str) -> None:
    guarantees, topic = connected(name).guarantees, Topic()
    limits = guarantees.assumed_retention(topic, {})
    stored = guarantees.stored_size(Load(), topic, limits)

    assert limits.segment_bytes > 0
    assert stored.message_bytes >= Load().mean_size


@pytest.mark.parametrize("name", BROKERS)
def test_a_broker_checks_topics_without_a_cluster(name: str) -> None:
    plugins.load("soak.brokers", name).check_topic(Topic())
