"""What a Pulsar topic retains, and how many bytes a message takes in its ledgers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from soak.brokers.pulsar import broker as pulsar
from soak.clients.pulsar_admin import Admin, RefusedError, topic_path
from soak.core.clock import SystemClock
from soak.core.cluster.forecast import NEVER, Limits, Stored
from soak.core.plan.config import Settings
from soak.core.plan.load import Load
from soak.core.plan.plan import Plan, Topic

ENTRY_BYTES = 36
IN_BATCH_BYTES = 10
STICKY_SECONDS = 0.01  # without keys a producer stays with a partition for so long
_PRODUCER_DEFAULTS = {
    "batching_enabled": "false",
    "batching_max_messages": "1000",
    "batching_max_allowed_size_in_bytes": str(128 * 2**10),
    "batching_max_publish_delay_ms": "10",
    "compression_type": "NONE",
}


def stored_in_entries(load: Load, partitions: int, producer: Mapping[str, str]) -> Stored:
    """Return what messages of a load take, and how many make an entry."""
    settings = {**_PRODUCER_DEFAULTS, **producer}
    together = messages_per_entry(load, partitions, settings)
    size = load.mean_size + ENTRY_BYTES / together
    if settings["batching_enabled"] == "true":
        size += IN_BATCH_BYTES
    if settings["compression_type"] != _PRODUCER_DEFAULTS["compression_type"]:
        size -= load.compressible * load.mean_size
    return Stored(size, together)


def messages_per_entry(load: Load, partitions: int, settings: Mapping[str, str]) -> float:
    """Return how many messages share an entry, at least 1."""
    if settings["batching_enabled"] != "true":
        return 1.0
    rate = float(load.rate) / (load.producers * load.clients_per_producer)
    delay = float(settings["batching_max_publish_delay_ms"]) * 1e-3
    if load.keys.kind == "none":
        delay = min(delay, STICKY_SECONDS)
    else:
        rate /= partitions
    most = min(
        float(settings["batching_max_messages"]),
        float(settings["batching_max_allowed_size_in_bytes"]) / load.mean_size,
    )
    return max(1.0, min(1.0 + rate * delay, most))


# --- What a Pulsar topic keeps beyond what was read: its own policy, else its namespace's, else the broker's.
# A ledger is trimmed when every subscription has read it and the policy lets it go.

_MIB = 2**20
_BROKER = "/admin/v2/brokers/configuration/runtime"
_TIME, _SIZE = "retentionTimeInMinutes", "retentionSizeInMB"
_BROKER_DEFAULTS = {
    "managedLedgerMaxEntriesPerLedger": 50_000,
    "managedLedgerMaxSizePerLedgerMbytes": 2048,
    "managedLedgerMinLedgerRolloverTimeMinutes": 10,
    "managedLedgerMaxLedgerRolloverTimeMinutes": 240,
    "retentionCheckIntervalInSeconds": 120,
    "defaultRetentionTimeInMinutes": 0,
    "defaultRetentionSizeInMB": 0,
}
_NOTES = (
    "a ledger goes only when every subscription has read it",
    "a bookie frees the space later: when all ledgers of an entry log are gone, or when it compacts one",
)
_OFFLOADED = "ledgers may be offloaded: bookies free those earlier, while the bytes held count them"
_UNKNOWN = "no broker tells its settings: Pulsar's defaults are taken"


def read_retention(config: pulsar.Config, topic: Topic) -> Limits:
    """Return what the topics of a plan keep, as the first of them and one broker tell.

    Raises:
        BrokerError: the admin interface does not answer.
    """
    admin = pulsar.connect(config, SystemClock())._admin()  # noqa: SLF001  # with token and TLS
    in_full = [
        name if "://" in name else f"persistent://{config.namespace}/{name}" for name in topic.names
    ]
    full = in_full[0]
    namespace = full.partition("://")[2].rpartition("/")[0]
    planned = {key: topic.settings[key] for key in (_TIME, _SIZE) if key in topic.settings}
    policy = (
        (_get_mapping(admin, f"{topic_path(full)}/retention?applied=true") if topic.name else {})
        or planned
        or _get_mapping(admin, f"/admin/v2/namespaces/{namespace}/retention")
    )
    found = retention_of(policy, _get_mapping(admin, _BROKER))
    if not topic.use_existing:
        return found
    persistence = _get_mapping(admin, f"{topic_path(full)}/persistence?applied=true")
    copies = _number(persistence.get("bookkeeperWriteQuorum"), 0)
    held = [_get_mapping(admin, f"{topic_path(one)}/partitioned-stats") for one in in_full]
    is_empty = not any(_number(stats.get("storageSize"), 0) for stats in held)
    return dataclasses.replace(found, copies=copies or None, is_empty=is_empty)


def assumed_retention(topic: Topic, brokers: Settings) -> Limits:
    """Return what the topics of a plan will keep on brokers with these settings."""
    return retention_of(topic.settings, brokers)


def stored_size(plan: Plan, limits: Limits) -> Stored:
    """Return what the plan's messages take in the log; no cluster compresses what it stores."""
    del limits
    config: pulsar.Config = plan.broker_config
    return stored_in_entries(plan.load, plan.topic.total_partitions, config.producer)


def retention_of(policy: Mapping[str, Any], broker: Mapping[str, Any]) -> Limits:
    """Return the limits from a topic's policy, where it has one, over those of a broker.

    A policy that names one of its two limits leaves the other open.
    """
    found = {name: _number(broker.get(name), default) for name, default in _BROKER_DEFAULTS.items()}
    longest = found["managedLedgerMaxLedgerRolloverTimeMinutes"]
    minutes, mebibytes = found["defaultRetentionTimeInMinutes"], found["defaultRetentionSizeInMB"]
    if _TIME in policy or _SIZE in policy:
        minutes, mebibytes = _number(policy.get(_TIME), -1), _number(policy.get(_SIZE), -1)
    return Limits(
        segment_bytes=found["managedLedgerMaxSizePerLedgerMbytes"] * _MIB,
        segment_entries=found["managedLedgerMaxEntriesPerLedger"],
        segment_seconds=60 * longest if longest > 0 else NEVER,  # ManagedLedgerImpl: 0 is off
        least_segment_seconds=60 * max(0, found["managedLedgerMinLedgerRolloverTimeMinutes"]),
        keep_bytes=NEVER if mebibytes < 0 else mebibytes * _MIB,
        keep_seconds=NEVER if minutes < 0 else 60 * minutes,
        check_seconds=found["retentionCheckIntervalInSeconds"],
        free_seconds=None,
        notes=(
            *_NOTES,
            *([] if broker else [_UNKNOWN]),
            *([_OFFLOADED] if broker.get("managedLedgerOffloadDriver") else []),
        ),
    )


def _number(value: object, default: int) -> int:
    try:
        return default if value is None else int(str(value))
    except ValueError:
        return default


def _get_mapping(admin: Admin, path: str) -> Mapping[str, Any]:
    """Return an answer that may be refused, or be no mapping, as an empty one."""
    try:
        found = admin.get(path)
    except RefusedError:
        return {}
    return found if isinstance(found, dict) else {}
