"""What a Pulsar topic retains beyond what was read, and how many bytes a message takes in its ledgers.

A ledger is trimmed when every subscription has read it and the policy allows that: the topic's, else its
namespace's, else the broker's. Bytes in addition to the payload were measured with the C++ client 3.13: 36 an
entry, 10 more for each message of a batch. How many messages share an entry is an estimate for a client
that waits for its delay and no longer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from soak.brokers.pulsar.client import Config
from soak.brokers.pulsar.durability import BROKER_SETTINGS, get_mapping
from soak.clients.pulsar_admin import topic_path
from soak.core.cluster.forecast import NEVER, Limits, Stored
from soak.core.plan.load import Load
from soak.core.plan.plan import Topic

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
_MIB = 2**20
_TIME, _SIZE = "retentionTimeInMinutes", "retentionSizeInMB"
_BROKER_DEFAULTS = {
    "managedLedgerMaxEntriesPerLedger": 50_000,
    "managedLedgerMaxSizePerLedgerMbytes": 2048,
    "managedLedgerMinLedgerRolloverTimeMinutes": 10,
    "managedLedgerMaxLedgerRolloverTimeMinutes": 240,
    "retentionCheckIntervalInSeconds": 120,
    "defaultRetentionTimeInMinutes": 0,
    "defaultRetentionSizeInMB": 0,
    "maxMessageSize": 5 * _MIB,
}
_NOTES = (
    "a ledger is deleted only when every subscription has read it",
    "a bookie frees the space later: when all ledgers of an entry log are gone, or when it compacts one",
)
_OFFLOADED = "ledgers may be offloaded: bookies free those earlier, while the bytes held count them"
_UNKNOWN = "no broker reports its settings: Pulsar's defaults are assumed"
_OFFLOAD_DRIVER = "managedLedgerOffloadDriver"  # of brokers and of namespaces


def read_retention(config: Config, topic: Topic) -> Limits:
    """Return the limits of a plan's topics, read from the first of them and one broker.

    Raises:
        BrokerError: the admin interface does not answer.
    """
    admin = config.admin()
    names = [config.full_name(name) for name in topic.names]
    first = topic_path(names[0])
    namespace = names[0].partition("://")[2].rpartition("/")[0]
    planned = {key: topic.settings[key] for key in (_TIME, _SIZE) if key in topic.settings}
    policy = (
        (get_mapping(admin, f"{first}/retention?applied=true") if topic.name else {})
        or planned
        or get_mapping(admin, f"/admin/v2/namespaces/{namespace}/retention")
    )
    found = retention_of(policy, get_mapping(admin, BROKER_SETTINGS))
    offload = get_mapping(admin, f"/admin/v2/namespaces/{namespace}/offloadPolicies")
    if offload.get(_OFFLOAD_DRIVER) and _OFFLOADED not in found.notes:
        found = dataclasses.replace(found, notes=(*found.notes, _OFFLOADED))
    if not topic.use_existing:
        return found
    persistence = get_mapping(admin, f"{first}/persistence?applied=true")
    copies = _number(persistence.get("bookkeeperWriteQuorum"), 0)
    all_stats = [get_mapping(admin, f"{topic_path(name)}/partitioned-stats") for name in names]
    is_empty = not any(_number(stats.get("storageSize"), 0) for stats in all_stats)
    return dataclasses.replace(found, copies=copies or None, is_empty=is_empty)


def retention_of(policy: Mapping[str, Any], broker: Mapping[str, Any]) -> Limits:
    """Return the limits from the policy of a topic, else of a broker.

    A policy with one of the two limits leaves the other open.
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
        max_message_bytes=found["maxMessageSize"] if broker else NEVER,
        notes=(
            *_NOTES,
            *([] if broker else [_UNKNOWN]),
            *([_OFFLOADED] if broker.get(_OFFLOAD_DRIVER) else []),
        ),
    )


def _number(value: object, default: int) -> int:
    try:
        return default if value is None else int(str(value))
    except ValueError:
        return default


def stored_in_entries(load: Load, partitions: int, producer: Mapping[str, str]) -> Stored:
    """Return the bytes of a message in the log, and how many messages make an entry."""
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
