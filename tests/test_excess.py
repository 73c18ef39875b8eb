"""What a plan may take of a cluster without a person's word."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from typer.testing import CliRunner

from soak.cli import _checks, main
from soak.cli._excess import refuse_excess
from soak.core import plan_text
from soak.core.errors import PlanError
from soak.core.excess import excess
from soak.core.plan import Plan

CLUSTER = "name: x\nbroker: {kafka: {bootstrap_servers: '127.0.0.1:9'}}\n"


def plan_of(more: str) -> Plan:
    return plan_text.load(CLUSTER + more, "p.yaml").plan


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ("load: {rate: 101k/s, message_size: 64B}", "load.rate"),
        (
            "load: {rate: 90k/s, message_size: 64B, profile: {sine_period: 1h}}",
            "load.profile.sine_amplitude",
        ),
        (
            "load: {message_size: 64B, profile: {steps: [{after: 1h, rate: 200k/s}]}}",
            "load.profile.steps.0.rate",
        ),
        ("load: {message_size: 64B}\nphases: {ramp: {most: 200k/s}}", "phases.ramp.most"),
        ("load: {rate: 50k/s}\ntopic: {replication: 3}", "load.rate"),
        ("topic: {partitions: 1001}", "topic.partitions"),
        ("topic: {count: 101}", "topic.count"),
    ],
)
def test_more_than_the_limits_is_named(more: str, place: str) -> None:
    """One place each: the highest rate, what it writes in a day, what is made."""
    ((found, why),) = excess(plan_of(more))

    assert ".".join(map(str, found)) == place
    assert "limits." in why


@pytest.mark.parametrize(
    "more",
    [
        "load: {rate: 30k/s}\ntopic: {replication: 3, partitions: 1000}",
        "load: {rate: 1M/s}\nlimits: {rate: 1M/s, bytes_per_day: 100TiB}",
        "topic: {name: t, use_existing: true, partitions: 5000}",
    ],
)
def test_what_is_within_them_passes(more: str) -> None:
    """Also where the plan sets them higher; partitions that are there already cost nothing."""
    assert excess(plan_of(more)) == []


def test_a_lab_is_limited_by_itself() -> None:
    plan = plan_text.load(
        "name: x\nbroker: {kafka: {}}\nlab: {}\ntopic: {partitions: 5000}\n", "p"
    ).plan

    assert excess(plan) == []


def test_the_rates_of_a_file_count() -> None:
    ((place, _),) = excess(
        plan_of("load: {message_size: 64B}"), [(0, Fraction(10)), (60, Fraction(200_000))]
    )

    assert place == ("load", "profile", "file")


def test_a_run_beyond_them_is_refused_before_the_cluster_is_asked(tmp_path: Path) -> None:
    """No broker listens there: the plan alone is the reason."""
    plan = tmp_path / "p.yaml"
    plan.write_text(CLUSTER + f"run_directory: {tmp_path}\ntopic: {{partitions: 1001}}\n")
    words = ["run", str(plan)]
    told = str(CliRunner().invoke(main.build(words), words).exception)

    assert "p.yaml:4: topic.partitions: 1001 partitions is more than limits.partitions" in told
    assert "or begin it all the same by `soak run --yes`" in told


def test_a_service_is_told_of_the_limit_alone(tmp_path: Path) -> None:
    """Nobody is there who could say yes."""
    plan = tmp_path / "x.yaml"
    plan.write_text(CLUSTER + "topic: {partitions: 1001}\n")

    with pytest.raises(PlanError, match="set that higher") as told:
        refuse_excess(_checks.load_plan(plan))
    assert "--yes" not in str(told.value)
