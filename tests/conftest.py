"""What many tests share: how many examples hypothesis makes, and one real Kafka a session."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from hypothesis import settings

from soak.lab.brokers import kafka, pulsar
from soak.lab.ports import Running

pytest_plugins = ["tests.support.spark.spark_fixtures"]

for _name, _examples in (("quick", 20), ("full", 100), ("hostile", 1000)):
    _is_same = bool(os.environ.get("CI")) and _name != "hostile"
    settings.register_profile(_name, deadline=None, max_examples=_examples, derandomize=_is_same)
settings.load_profile("quick")


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a Kafka, so that `make test` runs it next to the other tests of real servers."""
    for item in items:
        needs_kafka = "lab_kafka" in getattr(item, "fixturenames", ())
        is_kafka = needs_kafka or item.path.parent.name == "kafka"
        if is_kafka and "[pulsar]" not in item.name:
            item.add_marker(pytest.mark.kafka)


@pytest.fixture
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stamps without a zone are of this machine's, which the test must know."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(scope="session")
def lab_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A real Kafka for tests marked `broker`; each test makes topics of its own in it."""
    broker = kafka.start(tmp_path_factory.mktemp("lab-kafka"), {})
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def lab_pulsar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pulsar.Pulsar]:
    """A real Pulsar for tests marked `broker`; small ledgers and files, so that retention can free some."""
    settings = {
        "managedLedgerMaxEntriesPerLedger": "200",
        "retentionCheckIntervalInSeconds": "1",
        "logSizeLimit": str(4 * 2**20),
        "flushInterval": "2000",
        "minorCompactionInterval": "10",
        "majorCompactionInterval": "20",
    }
    broker = pulsar.start(tmp_path_factory.mktemp("lab-pulsar"), settings)
    yield broker
    broker.stop()
