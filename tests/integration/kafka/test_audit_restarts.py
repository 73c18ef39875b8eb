"""Restarts are not counted as losses: a real Kafka at full load, killed again and again."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from soak.brokers import kafka
from soak.core.clock import SystemClock
from soak.core.ports import Topics
from soak.lab.brokers import kafka as lab
from soak.lab.ports import Running
from tests.support.load.load_run import LoadRun

pytestmark = pytest.mark.timeout(600)

KILLS = 10
BETWEEN = 50_000  # messages acknowledged from one kill to the next, at least

PLAN = """
name: restarts
broker:
  kafka:
    bootstrap_servers: "{servers}"
    producer: {{acks: all, linger.ms: 1, enable.idempotence: "true"}}
    common: {{reconnect.backoff.max.ms: "500"}}
topic: {{partitions: 4}}
load: {{rate: 500k/s, backlog: 1s, message_size: 128B, clients_per_producer: 2}}
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Running]:
    """A broker for this test only, to be killed."""
    found = lab.start(tmp_path / "kafka", {})
    yield found
    found.kill()  # nothing in it is needed any more


@pytest.fixture
def run(broker: Running, tmp_path: Path) -> Iterator[LoadRun]:
    """More than the broker can handle: the client sends as fast as it can."""
    topic = f"soak-restarts-{secrets.token_hex(4)}"
    config = kafka.Config(bootstrap_servers=broker.bootstrap_servers)
    kafka.connect(config, SystemClock()).create_topics(Topics((topic,), 4), 1, {})
    found = LoadRun(tmp_path / "run", PLAN.format(servers=broker.bootstrap_servers), topic)
    yield found
    found.close()


def _more(run: LoadRun) -> None:
    begin = run.total("acked_messages")
    run.until(lambda: run.total("acked_messages") >= begin + BETWEEN, "the load goes on")


@pytest.mark.restarts
def test_a_broker_killed_again_and_again_loses_nothing(run: LoadRun, broker: Running) -> None:
    """Ten SIGKILLs with acks=all: every message acknowledged is received, once."""
    producer, consumer = run.start("produce"), run.start("consume")
    for _ in range(KILLS):
        _more(run)
        broker.kill()
        broker.restart()
    _more(run)
    run.end(producer)
    acked = run.total("acked_messages")
    run.until(lambda: run.total("received_messages") >= acked, "all is received")
    run.end(consumer)

    assert acked > (KILLS + 1) * BETWEEN
    assert run.verdict() == {"received": acked}


@pytest.mark.slow
def test_daemons_killed_again_and_again_lose_nothing(run: LoadRun) -> None:
    """The last second of a producer is not recorded; that of a consumer is received again."""
    producer, consumer = run.start("produce"), run.start("consume")
    for _ in range(3):
        _more(run)
        run.kill(producer)
        run.kill(consumer)
        producer, consumer = run.start("produce"), run.start("consume")
    _more(run)
    run.end(producer)
    run.until(lambda: run.newest("lag_messages") == 0, "all is received")
    run.end(consumer)

    verdict = run.verdict()
    assert set(verdict) <= {"received", "unknown", "reread"}
    assert verdict["received"] >= run.total("acked_messages")  # type: ignore[operator]  # a count
