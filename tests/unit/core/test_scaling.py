"""A large plan cut to a small machine: what shrinks, how far, and what keeps its shape."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.app.plan_files import scaled_plan
from soak.core.errors import PlanError
from soak.core.plan import text as plan_text
from soak.core.plan.plan import Plan
from soak.core.plan.scaling import scaled, shortened
from soak.core.schedule import Schedule
from soak.core.units import SECOND_NS

HUNDREDTH = Fraction("0.01")
MINUTE_NS = 60 * SECOND_NS

LARGE = """
name: large
broker: {kafka: {}}
lab: {nodes: 1}
topic:
  count: 40
  partitions: 10
  replication: 3
  settings:
    min.insync.replicas: 2
    retention.ms: 3600000
    retention.bytes: 10000000000
    segment.bytes: 100000000
load:
  rate: 1M/s
  producers: 10
  clients_per_producer: 5
  profile: {steps: [{after: 6h, rate: 2M/s}]}
consumers: {subscriptions: 10, per_subscription: 4}
phases:
  warm_up: 2h
  soak: 21h
  cool_down: 1h
  ramp: {start: 100k/s, max_rate: 2M/s, step: 10min}
  windows: [{every: 6h, catch_up: {backlog_size: 5TB, drain_limit: 4h, settle: 1h}}]
