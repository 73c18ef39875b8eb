"""What each cause does to a cluster: to latency, to the channel that tells it, and to those that move beside.

A fault takes a quiet world and the size of the step; its decisive channels are those without which nobody
could tell it, and `instead` is what may then be said that is true.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.support.detection.cause_world import (
    CONSUMER,
    ONSET,
    PROBE,
    PRODUCER,
    RATE,
    SECONDS,
    World,
)

Inject = Callable[[World, float], None]
REST = SECONDS - ONSET


@dataclass(frozen=True, slots=True)
class Fault:
    inject: Inject
    decisive: tuple[str, ...]
    beside: tuple[str, ...] = ()  # which is true as well, a part of it
    instead: tuple[str, ...] = ("unknown",)


def drive_gc(world: World, size: float) -> None:
    rng = world.rng
    wave = world.times("disk_write_await_seconds", rng.uniform(3.0, 12.0), ragged=0.1)
    world.times("node_disk_write_time_seconds", rng.uniform(3.0, 8.0))
    world.plus("node_disk_io_time_seconds", rng.uniform(0.3, 0.9), most=1.0)
    world.times("disk_queue_length", rng.uniform(3.0, 10.0))
    world.times("disk_read_await_seconds", rng.uniform(1.0, 3.0))
    world.times("fsync_latency_seconds", rng.uniform(3.0, 12.0), ragged=0.1)
    world.plus("host_cpu_iowait_ratio", 0.1)
    world.plus("node_pressure_io_waiting_seconds", 0.3)
    world.times("node_disk_written_bytes", rng.uniform(0.85, 1.0))
    world.slower(size, wave)


def slow_fsync(world: World, size: float) -> None:
    wave = world.times("fsync_latency_seconds", world.rng.uniform(3.0, 15.0), ragged=0.1)
    world.plus("node_pressure_io_waiting_seconds", 0.2)
    world.times("disk_queue_length", world.rng.uniform(0.8, 1.0))
    world.slower(size, wave)


def slow_drive(world: World, size: float) -> None:
    rng = world.rng
    ratio = rng.uniform(3.0, 12.0)
    (name,) = world.named("disk_write_await_seconds")
    more = float(np.median(world.values[name])) * (ratio - 1.0)
    wave = world.times("disk_write_await_seconds", ratio, ragged=0.1)
    for metric, times in (
        ("disk_flush_await", 1.0),
        ("disk_read_await", 1.0),
        ("fsync_latency", 2.0),
    ):
        world.plus(f"{metric}_seconds", times * more)
    world.times("node_disk_write_time_seconds", ratio)
    world.plus("node_disk_io_time_seconds", rng.uniform(0.3, 0.9), most=1.0)
    world.times("disk_queue_length", ratio)
    world.times("node_disk_written_bytes", rng.uniform(0.85, 1.0))
    for turned in world.named("disk_device_turnover_ratio"):
        world.values[turned] = np.linspace(0.0, 0.01, SECONDS) + rng.uniform(0.02, 0.8)
    world.slower(size, wave)


def noisy_neighbour(world: World, size: float) -> None:
    rng = world.rng
    if rng.random() < 0.7:
        world.times("node_disk_written_bytes", rng.uniform(2.5, 20.0))
        world.times("node_disk_writes_completed", rng.uniform(2.0, 10.0))
        world.times("node_disk_flush_requests", rng.uniform(1.0, 8.0))
    else:
        world.plus("node_disk_read_bytes", rng.uniform(3e7, 2e8))
        world.plus("node_disk_reads_completed", rng.uniform(300.0, 2000.0))
    wave = world.times("disk_write_await_seconds", rng.uniform(2.0, 8.0), ragged=0.1)
    world.times("disk_read_await_seconds", rng.uniform(2.0, 8.0))
    world.times("node_disk_write_time_seconds", rng.uniform(4.0, 15.0))
    world.plus("node_disk_io_time_seconds", rng.uniform(0.3, 0.8), most=1.0)
    world.times("disk_queue_length", rng.uniform(3.0, 15.0))
    world.times("fsync_latency_seconds", rng.uniform(2.0, 6.0), ragged=0.1)
    world.slower(size, wave)


def catch_up_read(world: World, size: float) -> None:
    rng = world.rng
    paused, ratio = int(rng.integers(30, 120)), rng.uniform(1.3, 3.0)
    backlog = np.zeros(SECONDS)
    backlog[ONSET - paused : ONSET] = np.arange(paused) * RATE
    backlog[ONSET:] = np.maximum(paused * RATE - np.arange(REST) * RATE * (ratio - 1.0), 0.0)
    is_draining = backlog[ONSET:] > 0.0
    world.values[f"{CONSUMER}|lag_messages"] += backlog * rng.uniform(0.995, 1.005, SECONDS)
    received = world.values[f"{CONSUMER}|received_messages"]
    received[ONSET - paused : ONSET] = 0.0
    received[ONSET:][is_draining] *= ratio
    for name in world.named("kafka_server_brokertopicmetrics_bytesout"):
        world.values[name][ONSET - paused : ONSET] *= 0.02
        world.values[name][ONSET:][is_draining] *= ratio
    if rng.random() < 0.7:  # else from memory
        world.plus("node_disk_read_bytes", 3e6 * ratio)
        world.plus("node_disk_reads_completed", 200.0 * ratio)
        world.plus("node_disk_io_time_seconds", 0.3, most=1.0)
        world.times("disk_read_await_seconds", 3.0)
        world.times("disk_write_await_seconds", rng.uniform(1.0, 4.0))
        world.times("fsync_latency_seconds", rng.uniform(1.0, 3.0))
    world.plus("host_cpu_ratio", 0.15, most=1.0)
    world.slower(size)


def retention_cliff(world: World, size: float) -> None:
    rng = world.rng
    share = rng.uniform(0.3, 1.0)
    ks = ONSET + np.flatnonzero(rng.random(REST) < share)
    world.tell(
        "retention_deletion", [ONSET, *ks[ks > ONSET]], topic="soak-t", partition=0, bytes=2**20
    )
    with_one = np.isin(np.arange(SECONDS), np.concatenate([[ONSET], ks]))
    world.adds(size, np.flatnonzero(with_one))
    for metric, factor in (
        ("disk_write_await_seconds", 1.5),
        ("fsync_latency_seconds", 2.0),
        ("node_disk_discards_completed", 20.0),
    ):
        for name in world.named(metric):
            world.values[name][with_one] *= factor


def broker_cpu(world: World, size: float) -> None:
    rng = world.rng
    world.plus("host_cpu_ratio", 0.8, most=rng.uniform(0.93, 1.0))
    world.times("node_pressure_cpu_waiting_seconds", rng.uniform(10.0, 25.0))
    slowed = rng.uniform(1.3, 2.5)
    world.times("fsync_latency_seconds", slowed)
    world.plus("fsync_schedule_lag_seconds", 0.007 * (slowed - 1.0))
    world.times("disk_write_await_seconds", rng.uniform(1.0, 1.3))
    world.times("scrape_duration_seconds", rng.uniform(1.5, 4.0))
    world.times("retention_poll_age_seconds", rng.uniform(1.0, 1.8))
    world.times("jvm_gc_collection_seconds", rng.uniform(1.0, 1.6))
    world.plus("schedule_lag_seconds", 0.0003)
    world.slower(size)


def gc_pause(world: World, size: float) -> None:
    rng = world.rng
    pause = max(0.02, 0.005 * size)
    ks = ONSET + np.flatnonzero(rng.random(REST) < rng.uniform(0.4, 0.9))
    ks = np.unique([ONSET, *ks])
    for k in ks:
        world.tell("gc_pause", [int(k)], pause_seconds=float(pause * rng.uniform(0.7, 1.5)))
    world.adds(size, ks)
    for name in world.named("jvm_gc_collection_seconds"):
        world.values[name][ks] += pause
    world.plus("host_cpu_ratio", rng.uniform(0.0, 0.3), most=0.98)
    world.times("scrape_duration_seconds", rng.uniform(1.0, 2.0))


def leader_move(world: World, size: float) -> None:
    ks = ONSET + world.rng.integers(0, 3, int(world.rng.integers(1, 8)))
    world.tell("leader_change", sorted(ks.tolist()), topic="soak-t", partition=1)
    acked = world.values[f"{PRODUCER}|acked_messages"]
    acked[ONSET : ONSET + 2] *= 0.5
    world.slower(size)


def broker_down(world: World, size: float) -> None:
    rng = world.rng
    seconds = int(rng.integers(2, 9))
    for name in ("acked_messages", "kafka_server_brokertopicmetrics_bytesin"):
        for series in world.named(name):
            world.values[series][ONSET : ONSET + seconds] = 0.0
    world.values[f"{PRODUCER}|failed_messages"][ONSET + seconds] = 200.0 * (rng.random() < 0.5)
    world.values[f'{PROBE}|up{{target="broker1"}}'][ONSET:] = 0.0
    for metric in ("scrape_duration_seconds", "jvm_gc_collection_seconds", "kafka_server"):
        for name in [n for n in world.values if f"|{metric}" in n and "underrep" not in n]:
            world.values[name][ONSET:] = np.nan
    for name in world.named("kafka_server_replicamanager_underreplicatedpartitions"):
        world.values[name][ONSET + 1 :] = 8.0
    world.tell("isr_shrink", [ONSET + seconds], topic="soak-t", partition=1)
    world.tell("leader_change", [ONSET + seconds // 2, ONSET + seconds // 2 + 1], topic="soak-t")
    world.times("host_cpu_ratio", 1.2)
    world.times("node_disk_written_bytes", rng.uniform(1.0, 1.5))
    world.times("disk_write_await_seconds", rng.uniform(1.0, 1.4))
    world.slower(size)


def broker_pause(world: World, size: float) -> None:
    rng = world.rng
    stall = rng.uniform(0.1, 0.5)
    for name in world.named("scrape_duration_seconds"):
        world.values[name][ONSET:] += rng.uniform(0.0, stall, REST)
    for name in world.named("retention_poll_age_seconds"):
        world.values[name][ONSET:] += rng.uniform(0.0, stall, REST)
    world.times("host_cpu_ratio", rng.uniform(0.8, 1.0))
    world.slower(size)


def network(world: World, size: float) -> None:
    rng = world.rng
    if rng.random() < 0.6:
        wave = world.times("node_netstat_Tcp_RetransSegs", rng.uniform(20.0, 300.0), ragged=0.1)
    else:
        wave = None
        world.plus("host_network_drops", rng.uniform(5.0, 100.0))
    world.plus("scrape_duration_seconds", rng.uniform(0.0, 0.02))
    world.plus("retention_poll_age_seconds", rng.uniform(0.0, 0.05))
    world.slower(size, wave)


def segment_roll(world: World, size: float) -> None:
    world.events = [e for e in world.events if e.event.kind != "segment_created"]
    rng = world.rng
    if rng.random() < 0.6:  # a comb of spikes
        world.kind = "spikes"
        period = int(rng.integers(12, 60))
        ks = np.arange(int(rng.integers(0, period)), SECONDS, period)
        high = ks[ks >= ONSET - 300]
    else:  # many partitions roll from the onset on
        high = ks = ONSET + np.flatnonzero(rng.random(REST) < rng.uniform(0.5, 0.9))
        high = ks = np.unique([ONSET, *ks])
        usual = np.arange(20, ONSET, 47)
        world.tell("segment_created", usual.tolist(), topic="soak-t", partition=0)
    world.tell("segment_created", ks.tolist(), topic="soak-t", partition=0)
    world.adds(size, high)
    for name in world.named("fsync_latency_seconds"):
        world.values[name][high] *= 1.5


def compaction(world: World, size: float) -> None:
    rng = world.rng
    _bookies(world)
    done = ONSET + int(rng.integers(5, 90))
    for name in world.named("bookie_MAJOR_COMPACTIONS"):
        world.values[name][done] = 1.0
    for name in world.named("bookie_RECLAIMED_COMPACTION_SPACE_BYTES"):
        world.values[name][done::10] = 1e8
    world.plus("node_disk_read_bytes", rng.uniform(2e7, 1e8))
    world.plus("node_disk_reads_completed", 400.0)
    world.times("node_disk_written_bytes", rng.uniform(1.5, 6.0))
    wave = world.times("disk_write_await_seconds", rng.uniform(1.5, 6.0), ragged=0.1)
    world.plus("node_disk_io_time_seconds", rng.uniform(0.2, 0.6), most=1.0)
    world.times("fsync_latency_seconds", rng.uniform(1.5, 5.0))
    world.slower(size, wave)


def _bookies(world: World) -> None:
    """Make it a Pulsar: bookies instead of Kafka's page."""
    world.drop("kafka_")
    target = '{target="bookie1"}'
    for metric in ("MAJOR_COMPACTIONS", "MINOR_COMPACTIONS", "RECLAIMED_COMPACTION_SPACE_BYTES"):
        world.values[f"{PROBE}|bookie_{metric}{target}"] = np.zeros(SECONDS)
    written = world.rough(RATE * 1024, 0.005)
    world.values[f"{PROBE}|bookie_journal_JOURNAL_WRITE_BYTES{target}"] = written


