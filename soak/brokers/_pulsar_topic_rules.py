"""What a Pulsar cluster would refuse of a topic: its name, and policies that it does not have.

A name without its namespace has no slash: Pulsar would take what stands before that for one.
"""

from __future__ import annotations

import re

from soak.brokers._pulsar_topics import policies_of
from soak.core.errors import SettingError
from soak.core.plan import Topic

_SHORT = re.compile(r"[^/\s\x00-\x1f]+")
_FULL = re.compile(r"persistent://[-=:.\w]+/[-=:.\w]+/[^/\s\x00-\x1f]+", re.ASCII)
_PARTITION = re.compile(r".*-partition-[0-9]+")


def check(topic: Topic) -> None:
    """Refuse what is known to be refused.

    Raises:
        SettingError: about the first of them; its place is that in a plan's `topic`.
    """
    if topic.name:
        for name in topic.names:
            _check_name(name)
    policies_of(topic.replication, topic.settings)


def _check_name(name: str) -> None:
    kind = _FULL if "://" in name else _SHORT
    if not kind.fullmatch(name):
        how = "has no space and no '/', or is written persistent://tenant/namespace/topic"
        raise SettingError(("name",), f"{name!r} is no name of a topic: one {how}")
    if _PARTITION.fullmatch(name):
        raise SettingError(("name",), f"{name!r} is the name of a partition")
