"""The topics of a run: only its own are used and deleted, and these only after confirmation."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

import pytest
import typer

from soak.app import topics
from soak.app.lifecycle import start_run
from soak.app.preflight.cluster import check_topics
from soak.brokers.kafka import KafkaBroker
from soak.cli.run import clean
from soak.core.clock import SystemClock
from soak.core.errors import BrokerError, PlanError, RunFolderError
from soak.core.plan import text as plan_text
from soak.core.plan.text import PlanFile
from soak.core.ports import Broker, TopicCreation, Topics
from soak.lab.brokers.pulsar import Pulsar
from soak.lab.ports import Running
from soak.runtime.context import connect
from soak.service.files import file_lock
from soak.store.plan_home import PlanHome
from soak.store.run_folder import Run, RunFolder, read_plan, write_run
from tests.support.fakes import FakeCluster

THREE = "name: p\nbroker: {kafka: {bootstrap_servers: 'h:1'}}\ntopic: {name: t, count: 3}\n"
LAB = "name: p\nbroker: {kafka: {}}\nlab: {broker: kafka}\n"


def run_of(path: Path, state: str = "ended", text: str = THREE) -> RunFolder:
    folder = RunFolder(path)
    write_run(folder, Run("r1", 0, "h", {}, state, "p"))
    folder.plan.write_text(text)
    return folder


def made(folder: RunFolder, broker: Broker, text: str = THREE) -> None:
    plan_file = plan_text.load(text, "p.yaml")
    topics.create_topics(plan_file, plan_file.plan, folder, broker, has_own_names=False)


def test_only_what_the_run_made_is_deleted(tmp_path: Path) -> None:
    """Of its three topics one is missing and one is foreign; a fourth is not part of the run."""
    cluster, folder = FakeCluster(), run_of(tmp_path)
    broker = cast("Broker", cluster)  # as much as is asked of it
    made(folder, broker)
    cluster.make("other")
    cluster.make("t-1")
    del cluster.topics["t-2"]
    found = topics.find_run_topics(folder, broker)
    result = list(topics.describe_topics(found, plan_text.load(THREE, "p").plan))
    topics.delete_topics(found, broker)

    assert [line.split(":")[0].split() for line in result] == [
        ["to", "delete", "t-0", "at", "h"],
        ["already", "gone", "t-2"],
        ["not", "deleted", "t-1"],
    ]
    assert sorted(cluster.topics) == ["other", "t-1"]
    assert topics.find_run_topics(folder, broker).missing == ("t-0", "t-2")


def test_topics_of_a_start_that_failed_are_named_with_what_deletes_them(tmp_path: Path) -> None:
    """As after a refused right to write: the topic is there, and the run has not begun."""
    cluster, folder = FakeCluster(), run_of(tmp_path, "beginning")

    assert topics.remaining_text(folder) == ""
    made(folder, cast("Broker", cluster))
    assert topics.remaining_text(folder) == (
        f"3 empty topics stay: `soak clean {tmp_path}` deletes what the run created"
    )


def test_the_path_in_a_command_to_be_copied_is_quoted(tmp_path: Path) -> None:
    """A shell would take a blank in it for the end of the path."""
    folder = run_of(tmp_path / "my run", "beginning")
    made(folder, cast("Broker", FakeCluster()))

    assert f"`soak clean '{tmp_path}/my run'` deletes" in topics.remaining_text(folder)


@pytest.mark.parametrize(
    ("is_damaged", "text"),
    [(False, "3 empty topics stay"), (True, "it is not known whether topics stay")],
)
def test_a_start_that_failed_raises_its_own_error_whatever_is_known_of_its_topics(
    tmp_path: Path, *, is_damaged: bool, text: str
) -> None:
    folder, notes = run_of(tmp_path, "beginning"), list[str]()
    made(folder, cast("Broker", FakeCluster()))
    if is_damaged:
        folder.topics.write_text("{")

    with (
        pytest.raises(BrokerError, match="no right"),
        topics.remaining_topics_named(folder, notes.append),
    ):
        raise BrokerError("no right")
    (note,) = notes
    assert note.startswith(text)


def test_a_topic_that_the_cluster_keeps_can_be_deleted_later(tmp_path: Path) -> None:
    cluster, folder = FakeCluster(), run_of(tmp_path)
    broker = cast("Broker", cluster)  # as above
    made(folder, broker)
    cluster.refused.add("t-1")

    with pytest.raises(BrokerError, match="cannot delete topic t-1"):
        topics.delete_topics(topics.find_run_topics(folder, broker), broker)
    cluster.refused.clear()
    topics.delete_topics(topics.find_run_topics(folder, broker), broker)
    assert cluster.topics == {}


def test_a_run_that_used_topics_which_were_there_has_none_to_delete(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.make("t")

    assert topics.find_run_topics(run_of(tmp_path), cast("Broker", cluster)) == topics.RunTopics(
        (), (), ()
    )


def cleaning_code(*paths: Path, yes: bool = True) -> int:
    with pytest.raises(typer.Exit) as raised:
        clean(list(paths), yes=yes)
    return raised.value.exit_code


def test_a_run_that_is_not_over_keeps_its_topics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = cleaning_code(run_of(tmp_path, "running").path)

    said = capsys.readouterr().err
    assert code == 1
    assert "r1 is not over" in said
    assert "`soak stop" in said


def test_several_runs_are_cleaned_whatever_becomes_of_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One goes on, the plan of one is damaged, one had a lab: each is named, the worst code counts."""
    goes_on = run_of(tmp_path / "1", "running").path
    damaged = run_of(tmp_path / "2", text="name: [").path
    of_lab = run_of(tmp_path / "3", text=LAB).path

    code = cleaning_code(goes_on, damaged, of_lab)

    said = capsys.readouterr()
    assert code == 2
    assert said.out.splitlines() == [
        f"{goes_on}:",
        f"{damaged}:",
        f"{of_lab}:",
        "its topics went with the lab's broker",
    ]
    assert len(said.err.splitlines()) == 2
    assert cleaning_code(of_lab, goes_on) == 1
    assert cleaning_code(of_lab) == 0


