"""A fixed rate, produced and consumed: our two daemons against the OpenMessaging Benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from soak.core.errors import SoakError
from soak.core.plan.plan import Plan
from soak.core.units import SECOND_NS
from tests.bench import daemons, omb
from tests.bench.daemons import Second
from tests.bench.figures import Goal, Measures, Spec, stolen
from tests.bench.process import wait_all

SIZE = 1024
PARTITIONS = 4
MINUTES = 1  # the least that the benchmark can do
_WINDOW_SECONDS = 10  # its samples cover so long

KAFKA_RATE = 10_000
KAFKA_SETTINGS = {"acks": "all", "linger.ms": "1", "batch.size": "131072"}  # as its runner has them
KAFKA_TOPIC = {"min.insync.replicas": "1", "retention.bytes": "268435456"}
PULSAR_RATE = 5_000

_OVERHEAD_SECONDS = 60
_LEAST_SENT = 0.99
_NO_GOAL = Goal()


def specs(name: str, goals: Mapping[str, Goal]) -> tuple[Spec, ...]:
    """Return the figures of one broker; `goals` by measure."""
    figures = {
        "lag_p99_ms": "schedule lag p99, ms",
        "lag_later_p99_ms": "schedule lag p99 of 10 s, after the first, ms",
        "ack_p99_ms": "acknowledgement p99, ms",
        "ack_later_p99_ms": "acknowledgement p99 of 10 s, after the first, ms",
        "cores": "CPU of producer and consumer, cores",
        "peak_mb": "memory of producer and consumer, MB",
    }
    named = (
        Spec(measure, f"{name}: {figure}", goals.get(measure, _NO_GOAL))
        for measure, figure in figures.items()
    )
    return (*named, stolen(name))


KAFKA_SPECS = specs(
    f"Kafka at {KAFKA_RATE:,}/s",
    {
        "lag_p99_ms": Goal(ours_most=0.5, ratio_most=0.25),
        "ack_p99_ms": Goal(ratio_most=1.0),
        "cores": Goal(ratio_most=0.7),
        "peak_mb": Goal(ratio_most=0.4),
    },
)
PULSAR_SPECS = specs(
    f"Pulsar at {PULSAR_RATE:,}/s",
    {
        "lag_p99_ms": Goal(ratio_most=1.0),
        "ack_p99_ms": Goal(ratio_most=1.0),
        "cores": Goal(ratio_most=1.0),
    },
)


@dataclass(frozen=True, slots=True)
class FixedRate:
    """One broker and one rate. `broker` is that section of the plan, `addresses` what the lab fills in."""

    kind: str
    settings: Mapping[str, Any]
    topic: Mapping[str, str]
    addresses: Mapping[str, str]
    rate: int
    load_seconds: int
    script: Path
    folder: Path

    def ours(self, number: int) -> Measures:
        plan = self._plan(f"bench-fixed-{number}")
        daemons.create_topics(plan)
        folder = daemons.prepare(self.folder / f"ours-{number}", plan, self.load_seconds)
        running = [daemons.spawn(folder, role) for role in ("consume", "produce")]
        usages = wait_all(running, self.load_seconds + _OVERHEAD_SECONDS)
        produced, consumed = (daemons.seconds(folder, role) for role in ("produce", "consume"))
        sent = daemons.total(produced, "sent_messages")
        received = daemons.total(consumed, "received_messages")
        due = self.rate * self.load_seconds
        if (
            sent != received or sent < due * _LEAST_SENT
        ):  # else the lag would be of the others alone
            raise SoakError(f"{due} messages were due, {sent} sent, {received} received")
        return {
            **lag_ms(daemons.delays_ns(plan, sent)),
            **acknowledgement_ms(produced, self.load_seconds),
            "cores": sum(usage.cpu_seconds for usage in usages) / self.load_seconds,
            "peak_mb": sum(usage.peak_bytes for usage in usages) / 1e6,
        }

    def peer(self, number: int) -> Measures:
        address = self.addresses.get("bootstrap_servers") or self.addresses["service_url"]
        return omb.fixed_rate(
            self.script,
            address,
            rate=self.rate,
            minutes=MINUTES,
            size=SIZE,
            partitions=PARTITIONS,
            folder=self.folder / f"peer-{number}",
            admin_url=self.addresses.get("admin_url", ""),
        )

    def _plan(self, topic: str) -> Plan:
        raw: dict[str, Any] = {
            "name": "bench",
            "broker": {self.kind: dict(self.settings)},
            "topic": {"name": topic, "partitions": PARTITIONS, "settings": dict(self.topic)},
            "load": {"rate": f"{self.rate}/s", "message_size": f"{SIZE}B"},
        }
        return daemons.plan_of(raw, dict(self.addresses))


def lag_ms(delays: np.ndarray[Any, np.dtype[np.int64]]) -> Measures:
    """Return p99 of all sends, and the median of the windows' p99; rows of delay and due time, ns."""
    delay, due = delays[:, 0] / 1e6, delays[:, 1]
    window = (due - due.min()) // (_WINDOW_SECONDS * SECOND_NS)
    each = [float(np.quantile(delay[window == at], 0.99)) for at in np.unique(window)]
    return {
        "lag_p99_ms": float(np.quantile(delay, 0.99)),
        "lag_later_p99_ms": median(each[1:] or each),
    }


def acknowledgement_ms(produced: list[Second], load_seconds: int) -> Measures:
    """Return the same of the acknowledgements, counted from the intended time."""
    windows = [
        [one for one in produced if begin <= one.k < begin + _WINDOW_SECONDS]
        for begin in range(0, load_seconds, _WINDOW_SECONDS)
    ]
    each = [daemons.publish_latency_ms(window, 99) for window in windows]
    return {
        "ack_p99_ms": daemons.publish_latency_ms(produced, 99),
        "ack_later_p99_ms": median(each[1:] or each),
    }
