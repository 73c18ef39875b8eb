"""Every plan that ships: it says what it shows, refuses to run unfilled, and can be cut to this machine."""

from __future__ import annotations

import dataclasses
import re
from fractions import Fraction
from pathlib import Path

import pytest

from soak.app.plan_files import load_plan, scaled_plan
from soak.app.preflight.host import check_host
from soak.core.clock import SystemClock
from soak.core.cluster.forecast import forecast_plan
from soak.core.errors import PlanError
from soak.core.plan.plan import Plan, with_plugin_values
from soak.core.plan.rates import MAX_LAB_BYTES_PER_SECOND
from soak.core.plan.scaling import scaled, shortened
from soak.core.units import SECOND_NS, duration_ns
from soak.lab.ports import Running
from soak.runtime.context import connect
from soak.store.audit import audit_run
from soak.store.run_folder import read_run
from tests.support.load.live_run import started
from tests.support.paths import ROOT

SHIPPED = sorted((ROOT / "configs" / "plans").glob("*.yaml"))
FOR_CLUSTERS = [path for path in SHIPPED if not path.stem.startswith(("demo-", "lab-"))]
SMALLEST_BATCH = 1_000_000
"""Of bytes: librdkafka's own default."""
SENT_BY_A_PROCESS, READ_BY_A_PROCESS = 400_000, 1_600_000
"""Messages of 1 KiB a second: docs/evidence/load.md, Figures."""
SMALL = re.compile(r"--scale (\S+) --duration (\w+)\.$")


def comment_of(path: Path) -> str:
    """Return what stands above a plan's first key, as one line."""
    lines = path.read_text().splitlines()
    return " ".join(line.removeprefix("# ") for line in lines if line.startswith("# "))


def kept_bytes(plan: Plan) -> float:
    """Return what a topic's limits let its partitions keep, copies not counted."""
    return float(plan.topic.settings.get("retention.bytes", "inf")) * plan.topic.total_partitions


def written_bytes(plan: Plan) -> float:
    """Return the maximum of written bytes, copies not counted: a ramp is unknown, a drain takes its limit."""
    phases, a_second = plan.phases, float(plan.load.rate * plan.load.mean_size)
    if phases.ramp is not None:
        return float("inf")
    catch_up = phases.catch_up
    parts = [phases.warm_up, phases.soak, phases.cool_down]
    parts += [catch_up.drain_limit, catch_up.settle] if catch_up is not None else []
    backlog = catch_up.backlog_size if catch_up is not None else 0
    return a_second * sum(parts) / SECOND_NS + backlog


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_plan_says_what_it_is_meant_to_show(path: Path) -> None:
    """Above its first key; and it is in the list of docs/reference/shipped-plans.md under its own name."""
    plan = load_plan(path).plan

    assert len(comment_of(path).split(". ")) >= 2
    assert plan.name == path.stem
    assert f"`{plan.name}`" in (ROOT / "docs" / "reference" / "shipped-plans.md").read_text()


@pytest.mark.parametrize("name", ["backlog-drain", "mixed", "soak-24h", "warm-up-past-retention"])
def test_a_plan_that_says_when_its_brokers_begin_to_delete_is_right(name: str) -> None:
    """As `soak check` foresees it; what the plan does not set has Kafka's defaults."""
    path = ROOT / "configs" / "plans" / f"{name}.yaml"
    plan = load_plan(path).plan
    guarantees = connect(plan, SystemClock()).guarantees
    limits = guarantees.assumed_retention(plan.topic, {})
    stored = guarantees.stored_size(plan.load, plan.topic, limits)

    begin = forecast_plan(plan, limits, stored).first_deletion

    assert begin is not None
    assert f"after some {begin.earliest / 60:.0f} minutes" in path.read_text()


@pytest.mark.parametrize("path", FOR_CLUSTERS, ids=lambda path: path.stem)
def test_a_plan_fits_the_drives_of_its_brokers(path: Path) -> None:
    """Three of them, with three copies: each stores everything, at most 3 TB, unless its page says so."""
    plan = load_plan(path).plan

    stored = min(kept_bytes(plan), written_bytes(plan))

    assert stored < (14 if path.stem == "backlog-drain" else 3) * 10**12
    assert plan.topic.replication == 3


