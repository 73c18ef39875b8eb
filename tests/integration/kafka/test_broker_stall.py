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

from soak.core import histogram
from soak.core.clock import SystemClock
from soak.core.plan import text as plan_text
from soak.core.plan.plan import with_plugin_values
from soak.core.ports import Topics
from soak.lab.ports import Running
from soak.runtime.context import connect
from soak.store.journal.reader import read_source, sources
from tests.support.load.load_run import LoadRun

pytestmark = pytest.mark.broker

RATE = 5000
STALL_SECONDS = 3.0
CATCH_UP = 1.2
QUEUE = 2000  # of the client: full after 0.4 s, so that the schedule itself falls behind

LATENCIES = {"produce": "publish_latency", "consume": "end_to_end_latency"}

PLAN = """
name: stall
broker: {{{kind}: {settings}}}
load: {{rate: {rate}/s, catch_up_ratio: {catch_up}, backlog: 30s}}
topic: {{partitions: 1}}
phases: {{warm_up: 0s, soak: 1h}}
"""
SETTINGS = {
    "kafka": "{producer: {acks: all, linger.ms: 1, queue.buffering.max.messages: 2000}}",
    "pulsar": "{producer: {batching_max_publish_delay_ms: 1, max_pending_messages: 2000}}",
}


@pytest.fixture(params=sorted(SETTINGS))
def broker(request: pytest.FixtureRequest) -> Running:
    found: Running = request.getfixturevalue(f"lab_{request.param}")
    return found


@pytest.fixture
def run(request: pytest.FixtureRequest, broker: Running, tmp_path: Path) -> Iterator[LoadRun]:
    kind = request.node.callspec.params["broker"]
    text = PLAN.format(kind=kind, settings=SETTINGS[kind], rate=RATE, catch_up=CATCH_UP)
    plan = with_plugin_values(plan_text.load(text, "plan").plan, "broker", broker.addresses)
    topic = f"soak-{secrets.token_hex(4)}"
    connect(plan, SystemClock()).create_topics(Topics((topic,), 1), 1, {})
    found = LoadRun(tmp_path / "run", plan_text.dump(plan), topic)
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


def test_the_whole_stall_shows_and_nothing_is_lost(run: LoadRun, broker: Running) -> None:
    consumer = run.start("consume")
    run.until(lambda: _values(run, "consume", "received_messages"), "the consumer is there")
    producer = run.start("produce")
    run.until(lambda: run.total("acked_messages") >= 2 * RATE, "the load is there")
    stall = _stand_still(broker.pid)
    begin = run.total("sent_messages")
    # Behind by 2.6 s of sends, of which 0.2 s a second are caught up.
    run.until(lambda: run.total("sent_messages") - begin >= 17 * RATE, "the schedule is met again")
    run.end(producer)
    run.until(
        lambda: run.total("received_messages") >= run.total("acked_messages"), "all is received"
    )
    run.end(consumer)

    held_back = run.total("held_back_messages")
    for role, metric in LATENCIES.items():
        late = sum(_values(run, role, f'{metric}_above_messages{{threshold="1"}}'))
        # All that was due more than a second before the end, and none but what was due or blocked.
        assert (stall - 1.0) * RATE * 0.99 <= late <= stall * RATE + held_back, role
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
