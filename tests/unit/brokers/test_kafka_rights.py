"""A right that is missing is named with the command that grants it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # their stubs
    AdminClient,
    NewTopic,
)

from soak.brokers.kafka.config import Config
from soak.brokers.kafka.retention import unread_note
from soak.brokers.kafka.rights import creation_error, refused_login, unchecked_rights
from soak.brokers.kafka.topics import ClusterSettings, delete_topics
from soak.core.errors import BrokerError
from soak.core.plan.plan import Topic

RUN_TOPIC = "soak-20261129T100000Z-45f0"
CONFIG = Config(bootstrap_servers="b1:9093", common={"sasl.username": "soakd"})
GRANT = "kafka-acls.sh --bootstrap-server b1:9093 --command-config admin.properties --add"


class Refusing:
    """An admin client whose every request fails with one error."""

    def __init__(self, code: int) -> None:
        self._code = code

    def delete_topics(self, names: Sequence[str], **_: object) -> dict[str, Future[None]]:
        return dict.fromkeys(names, self._failed())

    def create_topics(self, new: Sequence[NewTopic], **_: object) -> dict[str, Future[None]]:
        return {one.topic: self._failed() for one in new}

    def _failed(self) -> Future[None]:
        failed: Future[None] = Future()
        failed.set_exception(KafkaException(KafkaError(self._code)))
        return failed


def delete_from(admin: Refusing, name: str) -> None:
    delete_topics(cast("AdminClient", admin), [name], CONFIG, 1.0)


def refusal(code: int, name: str) -> str:
    with pytest.raises(BrokerError) as error:
        delete_from(Refusing(code), name)
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [(RUN_TOPIC, "--topic soak- --resource-pattern-type prefixed"), ("mine", "--topic mine")],
)
def test_a_deletion_that_is_not_allowed_names_the_missing_right(name: str, pattern: str) -> None:
    """As the how-to on secured clusters has it."""
    assert refusal(KafkaError.TOPIC_AUTHORIZATION_FAILED, name) == (
        f"user soakd may not delete topic {name}; grant it:\n"
        f"{GRANT} --allow-principal User:soakd --operation Delete {pattern}"
    )


def test_another_refusal_of_a_deletion_names_no_right() -> None:
    assert refusal(KafkaError.INVALID_REQUEST, "mine").startswith("cannot delete topic mine: ")


def test_a_topic_that_does_not_exist_is_no_error() -> None:
    delete_from(Refusing(KafkaError.UNKNOWN_TOPIC_OR_PART), "mine")


def test_a_creation_that_is_not_allowed_prints_every_grant_that_a_run_needs() -> None:
    """Those on its topics, and the one that reads the brokers' settings: each is a line to be copied."""
    admin = cast("AdminClient", Refusing(KafkaError.CLUSTER_AUTHORIZATION_FAILED))
    grant = f"{GRANT} --allow-principal User:soakd"

    operations = ("Create", "Describe", "Read", "Write", "Delete", "DescribeConfigs")
    options = " ".join(f"--operation {one}" for one in operations)

    text = creation_error(admin, NewTopic("soak-check", 1, 1), CONFIG, 1.0, 1)

    assert text.splitlines() == [
        "user soakd may not create topic soak-check; grant it:",
        f"{grant} {options} --topic soak- --resource-pattern-type prefixed",
        f"{grant} --operation DescribeConfigs --cluster",
    ]


@pytest.mark.parametrize(("brokers", "is_fault"), [(2, False), (3, True)])
def test_too_few_brokers_for_the_copies_are_a_fault_of_the_copies_alone(
    brokers: int, *, is_fault: bool
) -> None:
    """Another reason against their number, such as that it must be odd, is a fault of the topic."""
    admin = cast("AdminClient", Refusing(KafkaError.INVALID_REPLICATION_FACTOR))

    text = creation_error(admin, NewTopic("t", 1, 3), CONFIG, 1.0, brokers)

    assert text.startswith("cannot create topic t: ") == is_fault
    assert bool(text) == is_fault


@pytest.mark.parametrize("is_refused", [True, False])
def test_settings_that_no_broker_reports_name_a_right_only_where_it_is_missing(
    *, is_refused: bool
) -> None:
    cluster = ClusterSettings((), {}, {}, is_refused)
    grant = f"{GRANT} --allow-principal User:soakd --operation DescribeConfigs --cluster"

    note = unread_note(CONFIG, cluster)

    assert (
        "the forecast of retention assumes Kafka's defaults, and the durability level may" in note
    )
    assert ("as user soakd lacks DescribeConfigs on the cluster: " in note) == is_refused
    assert note.endswith(f"; grant it: {grant}") == is_refused


@pytest.mark.parametrize(
    ("common", "topic", "expected"),
    [
        ({"security.protocol": "SASL_SSL"}, Topic(), "Delete on the run's topic"),
        ({"security.protocol": "sasl_ssl"}, Topic(name="t"), "Delete on topic t"),
        ({"security.protocol": "SASL_SSL"}, Topic(name="t", use_existing=True), ""),
        ({"security.protocol": "SASL_SSL"}, Topic(name="t", count=3), "on the run's 3 topics"),
        ({"security.protocol": "SSL"}, Topic(), ""),
        (
            {"security.protocol": "ssl", "ssl.keystore.location": "k"},
            Topic(),
            "on the run's topic",
        ),
        ({}, Topic(), ""),
    ],
)
def test_rights_that_no_check_can_see_are_named(
    common: dict[str, str], topic: Topic, expected: str
) -> None:
    """A cluster says what may be done with a topic once that exists."""
    found = unchecked_rights(Config(bootstrap_servers="h:1", common=common), topic)

    assert found.endswith(expected)
    assert bool(found) == bool(expected)


def test_a_refused_password_is_named_by_where_the_plan_has_it() -> None:
    """The client's own text says neither, and the user reads it as a broker that is down."""
    login = {"sasl.username": "soak", "sasl.password": "${env:SOAK_PASSWORD}"}
    password = Config(bootstrap_servers="h:1", common={**login, "sasl.mechanism": "SCRAM-SHA-512"})
    ticket = Config(bootstrap_servers="h:1", common={"sasl.mechanism": "GSSAPI"})

    assert refused_login(password, "client text", "") == (
        "the broker refused user soak: wrong password (${env:SOAK_PASSWORD}), or another mechanism than "
        "SCRAM-SHA-512"
    )
    assert refused_login(password, "client text", "has no PLAIN") == "the broker refused user soak"
    assert refused_login(ticket, "client text", "").endswith("the user of the plan: client text")