@pytest.mark.parametrize("path", FOR_CLUSTERS, ids=lambda path: path.stem)
def test_a_ramp_ends_below_what_its_own_processes_are_known_to_do(path: Path) -> None:
    """Otherwise the client is the limit: docs/evidence/load.md. More readers than partitions read nothing."""
    plan = load_plan(path).plan
    ramp = plan.phases.ramp
    most = ramp.max_rate if ramp is not None else plan.load.rate
    readers = min(plan.consumers.per_subscription, plan.topic.total_partitions)

    assert most / plan.load.producers <= SENT_BY_A_PROCESS
    assert most / readers <= READ_BY_A_PROCESS


def test_plans_that_are_compared_differ_in_nothing_else() -> None:
    """What partitions and subscriptions cost would else be the cost of a process or a setting."""
    rest = []
    for path in SHIPPED:
        if path.stem.startswith("latency-"):
            plan = load_plan(path).plan
            topic = dataclasses.replace(plan.topic, count=1, partitions=1)
            consumers = dataclasses.replace(plan.consumers, subscriptions=1)
            rest.append(dataclasses.replace(plan, name="x", topic=topic, consumers=consumers))

    assert len(rest) == 6
    assert all(one == rest[0] for one in rest)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_no_idempotent_producer_is_kept_busy_by_small_batches(path: Path) -> None:
    """At 128 KiB a message costs nearly three times the CPU of 1 MB: docs/evidence/load.md."""
    producer = load_plan(path).plan.broker_config.producer

    assert producer["enable.idempotence"] == "false" or (
        int(producer.get("batch.size", SMALLEST_BATCH)) >= SMALLEST_BATCH
    )


@pytest.mark.parametrize("path", FOR_CLUSTERS, ids=lambda path: path.stem)
def test_a_cluster_s_plan_asks_for_the_cluster(path: Path, tmp_path: Path) -> None:
    """Without an address it would be the lab's, which could not bear it."""
    with pytest.raises(PlanError, match=r"name your cluster in broker\.kafka\.bootstrap_servers"):
        check_host(load_plan(path), tmp_path)


@pytest.mark.parametrize("path", FOR_CLUSTERS, ids=lambda path: path.stem)
def test_a_cluster_s_plan_can_be_cut_to_this_machine(path: Path, tmp_path: Path) -> None:
    """As its own comment says how; on one node, with all that makes it what it is."""
    found = SMALL.search(comment_of(path))
    assert found is not None
    large = load_plan(path)

    plan = shortened(scaled(large.plan, Fraction(found[1])), duration_ns(found[2]))

    check_host(dataclasses.replace(large, plan=plan), tmp_path)
    assert plan.load.rate * plan.load.mean_size < MAX_LAB_BYTES_PER_SECOND / 8
    assert plan.load.producers + plan.consumers.processes <= 12
    assert plan.topic.total_partitions <= 1500
    assert (plan.phases.ramp is None) == (large.plan.phases.ramp is None)
    assert plan.phases.ramp is None or kept_bytes(plan) < 10 * 10**9  # its rate is unknown
    assert (plan.phases.catch_up is None) == (large.plan.phases.catch_up is None)
    assert len(plan.phases.windows) == len(large.plan.phases.windows)
    assert plan.consumers.subscriptions == large.plan.consumers.subscriptions


@pytest.mark.slow
@pytest.mark.broker
def test_a_cluster_s_plan_runs_here_at_a_hundredth(lab_kafka: Running, tmp_path: Path) -> None:
    """Keys over topics on a real broker, to the end of the drain: every message comes through."""
    large = load_plan(ROOT / "configs" / "plans" / "keys-80-topics.yaml")
    plan = scaled_plan(large, "0.01", "30s").plan
    brief = dataclasses.replace(plan.phases, warm_up=0, soak=20 * SECOND_NS)  # the least there is
    plan = with_plugin_values(
        dataclasses.replace(plan, phases=brief), "broker", lab_kafka.addresses
    )
    plan = with_plugin_values(plan, "probes", {"directory": str(lab_kafka.data_directory)})
    plan = with_plugin_values(plan, "probes", {**lab_kafka.addresses, "topics": plan.topic.names})

    with started(tmp_path / "run", plan) as live:
        live.wait()

    audit = audit_run(live.folder, read_run(live.folder), plan).verdict()
    assert audit["sent"]
    assert audit["received"] == audit["acked"] == audit["sent"]
    assert audit["lost"] == audit["duplicated"] == audit["reordered"] == 0
