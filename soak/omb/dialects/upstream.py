"""openmessaging/benchmark: no time axis, rates of errors, publish values capped at 60 s."""

from __future__ import annotations

from soak.omb.result import DELAY, END_TO_END, PUBLISH, SUMMARY, Profile

_LATENCIES = {PUBLISH: SUMMARY, DELAY: SUMMARY, END_TO_END: SUMMARY}

PROFILE = Profile(
    facts=("messageSize", "topics", "partitions", "producersPerTopic", "consumersPerTopic"),
    counts=("publishRate", "publishErrorRate", "consumeRate", "backlog"),
    latencies=_LATENCIES,
    totals=_LATENCIES,
    caps_seconds={PUBLISH: 60.0, DELAY: 60.0, END_TO_END: 12 * 3600.0},
    warm_up_minutes=1,
    workload_keys=frozenset(
        {
            "name",
            "topics",
            "partitionsPerTopic",
            "keyDistributor",
            "messageSize",
            "useRandomizedPayloads",
            "randomBytesRatio",
            "randomizedPayloadPoolSize",
            "payloadFile",
            "subscriptionsPerTopic",
            "producersPerTopic",
            "consumerPerSubscription",
            "producerRate",
            "consumerBacklogSizeGB",
            "backlogDrainRatio",
            "testDurationMinutes",
            "warmupDurationMinutes",
        }
    ),
    refuses_unknown_keys=False,
)


def recognises(keys: frozenset[str]) -> bool:
    if keys & {"keyDistributor", "sampleRateMillis"}:
        return False
    return bool(keys & {"publishErrorRate", "publishDelayLatencyAvg"})
