"""Pulsar through its C++ client (pulsar-client), and through the admin interface what that lacks.

Each partition has a producer and an exclusive, durable subscription of its own.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pulsar
from numpy.typing import NDArray

from soak.brokers.pulsar import durability, retention
from soak.brokers.pulsar.client import (
    SECRETS,
    ClientLogPipe,
    Config,
    close_client,
    convert_settings,
)
from soak.brokers.pulsar.consumer import SHALLOW, PulsarConsumer
from soak.brokers.pulsar.partition_log import (
    BLOCK_BITS,
    LogWatcher,
    kept_from,
    partition_name,
    unpack_offset,
)
from soak.brokers.pulsar.producer import PulsarProducer, partition_of
from soak.brokers.pulsar.topics import (
    REFUSALS,
    create_topic,
    creation_error,
    delete_topic,
    mark_of,
    names_in,
    policies_of,
    set_policies,
)
from soak.clients import client_settings
from soak.clients.pulsar_admin import NOT_FOUND, Admin, RefusedError, topic_path
from soak.core.cluster.durability import Durability
from soak.core.cluster.forecast import Limits, Stored
from soak.core.errors import (
    BrokerError,
    LoginMissingError,
    SettingError,
    raise_settings,
    wrong_settings,
)
from soak.core.plan.config import Settings
from soak.core.plan.load import Load
from soak.core.plan.plan import Topic
from soak.core.plan.text import KeyPath
from soak.core.ports import LATEST, UNMARKED, Clock, TopicCreation, Topics
from soak.core.units import SECOND_NS

LOG = logging.getLogger("soak.brokers.pulsar")

LOOKUPS_PER_CALL = 200
_ADDRESSES = ("httpUrl", "httpUrlTls", "brokerUrl", "brokerUrlTls")
"""A broker has those of them that its listeners serve."""

_CLIENT = {"stats_interval_in_seconds": 0}  # its own lines about throughput: ours say more
_PRODUCER = {"max_pending_messages": 20_000}  # of a partition, for a stall of seconds
_CONSUMER = {"receiver_queue_size": 10_000}
_CLOCK_SECONDS = 2.0  # by which clocks may differ: dates have a resolution of one
_MAX_CONCURRENT = 16  # producers created at the same time: each waits for an answer
_RETRY_NS = SECOND_NS // 5


def connect(config: Config, clock: Clock) -> PulsarBroker:
    return PulsarBroker(config, clock)


@dataclass(frozen=True, slots=True)
class PulsarGuarantees:
    """What a Pulsar cluster guarantees for the topics of a plan, and how long it retains them."""

    config: Config

    def durability(self, topic: Topic, written: Container[KeyPath]) -> Durability:
        del written  # no setting of a client has a part in it
        return durability.read_durability(self.config, topic)

    def retention(self, topic: Topic) -> Limits:
        return retention.read_retention(self.config, topic)

    def assumed_retention(self, topic: Topic, broker_settings: Settings) -> Limits:
        return retention.retention_of(topic.settings, broker_settings)

    def stored_size(self, load: Load, topic: Topic, limits: Limits) -> Stored:
        del limits  # no cluster compresses what it stores
        return retention.stored_in_entries(load, topic.total_partitions, self.config.producer)


class PulsarBroker:
    """A cluster as the plan names it; every client is made where it is asked for."""

    block_bits = BLOCK_BITS
    # Three messages a wake-up at 5,000/s; with two they cost 13 % more CPU. Batches wait for longer anyway.
    wait_ns = 460_000

    def __init__(self, config: Config, clock: Clock) -> None:
        self.guarantees = PulsarGuarantees(config)
        self._config = config
        self._clock = clock
        self._lines = ClientLogPipe(clock)
        self._logger: pulsar.FileLogger | None = None
        self._lookups = LeaderLookup()
        self._leader_admin: Admin | None = None

    def check_settings(self) -> None:
        """Check the addresses and settings; connects to nothing.

        Raises:
            SettingError: missing addresses, secrets in the plan, unknown names, or wrong values.
        """
        config, addresses = self._config, self._config.addresses
        both = "service_url and admin_url name a cluster together"
        faults = [
            SettingError((key,), f"is missing: {both}")
            for key in ("service_url", "admin_url")
            if any(addresses.values()) and not addresses[key]
        ]
        urls = (*config.service_urls(), addresses["admin_url"])
        faults += wrong_settings(
            lambda: client_settings.refuse_literal_secrets("client", config.client, SECRETS),
            lambda: client_settings.refuse_unencrypted("client", config.client, SECRETS, urls),
            config.connection_settings,
            lambda: convert_settings("producer", config.producer),
            lambda: convert_settings("consumer", config.consumer),
        )
        raise_settings(faults)

    def check(self) -> None:
        """Check the settings, and connect to the cluster on both its addresses.

        A user who may not list clusters, or the topics of the plan's namespace, is let in.

        Raises:
            BrokerError: the settings are wrong, or one of the two does not answer.
            LoginMissingError: one answers, and wants a token or certificate that the plan does not have.
        """
        self.check_settings()
        try:
            self._config.admin().get("/admin/v2/clusters")
        except BrokerError as error:
            if not self._lacks_right(error):
                error.address = "admin_url"
                if not self._lacks_login(error):
                    raise
                missing = LoginMissingError(str(error))
                missing.address = error.address
                raise missing from error
        client = self._client()
        try:  # under the name of a partition, for which a request creates no topic
            client.get_topic_partitions(f"persistent://{self._config.namespace}/soak-partition-0")
        except pulsar.TopicNotFound:
            LOG.debug("reached url=%s", self._config.service_url)
        except pulsar.PulsarException as error:
            if self._lacks_right(error):
                return
            where = self._config.service_url
            kind = LoginMissingError if self._lacks_login(error) else BrokerError
            if isinstance(error, pulsar.AuthenticationError):
                raise kind(f"the Pulsar broker at {where} refuses the login: {error}") from error
            raise kind(f"no Pulsar broker answered at {where}: {error}") from error
        finally:
            close_client(client)

    def _lacks_right(self, error: Exception) -> bool:
        """True where a server answers a user with a token that this request is not allowed."""
        is_refused = isinstance(error, RefusedError) and error.status in REFUSALS
        return "token" in self._config.client and (
            is_refused or isinstance(error, pulsar.AuthorizationError)
        )

    def _lacks_login(self, error: BaseException) -> bool:
        """True where a server wants a token or a certificate, or shows one, that the plan does not have."""
        reason: BaseException | None = error
        while reason is not None and "token" not in self._config.client:
            if isinstance(reason, pulsar.AuthenticationError | pulsar.AuthorizationError):
                return True
            if isinstance(reason, RefusedError):
                return reason.status in REFUSALS
            if isinstance(reason, ssl.SSLError):
                return "CERTIFICATE" in str(reason.reason)
            reason = reason.__cause__
        return False

    def existing(self, names: Sequence[str]) -> list[str]:
        admin = self._config.admin()
        there: set[str] = set()
        for namespace in {self._config.full_name(name).rpartition("/")[0] for name in names}:
            there.update(names_in(admin, namespace))
        return [name for name in names if self._config.full_name(name) in there]

    def identities(self, names: Sequence[str]) -> dict[str, str]:
        admin = self._config.admin()
        return {name: mark_of(admin, self._config.full_name(name)) for name in self.existing(names)}

    def create_topics(
        self,
        topics: Topics,
        replication: int,
        settings: Mapping[str, str],
        making: TopicCreation = UNMARKED,
    ) -> None:
        """Create topics; brokers load their partitions when the first client connects.

        Raises:
            BrokerError: one exists, or the settings are refused.
        """
        admin = self._config.admin()
        policies = policies_of(replication, settings)
        for name in topics.names:
            full = self._config.full_name(name)
            if name not in making.begun:
                create_topic(admin, full, topics.partitions, making.mark)
                making.note({name: mark_of(admin, full)})
            set_policies(admin, full, policies)

    def delete_topics(self, names: Sequence[str]) -> None:
        admin = self._config.admin()
        for name in names:
            delete_topic(admin, self._config.full_name(name))

    def producer(self, topics: Topics) -> PulsarProducer:
        settings = {**_PRODUCER, **convert_settings("producer", self._config.producer)}
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
        full, admin = self._in_full(topics), self._config.admin()
        settings = {
            **_CONSUMER,
            "initial_position": pulsar.InitialPosition.Latest
            if LATEST in positions.values()
            else pulsar.InitialPosition.Earliest,
            "batch_receive_policy": pulsar.ConsumerBatchReceivePolicy(10 * SHALLOW, -1, 1),
            **convert_settings("consumer", self._config.consumer),
        }
        kept = kept_from(admin, full, subscription)  # before a new subscription is created
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
        return PulsarConsumer(
            client, subscribed, full, positions, watcher, self._clock, self._lines.take_errors
        )

    def leaders(self, topics: Topics) -> NDArray[np.int64]:
        admin, self._leader_admin = self._leader_admin or self._config.admin(), None
        found = self._lookups.leaders(admin, self._in_full(topics))
        # It is kept until it fails: a new one reads token and certificates again.
        self._leader_admin = admin
        return found

    def leader_name(self, number: int) -> str:
        return self._lookups.name(number)

    def leader_address(self, number: int) -> str:
        """Return "": the name is the address."""
        del number
        return ""

    def broker_count(self) -> int:
        return len(listed_brokers(self._config.admin()))

    def topic_error(self, topic: Topic) -> str:
        """Return what can be known in advance: the admin interface has no dry run."""
        if topic.use_existing:
            return ""
        return creation_error(self._config.admin(), self._config.full_name(topic.names[0]))

    def replication_error(self, topic: Topic) -> str:
        """Compare the ensemble with the bookies: some clusters list none, others for superusers only."""
        listed = durability.get_mapping(self._config.admin(), "/admin/v2/bookies/all").get(
            "bookies"
        )
        try:
            ensemble = int(topic.settings.get("bookkeeperEnsemble", topic.replication))
        except ValueError:  # `check_topic` refuses it
            return ""
        if not isinstance(listed, list) or not listed or ensemble <= len(listed):
            return ""
        what = (
            "topic.settings.bookkeeperEnsemble" if "bookkeeperEnsemble" in topic.settings else "it"
        )
        have = "1 bookie" if len(listed) == 1 else f"{len(listed)} bookies"
        return (
            f"an ensemble of {ensemble} needs as many bookies, and the cluster has {have}: "
            f"set {what} to at most {len(listed)}, or add bookies"
        )

    def cluster_warnings(self) -> list[str]:
        ahead = self._config.admin().clock_ahead_seconds(self._clock)
        if ahead is None or abs(ahead) < _CLOCK_SECONDS:
            return []
        differs = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0.0 else 'behind'} this host's"
        why = "what the brokers' logs say happened is dated wrong: let both hosts follow one time server"
        return [f"the clock of {self._config.admin_url} is {differs}, so {why}"]

    def partition_of(self, key: bytes, partitions: int) -> int:
        return partition_of(key, partitions)

    def client_facts(self) -> dict[str, str]:
        return self.client_versions()

    def client_versions(self) -> dict[str, str]:
        return {"pulsar-client": str(pulsar.__version__)}

    def broker_versions(self) -> dict[str, str]:
        return broker_versions(self._config.admin())

    def _in_full(self, topics: Topics) -> Topics:
        return Topics(
            tuple(self._config.full_name(name) for name in topics.names), topics.partitions
        )

    def _client(self) -> pulsar.Client:
        settings = {
            **_CLIENT,
            "operation_timeout_seconds": max(1, round(self._config.timeout_seconds)),
            **self._config.connection_settings(),
        }
        token = self._config.token()
        if token:
            settings["authentication"] = pulsar.AuthenticationToken(token)
        if self._logger is None:
            self._logger = self._lines.open()
        try:
            return pulsar.Client(self._config.service_url, logger=self._logger, **settings)
        except (pulsar.PulsarException, ValueError, RuntimeError) as error:
            raise BrokerError(f"the client refuses its settings: {error}") from error

    def _subscribed(
        self,
        client: pulsar.Client,
        names: list[str],
        subscription: str,
        settings: Mapping[str, Any],
    ) -> pulsar.Consumer:
        """Subscribe; the connection of a killed consumer may hold the subscription for a moment."""
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
    """Set a subscription to the position to continue at; create it there if there is none."""
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


def listed_brokers(admin: Admin) -> list[str]:
    """Return the address of each broker; raises `BrokerError` where the cluster does not list them."""
    brokers = admin.get("/admin/v2/brokers")
    if not isinstance(brokers, list):
        raise BrokerError("the cluster does not list its brokers")
    return [str(one) for one in brokers]


def broker_versions(admin: Admin) -> dict[str, str]:
    """Return the version of the broker that answers, by the address of each broker."""
    version = admin.get("/admin/v2/brokers/version")  # of any other no request asks
    return dict.fromkeys(listed_brokers(admin), str(version).strip())


class LeaderLookup:
    """The broker of each partition: numbers, valid in this process only, and their names."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}  # in the order in which they were seen
        self._leaders: dict[str, int] = {}  # by partition name
        self._next = 0

    def leaders(self, admin: Admin, topics: Topics) -> NDArray[np.int64]:
        """Return the number of the broker that serves each partition, shape (total,), -1 where not known yet.

        With one broker nothing is looked up. Of many partitions some are looked up in each call, in turn.

        Raises:
            BrokerError: the cluster did not answer in time, or refuses.
        """
        try:
            # Of the cluster that answers, not of its siblings.
            brokers = admin.get("/admin/v2/brokers")
        except RefusedError as error:
            if error.status not in REFUSALS:
                raise
            brokers = None  # they are listed for superusers alone
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
    """Return the path of a lookup, which assigns the partition to a broker if none has it."""
    return topic_path(partition).replace("/admin/v2/", "/lookup/v2/topic/", 1)


def broker_address(partition: str, answer: Any) -> str:  # noqa: ANN401  # what the cluster says
    """Return host and port of the broker that serves a partition."""
    found = [answer.get(name) for name in _ADDRESSES] if isinstance(answer, dict) else []
    address = next((str(one) for one in found if one), "")
    if not address:
        raise BrokerError(f"the cluster does not name the broker of {partition}")
    return address.partition("://")[2].rstrip("/")