"""


def plan_of(text: str) -> Plan:
    return plan_text.load(text, "p").plan


def test_a_hundredth_of_the_rate_has_a_tenth_of_the_partitions_and_clients() -> None:
    """Topics go first, so that each of those left has as many partitions as it had."""
    plan = scaled(plan_of(LARGE), HUNDREDTH)

    assert [plan.load.rate, plan.load.profile.steps[0].rate] == [10_000, 20_000]
    assert (plan.topic.count, plan.topic.partitions) == (4, 10)
    assert (plan.load.producers, plan.load.clients_per_producer) == (1, 5)
    assert (plan.consumers.subscriptions, plan.consumers.per_subscription) == (10, 1)
    assert plan.phases.soak == plan_of(LARGE).phases.soak


def test_limits_in_bytes_are_reached_as_soon_as_before() -> None:
    """A hundredth of the bytes in a tenth of the partitions: a tenth for each."""
    plan = scaled(plan_of(LARGE), HUNDREDTH)

    assert plan.topic.settings["retention.bytes"] == "1000000000"
    assert plan.topic.settings["segment.bytes"] == "10000000"
    assert plan.topic.settings["retention.ms"] == "3600000"
    assert plan.phases.windows[0].catch_up.backlog_size == 50 * 10**9


@pytest.mark.parametrize("factor", [Fraction(1, 3), Fraction(1, 7), Fraction(1, 60)])
def test_a_rate_that_is_no_decimal_becomes_one_that_can_be_written_and_kept(
    factor: Fraction,
) -> None:
    """The daemons read the plan from its text, and count its messages in 64-bit integers."""
    plan = scaled(plan_of(LARGE), factor)

    again = plan_text.load(plan_text.dump(plan), "p").plan
    due = Schedule(0, again.load.rate).due_many_ns(0, 50_000)

    assert again == plan
    assert due[-1] == 49_999 * SECOND_NS // plan.load.rate


def test_a_ramp_looks_for_a_hundredth_too() -> None:
    ramp = scaled(plan_of(LARGE), HUNDREDTH).phases.ramp

    assert ramp is not None
    assert [ramp.start, ramp.max_rate] == [1_000, 20_000]
    assert ramp.step == 10 * MINUTE_NS


def test_a_lab_of_one_node_keeps_one_copy() -> None:
    """Only a scaled plan: as written it needs more than a lab has, and is refused."""
    plan = scaled(plan_of(LARGE), HUNDREDTH)
    elsewhere = scaled(plan_of(LARGE.replace("lab: {nodes: 1}", "")), HUNDREDTH)

    assert (plan.topic.replication, plan.topic.settings["min.insync.replicas"]) == (1, "1")
    assert (elsewhere.topic.replication, elsewhere.topic.settings["min.insync.replicas"]) == (
        3,
        "2",
    )


def of_pulsar(**settings: int) -> Plan:
    topic = f"topic: {{partitions: 100, replication: 3, settings: {settings}}}"
    phases = "phases: {warm_up: 0s, soak: 10h, cool_down: 0s}"
    return plan_of(
        f"name: p\nbroker: {{pulsar: {{}}}}\nlab: {{}}\n{topic}\nload: {{rate: 1M/s}}\n{phases}\n"
    )


def test_a_pulsar_topics_quorums_fit_the_labs_bookies() -> None:
    """As its replication does, which they would overrule."""
    plan = scaled(
        of_pulsar(bookkeeperEnsemble=3, bookkeeperWriteQuorum=3, bookkeeperAckQuorum=2), HUNDREDTH
    )

    assert plan.topic.replication == 1
    assert set(plan.topic.settings.values()) == {"1"}


def test_a_pulsar_topics_limits_are_cut_as_kafkas_are() -> None:
    """In the units of their names; 0 and -1 mean what they meant."""
    limits = of_pulsar(retentionSizeInMB=5000, retentionTimeInMinutes=60, limitSize=-1)
    quota = of_pulsar(limitSize=5000, limitTime=600, messageTTL=7200, retentionSizeInMB=0)

    assert scaled(limits, HUNDREDTH).topic.settings == {
        "retentionSizeInMB": "500",
        "retentionTimeInMinutes": "60",
        "limitSize": "-1",
    }
    assert shortened(quota, 60 * MINUTE_NS).topic.settings == {
        "limitSize": "500",
        "limitTime": "60",
        "messageTTL": "720",
        "retentionSizeInMB": "0",
    }


def test_a_day_in_a_minute_keeps_its_proportions() -> None:
    """Retention, windows and steps come at the same place of the run."""
    plan = shortened(plan_of(LARGE), 24 * MINUTE_NS)
    phases = plan.phases

    assert (phases.warm_up, phases.soak, phases.cool_down) == (
        2 * MINUTE_NS,
        21 * MINUTE_NS,
        MINUTE_NS,
    )
    assert plan.topic.settings["retention.ms"] == "60000"
    assert plan.topic.settings["retention.bytes"] == str(round(10**10 / 60))
    assert plan.load.profile.steps[0].after == 6 * MINUTE_NS
    assert phases.windows[0].every == 6 * MINUTE_NS
    assert phases.windows[0].catch_up.backlog_size == 5 * 10**12 // 60
    assert phases.windows[0].catch_up.drain_limit == 4 * MINUTE_NS
    assert phases.ramp is not None
    assert phases.ramp.step == 10 * SECOND_NS


def test_a_plan_that_cannot_be_cut_so_far_says_so() -> None:
    with pytest.raises(
        PlanError, match=r"--duration 10s is too short .* soak must be at least 20s"
    ):
        shortened(plan_of(LARGE), 10 * SECOND_NS)
    with pytest.raises(PlanError, match="--scale must be above 0, not -1"):
        scaled(plan_of(LARGE), Fraction(-1))
    with pytest.raises(PlanError, match=r"--scale 1e\+08 is too much .* partitions"):
        scaled(plan_of(LARGE), Fraction(10**8))
    with pytest.raises(PlanError, match=r"--scale must be at most 1e\+15"):
        scaled(plan_of(LARGE), Fraction(10**5000))
    from_file = "name: x\nbroker: {kafka: {}}\nload: {profile: {file: rates.csv}}\n"
    with pytest.raises(PlanError, match=r"scale load\.profile\.file itself"):
        scaled(plan_of(from_file), HUNDREDTH)
    with pytest.raises(PlanError, match=r"cut load\.profile\.file itself"):
        shortened(plan_of(from_file), MINUTE_NS)
    by_calendar = LARGE.replace("every: 6h", "cron: '0 */6 * * *'")
    with pytest.raises(PlanError, match=r"the calendar of phases\.windows"):
        shortened(plan_of(by_calendar), 24 * MINUTE_NS)


@pytest.mark.long
@given(
    factor=st.fractions(Fraction(1, 10_000), 1),
    count=st.integers(1, 100),
    partitions=st.integers(1, 1000),
    producers=st.integers(1, 50),
    clients=st.integers(1, 10),
)
def test_a_client_writes_to_a_partition_as_often_as_before(
    factor: Fraction, count: int, partitions: int, producers: int, clients: int
) -> None:
    """As far as whole partitions and clients allow; else what is left of each is one."""
    text = (
        "name: x\nbroker: {kafka: {}}\n"
        f"topic: {{count: {count}, partitions: {partitions}}}\n"
        f"load: {{rate: 100k/s, producers: {producers}, clients_per_producer: {clients}}}\n"
    )
    before, after = plan_of(text), scaled(plan_of(text), factor)

    assert abs(after.load.rate - before.load.rate * factor) <= Fraction(1, 10**6)
    for was, now in (
        (before.topic.total_partitions, after.topic.total_partitions),
        (producers * clients, after.load.producers * after.load.clients_per_producer),
    ):
        expected = was * float(factor) ** 0.5
        assert 1 <= now <= was
        assert now == 1 or 0.5 < now / expected < 2
    assert after.topic.count <= before.topic.count
    assert after.load.producers <= before.load.producers


@given(factor=st.sampled_from([Fraction(1), Fraction(2)]))
def test_the_whole_of_a_plan_is_the_plan(factor: Fraction) -> None:
    plan = plan_of(LARGE.replace("lab: {nodes: 1}", ""))

    assert scaled(scaled(plan, factor), 1 / factor).load.rate == plan.load.rate
    assert scaled(plan, Fraction(1)) == plan
    assert shortened(plan, 24 * 60 * MINUTE_NS) == plan


@pytest.mark.parametrize(
    "scale", ["1e400000", "1e5000", "1e999999999", "9" * 5000, "1/0", "x", "nan", "."]
)
def test_a_scale_that_no_plan_can_be_cut_by_is_refused_at_once(scale: str) -> None:
    loaded = plan_text.load(LARGE, "p.yaml")

    with pytest.raises(PlanError, match="is not a number; write"):
        scaled_plan(loaded, scale, "")


@pytest.mark.parametrize(("scale", "rate"), [("0.01", 10), ("1/100", 10), ("1e-2", 10)])
def test_a_scale_is_written_as_people_write_numbers(scale: str, rate: int) -> None:
    loaded = plan_text.load("name: x\nbroker: {kafka: {}}\n", "p.yaml")

    assert scaled_plan(loaded, scale, "").plan.load.rate == rate
