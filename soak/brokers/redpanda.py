"""Redpanda: Kafka's protocol through the same client, with durability, retention and Admin API of its own.

Sources: Redpanda's documentation. With acks=all a majority of the copies (Raft) has flushed a message
before it is acknowledged, unless write caching is on; with other acks the leader answers from memory, and
min.insync.replicas has no effect. Every `log_compaction_interval_ms` (10 s) segments beyond a limit are
removed with their files. Caveat: no Redpanda was available to test with; only the client's side, which is
Kafka's, was.
"""

from __future__ import annotations

import ssl
from collections.abc import Container, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pydantic.dataclasses import dataclass as config_dataclass

from soak.brokers.kafka import config as kafka
from soak.brokers.kafka import durability, retention
from soak.brokers.kafka.broker import KafkaBroker, KafkaGuarantees, connect_protocol
from soak.brokers.kafka.rights import unchecked_rights
from soak.brokers.kafka.topics import (
    ClusterSettings,
    TopicSettings,
    check_topic,
    read_cluster,
    topic_warnings,
)
from soak.clients import client_settings
from soak.clients.http import Access, HttpClient, HttpError, basic, tls_context
from soak.core import json_text
from soak.core.cluster.durability import Durability, Setting, SettingValue, majority, weakest
from soak.core.cluster.forecast import Limits, Stored
from soak.core.errors import BrokerError
from soak.core.plan.config import STRICT, Settings
from soak.core.plan.load import Load
from soak.core.plan.plan import Topic
from soak.core.plan.text import KeyPath
from soak.core.ports import Clock
from soak.core.units import SECOND_NS, Duration

__all__ = ["Config", "check_topic", "connect", "topic_warnings", "unchecked_rights"]

TOPIC_PROPERTY = "write.caching"
CLUSTER_PROPERTY = "write_caching_default"
_DISABLED = "disabled"  # of the cluster: no topic may turn it on
_IS_FLUSHED = {"true": False, "false": True, _DISABLED: True}  # any other value counts as unknown
_UNSEEN = "a node started with --unsafe-bypass-fsync flushes nothing, and no page shows it"
_HOUSEKEEPING = {"log.retention.check.interval.ms": "10000", "log.segment.delete.delay.ms": "0"}
_MAX_ANSWER_BYTES = 2**24


@config_dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    bootstrap_servers: str
    metrics_urls: tuple[str, ...] = ()  # http://host:9644/metrics; the first also has the Admin API
    timeout: Duration = 10 * SECOND_NS
    producer: Settings = field(default_factory=dict)  # over those of `kafka.producer_settings`
    consumer: Settings = field(default_factory=dict)
    common: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Redpanda flushes before it acknowledges unless write caching is on, so larger batches pay off.
        settings = kafka.producer_settings(self.producer, self.common, linger_ms=5)
        object.__setattr__(self, "producer", settings)
        client_settings.refuse_secrets_in_addresses("bootstrap_servers", [self.bootstrap_servers])
        if self.timeout <= 0:
            raise ValueError("timeout must be above 0s")
        client_settings.refuse_secrets_in_addresses("metrics_urls", self.metrics_urls)

    @property
    def addresses(self) -> dict[str, str]:
        """Return where the cluster is, under the names that other sections of a plan use."""
        return {"bootstrap_servers": self.bootstrap_servers}

    def with_client_id(self, name: str) -> Config:
        """Return the same with a name for its clients, unless the plan names them."""
        return replace(self, common={"client.id": name, **self.common})


def connect(config: Config, clock: Clock) -> KafkaBroker:
    of_kafka = kafka.Config(
        bootstrap_servers=config.bootstrap_servers,
        timeout=config.timeout,
        producer=config.producer,
        consumer=config.consumer,
        common=config.common,
    )
    return connect_protocol(of_kafka, clock, RedpandaGuarantees(config), would_create)


def would_create(admin: AdminClient, new: NewTopic, timeout_seconds: float) -> bool:
    """Return False, so that copies are compared with brokers: Redpanda's dry run of a creation does not."""
    del admin, new, timeout_seconds
    return False


@dataclass(frozen=True, slots=True)
class RedpandaGuarantees:
    """What a Redpanda cluster guarantees for the topics of a plan, and how long it retains them."""

    config: Config

    def durability(self, topic: Topic, written: Container[KeyPath]) -> Durability:
        return read_durability(self.config, topic, written)

    def retention(self, topic: Topic) -> Limits:
        return retention.read_retention(self.config, topic, _HOUSEKEEPING)

    def assumed_retention(self, topic: Topic, broker_settings: Settings) -> Limits:
        return retention.retention_of(topic.settings, {**broker_settings, **_HOUSEKEEPING})

    def stored_size(self, load: Load, topic: Topic, limits: Limits) -> Stored:
        return KafkaGuarantees(self.config).stored_size(load, topic, limits)


@dataclass(frozen=True, slots=True)
class DurabilitySettings:
    """The settings that decide about durability on Redpanda; `of_topic` is None where the topic has none.

    `brokers` limits what can be proposed, 0: unknown.
    """

    acks: SettingValue
    copies: SettingValue
    of_topic: SettingValue | None
    of_cluster: SettingValue
    brokers: int = 0


