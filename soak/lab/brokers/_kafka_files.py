"""The files that the nodes of a Kafka cluster are started with; text only, no IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from soak.core.errors import LabError

_QUORUM = 3
"""This many of the nodes are controllers too, or one where there are fewer: two are no safer than one."""

_COPIES = 3


@dataclass(frozen=True, slots=True)
class Place:
    """Where one node listens on loopback: for clients, and for controllers."""

    number: int  # `node.id`, from 1
    port: int
    controller_port: int


def server_properties(
    data: Path, place: Place, cluster: Sequence[Place], settings: Mapping[str, str]
) -> str:
    """Return the configuration of one of the nodes of a cluster.

    Raises:
        LabError: `settings` names a key that the lab itself decides, or holds a line break.
    """
    quorum = cluster[: _QUORUM if len(cluster) >= _QUORUM else 1]
    client = f"PLAINTEXT://127.0.0.1:{place.port}"
    controller = f"CONTROLLER://127.0.0.1:{place.controller_port}"
    own = {
        "process.roles": "broker,controller" if place in quorum else "broker",
        "node.id": str(place.number),
        "controller.quorum.voters": ",".join(
            f"{one.number}@127.0.0.1:{one.controller_port}" for one in quorum
        ),
        "listeners": f"{client},{controller}" if place in quorum else client,
        "advertised.listeners": client,
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(data),
    }
    copies = min(_COPIES, len(cluster))
    in_sync = max(1, copies - 1)
    defaults = {
        # What is kept three times elsewhere is kept as often as there are nodes for it.
        "offsets.topic.replication.factor": str(copies),
        "transaction.state.log.replication.factor": str(copies),
        "transaction.state.log.min.isr": str(in_sync),
        "share.coordinator.state.topic.replication.factor": str(copies),
        "share.coordinator.state.topic.min.isr": str(in_sync),
        "group.initial.rebalance.delay.ms": "0",
        # Retention in seconds instead of minutes, so that a short run sees it.
        "log.retention.check.interval.ms": "1000",
        "log.segment.delete.delay.ms": "1000",
        "log.initial.task.delay.ms": "1000",
    }
    for key, value in settings.items():
        if key in own:
            raise LabError(f"the lab itself decides {key}; remove it from lab.settings")
        if "\n" in f"{key}{value}" or "\r" in f"{key}{value}":
            raise LabError(f"lab.settings: {key!r} holds a line break")
    return properties({**defaults, **settings, **own})


def meta_properties(cluster_id: str, directory_id: str, number: int) -> str:
    """Return the file by which Kafka knows a formatted data folder."""
    return properties(
        {
            "version": "1",
            "cluster.id": cluster_id,
            "node.id": str(number),
            "directory.id": directory_id,
        }
    )


def properties(pairs: Mapping[str, str]) -> str:
    """Return a Java properties file; a backslash is its escape character."""
    return "".join(f"{key}={value}\n".replace("\\", "\\\\") for key, value in pairs.items())
