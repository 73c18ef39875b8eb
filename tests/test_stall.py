"""A broker that stands still for 3 s at 5,000/s: the whole stall shows, and nothing is lost or clipped."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from soak.brokers import kafka
from soak.core import histogram
from soak.core.clock import SystemClock
from soak.core.ports import Topics
from soak.lab.ports import Running
from soak.store.journal_reader import read_source, sources
from tests.load_run import LoadRun

pytestmark = pytest.mark.broker

RATE = 5000
STALL_SECONDS = 3.0
CATCH_UP = 1.2
QUEUE = 2000  # of the client: full after 0.4 s, so that the schedule itself falls behind

LATENCIES = {"produce": "publish_latency", "consume": "end_to_end_latency"}

PLAN = """
name: stall
broker:
  kafka:
    bootstrap_servers: {address}
    producer: {{acks: all, enable.idempotence: true, linger.ms: 1, queue.buffering.max.messages: {queue}}}
load: {{rate: {rate}/s, catch_up_ratio: {catch_up}, backlog: 30s}}
topic: {{partitions: 1}}
phases: {{warm_up: 0s, soak: 1h}}
"""


@pytest.fixture
def run(lab_kafka: Running, tmp_path: Path) -> Iterator[LoadRun]:
    address, topic = lab_kafka.bootstrap_servers, f"soak-{secrets.token_hex(4)}"
    config = kafka.Config(bootstrap_servers=address)
    kafka.connect(config, SystemClock()).create_topics(Topics((topic,), 1), 1, {})
    text = PLAN.format(address=address, queue=QUEUE, rate=RATE, catch_up=CATCH_UP)
    found = LoadRun(tmp_path / "run", text, topic)
    yield found
    found.close()


def _stand_still(pid: int) -> float:
    """Stop a process for the stall; return how long it really was."""
    begin = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(STALL_SECONDS)  # the fault itself, no synchronisation
    finally:
        os.kill(pid, signal.SIGCONT)
    return time.monotonic() - begin


def _values(run: LoadRun, role: str, name: str) -> list[float]:
    journal = run.folder.journal
    return [
        value
        for source in sources(journal)
        if source.startswith(role)
        for record, columns in read_source(journal, source)
        for column, value in zip(columns, record.values, strict=True)
        if column.name == name
    ]


def _late_share_model(stall: float) -> float:
    """Return how many messages wait a second or longer for their acknowledgement.

    While the broker stands still a message due at t waits stall - t. After it the schedule, behind by
    what the queue did not take, gains (ratio - 1) / ratio of a second every second.
    """
    behind = stall - QUEUE / RATE
    waiting = (stall - 1.0) * RATE
    return waiting + max(0.0, (behind - 1.0) * CATCH_UP / (CATCH_UP - 1.0) - (stall - 1.0)) * RATE


def test_the_whole_stall_shows_and_nothing_is_lost(run: LoadRun, lab_kafka: Running) -> None:
    consumer, producer = run.start("consume"), run.start("produce")
    run.until(lambda: run.total("acked_messages") >= 2 * RATE, "the load is there")
    stall = _stand_still(lab_kafka.pid)
    begin = run.total("sent_messages")
    # Behind by 2.6 s of sends, of which 0.2 s a second are caught up.
    run.until(lambda: run.total("sent_messages") - begin >= 17 * RATE, "the schedule is met again")
    run.end(producer)
    run.until(
        lambda: run.total("received_messages") >= run.total("acked_messages"), "all is received"
    )
    run.end(consumer)

    for role, metric in LATENCIES.items():
        late = sum(_values(run, role, f'{metric}_above_messages{{threshold="1"}}'))
        assert late == pytest.approx(_late_share_model(stall), rel=0.15), role
        assert np.nanmax(_values(run, role, f'{metric}_seconds{{quantile="max"}}')) >= stall - 0.1
    sent = np.array(_values(run, "produce", "sent_messages"))
    # A second's credit, and what 50 ms of it may be kept.
    assert sent.max() <= RATE * CATCH_UP * 1.05 + 1
    assert sent.max() >= RATE * CATCH_UP * 0.9
    assert run.total("overflow_messages") == run.total("negative_latency_messages") == 0
    assert run.total("missed_messages") == 0
    assert run.verdict() == {"received": run.total("acked_messages")}
    counted = sum(
        histogram.decode(text).get_total_count()
        for record, _ in read_source(run.folder.journal, _source(run, "produce"))
        for name, text in record.histograms.items()
        if name == "publish_latency_seconds"
    )
    assert counted == run.total("acked_messages")


def _source(run: LoadRun, role: str) -> str:
    return next(name for name in sources(run.folder.journal) if name.startswith(role))
