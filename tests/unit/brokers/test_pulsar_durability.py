"""The durability level of a Pulsar cluster, read from recorded pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from soak.brokers import pulsar
from soak.brokers.pulsar.durability import read_durability
from soak.core.cluster import durability
from soak.core.plan.plan import Topic
from tests.support.pages import pages

BOOKIE = "/api/v1/config/server_config"
ADMIN = "/admin/v2"
TOPIC = f"{ADMIN}/persistent/public/default/t"
OF_BROKER: dict[str, str | int] = {
    f"{ADMIN}/brokers/configuration/runtime": (
        '{"managedLedgerDefaultWriteQuorum": "3", "managedLedgerDefaultAckQuorum": "2", '
        '"brokerDeduplicationEnabled": "false"}'
    )
}
POLICY = '{"bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2}'


def on_pulsar(bodies: Mapping[str, str | int], topic: Topic, bookies: int = 0) -> dict[str, Any]:
    """Return what is said of a topic where these pages are admin interface and bookies alike."""
    with pages(bodies) as url:
        config = pulsar.Config(admin_url=url, bookie_urls=",".join([url] * bookies))
        return durability.to_json(read_durability(config, topic))


def settings_of(result: dict[str, Any]) -> dict[str, tuple[str | None, str]]:
    return {one["name"]: (one["value"], one["where"]) for one in result["settings"]}


def test_a_pulsar_topic_that_does_not_exist_is_judged_by_the_plan() -> None:
    topic = Topic(name="t", replication=3, settings={"deduplicationEnabled": "true"})

    result = on_pulsar(OF_BROKER, topic)

    assert (result["level"], result["lowest"], result["highest"]) == (None, 3, 4)
    found = settings_of(result)
    assert found["bookkeeperWriteQuorum"] == ("3", "the plan's topic")
    assert found["bookkeeperAckQuorum"] == ("2", "the plan's topic")
    assert found["deduplicationEnabled"] == ("true", "the plan's topic")
    assert found["journalSyncData"][0] is None
    assert "bookie_urls" in found["journalSyncData"][1]


def test_a_pulsar_topic_that_exists_speaks_for_itself() -> None:
    own = {
        f"{TOPIC}/persistence?applied=true": POLICY,
        f"{TOPIC}/deduplicationEnabled?applied=true": "true",
        BOOKIE: '{"journalWriteData": "true"}',
        f"{ADMIN}/bookies/all": '{"bookies": [{"bookieId": "b:3181"}]}',
    }

    result = on_pulsar({**OF_BROKER, **own}, Topic(name="t", replication=1), 1)

    assert result["level"] == 4
    found = settings_of(result)
    assert found["bookkeeperAckQuorum"] == ("2", "topic persistent://public/default/t")
    assert found["deduplicationEnabled"] == ("true", "topic persistent://public/default/t")
    assert found["journalSyncData"] == ("true", "every bookie")


@pytest.mark.parametrize(
    ("of_namespace", "copies", "where"),
    [(POLICY, 2, "namespace public/default"), ("", 3, "the broker's configuration")],
)
def test_without_policies_of_topics_the_namespace_or_the_broker_decides(
    of_namespace: str, copies: int, where: str
) -> None:
    """An empty answer is a topic without a policy."""
    bodies = {
        **OF_BROKER,
        f"{TOPIC}/persistence?applied=true": "",
        f"{ADMIN}/namespaces/public/default/persistence": of_namespace,
    }

    result = on_pulsar(bodies, Topic(name="t", replication=1))

    assert result["copies"] == copies
    assert settings_of(result)["bookkeeperWriteQuorum"] == (str(copies), where)


def test_a_topic_without_a_name_is_judged_by_the_plan() -> None:
    """The run gives it one; what the cluster says of no topic in particular is not about it."""
    bodies = {**OF_BROKER, f"{ADMIN}/persistent/public/default//persistence?applied=true": POLICY}

    result = on_pulsar(bodies, Topic(replication=3))

    assert settings_of(result)["bookkeeperWriteQuorum"] == ("3", "the plan's topic")


@pytest.mark.parametrize("status", [405, 412])
def test_a_cluster_without_policies_of_topics_tells_that_of_the_namespace(status: int) -> None:
    bodies = {
        **OF_BROKER,
        f"{TOPIC}/persistence?applied=true": status,
        f"{ADMIN}/namespaces/public/default/persistence": POLICY,
    }

    result = on_pulsar(bodies, Topic(name="t"))

    assert settings_of(result)["bookkeeperWriteQuorum"] == ("2", "namespace public/default")


@pytest.mark.parametrize("status", [401, 403, 500])
@pytest.mark.parametrize("where", [TOPIC, f"{ADMIN}/namespaces/public/default"])
def test_a_policy_that_is_not_shown_to_us_leaves_the_level_open(status: int, where: str) -> None:
    """Nothing above it speaks for a topic that may have its own."""
    bodies = {**OF_BROKER, f"{TOPIC}/persistence?applied=true": 405}
    refused = {
        f"{where}/persistence": status,
        f"{where}/persistence?applied=true": status,
        f"{where}/deduplicationEnabled?applied=true": status,
    }

    result = on_pulsar({**bodies, **refused}, Topic(name="t"))

    value, said = settings_of(result)["bookkeeperAckQuorum"]
    assert value is None
    assert f"HTTP {status}" in said


@pytest.mark.parametrize(
    ("page", "there", "synced"),
    [
        ('{"journalSyncData": "false"}', 1, "false"),
        ('{"journalSyncData": "false"}', 3, "false"),
        ("{}", 1, "true"),
        ("{}", 3, None),
        ("a page of something else", 1, None),
    ],
)
def test_the_weakest_bookie_decides_and_one_that_was_not_asked_leaves_it_open(
    page: str, there: int, synced: str | None
) -> None:
    bookies = ", ".join(['{"bookieId": "b:3181"}'] * there)
    bodies = {**OF_BROKER, BOOKIE: page, f"{ADMIN}/bookies/all": f'{{"bookies": [{bookies}]}}'}

    result = on_pulsar(bodies, Topic(name="t"), 1)

    assert settings_of(result)["journalSyncData"][0] == synced


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        (403, "the cluster does not tell how many bookies it has"),
        ('{"bookies": [{}, {}]}', "1 of 2 bookies are in bookie_urls"),
    ],
)
def test_a_bookie_that_is_named_twice_is_one_and_a_list_that_is_refused_is_none(
    listed: str | int, said: str
) -> None:
    bodies = {**OF_BROKER, BOOKIE: "{}", f"{ADMIN}/bookies/all": listed}

    result = on_pulsar(bodies, Topic(name="t"), 2)

    assert settings_of(result)["journalSyncData"] == (None, said)