def clock(world: World, size: float) -> None:
    name = f'{CONSUMER}|end_to_end_latency_seconds{{quantile="0.99"}}'
    world.headline = name
    world.tell("clock_step", [ONSET], seconds=0.005 * (size - 1.0))
    world.slower(size, latencies=("end_to_end",))
    world.times("node_netstat_Tcp_RetransSegs", world.rng.uniform(0.8, 1.2))


_ENDING = 0.3  # of the brokers whose drive is full


def disk_full(world: World, size: float) -> None:
    name = f'{PROBE}|node_filesystem_avail_bytes{{mountpoint="/data",target="host1"}}'
    free = np.linspace(3e9, 5e7, ONSET)
    world.values[name] = np.concatenate([free, np.full(REST, 5e7)])
    if world.rng.random() < 0.5:
        reason = "less space is free than free_space_floor says"
        world.tell(
            "probe_failed", [ONSET - 5, ONSET + 60, ONSET + 120], probe="fsync", reason=reason
        )
        for series in world.named("fsync_latency_seconds"):
            world.values[series][ONSET - 5 :] = np.nan
    world.values[f"{PRODUCER}|failed_messages"][ONSET:] = 20.0
    world.times("node_disk_written_bytes", 0.5)
    if world.rng.random() < _ENDING:
        broker_down(world, size)
    else:
        world.slower(size)


