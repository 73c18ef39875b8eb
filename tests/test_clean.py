"""`soak clean`: what a run that is over has made is deleted once somebody agrees, and nothing else is."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import typer

from soak.cli import _clean, _topics
from soak.cli.clean import clean
from soak.core import plan_text
from soak.core.clock import SystemClock
from soak.core.errors import BrokerError, RunFolderError
from soak.core.ports import Broker, Topics
from soak.daemons.context import connect
from soak.lab.brokers.pulsar import Pulsar
from soak.lab.ports import Running
from soak.store.home import Home
from soak.store.run_folder import Run, RunFolder, exclusive, write_run
from tests.fakes import FakeCluster

THREE = "name: p\nbroker: {kafka: {bootstrap_servers: 'h:1'}}\ntopic: {name: t, count: 3}\n"


def run_of(path: Path, state: str = "ended", text: str = THREE) -> RunFolder:
    folder = RunFolder(path)
    write_run(folder, Run("r1", 0, "h", {}, state, "p"))
    folder.plan.write_text(text)
    return folder


def made(folder: RunFolder, broker: Broker, text: str = THREE) -> None:
    plan_file = plan_text.load(text, "p.yaml")
    _topics.make(plan_file, plan_file.plan, folder, broker, has_own_names=False)


def test_only_what_the_run_made_is_deleted(tmp_path: Path) -> None:
    """Of its three topics one is gone, and one is somebody else's of the same name; a fourth is no matter."""
    cluster, folder = FakeCluster(), run_of(tmp_path)
    broker = cast("Broker", cluster)  # as much as is asked of it
    made(folder, broker)
    cluster.make("other")
    cluster.make("t-1")
    del cluster.topics["t-2"]
    found = _clean.look(folder, broker)
    told = list(_clean.lines(found, plan_text.load(THREE, "p").plan))
    _clean.delete(found, broker)

    assert [line.split(":")[0].split() for line in told] == [
        ["to", "delete", "t-0", "at", "h"],
        ["not", "there", "t-2"],
        ["left", "alone", "t-1"],
    ]
    assert sorted(cluster.topics) == ["other", "t-1"]
    assert _clean.look(folder, broker).gone == ("t-0", "t-2")


def test_what_the_cluster_keeps_is_told_and_may_be_tried_again(tmp_path: Path) -> None:
    cluster, folder = FakeCluster(), run_of(tmp_path)
    broker = cast("Broker", cluster)  # as above
    made(folder, broker)
    cluster.refused.add("t-1")

    with pytest.raises(BrokerError, match="cannot delete topic t-1"):
        _clean.delete(_clean.look(folder, broker), broker)
    cluster.refused.clear()
    _clean.delete(_clean.look(folder, broker), broker)
    assert cluster.topics == {}


def test_a_run_that_used_topics_which_were_there_has_none_to_delete(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.make("t")

    assert _clean.look(run_of(tmp_path), cast("Broker", cluster)) == _clean.Found((), (), ())


def test_a_run_that_is_not_over_keeps_its_topics(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"r1 is not over, .*`soak stop"):
        clean(run_of(tmp_path, "running").path, yes=True)


def test_one_that_is_being_begun_keeps_its_topics(tmp_path: Path) -> None:
    """Under systemd the next start goes on with it; in a terminal nobody does, once its process is gone."""
    folder = run_of(tmp_path / "p-r1", "beginning")
    Home(tmp_path).point_to(folder)
    other = run_of(tmp_path / "p-r2", "beginning")

    with pytest.raises(RunFolderError, match="r1 is being begun"):
        _clean.refuse_unended(folder)
    with (
        exclusive(other.path / "run.lock", "it"),
        pytest.raises(RunFolderError, match="r1 is being begun"),
    ):
        _clean.refuse_unended(other)
    _clean.refuse_unended(other)


def test_a_labs_topics_went_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "name: p\nbroker: {kafka: {}}\nlab: {broker: kafka}\n"
    clean(run_of(tmp_path, text=text).path, yes=True)

    assert "went with the lab's broker" in capsys.readouterr().out


def cleaned(folder: RunFolder, text: str, out: Callable[[], str]) -> tuple[str, str, str, Topics]:
    """Make topics of a run, then clean it without a word, with --yes, and once more; return what it said."""
    plan = plan_text.load(text, "p").plan
    broker = connect(plan, SystemClock())
    made(folder, broker, text)
    out()
    with pytest.raises(typer.Exit):
        clean(folder.path, yes=False)
    asked = out()
    assert set(broker.existing(plan.topic.names)) == set(plan.topic.names)
    clean(folder.path, yes=True)
    agreed = out()
    clock = SystemClock()
    for _ in range(100):
        if not broker.existing(plan.topic.names):
            break
        clock.sleep_until(clock.mono_ns() + 10**8)
    clean(folder.path, yes=True)
    return asked, agreed, out(), Topics(plan.topic.names, 1)


def expect(said: tuple[str, str, str, Topics]) -> None:
    asked, agreed, again, topics = said
    for name in topics.names:
        assert f"to delete        {name} at " in asked
        assert f"not there        {name}" in again
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
