"""One slow broker among three: its own latency tells, and the others' does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from soak.core.clock import SystemClock
from soak.core.plan import text as plan_text
from soak.core.units import SECOND_NS
from soak.lab.brokers import kafka
from soak.lab.ports import Target
from soak.runtime.grid import host_name
from soak.store.journal.history import History
from soak.store.run_folder import RunFolder
from tests.support.lab.faults import inject
from tests.support.load.live_run import LEAD_SECONDS, started

SLOW = 2
WARM_UP_SECONDS = 5
QUIET_SECONDS = 12
SLOW_SECONDS = 12

PLAN = f"""
name: slow-leader
broker: {{kafka: {{bootstrap_servers: SERVERS}}}}
topic: {{name: soak-slow-leader, partitions: 6}} # one copy: no leader waits for another broker
load: {{rate: 500/s}}
phases: {{warm_up: {WARM_UP_SECONDS}s, soak: {QUIET_SECONDS + SLOW_SECONDS}s, drain: 5s}}
"""

pytestmark = [pytest.mark.slow, pytest.mark.broker]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[kafka.Kafka]:
    cluster = kafka.start(tmp_path / "lab", {}, nodes=3)
    yield cluster
    cluster.kill()  # nothing in it is needed any more; to end it in order takes six seconds


def test_a_slow_broker_is_seen_in_its_own_latency_and_in_no_other_s(
    cluster: kafka.Kafka, tmp_path: Path
) -> None:
    """Stopped for 200 ms of every 500 ms from the middle of the soak on; p99, before against after."""
    folder, onset_k = run(tmp_path / "run", cluster)

    for source, metric in (("produce.0", "publish"), ("consume.0", "end_to_end")):
        rise = {
            leader: rise_of(folder, source, f"{metric}_latency_seconds", leader, onset_k)
            for leader in (1, 2, 3)
        }
        others = max(value for leader, value in rise.items() if leader != SLOW)
        assert rise[SLOW] > 3 * others, rise


def run(path: Path, cluster: kafka.Kafka) -> tuple[RunFolder, int]:
    """Run producer and consumer to the end; return the run and the second in which the fault began."""
    text = PLAN.replace("SERVERS", f"'{cluster.bootstrap_servers}'")
    after = (LEAD_SECONDS + WARM_UP_SECONDS + QUIET_SECONDS) * SECOND_NS
    target = Target(cluster, lambda _: None, SystemClock())
    settings = {"node": SLOW, "after": after, "stall": SECOND_NS // 5, "every": SECOND_NS // 2}
    with started(path, plan_text.load(text, "p").plan) as live:
        active = inject("slow_node", target, **settings)
        try:
            live.wait()
        finally:
            active.lift()
    assert active.onset_wall_ns is not None
    return live.folder, (active.onset_wall_ns - live.start_ns) // SECOND_NS


def rise_of(folder: RunFolder, source: str, metric: str, leader: int, onset_k: int) -> float:
    """Return the median of a leader's p99 after the onset, as a multiple of the one before it."""
    name = f'{source}@{host_name()}|{metric}{{leader="{leader}",quantile="0.99"}}'
    end_k = WARM_UP_SECONDS + QUIET_SECONDS + SLOW_SECONDS
    before = History(folder.journal).window(WARM_UP_SECONDS, onset_k).series(name).values
    after = History(folder.journal).window(onset_k + 1, end_k).series(name).values
    assert before.size > QUIET_SECONDS / 2
    assert after.size > SLOW_SECONDS / 2
    return float(np.median(after) / np.median(before))
