"""Pulsar through its C++ client (pulsar-client), and through the admin interface what that lacks."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from typing import Any

import numpy as np
import pulsar
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass

from soak.brokers.pulsar import producer as _pulsar_keys
from soak.brokers.pulsar import topics as _pulsar_topic_rules
from soak.brokers.pulsar.client import ClientLogPipe, client_settings, close_client
from soak.brokers.pulsar.consumer import SHALLOW, PulsarConsumer
from soak.brokers.pulsar.partition_log import (
    BLOCK_BITS,
    LogWatcher,
    kept_from,
    partition_name,
    unpack_offset,
)
from soak.brokers.pulsar.producer import PulsarProducer
from soak.clients import client_settings as known_settings
from soak.clients.pulsar_admin import NOT_FOUND, Admin, RefusedError, connect_admin, topic_path
from soak.core.errors import BrokerError, SettingError
from soak.core.plan.config import STRICT, Settings
from soak.core.ports import LATEST, UNMARKED, Clock, TopicCreation, Topics
from soak.core.units import SECOND_NS, Duration

# --- Which Pulsar broker serves which partition, looked up some at a time, as it is one question each.

LOOKUPS_PER_CALL = 200
_ADDRESSES = ("httpUrl", "httpUrlTls", "brokerUrl", "brokerUrlTls")
"""Of these a broker has some: those that its listeners serve."""


class LeaderLookup:
    """Numbers for brokers, good in this process alone, and the names that are good in all."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}  # in the order in which they were seen
        self._leaders: dict[str, int] = {}  # by partition name
        self._next = 0

    def leaders(self, admin: Admin, topics: Topics) -> NDArray[np.int64]:
        """Return a number for the broker that serves each partition, shape (total,), -1 where not known yet.

        A cluster of one is not asked further. Of many partitions, some are looked up a call, in turn.

        Raises:
            BrokerError: the cluster did not answer in time, or refuses to tell (its brokers are told
                to superusers alone).
        """
        brokers = admin.get("/admin/v2/brokers")  # of the cluster that answers, not of its siblings
        if isinstance(brokers, list) and len(brokers) == 1:
            return np.full(topics.total, self._number_of(str(brokers[0])), dtype=np.int64)
        names = [partition_name(topics, at) for at in range(topics.total)]
        turn = range(self._next, self._next + min(LOOKUPS_PER_CALL, topics.total))
        asked = [names[at % topics.total] for at in turn]
        for name, answer in zip(asked, admin.get_each(map(lookup_path, asked)), strict=True):
            self._leaders[name] = self._number_of(broker_address(name, answer))
        self._next += LOOKUPS_PER_CALL
        return np.array([self._leaders.get(name, -1) for name in names], dtype=np.int64)

    def name(self, number: int) -> str:
        """Return the host and port of the broker that got this number."""
        return list(self._numbers)[number]

    def _number_of(self, broker: str) -> int:
        return self._numbers.setdefault(broker, len(self._numbers))


def lookup_path(partition: str) -> str:
    """Return the path of the question; a partition is given to a broker if none has it."""
    return topic_path(partition).replace("/admin/v2/", "/lookup/v2/topic/", 1)


def broker_address(partition: str, answer: Any) -> str:  # noqa: ANN401  # what the cluster says
    """Return host and port of the broker that serves a partition."""
    told = [answer.get(name) for name in _ADDRESSES] if isinstance(answer, dict) else []
    address = next((str(one) for one in told if one), "")
    if not address:
        raise BrokerError(f"the cluster does not say which broker serves {partition}")
    return address.partition("://")[2].rstrip("/")


# --- Pulsar through its C++ client (pulsar-client), and what that lacks through the admin interface.
# Callbacks only note numbers. Each partition has a producer and an exclusive, durable subscription of
# its own.

LOG = logging.getLogger("soak.brokers.pulsar.broker")

SECRETS = ("token",)
"""Settings that a plan may name only by reference."""

_BATCHES = {"batching_enabled": "true", "batching_max_publish_delay_ms": "1"}
_CLIENT = {"stats_interval_in_seconds": 0}  # its own lines about throughput: ours say more
_PRODUCER = {"max_pending_messages": 20_000}  # of a partition, for a stall of seconds
_CONSUMER = {"receiver_queue_size": 10_000}
_MAX_CONCURRENT = 16  # producers that are made at the same time: each waits for an answer
_RETRY_NS = SECOND_NS // 5


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    service_url: str = ""  # pulsar:// or pulsar+ssl://; empty: the lab's broker
    admin_url: str = ""  # http:// or https://
    bookie_urls: str = ""  # http://host:8000,...: each bookie's own page, for its settings
    namespace: str = "public/default"  # of topics that are not named in full
    timeout: Duration = 10 * SECOND_NS  # for every question that is not a message
    client: Settings = field(default_factory=dict)  # authentication: token takes a token, too
    producer: Settings = field(default_factory=dict)  # over those that make batches
    consumer: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        is_chunking = (
            self.producer.get("chunking_enabled") == "true"
        )  # the client does one of the two
        ours = {} if is_chunking else _BATCHES
        object.__setattr__(self, "producer", {**ours, **self.producer})
        if self.timeout <= 0:
            raise ValueError("timeout must be above 0s")
        for name, addresses in self.addresses.items():
            known_settings.refuse_secrets_in_addresses(name, addresses.split(","))

    @property
    def addresses(self) -> dict[str, str]:
        """Return where the cluster is, under the names that other parts of a plan use."""
        return {
            "service_url": self.service_url,
            "admin_url": self.admin_url,
            "bookie_urls": self.bookie_urls,
        }


