"""The files that the nodes of a Kafka cluster are started with; text only, no IO."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from soak.core.errors import LabError
from soak.lab.brokers._surroundings import check_settings, properties

_QUORUM = 3
"""This many of the nodes are controllers too, or one where there are fewer: two are no safer than one."""

_COPIES = 3

_PROTOCOLS = "listener.security.protocol.map"
_OWN_PROTOCOLS = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"
_ADDED_TO = ("listeners", _PROTOCOLS)
_ON_LOOPBACK = re.compile(r"[^:/,]+://127\.0\.0\.1:\d+")


DEFAULTS = {
    # Retention in seconds instead of minutes, so that a short run sees it.
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
    "log.initial.task.delay.ms": "1000",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where one node listens on loopback: for clients, and for controllers."""

    number: int  # `node.id`, from 1
    port: int
    controller_port: int
    relay_port: int = 0  # where clients and other nodes come in, if not at `port`

    @property
    def advertised_port(self) -> int:
        return self.relay_port or self.port


def server_properties(
    data: Path, place: Place, cluster: Sequence[Place], settings: Mapping[str, str]
) -> str:
    """Return the configuration of one of the nodes of a cluster.

    `listeners` and `listener.security.protocol.map` of `settings` come beside the lab's own.

    Raises:
        LabError: `settings` names a key that the lab itself decides, or a listener that is not
            on loopback or of a cluster of several nodes, or holds a line break.
    """
    beside = _listeners_beside(settings, cluster)
    quorum = cluster[: _QUORUM if len(cluster) >= _QUORUM else 1]
    client = f"PLAINTEXT://127.0.0.1:{place.port}"
    advertised = f"PLAINTEXT://127.0.0.1:{place.advertised_port}"
    controller = f"CONTROLLER://127.0.0.1:{place.controller_port}"
    own = {
        "process.roles": "broker,controller" if place in quorum else "broker",
        "node.id": str(place.number),
        "controller.quorum.voters": ",".join(
            f"{one.number}@127.0.0.1:{one.controller_port}" for one in quorum
        ),
        "listeners": ",".join([client, *([controller] if place in quorum else []), *beside]),
        "advertised.listeners": ",".join([advertised, *beside]),
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        _PROTOCOLS: ",".join([_OWN_PROTOCOLS, *_listed(settings.get(_PROTOCOLS, ""))]),
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
        **DEFAULTS,
    }
    check_settings(settings, own.keys() - set(_ADDED_TO))
    return properties({**defaults, **settings, **own})


def _listeners_beside(settings: Mapping[str, str], cluster: Sequence[Place]) -> list[str]:
    found = _listed(settings.get("listeners", ""))
    for listener in found:
        if not _ON_LOOPBACK.fullmatch(listener):
            raise LabError(f"lab.settings: a listener is NAME://127.0.0.1:PORT, not {listener!r}")
    if found and len(cluster) > 1:
        raise LabError("lab.settings: the nodes of a cluster cannot share a listener's port")
    return found


def _listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


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
