"""A right that is missing is named with the command that grants it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from soak.brokers.kafka.config import Config
from soak.brokers.kafka.topics import delete_topics
from soak.core.errors import BrokerError

RUN_TOPIC = "soak-20261129T100000Z-45f0"
CONFIG = Config(bootstrap_servers="b1:9093", common={"sasl.username": "soakd"})
GRANT = "kafka-acls.sh --bootstrap-server b1:9093 --command-config admin.properties --add"


class Refusing:
    """An admin client whose every deletion fails with one error."""

    def __init__(self, code: int) -> None:
        self._code = code

    def delete_topics(self, names: Sequence[str], **_: object) -> dict[str, Future[None]]:
        failed: Future[None] = Future()
        failed.set_exception(KafkaException(KafkaError(self._code)))
        return dict.fromkeys(names, failed)


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
        f"user soakd may not delete topic {name}; grant it: "
        f"{GRANT} --allow-principal User:soakd --operation Delete {pattern}"
    )


def test_another_refusal_of_a_deletion_names_no_right() -> None:
    assert refusal(KafkaError.INVALID_REQUEST, "mine").startswith("cannot delete topic mine: ")


def test_a_topic_that_does_not_exist_is_no_error() -> None:
    delete_from(Refusing(KafkaError.UNKNOWN_TOPIC_OR_PART), "mine")
