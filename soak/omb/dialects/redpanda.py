"""Redpanda's fork: counts of messages, from which a time axis is rebuilt, and minima; no caps."""

from __future__ import annotations

from soak.omb.dialects import upstream
from soak.omb.result import (
    DELAY,
    END_TO_END,
    PUBLISH,
    SCHEDULE,
    SCHEDULE_STATISTICS,
    SUMMARY,
    WITH_MIN,
    Profile,
)

PROFILE = Profile(
    facts=(
        *("version", "beginTime", "endTime"),
        *upstream.PROFILE.facts,
        "sampleRateMillis",
    ),
    counts=(
        *("sent", "consumed", "publishFailed", "consumeFailed"),
        *("publishRate", "consumeRate", "backlog"),
    ),
    latencies={
        PUBLISH: WITH_MIN,
        DELAY: SUMMARY,
        SCHEDULE: SCHEDULE_STATISTICS,
        END_TO_END: WITH_MIN,
    },
    totals={PUBLISH: SUMMARY, DELAY: SUMMARY, SCHEDULE: (), END_TO_END: SUMMARY},
    caps_seconds={},
    warm_up_minutes=30,
    workload_keys=upstream.PROFILE.workload_keys - {"backlogDrainRatio"}
    | {
        "sampleRateMillis",
        "existingTopicList",
        "existingProduceTopicList",
        "existingConsumeTopicList",
    },
    refuses_unknown_keys=True,
)


def recognises(keys: frozenset[str]) -> bool:
    return "sampleRateMillis" in keys and "keyDistributor" not in keys
