"""What a Kafka cluster would refuse of a topic: its name, an unknown setting, a value that is no number.

Source: the documents of Kafka 4 on topic configurations, with those that 4.0 dropped, and of Redpanda 25.
What a vendor named after itself is passed on as it is.
"""

from __future__ import annotations

import re

from soak.clients import known
from soak.core.errors import SettingError
from soak.core.plan import Topic

_NUMBERS = frozenset(
    {
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "index.interval.bytes",
        "internal.segment.bytes",
        "local.retention.bytes",
        "local.retention.ms",
        "max.compaction.lag.ms",
        "max.message.bytes",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.difference.max.ms",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
    }
)
_OTHERS = frozenset(
    {
        "cleanup.policy",
        "compression.type",
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "message.downconversion.enable",
        "message.format.version",
        "message.timestamp.type",
        "min.cleanable.dirty.ratio",
        "preallocate",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
        "unclean.leader.election.enable",
    }
)
_OF_REDPANDA = frozenset(
    {
        "flush.bytes",
        "initial.retention.local.target.bytes",
        "initial.retention.local.target.ms",
        "replication.factor",
        "retention.local.target.bytes",
        "retention.local.target.ms",
        "write.caching",
    }
)
_VENDORS = ("redpanda.", "confluent.", "automq.")
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_NUMBER = re.compile(r"-?[0-9]+")
RULE = "must be at most 249 letters, digits, '.', '_' or '-', and neither '.' nor '..'"
"""What holds for the name of a topic, after that name."""


def check(topic: Topic) -> None:
    """Refuse what is known to be refused.

    Raises:
        SettingError: about the first of them; its place is that in a plan's `topic`.
    """
    if topic.name:
        for name in topic.names:
            _check_name(name)
    ours = [name for name in topic.settings if not name.startswith(_VENDORS)]
    known.refuse_unknown("settings", ours, _NUMBERS | _OTHERS | _OF_REDPANDA, who="a topic")
    for name, text in topic.settings.items():
        if name in _NUMBERS and not _NUMBER.fullmatch(text):
            raise SettingError(("settings", name), f"must be a whole number, not {text!r}")


def is_name(name: str) -> bool:
    """True when a topic may be called so."""
    return _NAME.fullmatch(name) is not None and name not in {".", ".."}


def _check_name(name: str) -> None:
    if not is_name(name):
        raise SettingError(("name",), f"{name!r} {RULE}")
