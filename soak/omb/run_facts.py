"""What a plan says of a run, in the benchmark's words."""

from __future__ import annotations

from fractions import Fraction

from soak.core.plan import Plan
from soak.core.units import SECOND_NS

_MINUTE_NS = 60 * SECOND_NS
KEY_KINDS = {"none": "NO_KEY", "round_robin": "KEY_ROUND_ROBIN", "random": "RANDOM_NANO"}
"""Kinds of keys that the benchmark has, by our name of them."""


def facts(plan: Plan, rate: Fraction) -> dict[str, str | int | float]:
    """Return the single values of a result; the benchmark knows whole minutes and whole rates only.

    `rate` is the soak's: after a ramp the plan's own is the warm-up's.
    """
    topic, load, consumers = plan.topic, plan.load, plan.consumers
    return {
        "messageSize": round(load.mean_size),
        "topics": topic.count,
        "partitions": topic.partitions,
        "producersPerTopic": load.producers * load.clients_per_producer,
        "consumersPerTopic": consumers.per_subscription,
        "subscriptionsPerTopic": consumers.subscriptions,
        "keyDistributor": KEY_KINDS.get(load.keys.kind, load.keys.kind.upper()),
        "producerRate": round(rate),
        "testDurationMinutes": round(plan.phases.soak / _MINUTE_NS),
        "warmupDurationMinutes": round(plan.phases.warm_up / _MINUTE_NS),
        "warmupProducerRate": -1,
    }