def read_durability(config: Config, topic: Topic, written: Container[KeyPath]) -> Durability:
    """Return the durability of a plan's topics; of several the weakest.

    Raises:
        BrokerError: no broker answers.
    """
    cluster = read_cluster(config, topic)
    acks, of_cluster = durability.acks_of(config, written), cluster_caching(config)

    def judge(one: Topic | TopicSettings, of_topic: SettingValue | None) -> Durability:
        copies = durability.copies_of(one)
        brokers = len(cluster.brokers)
        return durability_of(DurabilitySettings(acks, copies, of_topic, of_cluster, brokers))

    existing = [judge(one, topic_caching(one, cluster)) for one in cluster.topics]
    planned = topic.settings.get(TOPIC_PROPERTY)
    of_plan = None if planned is None else SettingValue(planned, "the plan's topic")
    return weakest(existing or [judge(topic, of_plan)])


def durability_of(read: DurabilitySettings) -> Durability:
    """Return the level; an unknown value leaves it open only where it matters."""
    copies = read.copies.number
    caching = _caching(read)
    if durability.waits_for_every_copy(read.acks):
        confirmed = None if copies is None else majority(copies)
        is_flushed = _is_flushed(caching)
    else:
        confirmed = 0 if read.acks.value == "0" else 1
        is_flushed = False
    change = "" if _is_flushed(caching) else f"{TOPIC_PROPERTY}: false"
    return Durability(
        "redpanda",
        copies,
        confirmed,
        is_flushed,
        (
            durability.acks_setting(read.acks, ("replication", "local")),
            durability.copies_setting(read.copies, read.brokers),
            Setting(TOPIC_PROPERTY, caching, ("local",), change),
        ),
        (_UNSEEN,),
    )


def _caching(read: DurabilitySettings) -> SettingValue:
    """Return the value in force: the topic's, unless the cluster forbids it, else the cluster's."""
    topic, cluster = read.of_topic, read.of_cluster
    if topic is None or cluster.value == _DISABLED:
        return cluster
    if _is_flushed(topic) is False and _is_flushed(cluster) is None:
        unknown = f"says true, and whether the cluster forbids it is unknown: {cluster.where}"
        return SettingValue(None, f"{topic.where} {unknown}")
    return topic


def _is_flushed(caching: SettingValue) -> bool | None:
    """Return whether an acknowledgement waits for the flush; None where that is unknown."""
    return _IS_FLUSHED.get((caching.value or "").lower())


def topic_caching(topic: TopicSettings, cluster: ClusterSettings) -> SettingValue | None:
    """Return the write caching that is set for a topic, or None."""
    reason = cluster.silence_of(topic)
    if reason:
        return SettingValue(None, reason)
    for values, where in ((topic.own, ""), (topic.whole, ", as the cluster has it")):
        if TOPIC_PROPERTY in values:
            return SettingValue(values[TOPIC_PROPERTY].lower(), f"topic {topic.name}{where}")
    return None


def cluster_caching(config: Config) -> SettingValue:
    """Return the cluster's default from the Admin API, which listens where the metrics pages are."""
    if not config.metrics_urls:
        return SettingValue(None, "metrics_urls names no node with an Admin API")
    page = urlsplit(config.metrics_urls[0])
    url = f"{page.scheme}://{page.netloc}/v1/cluster_config"
    try:
        answer = get_admin_api(url, config.common, config.timeout / SECOND_NS)
        value = json_text.loads(answer)[CLUSTER_PROPERTY]
    except (HttpError, ValueError, KeyError, TypeError, BrokerError) as error:
        return SettingValue(None, f"{url} does not tell: {error}")
    if value is None:
        return SettingValue(None, f"{url} does not tell: {CLUSTER_PROPERTY} is null")
    return SettingValue(str(value).lower(), f"{CLUSTER_PROPERTY} of the cluster")


def get_admin_api(url: str, common: Settings, timeout_seconds: float) -> bytes:
    """Return the answer of the Admin API, requested with the CA, certificate and user of `common`.

    The users of SASL are those of the Admin API, by HTTP basic authentication; a password is sent over TLS
    only.

    Raises:
        BrokerError: a secret is not where the plan says, or a file of certificates cannot be used.
        HttpError: there is no answer, or a refusal.
    """
    settings = client_settings.resolve_secrets(common)
    access = Access()
    if urlsplit(url).scheme == "https":
        tls = _tls(settings)
        access = Access(_basic(settings), lambda: tls)
    client = HttpClient(
        url,
        access=lambda: access,
        timeout_seconds=timeout_seconds,
        max_bytes=_MAX_ANSWER_BYTES,
        redirects="none",  # the password is meant for this server
    )
    with closing(client):
        return client.get(url)


def _basic(settings: Mapping[str, str]) -> dict[str, str]:
    user, password = settings.get("sasl.username"), settings.get("sasl.password")
    return {"Authorization": basic(user, password)} if user and password is not None else {}


def _tls(settings: Mapping[str, str]) -> ssl.SSLContext:
    ca = settings.get("ssl.ca.location")
    context = tls_context(
        None if ca == "probe" else ca,  # librdkafka's value for the CAs of the system
        settings.get("ssl.certificate.location"),
        settings.get("ssl.key.location"),
        settings.get("ssl.key.password"),
        is_verifying=settings.get("enable.ssl.certificate.verification") != "false",
    )
    if settings.get("ssl.endpoint.identification.algorithm") == "none":
        context.check_hostname = False
    return context
