"""The Pulsar broker of each partition, from the admin interface."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from soak.brokers import pulsar
from soak.brokers.pulsar.broker import LOOKUPS_PER_CALL, LeaderLookup
from soak.clients.http import Access
from soak.clients.pulsar_admin import Admin, RefusedError
from soak.core.clock import SystemClock
from soak.core.errors import BrokerError
from soak.core.ports import Topics
from tests.support.pages import pages

TOPIC = "persistent://public/default/t"
BROKERS = ["b1:8080", "b2:8080"]


class Cluster(Admin):
    """An admin interface with these brokers and lookups by partition."""

    def __init__(self, brokers: object, found: list[dict[str, str | None]]) -> None:
        super().__init__("http://nowhere", 1, Access())
        self.brokers = brokers
        self.found = found
        self.lookups = 0

    def get(self, path: str) -> Any:
        if path == "/admin/v2/brokers":
            if isinstance(self.brokers, Exception):
                raise self.brokers
            return self.brokers
        raise AssertionError(path)

    def get_each(self, paths: Iterable[str]) -> Iterator[Any]:
        return map(self._looked_up, paths)

    def _looked_up(self, path: str) -> Any:
        assert path.startswith("/lookup/v2/topic/persistent/public/default/t-partition-")
        self.lookups += 1
        return self.found[int(path.rpartition("-")[2]) % len(self.found)]


def at(*hosts: str) -> list[dict[str, str | None]]:
    return [{"httpUrl": f"http://{host}"} for host in hosts]


def named(lookups: LeaderLookup, cluster: Cluster, partitions: int) -> list[str]:
    found = lookups.leaders(cluster, Topics((TOPIC,), partitions)).tolist()
    return [lookups.name(number) if number >= 0 else "" for number in found]


def test_the_name_of_a_leader_does_not_depend_on_the_order_of_lookups() -> None:
    """One daemon starts before the partitions move, the other afterwards."""
    early, late = (
        Cluster(BROKERS, at("b1:8080", "b2:8080")),
        Cluster(BROKERS, at("b2:8080", "b1:8080")),
    )

    assert named(LeaderLookup(), early, 2) == ["b1:8080", "b2:8080"]
    assert named(LeaderLookup(), late, 2) == ["b2:8080", "b1:8080"]


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        ({"httpUrl": "http://b1:8080", "httpUrlTls": "https://b1:8443"}, "b1:8080"),
        ({"httpUrl": None, "httpUrlTls": "https://b1:8443"}, "b1:8443"),
        ({"brokerUrl": "", "brokerUrlTls": "pulsar+ssl://b1:6651"}, "b1:6651"),
    ],
)
def test_a_broker_is_known_by_any_of_its_addresses(
    answer: dict[str, str | None], name: str
) -> None:
    assert named(LeaderLookup(), Cluster(BROKERS, [answer]), 1) == [name]


def test_a_cluster_of_one_broker_needs_no_lookups() -> None:
    cluster = Cluster(["b1:8080"], [])

    assert named(LeaderLookup(), cluster, 3) == ["b1:8080"] * 3


@pytest.mark.parametrize("status", [401, 403])
def test_brokers_that_are_listed_for_superusers_alone_are_looked_up(status: int) -> None:
    cluster = Cluster(RefusedError("superusers only", status), at("b1:8080", "b2:8080"))

    assert named(LeaderLookup(), cluster, 3) == ["b1:8080", "b2:8080", "b1:8080"]


def test_many_partitions_are_looked_up_in_turn() -> None:
    lookups, cluster = LeaderLookup(), Cluster(BROKERS, at("b1:8080"))

    first = named(lookups, cluster, LOOKUPS_PER_CALL + 7)
    second = named(lookups, cluster, LOOKUPS_PER_CALL + 7)

    assert first == ["b1:8080"] * LOOKUPS_PER_CALL + [""] * 7
    assert second == ["b1:8080"] * (LOOKUPS_PER_CALL + 7)
    assert cluster.lookups == 2 * LOOKUPS_PER_CALL


@pytest.mark.parametrize(
    "cluster",
    [
        Cluster(RefusedError("no such page", 404), []),
        Cluster(BROKERS, [{}]),
        Cluster("a page", [{}]),
    ],
)
def test_an_incomplete_answer_is_a_broker_error(cluster: Cluster) -> None:
    """The daemon goes on without latency by leader."""
    with pytest.raises(BrokerError):
        named(LeaderLookup(), cluster, 1)


def test_certificates_and_token_are_read_again_only_after_a_failed_request(
    tmp_path: Path,
) -> None:
    """To read them every 15 s in each daemon is too often; an expired token is still replaced."""
    token = tmp_path / "token"
    token.write_text("eyJ")
    answers: dict[str, str | int] = {"/admin/v2/brokers": '["b1:8080"]'}
    topics = Topics(("t",), 2)
    with pages(answers) as url:
        client = {"authentication": "token", "token": f"${{file:{token}}}"}
        broker = pulsar.connect(pulsar.Config(admin_url=url, client=client), SystemClock())
        broker.leaders(topics)
        token.unlink()
        kept = broker.leaders(topics).tolist()
        answers["/admin/v2/brokers"] = 401
        with pytest.raises(RefusedError):
            broker.leaders(topics)
        with pytest.raises(BrokerError, match="token: cannot read"):
            broker.leaders(topics)

    assert kept == [0, 0]
