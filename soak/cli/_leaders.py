"""Whether latency by leader will tell the cluster's brokers apart."""

from __future__ import annotations

from soak.core.errors import BrokerError
from soak.core.plan import Plan
from soak.core.ports import LeaderSource
from soak.core.wording import OTHERS_NAME
from soak.daemons.leaders import MOST_LEADERS


def untold_apart(plan: Plan, broker: LeaderSource) -> list[str]:
    """Return that some brokers will share one latency, if so; nothing where the cluster does not tell."""
    try:
        leaders = min(broker.broker_count(), plan.topic.total_partitions)
    except BrokerError:  # Pulsar lists its brokers for superusers alone
        return []
    more = leaders - MOST_LEADERS
    if more <= 0:
        return []
    names = (
        f"the {MOST_LEADERS} that lead most of them; the other {more} share one, {OTHERS_NAME!r}"
    )
    return [
        f"{leaders} brokers may lead the run's partitions, and latency is kept apart for {names}"
    ]
