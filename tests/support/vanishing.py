"""A broker plug-in whose cluster passes the checks of a start and is gone when its topics are created."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

import soak.brokers
from soak.brokers.kafka import KafkaGuarantees, check_topic, topic_warnings
from soak.brokers.kafka.config import Config
from soak.core.cluster.forecast import Limits
from soak.core.errors import BrokerError
from soak.core.ports import UNMARKED, TopicCreation, Topics
from tests.support.fakes import FakeCluster

PLAN = """\
name: x
broker: {vanishing: {bootstrap_servers: '127.0.0.1:1'}}
topic: {count: 2}
free_space_floor: 1MiB
"""


class VanishingCluster(FakeCluster):
    """`created` is how many topics are there before it is gone; `after_check` is called by its last check."""

    def __init__(self) -> None:
        super().__init__()
        stored_size = KafkaGuarantees(Config()).stored_size
        self.guarantees = SimpleNamespace(retention=lambda _: Limits(), stored_size=stored_size)
        self.created = 0
        self.after_check: Callable[[], None] = lambda: None

    def come_back(self) -> None:
        self.error = None

    def check_settings(self) -> None: ...

    def cluster_warnings(self) -> list[str]:
        return []

    def broker_count(self) -> int:
        return 1

    def replication_error(self, topic: object) -> str:  # noqa: ARG002  # of the port
        return ""

    def topic_error(self, topic: object) -> str:  # noqa: ARG002  # of the port
        self.after_check()
        return ""

    def create_topics(
        self,
        topics: Topics,
        replication: int,
        settings: Mapping[str, str],
        making: TopicCreation = UNMARKED,
    ) -> None:
        before = Topics(topics.names[: self.created], topics.partitions)
        super().create_topics(before, replication, settings, making)
        self.error = BrokerError("127.0.0.1:1 does not answer")
        raise BrokerError("cannot create the topics: timed out")


def vanishing_cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> VanishingCluster:
    """Return the cluster of the plug-in, which is found as any other: by the name of its module."""
    cluster = VanishingCluster()
    plugin = SimpleNamespace(
        __name__=Config.__module__,
        Config=Config,
        connect=lambda *_: cluster,
        check_topic=check_topic,
        topic_warnings=topic_warnings,
    )
    (folder / "vanishing.py").touch()
    monkeypatch.setattr(soak.brokers, "__path__", [*soak.brokers.__path__, str(folder)])
    monkeypatch.setitem(sys.modules, "soak.brokers.vanishing", plugin)
    return cluster
