"""A catch-up on a real broker: consumers pause, the backlog is read, and the conductor dies in both parts."""

from __future__ import annotations

import math
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from soak.conductor.loop import AHEAD_SECONDS, append_decisions
from soak.core.clock import SystemClock
from soak.core.plan import text as plan_text
from soak.core.plan.phases import Decision, Phases, parse_phases
from soak.core.plan.plan import with_plugin_values
from soak.core.ports import Topics
from soak.lab.ports import Running
from soak.runtime.context import connect
from soak.service import children
from soak.store.journal.reader import read_source, sources
from tests.support.load.load_run import LIMIT_SECONDS, LoadRun
from tests.support.paths import ROOT

pytestmark = pytest.mark.broker

BUILD_SECONDS, DRAIN_SECONDS, RATE = 6, 30, 2000
PLAN = """
name: catch-up
broker: {{{kind}: {{}}}}
load: {{rate: {rate}/s}}
topic: {{partitions: 2}}
phases: {{catch_up: {{backlog_age: {build}s, drain_limit: 30s, settle: 1s}}, drain: 8s}}
"""
KINDS = ("kafka", "pulsar")


@pytest.fixture(params=KINDS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LoadRun]:
    broker: Running = request.getfixturevalue(f"lab_{request.param}")
    text = PLAN.format(kind=request.param, rate=RATE, build=BUILD_SECONDS)
    plan = with_plugin_values(plan_text.load(text, "plan").plan, "broker", broker.addresses)
    topic = f"soak-{secrets.token_hex(4)}"
    connect(plan, SystemClock()).create_topics(Topics((topic,), 2), 1, {})
    found = LoadRun(tmp_path / "run", plan_text.dump(plan), topic)
    yield found
    found.close()


def _conductor(run: LoadRun) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "soak.cli.main", "conduct", "--run-dir", str(run.folder.path)]
    run.started.append(subprocess.Popen(children.with_death_signal(command), cwd=ROOT))
    return run.started[-1]


def _phases(run: LoadRun) -> Phases:
    return parse_phases(run.folder.phases.read_text())


def _counts(run: LoadRun, metric: str) -> dict[int, int]:
    """Return a count of each second; of the one daemon that has it."""
    return {
        record.k: int(value)
        for name in sources(run.folder.journal)
        for record, columns in read_source(run.folder.journal, name)
        for column, value in zip(columns, record.values, strict=True)
        if column.metric == metric and not math.isnan(value)
    }


def _received(run: LoadRun) -> dict[int, int]:
    return _counts(run, "received_messages")


def _plan_catch_up(run: LoadRun) -> int:
    """Decide on a catch-up soon, its drain as late as it may be; return its first second."""
    build_k = max(_received(run)) + AHEAD_SECONDS + 1
    drain_k = build_k + BUILD_SECONDS
    append_decisions(
        run.folder,
        Decision("catch-up", build_k, part="build"),
        Decision("catch-up", drain_k, part="drain"),
        Decision("cool-down", drain_k + DRAIN_SECONDS),
        Decision("drain", drain_k + DRAIN_SECONDS + 1),
    )
    return build_k


def test_a_backlog_is_built_and_read_whatever_becomes_of_the_conductor(run: LoadRun) -> None:
    daemons = [run.start("consume"), run.start("produce")]
    run.until(lambda: sum(_received(run).values()) > RATE, "the load is there")
    build_k = _plan_catch_up(run)
    for k in (build_k + 2, build_k + BUILD_SECONDS):
        conductor = _conductor(run)
        run.until(lambda k=k: max(_received(run)) >= k, f"second {k}")  # type: ignore[misc]  # of now
        run.kill(conductor)
    daemons.append(_conductor(run))

    codes = [process.wait(LIMIT_SECONDS) for process in daemons]

    received = _received(run)
    outcome = next(one for one in _phases(run).decisions if "outcome" in one.fields)
    build = range(build_k, build_k + BUILD_SECONDS)
    acked, lag = _counts(run, "acked_messages"), _counts(run, "lag_messages")
    before = lag[max(k for k in lag if k < build_k)]
    built = sum(acked.get(k, 0) - received.get(k, 0) for k in build)
    assert codes == [0, 0, 0]
    assert (outcome.phase, outcome.fields["outcome"]) == ("cool-down", "drained")
    assert sum(received.get(k, 0) for k in build[1:]) == 0
    assert outcome.fields["messages"] == before + built
    assert built > 0
    assert run.verdict() == {"received": run.total("acked_messages")}
