"""Faults that other clients and administrators cause: load, reads, partitions, restarts, quotas."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pydantic.dataclasses import dataclass

from soak.core.errors import LabError
from soak.core.plan.config import STRICT
from soak.core.plan.plan import Lab
from soak.core.units import Size, size_bytes
from soak.lab.brokers import kafka
from soak.lab.faults.active import (
    ActiveFault,
    Fault,
    activating,
    restart_if_ended,
    start_worker,
)
from soak.lab.faults.broker_process import elect_preferred_leaders
from soak.lab.ports import Target

_REQUEST_SECONDS = 30
_BATCH = 200  # partitions a request: thousands at once take longer than a request may
_CLIENTS = "soak.lab.other_clients"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ForeignFloodConfig:
    """Let another producer write to a topic of its own, without limit but this rate.

    Needs: a Kafka.
    """

    bytes_per_second: Size = size_bytes("32MiB")

    def __post_init__(self) -> None:
        if self.bytes_per_second <= 0:
            raise ValueError("bytes_per_second must be above 0")


def _inject_foreign_flood(target: Target, config: ForeignFloodConfig) -> ActiveFault:
    with activating(target) as active:
        topic = _new_topic(active, target, partitions=6)
        rate = str(config.bytes_per_second)
        start_worker(active, _command(target, "write", topic, rate), _log(target))
        active.record(topic=topic, bytes_per_second=config.bytes_per_second)
    return active


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ForeignReadsConfig:
    """Let other consumers read the topics of the run from the beginning, again and again.

    Needs: a Kafka.
    """

    readers: int = 2
    topics: str = "soak-*"

    def __post_init__(self) -> None:
        if self.readers < 1:
            raise ValueError("readers must be at least 1")


def _inject_foreign_reads(target: Target, config: ForeignReadsConfig) -> ActiveFault:
    with activating(target) as active:
        for _ in range(config.readers):
            start_worker(active, _command(target, "read", config.topics), _log(target))
        active.record(readers=config.readers)
    return active


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CreatePartitionsConfig:
    """Create a topic of many partitions at once; it is deleted at the lifting.

    Needs: a Kafka.
    """

    partitions: int = 500

    def __post_init__(self) -> None:
        if self.partitions < 1:
            raise ValueError("partitions must be at least 1")


def _inject_create_partitions(target: Target, config: CreatePartitionsConfig) -> ActiveFault:
    with activating(target) as active:
        active.record(partitions=config.partitions)
        for first in range(0, config.partitions, _BATCH):
            _new_topic(active, target, partitions=min(_BATCH, config.partitions - first))
    return active


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RollingRestartConfig:
    """Restart the brokers in order, one after the other, each when the one before it serves again.

    The brokers that were restarted first lead all partitions then. At the end the preferred leaders are
    elected, as an administrator would do.

    Needs: a cluster of several brokers.
    """


def _inject_rolling_restart(target: Target, _config: RollingRestartConfig) -> ActiveFault:
    """Restart all of them before it returns, in some seconds each; from the main thread."""
    with activating(target) as active:
        active.on_lift(elect_preferred_leaders, target)
        for node in target.broker.nodes:
            active.on_lift(restart_if_ended, node)
            active.record(restarted=node.number)
            node.restart()
    return active


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ClientQuotaConfig:
    """Limit the bytes a second that the brokers take from each client, and hand to it.

    Needs: a Kafka.
    """

    bytes_per_second: Size = size_bytes("64KiB")

    def __post_init__(self) -> None:
        if self.bytes_per_second <= 0:
            raise ValueError("bytes_per_second must be above 0")


def _inject_client_quota(target: Target, config: ClientQuotaConfig) -> ActiveFault:
    servers, folder = target.broker.bootstrap_servers, _log(target).parent
    with activating(target) as active:
        active.on_lift(kafka.limit_clients, servers, None, folder)
        kafka.limit_clients(servers, config.bytes_per_second, folder)
        active.record(bytes_per_second=config.bytes_per_second)
    return active


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TopicCompactionConfig:
    """Let the brokers compact a topic of another client, which overwrites few keys again and again.

    Needs: a Kafka.
    """

    bytes: Size = size_bytes("64MiB")  # written at the injection, then compacted

    def __post_init__(self) -> None:
        if self.bytes <= 0:
            raise ValueError("bytes must be above 0")


def _inject_topic_compaction(target: Target, config: TopicCompactionConfig) -> ActiveFault:
    settings = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "segment.bytes": str(size_bytes("4MiB")),
        "max.compaction.lag.ms": "1000",
    }
    with activating(target) as active:
        topic = _new_topic(active, target, partitions=3, settings=settings)
        start_worker(active, _command(target, "overwrite", topic, str(config.bytes)), _log(target))
        active.record(topic=topic, bytes=config.bytes)
    return active


def _command(target: Target, *words: str) -> list[str]:
    return [sys.executable, "-m", _CLIENTS, target.broker.bootstrap_servers, *words]


def _log(target: Target) -> Path:
    return target.broker.log_path.with_name("other_clients.log")


def _new_topic(
    active: ActiveFault,
    target: Target,
    *,
    partitions: int,
    settings: dict[str, str] | None = None,
) -> str:
    """Create a topic that is deleted at the lifting; return its name."""
    admin = AdminClient({"bootstrap.servers": target.broker.bootstrap_servers})
    topic = f"other-{secrets.token_hex(4)}"
    replicas = min(3, len(target.broker.nodes))
    wanted = NewTopic(topic, partitions, replicas, config=settings or {})
    try:
        active.on_lift(_delete, admin, topic)
        admin.create_topics([wanted], request_timeout=_REQUEST_SECONDS)[topic].result()
    except KafkaException as error:
        raise LabError(f"cannot create the topic {topic}: {error}") from error
    return topic


def _delete(admin: AdminClient, topic: str) -> None:
    try:
        admin.delete_topics([topic], request_timeout=_REQUEST_SECONDS)[topic].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise


def _missing_brokers(lab: Lab, _config: RollingRestartConfig) -> str:
    return "" if lab.nodes > 1 else "it needs several brokers: set `lab.nodes` of the plan"


FAULTS = {
    "foreign_flood": Fault(config=ForeignFloodConfig, inject=_inject_foreign_flood),
    "foreign_reads": Fault(config=ForeignReadsConfig, inject=_inject_foreign_reads),
    "create_partitions": Fault(config=CreatePartitionsConfig, inject=_inject_create_partitions),
    "rolling_restart": Fault(
        config=RollingRestartConfig,
        inject=_inject_rolling_restart,
        missing_from_lab=_missing_brokers,
    ),
    "client_quota": Fault(config=ClientQuotaConfig, inject=_inject_client_quota),
    "topic_compaction": Fault(config=TopicCompactionConfig, inject=_inject_topic_compaction),
}
