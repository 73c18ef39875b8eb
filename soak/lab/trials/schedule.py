"""The schedule of a trial: which trouble begins when, how strong it is, and which causes would be right.

Kind, target, strength, start and length are drawn from a seed. A strength lies between 0, which goes
unnoticed, and 1, which is severe; what it means for each kind is log-uniform between two values. Every kind
comes once before any comes again. Between two troubles the cluster recovers, and every third time it is left
alone for minutes: an incident that begins there is a false one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NODES = 3
RECOVERY_SECONDS = 60
"""After a trouble its incident may go on; what begins later is another one."""
QUIET_SECONDS = 180
"""Length of a quiet stretch, after the recovery."""
_QUIET_EVERY = 3
_GAP_SECONDS = 40  # beyond the recovery, on average

_POOL_MIB = 8
_OF_POOL = 4096 / _POOL_MIB + 1
"""A drive of 4 GiB collects so many pages for one that it erases, while all others are valid."""

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of trouble: the lab's fault, its configuration for a strength, and the causes that are right."""

    fault: str
    causes: tuple[str, ...]
    config: Callable[[float, int], Config]  # of a strength and the place of a broker, from 1
    shortest: int = 20  # seconds
    longest: int = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One trouble of a schedule; seconds count from the start of the run."""

    kind: str
    fault: str
    config: Config  # as a drill file has it
    causes: tuple[str, ...]
    strength: float
    begin_seconds: int
    length_seconds: int

    @property
    def end_seconds(self) -> int:
        return self.begin_seconds + self.length_seconds


def between(low: float, high: float, strength: float) -> float:
    """Return a value on a log scale: `low` for strength 0, `high` for 1."""
    return float(low * (high / low) ** strength)


def _us(low_ms: float, high_ms: float, strength: float) -> str:
    return f"{round(1000 * between(low_ms, high_ms, strength))}us"


def _pauses(low_ms: float, high_ms: float, share: float) -> Callable[[float, int], Config]:
    """Return configurations of a broker that stands still for this share of the time."""

    def config(strength: float, node: int) -> Config:
        pause = round(1000 * between(low_ms, high_ms, strength))
        return {"node": node, "pause": f"{pause}us", "every": f"{round(pause / share)}us"}

    return config


KINDS: Mapping[str, Kind] = {
    "broker_killed": Kind(
        fault="broker_kill",
        causes=("broker_down",),
        config=lambda _strength, node: {"node": node},
    ),
    "broker_paused": Kind(
        fault="broker_pause", causes=("broker_pause",), config=_pauses(20, 5_000, 0.3)
    ),
    "drive_delayed": Kind(
        fault="drive_delay",
        causes=("slow_drive",),
        config=lambda strength, node: {"node": node, "delay": _us(0.2, 100, strength)},
    ),
    "drive_throttled": Kind(
        fault="fsync_throttle",
        causes=("drive_throttled", "slow_fsync"),
        config=lambda strength, node: {
            "node": node,
            "writes_per_second": round(between(2_000, 10, strength)),
        },
    ),
    "drive_starved": Kind(
        fault="drive_gc",
        causes=("drive_gc",),
        config=lambda strength, node: {
            "node": node,
            "pool": f"{_POOL_MIB}MiB",
            "collected_per_second": f"{round(between(64, 0.25, strength) * _OF_POOL)}MiB",
            "starved": _us(0.2, 10, strength),
        },
        shortest=60,
    ),
    "drive_filled": Kind(
        fault="disk_full",
        causes=("disk_full",),
        config=lambda _strength, node: {"node": node},
    ),
    "flushes_of_another": Kind(
        fault="noisy_neighbour",
        causes=("noisy_neighbour",),
        config=lambda strength, node: {
            "node": node,
            "bytes_per_second": f"{round(between(1, 64, strength))}MiB",
        },
    ),
    "cpu_taken": Kind(
        fault="cpu_hog",
        causes=("broker_cpu",),
        config=lambda strength, node: {"node": node, "hogs": round(between(1, 8, strength))},
    ),
    "collections": Kind(
        fault="gc_pause",
        causes=("gc_pause",),
        config=lambda strength, node: {"node": node, "every": _us(4_000, 50, strength)},
    ),
    "network_delayed": Kind(
        fault="network_delay",
        causes=("network",),
        config=lambda strength, node: {"node": node, "delay": _us(0.2, 200, strength)},
    ),
    "network_lossy": Kind(
        fault="network_loss",
        causes=("network",),
        config=lambda strength, _node: {"ratio": round(between(0.001, 0.1, strength), 5)},
    ),
    "network_cut": Kind(
        fault="network_partition",
        causes=("network",),
        config=lambda _strength, _node: {},
        shortest=5,
        longest=30,
    ),
    "flood": Kind(
        fault="foreign_flood",
        causes=("foreign_load",),
        config=lambda strength, _node: {
            "bytes_per_second": f"{round(between(1, 100, strength))}MiB"
        },
    ),
    "reads_of_others": Kind(
        fault="foreign_reads",
        causes=("foreign_load", "catch_up_read"),
        config=lambda strength, _node: {"readers": round(between(1, 8, strength))},
    ),
    "partitions_created": Kind(
        fault="create_partitions",
        causes=("metadata_storm",),
        config=lambda strength, _node: {"partitions": round(between(20, 2_000, strength))},
        longest=60,
    ),
    "leaders_moved": Kind(
        fault="leader_move",
        causes=("leader_move", "broker_down"),
        config=lambda _strength, node: {"node": node},
    ),
    "rolling_restart": Kind(
        fault="rolling_restart",
        causes=("broker_down", "leader_move"),
        config=lambda _strength, _node: {},
        longest=60,
    ),
    "quota_set": Kind(
        fault="client_quota",
        causes=("quota_throttle",),
        config=lambda strength, _node: {
            "bytes_per_second": f"{round(between(1_024, 16, strength))}KiB"
        },
        shortest=40,
    ),
    "retention_lowered": Kind(
        fault="retention_limit",
        causes=("retention_cliff",),
        config=lambda strength, _node: {"bytes": f"{round(between(32, 2, strength))}MiB"},
    ),
    "compaction": Kind(
        fault="topic_compaction",
        causes=("compaction", "foreign_load"),
        config=lambda strength, _node: {"bytes": f"{round(between(8, 256, strength))}MiB"},
        shortest=60,
    ),
    "client_starved": Kind(
        fault="cpu_hog",
        causes=("client",),
        config=lambda strength, _node: {"of": "client", "hogs": round(between(1, 8, strength))},
    ),
    "client_paused": Kind(
        fault="client_pause",
        causes=("client",),
        config=lambda _strength, _node: {},
        shortest=2,
        longest=20,
    ),
    "clock_stepped": Kind(
        fault="clock_step",
        causes=("clock",),
        config=lambda strength, _node: {"by": f"{round(between(1_000, 20_000, strength))}ms"},
    ),
}


def draw(
    seed: int,
    first_second: int,
    last_second: int,
    kinds: Mapping[str, Kind] = KINDS,
) -> list[Trouble]:
    """Return the troubles between two seconds of a run in order of time; the same for the same seed."""
    rng = random.Random(seed)
    found: list[Trouble] = []
    deck: list[str] = []
    second = first_second + QUIET_SECONDS
    while True:
        if not deck:
            deck = sorted(kinds)
            rng.shuffle(deck)
        trouble = _drawn(rng, deck.pop(), kinds, second)
        if trouble.end_seconds + RECOVERY_SECONDS > last_second:
            return found
        found.append(trouble)
        gap = rng.expovariate(1 / _GAP_SECONDS)
        if len(found) % _QUIET_EVERY == 0:
            gap = max(gap, float(QUIET_SECONDS))
        second = trouble.end_seconds + RECOVERY_SECONDS + round(gap)


def _drawn(rng: random.Random, name: str, kinds: Mapping[str, Kind], second: int) -> Trouble:
    kind, strength, node = kinds[name], rng.random(), rng.randint(1, NODES)
    length = round(between(kind.shortest, kind.longest, rng.random()))
    return Trouble(
        kind=name,
        fault=kind.fault,
        config=kind.config(strength, node),
        causes=kind.causes,
        strength=round(strength, 4),
        begin_seconds=second,
        length_seconds=length,
    )


def quiet_stretches(
    troubles: Sequence[tuple[float, float]], first: float, last: float
) -> list[tuple[float, float]]:
    """Return where nothing was done for `QUIET_SECONDS` after the recovery, between two instants in seconds.

    `troubles` are the begins and ends of all troubles.
    """
    found = []
    begin = first
    for start, end in sorted(troubles):
        if start - begin >= QUIET_SECONDS:
            found.append((begin, start))
        begin = max(begin, end + RECOVERY_SECONDS)
    if last - begin >= QUIET_SECONDS:
        found.append((begin, last))
    return found
