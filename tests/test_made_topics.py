"""Which topics a run takes for its own: those that it made, and no others of the same name."""

from __future__ import annotations

import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, cast

import pytest

from soak.cli import _checks, _topics
from soak.cli._home import begin_run
from soak.core import plan_text
from soak.core.clock import SystemClock
from soak.core.errors import BrokerError, PlanError, RunFolderError
from soak.core.plan_text import PlanFile
from soak.core.ports import Broker, Making, Topics
from soak.daemons.context import connect
from soak.lab.brokers.pulsar import Pulsar
from soak.lab.ports import Running
from soak.store.home import Home
from soak.store.run_folder import Run, RunFolder, read_plan, write_run
from tests.fakes import FakeCluster

PLAN = "name: p\nbroker: {kafka: {bootstrap_servers: 'h:1'}}\ntopic: {name: bench}\n"
TWO = PLAN.replace("name: bench", "name: bench, count: 2")


def make(cluster: FakeCluster, folder: RunFolder, text: str = PLAN, *, own: bool = False) -> None:
    plan_file = plan_text.load(text, "p.yaml")
    _topics.make(plan_file, plan_file.plan, folder, _port(cluster), has_own_names=own)


def check(cluster: FakeCluster, folder: RunFolder | None, text: str = PLAN) -> None:
    _checks.check_topics(plan_text.load(text, "p.yaml"), _port(cluster), folder)


def _port(cluster: FakeCluster) -> Broker:
    return cast("Broker", cluster)  # as much as is asked of it


def test_a_topic_that_somebody_else_made_meanwhile_is_not_adopted(tmp_path: Path) -> None:
    """Ours was refused, and days later there is one of its name: it is neither read nor written."""
    cluster, folder = FakeCluster(), RunFolder(tmp_path)
    cluster.refused.add("bench")
    with pytest.raises(PlanError, match="refused"):
        make(cluster, folder)
    cluster.make("bench")

    with pytest.raises(PlanError, match=r"p\.yaml:3: topic\.name: .* was never told .* delete it"):
        check(cluster, folder)


@pytest.mark.parametrize("tells", ["ids", "marks"])
def test_what_was_made_before_the_beginning_was_cut_short_is_gone_on_with(
    tells: Literal["ids", "marks"], tmp_path: Path
) -> None:
    """Of two topics one was refused; by the next try both are made and finished."""
    cluster, folder = FakeCluster(tells), RunFolder(tmp_path)
    cluster.refused.add("bench-1")
    with pytest.raises(PlanError, match="refused"):
        make(cluster, folder, TWO)
    cluster.refused.clear()
    first = cluster.topics["bench-0"]
    check(cluster, folder, TWO)
    make(cluster, folder, TWO)

    assert cluster.topics["bench-0"] == first
    assert cluster.finished == ["bench-0", "bench-0", "bench-1"]
    check(cluster, folder, TWO)


def test_one_that_was_made_anew_under_its_name_is_another(tmp_path: Path) -> None:
    cluster, folder = FakeCluster(), RunFolder(tmp_path)
    make(cluster, folder)
    cluster.make("bench")

    with pytest.raises(PlanError, match="another than the one that this run made"):
        check(cluster, folder)


def test_after_a_crash_a_mark_tells_whose_a_topic_is(tmp_path: Path) -> None:
    """It was made, and who made it died before that could be noted."""
    cluster, folder = FakeCluster("marks"), RunFolder(tmp_path)
    cluster.dies_after = "bench"
    with pytest.raises(KeyboardInterrupt):
        make(cluster, folder)

    check(cluster, folder)
    make(cluster, folder)
    assert cluster.finished == ["bench"]


@pytest.mark.parametrize("tells", ["ids", "nothing"])
def test_after_a_crash_without_a_mark_only_a_name_of_our_own_is_trusted(
    tells: Literal["ids", "nothing"], tmp_path: Path
) -> None:
    """Nobody gives a topic the name that holds the run's random id; any other name proves nothing."""
    cluster, folder, named = (
        FakeCluster(tells),
        RunFolder(tmp_path / "a"),
        RunFolder(tmp_path / "b"),
    )
    own = PLAN.replace("bench", "soak-20260101T000000Z-abcd")
    for text, one, is_own in ((own, folder, True), (PLAN, named, False)):
        cluster.dies_after = plan_text.load(text, "p").plan.topic.name
        with pytest.raises(KeyboardInterrupt):
            make(cluster, one, text, own=is_own)

    make(cluster, folder, own, own=True)
    with pytest.raises(PlanError, match="was never told that it has it"):
        check(cluster, named)


def test_a_topic_without_identity_is_not_taken_on_its_name_alone(tmp_path: Path) -> None:
    """Its making was confirmed, but it may have been deleted and made anew since."""
    cluster, folder = FakeCluster("nothing"), RunFolder(tmp_path)
    make(cluster, folder)

    with pytest.raises(PlanError, match=r"nothing shows that .* from a later one of its name"):
        check(cluster, folder)


def test_a_half_begun_run_still_needs_the_topics_that_it_is_to_use(tmp_path: Path) -> None:
    existing = PLAN.replace("name: bench", "name: bench, use_existing: true")

    with pytest.raises(PlanError, match="there is no topic 'bench'"):
        check(FakeCluster(), RunFolder(tmp_path), existing)


