"""The Redpanda driver of the benchmark's forks: the Kafka driver's keys, and a transactional variant."""

from __future__ import annotations

from soak.omb.drivers import kafka
from soak.omb.plan_import import Draft, SourceFile

PREFIX = "io.openmessaging.benchmark.driver.redpanda."


def take(source: SourceFile, draft: Draft) -> None:
    """Put the driver into the plan's broker and topic."""
    source.note_unknown(draft, kafka.KEYS | {"requestsPerTransaction"})
    kafka.fill(source, draft, "redpanda")
    if "requestsPerTransaction" in source.values:
        source.note(
            draft, "requestsPerTransaction", "not carried over: soakd sends no transactions"
        )