def client(world: World, size: float) -> None:
    for quantile, level in (("0.99", 0.005), ("0.5", 0.0015)):
        name = f'{PRODUCER}|schedule_lag_seconds{{quantile="{quantile}"}}'
        step = level * (size - 1.0) * world.rng.uniform(0.8, 1.1)
        world.values[name][ONSET:] += step * world.rng.uniform(0.8, 1.2, REST)
    world.times("process_cpu_ratio", 3.0)
    world.slower(size)


def unknown(world: World, size: float) -> None:
    """Let latency step with nothing beside it."""
    world.slower(size)


OPTIONAL = (
    ("up", "scrape_", "jvm_gc_collection", "kafka_", "node_netstat"),
    ("gc_pause",),
    ("segment_created",),
    ("fsync_",),
    ("node_pressure",),
    ("host_",),
    ("disk_", "node_disk"),
    ("retention_poll",),
    ("lag_messages", "received_messages"),
    ("sent_messages",),
)
"""Groups of channels that a cluster may well not have."""


FAULTS = {
    "drive_gc": Fault(drive_gc, ("disk_write_await", "disk_read_await", "node_disk", "disk_queue")),
    "slow_fsync": Fault(slow_fsync, ("fsync_",)),
    "slow_drive": Fault(
        slow_drive, ("disk_write_await", "disk_flush_await", "node_disk", "disk_queue")
    ),
    "noisy_neighbour": Fault(
        noisy_neighbour, ("node_disk_w", "node_disk_r", "node_disk_f", "node_disk_d")
    ),
    "catch_up_read": Fault(catch_up_read, ("lag_messages", "received_messages", "kafka_")),
    "retention_cliff": Fault(retention_cliff, ("retention_deletion",)),
    "broker_cpu": Fault(broker_cpu, ("host_cpu_ratio", "node_pressure_cpu")),
    "gc_pause": Fault(gc_pause, ("gc_", "jvm_gc"), instead=("unknown", "broker_pause")),
    "leader_move": Fault(leader_move, ("leader_change",)),
    "broker_down": Fault(  # acknowledgements that stop, and then leaders that move, tell of it still
        broker_down,
        ("up", "isr_shrink", "kafka_"),
        ("leader_move",),
        ("unknown", "leader_move", "broker_down"),
    ),
    "broker_pause": Fault(broker_pause, ("scrape_", "retention_poll")),
    "network": Fault(network, ("node_netstat", "host_network")),
    "segment_roll": Fault(segment_roll, ("segment_created",)),
    "compaction": Fault(compaction, ("bookie_M", "bookie_R")),
    "clock": Fault(clock, ("clock_step",)),
    "disk_full": Fault(  # some brokers end by it, which is all that is left without the decisive channels
        disk_full,
        ("node_filesystem", "probe_failed"),
        ("broker_down", "leader_move"),
        ("unknown", "broker_down", "leader_move"),
    ),
    "client": Fault(client, ("schedule_lag",)),
    "unknown": Fault(unknown, ()),
}

PAIRS = (
    ("drive_gc", "gc_pause"),
    ("drive_gc", "leader_move"),
    ("retention_cliff", "broker_cpu"),
    ("retention_cliff", "gc_pause"),
    ("catch_up_read", "gc_pause"),
    ("catch_up_read", "broker_cpu"),
    ("noisy_neighbour", "gc_pause"),
    ("slow_fsync", "retention_cliff"),
    ("slow_fsync", "gc_pause"),
    ("slow_drive", "gc_pause"),
    ("leader_move", "broker_cpu"),
    ("compaction", "gc_pause"),
    ("network", "retention_cliff"),
    ("disk_full", "leader_move"),
)
"""Two at the same instant, each felt; neither makes the other impossible."""