def test_a_run_that_goes_on_writes_into_no_other_topic_of_its_name(tmp_path: Path) -> None:
    """Where the cluster is away nobody can tell; and who only ends in it may."""
    cluster, folder = FakeCluster(), RunFolder(tmp_path)
    plan = plan_text.load(PLAN, "p").plan
    make(cluster, folder)
    _topics.check_same(folder, plan, _port(cluster))
    cluster.make("bench")

    with pytest.raises(RunFolderError, match=r"bench is another than .*`soak stop"):
        _topics.check_same(folder, plan, _port(cluster))
    cluster.error = BrokerError("away")
    _topics.check_same(folder, plan, _port(cluster))
    cluster.error = None
    folder.stop_request.touch()
    _topics.check_same(folder, plan, _port(cluster))


def test_damaged_notes_are_told_and_not_guessed_at(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.topics.write_text('{"asked": 7}')

    with pytest.raises(RunFolderError, match=r"topics\.json is damaged"):
        check(FakeCluster(), folder)


def plan_on(broker: str, topic: str) -> PlanFile:
    return plan_text.load(f"name: p\nbroker: {{{broker}}}\ntopic: {{name: {topic}}}\n", "p.yaml")


def brought_together(plan_file: PlanFile, folder: RunFolder) -> tuple[list[str], list[str]]:
    """Make topics; return which are the run's own, and again once they were deleted and made anew."""
    plan = plan_file.plan
    broker = connect(plan, SystemClock())
    names = plan.topic.names
    _topics.make(plan_file, plan, folder, broker, has_own_names=False)
    _topics.make(plan_file, plan, folder, broker, has_own_names=False)  # nothing is refused
    before = _topics.own_topics(folder, broker, names)
    broker.delete_topics(names)
    _gone(broker, names[0])
    broker.delete_topics(names)
    broker.create_topics(Topics(names, 1), 1, {}, Making("somebody else's"))
    return before, _topics.own_topics(folder, broker, names)


def _gone(broker: Broker, name: str) -> None:
    clock = SystemClock()
    for _ in range(200):
        if not broker.existing([name]):
            return
        clock.sleep_until(clock.mono_ns() + 10**8)
    raise AssertionError(name)


@pytest.mark.broker
def test_kafka_tells_a_topic_from_a_later_one_of_its_name(
    tmp_path: Path, lab_kafka: Running
) -> None:
    servers, name = lab_kafka.addresses["bootstrap_servers"], f"own-{secrets.token_hex(4)}"
    plan_file = plan_on(f"kafka: {{bootstrap_servers: '{servers}'}}", name)

    assert brought_together(plan_file, RunFolder(tmp_path)) == ([name], [])


@pytest.mark.broker
def test_pulsar_tells_a_topic_from_a_later_one_of_its_name(
    tmp_path: Path, lab_pulsar: Pulsar
) -> None:
    where: Any = lab_pulsar.addresses
    own = ", ".join(f"{key}: '{where[key]}'" for key in ("service_url", "admin_url"))
    name = f"own-{secrets.token_hex(4)}"
    plan_file = plan_on(f"pulsar: {{{own}}}", name)

    assert brought_together(plan_file, RunFolder(tmp_path)) == ([name], [])


@pytest.mark.broker
def test_a_start_after_a_refused_one_leaves_a_strangers_topic_alone(
    tmp_path: Path, lab_kafka: Running
) -> None:
    """The first was refused by the cluster; by the second somebody has made a topic of that name."""
    servers, name = lab_kafka.addresses["bootstrap_servers"], f"bench-{secrets.token_hex(4)}"
    path = tmp_path / "p.yaml"
    path.write_text(
        f"name: p\nbroker: {{kafka: {{bootstrap_servers: '{servers}'}}}}\n"
        f"topic: {{name: {name}, settings: {{cleanup.policy: none such}}}}\n"
    )
    home = Home(tmp_path / "p")
    with pytest.raises(PlanError, match=r"cannot create topic"):
        begin_run(path, home, SystemClock())
    half = home.newest("beginning")
    assert half is not None
    connect(read_plan(half), SystemClock()).create_topics(Topics((name,), 1), 1, {})

    with pytest.raises(PlanError, match=rf"topic {name} exists, and nothing shows that"):
        begin_run(path, home, SystemClock())
    assert home.newest("beginning") == half


@pytest.mark.broker
def test_a_run_does_not_go_on_in_a_topic_that_was_made_anew(
    tmp_path: Path, lab_kafka: Running
) -> None:
    """Neither in a terminal nor under systemd, where people are told: it is no fault of the plan."""
    servers, name = lab_kafka.addresses["bootstrap_servers"], f"anew-{secrets.token_hex(4)}"
    plan_file = plan_on(f"kafka: {{bootstrap_servers: '{servers}'}}", name)
    home, folder = Home(tmp_path), RunFolder(tmp_path / "p-r1")
    write_run(folder, Run("r1", 0, "h", {}, "running", "p"))
    folder.plan.write_text(plan_text.dump(plan_file.plan))
    brought_together(plan_file, folder)
    words = ["run", str(folder.plan), "--resume", "--run-dir", str(folder.path)]
    command = [sys.executable, "-m", "soak.cli.main", *words]
    resumed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    home.point_to(folder)

    assert resumed.returncode == 1
    assert f"topic {name} is another than" in resumed.stderr
    with pytest.raises(RunFolderError, match=rf"topic {name} is another than"):
        begin_run(tmp_path / "nowhere.yaml", home, SystemClock())
    assert not home.wanted.exists()


def test_a_run_that_was_begun_before_there_were_notes_goes_on(tmp_path: Path) -> None:
    """An upgrade in the middle of a run asks it for nothing that it cannot have."""
    folder = RunFolder(tmp_path)
    write_run(folder, Run("r", 0, "h", {}, "running", "p"))

    _topics.check_same(folder, plan_text.load(PLAN, "p").plan, _port(FakeCluster()))