def test_a_run_that_is_starting_keeps_its_topics(tmp_path: Path) -> None:
    """Under systemd the next start resumes it; in a terminal only its own process continues it."""
    folder = run_of(tmp_path / "p-r1", "beginning")
    PlanHome(tmp_path).set_current(folder)
    other = run_of(tmp_path / "p-r2", "beginning")

    with pytest.raises(RunFolderError, match="r1 is starting"):
        topics.check_run_is_over(folder)
    with (
        file_lock(other.path / "run.lock", "it"),
        pytest.raises(RunFolderError, match="r1 is starting"),
    ):
        topics.check_run_is_over(other)
    topics.check_run_is_over(other)


def test_a_labs_topics_went_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cleaning_code(run_of(tmp_path, text=LAB).path) == 0

    assert "went with the lab's broker" in capsys.readouterr().out


def cleaned(folder: RunFolder, text: str, out: Callable[[], str]) -> tuple[str, str, str, Topics]:
    """Make topics of a run, then clean it without a word, with --yes, and once more; return what it said."""
    plan = plan_text.load(text, "p").plan
    broker = connect(plan, SystemClock())
    made(folder, broker, text)
    out()
    assert cleaning_code(folder.path, yes=False) == 1
    asked = out()
    assert set(broker.existing(plan.topic.names)) == set(plan.topic.names)
    assert cleaning_code(folder.path) == 0
    agreed = out()
    clock = SystemClock()
    for _ in range(100):
        if not broker.existing(plan.topic.names):
            break
        clock.sleep_until(clock.mono_ns() + 10**8)
    assert cleaning_code(folder.path) == 0
    return asked, agreed, out(), Topics(plan.topic.names, 1)


