"""The audit against a real Pulsar counts exactly what happened to messages."""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.request import urlopen

import pytest

from soak.brokers import pulsar
from soak.core.clock import SystemClock
from soak.core.plan import text as plan_text
from soak.core.ports import Outgoing, Topics
from soak.lab.brokers import pulsar as files
from soak.lab.brokers import pulsar as lab
from soak.load.consumer.start_offsets import store_start_offsets
from soak.runtime.context import connect, topics_of
from soak.store.run_folder import read_plan, read_run
from tests.support.load.load_run import LoadRun

pytestmark = pytest.mark.broker

PLAN = """
name: audit
broker:
  pulsar:
    service_url: {service_url}
    admin_url: {admin_url}
    producer: {{batching_enabled: "{is_batching}"}}
topic: {{partitions: {partitions}}}
load: {{rate: 2k/s, message_size: 256B}}
"""

Make = Callable[..., LoadRun]


@pytest.fixture
def make_run(tmp_path: Path) -> Iterator[Make]:
    runs: list[LoadRun] = []

    def make(
        broker: lab.Pulsar,
        *,
        partitions: int = 1,
        is_batching: str = "true",
        settings: Mapping[str, str] | None = None,
    ) -> LoadRun:
        topic = f"soak-audit-{secrets.token_hex(4)}"
        config = pulsar.Config(service_url=broker.service_url, admin_url=broker.admin_url)
        connected = pulsar.connect(config, SystemClock())
        connected.create_topics(Topics((topic,), partitions), 1, dict(settings or {}))
        text = PLAN.format(**broker.addresses, partitions=partitions, is_batching=is_batching)
        runs.append(LoadRun(tmp_path / f"run-{len(runs)}", text, topic))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


def test_a_topic_that_was_there_is_read_from_where_it_ended(
    lab_pulsar: lab.Pulsar, make_run: Make
) -> None:
    """One partition holds 1,009 other messages; those of the run are acknowledged before it is read."""
    kept = {"retentionSizeInMB": "100", "retentionTimeInMinutes": "60"}  # nobody has subscribed yet
    run = make_run(lab_pulsar, partitions=2, settings=kept)
    plan = read_plan(run.folder)
    plan = dataclasses.replace(plan, topic=dataclasses.replace(plan.topic, use_existing=True))
    run.folder.plan.write_text(plan_text.dump(plan))
    broker = connect(plan, SystemClock())
    others = broker.producer(topics_of(plan))
    others.send(Outgoing([1] * 1009, [b"x"] * 1009, 0))
    others.close(30)

    store_start_offsets(run.folder, read_run(run.folder), plan, broker)
    acked = run.produce(2_000)
    run.consume(acked)

    assert run.verdict() == {"received": acked}
    assert run.total("foreign_messages") == 0


def test_a_kill_under_load_loses_nothing_that_was_acknowledged(
    lab_pulsar: lab.Pulsar, make_run: Make
) -> None:
    """Producer and consumer stay; what was out when the broker died may have been written twice.

    It comes back at its addresses: broker, admin interface and the bookie's page.
    """
    first_pid = lab_pulsar.pid
    run = make_run(lab_pulsar, partitions=2)
    consumer, producer = run.start("consume"), run.start("produce")
    run.until(lambda: run.total("received_messages") >= 2_000, "2,000 received")

    lab_pulsar.kill()
    lab_pulsar.restart()
    before = run.total("acked_messages")
    run.until(lambda: run.total("acked_messages") >= before + 2_000, "2,000 more acknowledged")
    run.end(producer)
    acked = run.total("acked_messages")
    run.until(lambda: run.total("received_messages") >= acked, "all received")
    run.end(consumer)

    found = run.verdict()
    found.pop("duplicated", None)
    found.pop("failed", None)  # a restart may take longer than the client keeps a message
    assert found == {"received": acked}
    assert lab_pulsar.pid != first_pid
    with urlopen(f"{lab_pulsar.admin_url}/admin/v2/clusters", timeout=30) as page:
        assert json.load(page) == [files.CLUSTER]
    with urlopen(lab_pulsar.metrics_url, timeout=30) as page:
        assert b"pulsar_" in page.read()
    with urlopen(lab_pulsar.bookie_metrics_url, timeout=30) as page:
        assert b"bookie_journal_JOURNAL_SYNC" in page.read()


def test_messages_never_written_by_a_bookie_are_lost_when_it_is_killed(
    tmp_path: Path, make_run: Make
) -> None:
    """With journalWriteData=false an acknowledged message is in memory; every one of them is missed."""
    broker = lab.start(tmp_path / "pulsar", {"journalWriteData": "false"})
    try:
        run = make_run(broker)
        consumer = run.start("consume")
        run.until(lambda: run.newest("lag_messages") == 0, "the subscription is there")
        run.kill(consumer)  # so that it has none of them in its own memory
        gone = run.produce(1_000)
        broker.kill()
        broker.restart()
        acked = run.produce(500)
        run.consume(acked - gone)
    finally:
        broker.kill()  # nothing in it is needed any more

    assert run.verdict() == {"received": acked - gone, "lost": gone}


def test_messages_deleted_by_retention_before_they_were_read_are_expired(
    lab_pulsar: lab.Pulsar, make_run: Make
) -> None:
    """Without a subscription ledgers are deleted as soon as they are full: here of 200 messages.

    What is left is the last one, and nothing where it is just full too.
    """
    run = make_run(lab_pulsar, is_batching="false")
    acked = run.produce(2_000)
    consumer = run.start("consume")
    run.until(lambda: run.newest("lag_messages") == 0, "the rest read")
    run.end(consumer)

    received = run.total("received_messages")
    assert received < acked
    counts = {"received": received, "expired": acked - received}
    assert run.verdict() == {name: count for name, count in counts.items() if count}
