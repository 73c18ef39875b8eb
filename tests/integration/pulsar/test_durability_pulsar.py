"""The durability level of a real Pulsar cluster, and what its bookie does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.request import urlopen

import pytest

from soak.brokers import pulsar
from soak.brokers.pulsar.durability import read_durability
from soak.core.clock import SystemClock
from soak.core.cluster import durability
from soak.core.plan.plan import Topic
from soak.core.ports import Outgoing, Producer, Topics
from soak.core.units import SECOND_NS
from soak.lab.brokers.pulsar import Pulsar


def settings_of(result: dict[str, Any]) -> dict[str, tuple[str | None, str]]:
    return {one["name"]: (one["value"], one["where"]) for one in result["settings"]}


@pytest.mark.broker
def test_the_level_of_a_live_pulsar(lab_pulsar: Pulsar) -> None:
    """One bookie, whose journal is flushed; without its page nobody can tell."""
    name, settings = "soak-durability", {"deduplicationEnabled": "true"}
    without = pulsar.Config(service_url=lab_pulsar.service_url, admin_url=lab_pulsar.admin_url)
    whole = replace(without, bookie_urls=lab_pulsar.addresses["bookie_urls"])
    broker = pulsar.connect(whole, SystemClock())
    broker.create_topics(Topics((name,), 1), 1, settings)

    there = read_durability(whole, Topic(name=name, use_existing=True))
    planned = read_durability(without, Topic(name="soak-not-there", replication=3))

    assert there.level == 2
    assert settings_of(durability.to_json(there)) == {
        "bookkeeperWriteQuorum": ("1", f"topic persistent://public/default/{name}"),
        "bookkeeperAckQuorum": ("1", f"topic persistent://public/default/{name}"),
        "journalWriteData": ("true", "every bookie"),
        "journalSyncData": ("true", "every bookie"),
        "deduplicationEnabled": ("true", f"topic persistent://public/default/{name}"),
    }
    assert (planned.lowest, planned.highest) == (3, 4)


@pytest.mark.broker
def test_what_the_level_of_pulsar_says_is_what_its_bookie_does(lab_pulsar: Pulsar) -> None:
    """Level 2 claims a flush before each acknowledgement: 23 messages, one by one, cost 23 flushes."""
    topic = Topics(("soak-durability-flushed",), 1)
    config = pulsar.Config(
        service_url=lab_pulsar.service_url,
        admin_url=lab_pulsar.admin_url,
        bookie_urls=lab_pulsar.addresses["bookie_urls"],
    )
    broker = pulsar.connect(config, SystemClock())
    broker.create_topics(topic, 1, {})
    producer = broker.producer(topic)
    before = _journal_syncs(lab_pulsar)

    for token in range(23):
        producer.send(Outgoing([0], [b"x" * 64], token))
        assert _is_acknowledged(producer)
    producer.close(10)

    assert read_durability(config, Topic(name=topic.names[0])).local == "sync"
    assert _journal_syncs(lab_pulsar) - before >= 23


def _is_acknowledged(producer: Producer) -> bool:
    clock = SystemClock()
    deadline_ns = clock.mono_ns() + 30 * SECOND_NS
    while clock.mono_ns() < deadline_ns:
        if producer.take().token.size:
            return True
        clock.sleep_until(clock.mono_ns() + SECOND_NS // 1000)
    return False


def _journal_syncs(lab: Pulsar) -> int:
    with urlopen(lab.bookie_metrics_url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    name = "bookie_journal_JOURNAL_SYNC_count{"
    found = [line for line in lines if line.startswith(name) and 'success="true"' in line]
    return sum(int(float(line.split()[-1])) for line in found)