check_topic = _pulsar_topic_rules.check_topic


def connect(config: Config, clock: Clock) -> PulsarBroker:
    return PulsarBroker(config, clock)


class PulsarBroker:
    """A cluster as the plan names it; every client is made where it is asked for."""

    block_bits = BLOCK_BITS
    # Three messages a wake-up at 5,000/s; with two they cost 13 % more CPU. Batches wait for longer anyway.
    wait_ns = 460_000

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._timeout_seconds = config.timeout / SECOND_NS
        self._lines: pulsar.FileLogger | None = None
        self._lookups = LeaderLookup()
        self._leader_admin: Admin | None = None

    def check_settings(self) -> None:
        """Refuse half a cluster's address, and settings that the client does not know.

        Raises:
            SettingError: an address that is missing, a secret in the plan, an unknown name, or a value of the
                wrong kind.
        """
        given = self._config.addresses
        for key in ("service_url", "admin_url"):
            if any(given.values()) and not given[key]:
                both = "a cluster is named by service_url and admin_url together"
                raise SettingError((key,), f"is missing: {both}")
        known_settings.refuse_literal_secrets("client", self._config.client, SECRETS)
        self._client_settings()
        client_settings("producer", self._config.producer)
        client_settings("consumer", self._config.consumer)

    def check(self) -> None:
        """Check the settings, and reach the cluster on both its addresses.

        Raises:
            BrokerError: with what the client or the cluster said.
        """
        self.check_settings()
        self._admin().get("/admin/v2/clusters")
        client = self._client()
        try:  # in the name of a partition, which brokers do not create when they are asked for it
            client.get_topic_partitions(f"persistent://{self._config.namespace}/soak-partition-0")
        except pulsar.TopicNotFound:
            LOG.debug("reached url=%s", self._config.service_url)
        except pulsar.PulsarException as error:
            where = self._config.service_url
            raise BrokerError(f"no Pulsar broker answered at {where}: {error}") from error
        finally:
            close_client(client)

    def existing(self, names: Sequence[str]) -> list[str]:
        admin = self._admin()
        there: set[str] = set()
        for namespace in {self._full(name).rpartition("/")[0] for name in names}:
            below = topic_path(namespace)
            there.update(admin.get(below), admin.get(f"{below}/partitioned"))
        return [name for name in names if self._full(name) in there]

    def identities(self, names: Sequence[str]) -> dict[str, str]:
        admin = self._admin()
        return {
            name: _pulsar_topic_rules.mark_of(admin, self._full(name))
            for name in self.existing(names)
        }

    def create_topics(
        self,
        topics: Topics,
        replication: int,
        settings: Mapping[str, str],
        making: TopicCreation = UNMARKED,
    ) -> None:
        """Create topics; a client waits until its partitions are served, as brokers take them only then.

        Raises:
            BrokerError: one exists, or the settings are refused.
        """
        admin = self._admin()
        policies = _pulsar_topic_rules.policies_of(replication, settings)
        for name in topics.names:
            full = self._full(name)
            if name not in making.begun:
                _pulsar_topic_rules.create_topic(admin, full, topics.partitions, making.mark)
                making.note({name: _pulsar_topic_rules.mark_of(admin, full)})
            _pulsar_topic_rules.set_policies(admin, full, policies)

    def delete_topics(self, names: Sequence[str]) -> None:
        admin = self._admin()
        for name in names:
            _pulsar_topic_rules.delete_topic(admin, self._full(name))

    def producer(self, topics: Topics) -> PulsarProducer:
        settings = {**_PRODUCER, **client_settings("producer", self._config.producer)}
        full, client = self._in_full(topics), self._client()

        def make(at: int) -> pulsar.Producer:
            return client.create_producer(partition_name(full, at), **settings)

        try:
            with ThreadPoolExecutor(_MAX_CONCURRENT) as pool:
                producers = list(pool.map(make, range(topics.total)))
        except (pulsar.PulsarException, ValueError) as error:
            close_client(client)
            raise BrokerError(f"cannot produce to {topics.names[0]}: {error}") from error
        return PulsarProducer(client, producers, self._clock)

    def consumer(
        self, topics: Topics, subscription: str, positions: Mapping[int, int]
    ) -> PulsarConsumer:
        """Return a consumer of these partitions under one subscription, from these offsets on.

        Raises:
            BrokerError: another consumer has the subscription, or the cluster does not answer.
        """
        full, admin = self._in_full(topics), self._admin()
        settings = {
            **_CONSUMER,
            "initial_position": pulsar.InitialPosition.Latest
            if LATEST in positions.values()
            else pulsar.InitialPosition.Earliest,
            "batch_receive_policy": pulsar.ConsumerBatchReceivePolicy(10 * SHALLOW, -1, 1),
            **client_settings("consumer", self._config.consumer),
        }
        kept = kept_from(admin, full, subscription)  # before one that is new is there
        for at, position in positions.items():
            _seek_subscription(admin, partition_name(full, at), subscription, position)
        client = self._client()
        names = [partition_name(full, at) for at in positions]
        try:
            subscribed = self._subscribed(client, names, subscription, settings)
        except BrokerError:
            close_client(client)
            raise
        watcher = LogWatcher(admin, full, kept, self._clock)
        watcher.start()
        return PulsarConsumer(client, subscribed, full, positions, watcher, self._clock)

    def leaders(self, topics: Topics) -> NDArray[np.int64]:
        admin, self._leader_admin = self._leader_admin or self._admin(), None
        found = self._lookups.leaders(admin, self._in_full(topics))
        self._leader_admin = (
            admin  # for as long as it is answered: a new one reads token and certificates anew
        )
        return found

    def leader_name(self, number: int) -> str:
        return self._lookups.name(number)

    def leader_address(self, number: int) -> str:
        """Return "": the name is the address."""
        del number
        return ""

    def broker_count(self) -> int:
        brokers = self._admin().get("/admin/v2/brokers")
        if not isinstance(brokers, list):
            raise BrokerError("the cluster does not list its brokers")
        return len(brokers)

    def partition_of(self, key: bytes, partitions: int) -> int:
        return _pulsar_keys.partition_of(key, partitions)

    def versions(self) -> dict[str, str]:
        return {"pulsar-client": str(pulsar.__version__)}

    def _full(self, name: str) -> str:
        return name if "://" in name else f"persistent://{self._config.namespace}/{name}"

    def _in_full(self, topics: Topics) -> Topics:
        return Topics(tuple(self._full(name) for name in topics.names), topics.partitions)

    def _client_settings(self) -> dict[str, Any]:
        """Return the client's settings without those of authentication."""
        settings = dict(self._config.client)
        kind, token = settings.pop("authentication", ""), settings.pop("token", "")
        if kind not in {"", "token"}:
            raise SettingError(("client", "authentication"), f"must be token, not {kind!r}")
        if bool(kind) != bool(token):
            place = ("client", "authentication" if kind else "token")
            raise SettingError(place, "authentication: token and token: ${...} go together")
        return client_settings("client", settings)

    def _client(self) -> pulsar.Client:
        settings = {
            **_CLIENT,
            "operation_timeout_seconds": max(1, round(self._timeout_seconds)),
            **self._client_settings(),
        }
        token = self._token()
        if token:
            settings["authentication"] = pulsar.AuthenticationToken(token)
        if self._lines is None:
            self._lines = ClientLogPipe(self._clock).open()
        try:
            return pulsar.Client(self._config.service_url, logger=self._lines, **settings)
        except (pulsar.PulsarException, ValueError, RuntimeError) as error:
            raise BrokerError(f"the client refuses its settings: {error}") from error

    def _admin(self) -> Admin:
        settings = self._client_settings()
        return connect_admin(self._config.admin_url, self._timeout_seconds, self._token(), settings)

    def _page_at(self, url: str) -> Admin:
        """Return the pages of a bookie: they have the cluster's TLS, and no use for a token."""
        return connect_admin(url, self._timeout_seconds, "", self._client_settings())

    def _token(self) -> str:
        token = known_settings.resolve_secrets(self._config.client).get("token", "").strip()
        if len(token.split()) > 1:  # no header can carry it, and who refuses it would show it
            raise BrokerError("token: what it names has a space or a line break within")
        return token

    def _subscribed(
        self,
        client: pulsar.Client,
        names: list[str],
        subscription: str,
        settings: Mapping[str, Any],
    ) -> pulsar.Consumer:
        """Subscribe; a killed predecessor's connection may hold the subscription for a moment."""
        deadline_ns = self._clock.mono_ns() + self._config.timeout
        while True:
            try:
                return client.subscribe(names, subscription, **settings)
            except pulsar.ConsumerBusy as error:
                if self._clock.mono_ns() > deadline_ns:
                    raise BrokerError(f"another consumer has {subscription!r}: {error}") from error
            except (pulsar.PulsarException, ValueError) as error:
                raise BrokerError(f"cannot subscribe to {names[0]}: {error}") from error
            self._clock.sleep_until(self._clock.mono_ns() + _RETRY_NS)


def _seek_subscription(admin: Admin, partition: str, subscription: str, position: int) -> None:
    """Set a subscription to where reading is to go on; make it there if there is none."""
    if position < 0:
        return
    ledger, entry, _ = unpack_offset(position)
    place = {"ledgerId": ledger, "entryId": entry, "partitionIndex": -1, "batchIndex": -1}
    try:
        admin.post(f"{topic_path(partition)}/subscription/{subscription}/resetcursor", place)
    except RefusedError as error:
        if error.status != NOT_FOUND:
            raise
        admin.put(f"{topic_path(partition)}/subscription/{subscription}", place)