def expect(said: tuple[str, str, str, Topics]) -> None:
    asked, agreed, again, topics = said
    for name in topics.names:
        assert f"to delete     {name} at " in asked
        assert f"already gone  {name}" in again
    assert "nothing was deleted: --yes" in asked
    assert "deleted: 2" in agreed


@pytest.mark.broker
def test_topics_of_kafka_are_deleted_once(
    tmp_path: Path, lab_kafka: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = lab_kafka.addresses["bootstrap_servers"]
    text = (
        f"name: p\nbroker: {{kafka: {{bootstrap_servers: '{servers}'}}}}\n"
        f"topic: {{name: clean-{secrets.token_hex(4)}, count: 2}}\n"
    )

    expect(cleaned(run_of(tmp_path, text=text), text, lambda: capsys.readouterr().out))


@pytest.mark.broker
def test_topics_of_pulsar_are_deleted_once(
    tmp_path: Path, lab_pulsar: Pulsar, capsys: pytest.CaptureFixture[str]
) -> None:
    where: Any = lab_pulsar.addresses
    own = ", ".join(f"{key}: '{where[key]}'" for key in ("service_url", "admin_url"))
    text = (
        f"name: p\nbroker: {{pulsar: {{{own}}}}}\n"
        f"topic: {{name: clean-{secrets.token_hex(4)}, count: 2}}\n"
    )

    expect(cleaned(run_of(tmp_path, text=text), text, lambda: capsys.readouterr().out))


PLAN = "name: p\nbroker: {kafka: {bootstrap_servers: 'h:1'}}\ntopic: {name: bench}\n"
TWO = PLAN.replace("name: bench", "name: bench, count: 2")


def make(cluster: FakeCluster, folder: RunFolder, text: str = PLAN, *, own: bool = False) -> None:
    plan_file = plan_text.load(text, "p.yaml")
    topics.create_topics(plan_file, plan_file.plan, folder, _port(cluster), has_own_names=own)


def check(cluster: FakeCluster, folder: RunFolder | None, text: str = PLAN) -> None:
    check_topics(plan_text.load(text, "p.yaml"), _port(cluster), folder)


def _port(cluster: FakeCluster) -> Broker:
    return cast("Broker", cluster)  # as much as is asked of it


def test_a_topic_that_appeared_meanwhile_is_not_adopted(tmp_path: Path) -> None:
    """Ours was refused, and days later there is one of its name: it is neither read nor written."""
    cluster, folder = FakeCluster(), RunFolder(tmp_path)
    cluster.refused.add("bench")
    with pytest.raises(PlanError, match="refused"):
        make(cluster, folder)
    cluster.make("bench")

    with pytest.raises(
        PlanError, match=r"p\.yaml:3: topic\.name: .* never confirmed it.*delete it"
    ):
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

    with pytest.raises(PlanError, match="it is not the topic that this run created"):
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
    with pytest.raises(PlanError, match="the cluster never confirmed it"):
        check(cluster, named)


def test_a_topic_without_identity_is_not_taken_on_its_name_alone(tmp_path: Path) -> None:
    """Its making was confirmed, but it may have been deleted and made anew since."""
    cluster, folder = FakeCluster("nothing"), RunFolder(tmp_path)
    make(cluster, folder)

    with pytest.raises(PlanError, match=r"nothing shows that .* from a later one of the same name"):
        check(cluster, folder)


def test_a_partly_started_run_still_needs_its_existing_topics(tmp_path: Path) -> None:
    existing = PLAN.replace("name: bench", "name: bench, use_existing: true")

    with pytest.raises(PlanError, match="there is no topic 'bench'"):
        check(FakeCluster(), RunFolder(tmp_path), existing)


def test_a_run_that_goes_on_writes_into_no_other_topic_of_its_name(tmp_path: Path) -> None:
    """Without an answer of the cluster this is unknown; a run that only ends may use them."""
    cluster, folder = FakeCluster(), RunFolder(tmp_path)
    plan = plan_text.load(PLAN, "p").plan
    make(cluster, folder)
    topics.check_same_topics(folder, plan, _port(cluster))
    cluster.make("bench")

    with pytest.raises(RunFolderError, match=r"bench is not the one that .*`soak stop"):
        topics.check_same_topics(folder, plan, _port(cluster))
    cluster.error = BrokerError("away")
    topics.check_same_topics(folder, plan, _port(cluster))
    cluster.error = None
    folder.stop_request.touch()
    topics.check_same_topics(folder, plan, _port(cluster))


def test_a_damaged_list_of_created_topics_is_an_error(tmp_path: Path) -> None:
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
    topics.create_topics(plan_file, plan, folder, broker, has_own_names=False)
    topics.create_topics(plan_file, plan, folder, broker, has_own_names=False)  # nothing is refused
    before = topics.own_topics(folder, broker, names)
    broker.delete_topics(names)
    _gone(broker, names[0])
    broker.delete_topics(names)
    broker.create_topics(Topics(names, 1), 1, {}, TopicCreation("somebody else's"))
    return before, topics.own_topics(folder, broker, names)


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
    tmp_path: Path, lab_kafka: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster rejects the first try; before the second, a topic of that name appears.

    A dry run of the creation would end the first try earlier; not every cluster refuses in one.
    """
    servers, name = lab_kafka.addresses["bootstrap_servers"], f"bench-{secrets.token_hex(4)}"
    path = tmp_path / "p.yaml"
    path.write_text(
        f"name: p\nbroker: {{kafka: {{bootstrap_servers: '{servers}'}}}}\n"
        f"topic: {{name: {name}, settings: {{cleanup.policy: none such}}}}\n"
    )
    home = PlanHome(tmp_path / "p")
    with pytest.raises(PlanError, match=r"cannot create topic .* cleanup\.policy"):
        start_run(path, home, SystemClock())
    assert home.current_in("beginning") is None
    monkeypatch.setattr(KafkaBroker, "topic_error", lambda *_: "")
    with pytest.raises(PlanError, match=r"cannot create topic"):
        start_run(path, home, SystemClock())
    half = home.current_in("beginning")
    assert half is not None
    connect(read_plan(half), SystemClock()).create_topics(Topics((name,), 1), 1, {})

    with pytest.raises(PlanError, match=rf"topic {name} exists, and nothing shows that"):
        start_run(path, home, SystemClock())
    assert home.current_in("beginning") == half


@pytest.mark.broker
def test_a_run_does_not_go_on_in_a_topic_that_was_made_anew(
    tmp_path: Path, lab_kafka: Running
) -> None:
    """Neither in a terminal nor under systemd, where a message is sent: the plan is right."""
    servers, name = lab_kafka.addresses["bootstrap_servers"], f"anew-{secrets.token_hex(4)}"
    plan_file = plan_on(f"kafka: {{bootstrap_servers: '{servers}'}}", name)
    home, folder = PlanHome(tmp_path), RunFolder(tmp_path / "p-r1")
    write_run(folder, Run("r1", 0, "h", {}, "running", "p"))
    folder.plan.write_text(plan_text.dump(plan_file.plan))
    brought_together(plan_file, folder)
    words = ["run", str(folder.plan), "--resume", "--run-dir", str(folder.path)]
    command = [sys.executable, "-m", "soak.cli.main", *words]
    resumed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    home.set_current(folder)

    assert resumed.returncode == 1
    assert f"topic {name} is not the one that" in resumed.stderr
    with pytest.raises(RunFolderError, match=rf"topic {name} is not the one that"):
        start_run(tmp_path / "nowhere.yaml", home, SystemClock())
    assert not home.daemons_folder.exists()


def test_a_run_of_a_version_without_this_list_is_resumed(tmp_path: Path) -> None:
    """An upgrade in the middle of a run asks it for nothing that it cannot have."""
    folder = RunFolder(tmp_path)
    write_run(folder, Run("r", 0, "h", {}, "running", "p"))

    topics.check_same_topics(folder, plan_text.load(PLAN, "p").plan, _port(FakeCluster()))
