"""What a Redpanda topic keeps: told as Kafka tells it, deleted by a housekeeping of its own.

Source: Redpanda's documentation: every `log_compaction_interval_ms` (10 s) segments beyond a limit are
removed, and their files with them. No Redpanda was to be had where this was written.
"""

from __future__ import annotations

from soak.brokers import _kafka_retention
from soak.brokers._kafka_durability import Config
from soak.core.forecast import Limits, Stored
from soak.core.plan import Plan, Topic
from soak.core.plan_base import Settings

_OWN = {"log.retention.check.interval.ms": "10000", "log.segment.delete.delay.ms": "0"}


def read(config: Config, topic: Topic) -> Limits:
    """Return what the topics of a plan keep, as the cluster says.

    Raises:
        BrokerError: no broker answers.
    """
    return _kafka_retention.read(config, topic, _OWN)


def assumed(topic: Topic, brokers: Settings) -> Limits:
    """Return what the topics of a plan will keep on brokers with these settings."""
    return _kafka_retention.assumed(topic, {**brokers, **_OWN})


def stored(plan: Plan, limits: Limits) -> Stored:
    """Return what the plan's messages take in the log."""
    return _kafka_retention.stored(plan, limits)
