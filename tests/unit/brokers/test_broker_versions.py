"""The versions of brokers: Kafka's from ApiVersions, Pulsar's from the admin interface."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soak.brokers.kafka.release import release_of
from soak.brokers.pulsar.broker import broker_versions
from soak.clients.http import Access
from soak.clients.pulsar_admin import Admin
from soak.core.errors import BrokerError
from tests.support.examples import examples
from tests.support.listener import answering

HEAD = struct.pack(">ih", 1, 0)
APIS = b"\x03" + struct.pack(">hhh", 0, 3, 13) + b"\0" + struct.pack(">hhh", 18, 0, 4) + b"\0"


def feature(name: bytes, low: int, high: int) -> bytes:
    return bytes([len(name) + 1]) + name + struct.pack(">hh", low, high) + b"\0"


def api_versions(*features: bytes) -> bytes:
    """Return an answer of version 3 with two APIs and these features."""
    content = bytes([len(features) + 1]) + b"".join(features)
    epoch = b"\x01\x08" + struct.pack(">q", 7)
    tags = b"\x02\x00" + bytes([len(content)]) + content + epoch
    return HEAD + APIS + bytes(4) + tags


def asked(answer: bytes) -> str:
    with answering(struct.pack(">i", len(answer)) + answer) as address:
        host, _, port = address.rpartition(":")
        return release_of(host, int(port), {})


@pytest.mark.parametrize(
    ("level", "release"),
    [
        (7, "3.3"),
        (21, "3.9"),
        (25, "4.0"),
        (27, "4.1"),
        (30, "4.3"),
        (31, "after 4.3 (metadata.version 31)"),
        (3, ""),
    ],
)
def test_the_release_of_a_kafka_broker_follows_from_the_features_it_supports(
    level: int, release: str
) -> None:
    """The broker names the highest metadata.version that it can use, whatever the cluster uses."""
    features = feature(b"kraft.version", 0, 1), feature(b"metadata.version", 1, level)

    assert asked(api_versions(*features)) == release


@pytest.mark.parametrize(
    "answer",
    [
        struct.pack(">ih", 1, 35),  # this version of the request is unknown: before Kafka 2.4
        HEAD + APIS + bytes(4) + b"\0",
        api_versions(feature(b"metadata.version", 1, 25))[:-20],
        b"",
    ],
)
def test_a_broker_without_features_or_with_a_torn_answer_has_no_known_release(
    answer: bytes,
) -> None:
    assert asked(answer) == ""


@settings(max_examples=examples(20))
@given(answer=st.binary(max_size=60))
def test_no_answer_of_a_broker_ends_a_run(answer: bytes) -> None:
    asked(HEAD + answer)


def test_a_broker_that_cannot_be_reached_has_no_known_release() -> None:
    assert release_of("127.0.0.1", 1, {"security.protocol": "SASL_SSL"}) == ""


class Cluster(Admin):
    """A Pulsar cluster whose answers are these, by path."""

    def __init__(self, answers: dict[str, object]) -> None:
        super().__init__("http://nowhere", 1, Access())
        self.answers = answers

    def get(self, path: str) -> Any:
        return self.answers[path]


def test_brokers_of_pulsar_have_the_version_of_the_one_that_answers() -> None:
    cluster = Cluster(
        {"/admin/v2/brokers": ["b1:8080", "b2:8080"], "/admin/v2/brokers/version": "4.2.4\n"}
    )

    assert broker_versions(cluster) == {"b1:8080": "4.2.4", "b2:8080": "4.2.4"}


def test_a_pulsar_cluster_that_lists_no_brokers_is_an_error() -> None:
    cluster = Cluster({"/admin/v2/brokers": "no", "/admin/v2/brokers/version": "4.2.4"})

    with pytest.raises(BrokerError, match="does not list its brokers"):
        broker_versions(cluster)
