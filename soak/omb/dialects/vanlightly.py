"""Vanlightly's fork: Redpanda's fields and the workload's, publish values capped at 5 min."""

from __future__ import annotations

from soak.omb.dialects import redpanda, upstream
from soak.omb.result import DELAY, END_TO_END, PUBLISH, Profile

PROFILE = Profile(
    facts=(
        *redpanda.PROFILE.facts,
        *("keyDistributor", "producerRate", "subscriptionsPerTopic"),
        *("testDurationMinutes", "warmupDurationMinutes", "warmupProducerRate"),
    ),
    counts=redpanda.PROFILE.counts,
    latencies=redpanda.PROFILE.latencies,
    totals=redpanda.PROFILE.totals,
    caps_seconds={PUBLISH: 300.0, DELAY: 300.0, END_TO_END: 12 * 3600.0},
    warm_up_minutes=30,
    workload_keys=upstream.PROFILE.workload_keys - {"backlogDrainRatio"}
    | {
        "sampleRateMillis",
        "backlogProducerRate",
        "warmupProducerRate",
        "warmupProducerRateSeparationMinutes",
    },
    refuses_unknown_keys=False,
)


def recognises(keys: frozenset[str]) -> bool:
    return "keyDistributor" in keys
