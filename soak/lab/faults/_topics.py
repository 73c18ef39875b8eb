"""Alters settings of a run's topics while it runs, and sets them back."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # their stubs lack them
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
)

from soak.core.errors import LabError
from soak.lab.faults._undoing import Undoing, undoing
from soak.lab.ports import Target

_ASK_SECONDS = 20.0


def altered(target: Target, pattern: str, settings: Mapping[str, str]) -> Undoing:
    """Set these on every topic whose name matches, until the fault is lifted.

    Raises:
        LabError: there is no such topic, or the cluster refuses.
    """
    admin = AdminClient({"bootstrap.servers": target.broker.bootstrap_servers})
    try:
        with undoing(target) as active:
            topics = fnmatch.filter(admin.list_topics(timeout=_ASK_SECONDS).topics, pattern)
            if not topics:
                raise LabError(f"the lab has no topic {pattern!r} whose settings could be altered")
            for topic in topics:
                active.on_lift(_set, admin, topic, _own(admin, topic, list(settings)))
                _set(admin, topic, settings)
            active.did(topics=topics, settings=dict(settings))
    except KafkaException as error:
        raise LabError(f"cannot alter the settings of {pattern!r}: {error}") from error
    return active


def _own(admin: AdminClient, topic: str, keys: list[str]) -> dict[str, str | None]:
    """Return what the topic itself says of these; None where it goes by the cluster's default."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    (found,) = admin.describe_configs([resource], request_timeout=_ASK_SECONDS).values()
    entries = found.result()
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {key: entries[key].value if entries[key].source == own else None for key in keys}


def _set(admin: AdminClient, topic: str, settings: Mapping[str, str | None]) -> None:
    entries = [
        ConfigEntry(
            key,
            value or "",
            incremental_operation=AlterConfigOpType.DELETE
            if value is None
            else AlterConfigOpType.SET,
        )
        for key, value in settings.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    (done,) = admin.incremental_alter_configs([resource], request_timeout=_ASK_SECONDS).values()
    done.result()
