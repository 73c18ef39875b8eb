"""One slow broker among three: its own latency tells, and the others' does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from soak.core import plan_text
from soak.core.clock import SystemClock
from soak.core.units import SECOND_NS
from soak.daemons.context import connect, host_name, topics_of
from soak.daemons.supervise import Supervisor, roles_of
from soak.lab.brokers import kafka
from soak.lab.faults import slow_node
from soak.lab.ports import Target
from soak.store.history import History
from soak.store.run_folder import Run, RunFolder, write_run

SLOW = 2
LEAD_SECONDS = 4
WARM_UP_SECONDS = 10
CALM_SECONDS = 30
SLOW_SECONDS = 30

PLAN = f"""
name: slow-leader
broker: {{kafka: {{bootstrap_servers: SERVERS}}}}
topic: {{name: soak-slow-leader, partitions: 6}} # one copy: no leader waits for another broker
load: {{rate: 500/s}}
phases: {{warm_up: {WARM_UP_SECONDS}s, soak: {CALM_SECONDS + SLOW_SECONDS}s, drain: 10s}}
"""

pytestmark = [pytest.mark.slow, pytest.mark.broker]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[kafka.Kafka]:
    cluster = kafka.start(tmp_path / "lab", {}, nodes=3)
    yield cluster
    cluster.stop()


def test_a_slow_broker_is_seen_in_its_own_latency_and_in_no_other_s(
    cluster: kafka.Kafka, tmp_path: Path
) -> None:
    """Stopped for 200 ms of every 500 ms from the middle of the soak on; p99, before against after."""
    folder = RunFolder(tmp_path / "run")
    onset_k = run(folder, cluster)

    for source, metric in (("produce.0", "publish"), ("consume.0", "end_to_end")):
        rise = {
            leader: rise_of(folder, source, f"{metric}_latency_seconds", leader, onset_k)
            for leader in (1, 2, 3)
        }
        others = max(value for leader, value in rise.items() if leader != SLOW)
        assert rise[SLOW] > 3 * others, rise


def run(folder: RunFolder, cluster: kafka.Kafka) -> int:
    """Run producer and consumer to the end; return the second in which the fault began."""
    clock = SystemClock()
    text = PLAN.replace("SERVERS", f"'{cluster.bootstrap_servers}'")
    plan = plan_text.load(text, "p").plan
    connect(plan, clock).create_topics(topics_of(plan), 1, {})
    folder.logs.mkdir(parents=True)
    folder.plan.write_text(plan_text.dump(plan))
    start_ns = clock.wall_ns() + LEAD_SECONDS * SECOND_NS
    write_run(folder, Run("slow-leader", start_ns, host_name(), {}, "running", plan.name))
    roles = [role for role in roles_of(plan) if role.is_needed]
    supervisor = Supervisor(folder, clock, roles=roles, on_death=print)
    after = (LEAD_SECONDS + WARM_UP_SECONDS + CALM_SECONDS) * SECOND_NS
    config = slow_node.Config(node=SLOW, after=after, stall=SECOND_NS // 5, every=SECOND_NS // 2)
    supervisor.start()
    active = slow_node.inject(Target(cluster, lambda _: None, clock), config)
    try:
        while not supervisor.poll():
            clock.sleep_until(clock.mono_ns() + SECOND_NS // 5)
    finally:
        active.lift()
        supervisor.close()
    assert active.onset_wall_ns is not None
    return (active.onset_wall_ns - start_ns) // SECOND_NS


def rise_of(folder: RunFolder, source: str, metric: str, leader: int, onset_k: int) -> float:
    """Return the median of a leader's p99 after the onset, as a multiple of the one before it."""
    name = f'{source}@{host_name()}|{metric}{{leader="{leader}",quantile="0.99"}}'
    end_k = WARM_UP_SECONDS + CALM_SECONDS + SLOW_SECONDS
    before = History(folder.journal).window(WARM_UP_SECONDS, onset_k).series(name).values
    after = History(folder.journal).window(onset_k + 1, end_k).series(name).values
    assert before.size > CALM_SECONDS / 2
    assert after.size > SLOW_SECONDS / 2
    return float(np.median(after) / np.median(before))
