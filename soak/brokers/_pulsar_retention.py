"""What a Pulsar topic keeps beyond what was read: its own policy, else its namespace's, else the broker's.

A ledger is trimmed when every subscription has read it and the policy lets it go.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from soak.brokers import _pulsar_entry, pulsar
from soak.clients.pulsar_admin import Admin, RefusedError, path_of
from soak.core.clock import SystemClock
from soak.core.forecast import NEVER, Limits, Stored
from soak.core.plan import Plan, Topic
from soak.core.plan_base import Settings

_MIB = 2**20
_BROKER = "/admin/v2/brokers/configuration/runtime"
_TIME, _SIZE = "retentionTimeInMinutes", "retentionSizeInMB"
_DEFAULTS = {
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
_SILENT = "no broker tells its settings: Pulsar's defaults are taken"


def read(config: pulsar.Config, topic: Topic) -> Limits:
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
        (_asked(admin, f"{path_of(full)}/retention?applied=true") if topic.name else {})
        or planned
        or _asked(admin, f"/admin/v2/namespaces/{namespace}/retention")
    )
    found = limits_of(policy, _asked(admin, _BROKER))
    if not topic.use_existing:
        return found
    persistence = _asked(admin, f"{path_of(full)}/persistence?applied=true")
    copies = _number(persistence.get("bookkeeperWriteQuorum"), 0)
    held = [_asked(admin, f"{path_of(one)}/partitioned-stats") for one in in_full]
    is_empty = not any(_number(stats.get("storageSize"), 0) for stats in held)
    return dataclasses.replace(found, copies=copies or None, is_empty=is_empty)


def assumed(topic: Topic, brokers: Settings) -> Limits:
    """Return what the topics of a plan will keep on brokers with these settings."""
    return limits_of(topic.settings, brokers)


def stored(plan: Plan, limits: Limits) -> Stored:
    """Return what the plan's messages take in the log; no cluster compresses what it stores."""
    del limits
    config: pulsar.Config = plan.broker_config
    return _pulsar_entry.stored(plan.load, plan.topic.total_partitions, config.producer)


def limits_of(policy: Mapping[str, Any], broker: Mapping[str, Any]) -> Limits:
    """Return the limits from a topic's policy, where it has one, over those of a broker.

    A policy that names one of its two limits leaves the other open.
    """
    found = {name: _number(broker.get(name), default) for name, default in _DEFAULTS.items()}
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
            *([] if broker else [_SILENT]),
            *([_OFFLOADED] if broker.get("managedLedgerOffloadDriver") else []),
        ),
    )


def _number(value: object, default: int) -> int:
    try:
        return default if value is None else int(str(value))
    except ValueError:
        return default


def _asked(admin: Admin, path: str) -> Mapping[str, Any]:
    """Return an answer that may be refused, or be no mapping, as an empty one."""
    try:
        found = admin.get(path)
    except RefusedError:
        return {}
    return found if isinstance(found, dict) else {}
