"""Confluent's old fork, and all benchmarks before publish delays were recorded: the fewest fields."""

from __future__ import annotations

from soak.omb.dialects import upstream
from soak.omb.result import END_TO_END, PUBLISH, SUMMARY, Profile

_LATENCIES = {PUBLISH: SUMMARY, END_TO_END: SUMMARY}
_YOUNGER_KEYS = {
    "useRandomizedPayloads",
    "randomBytesRatio",
    "randomizedPayloadPoolSize",
    "backlogDrainRatio",
    "warmupDurationMinutes",
}

PROFILE = Profile(
    facts=(),
    counts=("publishRate", "consumeRate", "backlog"),
    latencies=_LATENCIES,
    totals=_LATENCIES,
    caps_seconds={PUBLISH: 60.0, END_TO_END: 12 * 3600.0},
    warm_up_minutes=1,  # always
    workload_keys=upstream.PROFILE.workload_keys - _YOUNGER_KEYS | {"consumerOnly"},
    refuses_unknown_keys=False,
)


def recognises(keys: frozenset[str]) -> bool:
    younger = {"keyDistributor", "sampleRateMillis", "publishErrorRate", "publishDelayLatencyAvg"}
    return not keys & younger
