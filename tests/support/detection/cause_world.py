"""A quarter of an hour of a cluster, made up: latencies, the channels of a real run, events, innocent noise.

Levels and noise are those of a run on a lab Kafka; what a cause does to them is in `cause_faults.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detectors.nearby import Nearby, TimedEvent
from soak.core.model import Change, Event, Kind, Series
from soak.core.series import series_name
from soak.core.units import SECOND_NS

Values = NDArray[np.float64]

SECONDS, ONSET = 901, 600
PRODUCER, CONSUMER, PROBE = "produce.0@load", "consume.0@load2", "probe@b1"
"""It is received on another host than it is sent on: else no clock that is set would be felt."""
RATE = 1000.0
_MEMORY = 64  # seconds after which nothing of a shock is left
LATENCIES = ("publish", "end_to_end")
QUANTILES = {"0.5": (1.0, 0.5), "0.99": (3.5, 1.0), "0.999": (6.0, 1.1)}
"""Level over p50, and how strongly noise and step show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How rough a panel is. Standard deviations are of log10."""

    memory: float = 0.4  # lag-1 correlation
    latency: float = 0.06
    channels: float = 0.12
    spikes: float = 0.02  # of the seconds of each series
    lost: float = 0.0  # of the seconds of each series
    chance_steps: int = 3  # of other channels at other times
    onset: int = 2  # seconds that the dating errs, at most
    leaders: int = 1


@dataclass(slots=True)
class World:
    """Values by series, shape (SECONDS,), NaN where nothing was measured; causes multiply and add."""

    rng: np.random.Generator
    noise: Noise
    values: dict[str, Values] = field(default_factory=dict)
    events: list[TimedEvent] = field(default_factory=list)
    slow: dict[str, Values] = field(default_factory=dict)  # by latency: log10 of what is added
    lag_seconds: dict[str, float] = field(default_factory=dict)
    headline: str = f'{PRODUCER}|publish_latency_seconds{{quantile="0.99"}}'
    kind: Kind = "step"

    @property
    def after(self) -> slice:
        return slice(ONSET, SECONDS)

    def rough(self, level: float, sd: float | None = None) -> Values:
        """Return noise with memory and spikes around a level."""
        spread = self.noise.channels if sd is None else sd
        steps = self.rng.normal(0.0, spread * np.sqrt(1.0 - self.noise.memory**2), SECONDS)
        found = np.convolve(steps, self.noise.memory ** np.arange(_MEMORY))[:SECONDS]
        spiked = self.rng.random(SECONDS) < self.noise.spikes
        found[spiked] += self.rng.exponential(3.0 * spread, int(spiked.sum()))
        return np.asarray(level * 10.0**found, dtype=np.float64)

    def named(self, metric: str) -> list[str]:
        return [n for n in self.values if n.partition("|")[2].partition("{")[0] == metric]

    def times(self, metric: str, factor: float, *, ragged: float = 0.05) -> Values:
        """Multiply a metric from about the onset on; return log10 of the factor by second."""
        ragged_log = np.log10(factor) + self.rng.normal(0.0, ragged, SECONDS)
        wave: Values = self._from_onset() * ragged_log
        for name in self.named(metric):
            self.values[name] = self.values[name] * 10.0**wave
        return wave

    def plus(self, metric: str, amount: float, most: float = np.inf) -> None:
        for name in self.named(metric):
            added = amount * self.rng.uniform(0.8, 1.2, SECONDS)
            self.values[name] = np.minimum(self.values[name] + added * self._from_onset(), most)

    def _from_onset(self) -> Values:
        """Return 0 before and 1 after a channel's own onset: up to 2 s early, 1 s late, within up to 4 s."""
        begin, length = self.rng.integers(-2, 1, endpoint=True), self.rng.integers(1, 4)
        return np.clip((np.arange(SECONDS) - ONSET - begin + 1) / length, 0.0, 1.0)

    def slower(
        self, factor: float, wave: Values | None = None, latencies: Sequence[str] = LATENCIES
    ) -> None:
        """Let latency step by a factor; a wave of some channel goes into it second by second."""
        factors = np.full(SECONDS, np.log10(factor))
        if wave is not None:
            factors += 0.7 * (wave - wave[self.after].mean())
        self.adds(10.0**factors, np.arange(ONSET, SECONDS), latencies)

    def adds(
        self,
        factor: float | Values,
        ks: NDArray[np.int64],
        latencies: Sequence[str] = LATENCIES,
    ) -> None:
        """Let messages of these seconds wait longer: what several causes cost adds up."""
        factors = np.broadcast_to(factor, SECONDS)
        for latency in latencies:
            known = 10.0 ** self.slow[latency][ks]
            self.slow[latency][ks] = np.log10(np.maximum(known + factors[ks] - 1.0, 0.1))

    def tell(self, kind: str, ks: Sequence[int] | NDArray[np.int64], **fields: str | float) -> None:
        for k in ks:
            at_ns = int(k) * SECOND_NS
            self.events.append(
                TimedEvent(int(k), Event(kind, at_ns, at_ns - SECOND_NS, dict(fields)))
            )

    def drop(self, *metrics: str) -> None:
        """Forget channels, and events of these kinds, as if nobody had watched them."""
        for metric in metrics:
            for name in [n for n in self.values if n.partition("|")[2].startswith(metric)]:
                del self.values[name]
        self.events = [e for e in self.events if not e.event.kind.startswith(metrics)]


def quiet_world(rng: np.random.Generator, noise: Noise) -> World:
    """Return a cluster at rest: load, drive, CPU, a metrics page, garbage collections and rolls as ever."""
    world = World(rng, noise)
    world.slow = {latency: np.zeros(SECONDS) for latency in LATENCIES}
    _our_own(world)
    _host(world)
    _pages(world)
    _usual_events(world)
    return world


def _put(world: World, source: str, levels: dict[str, float], sd: float | None = None) -> None:
    for column, level in levels.items():
        world.values[series_name(source, column)] = world.rough(level, sd)


def _our_own(world: World) -> None:
    counts = dict.fromkeys(("sent_messages", "acked_messages"), RATE)
    _put(world, PRODUCER, counts, 0.001)
    _put(world, CONSUMER, {"received_messages": RATE}, 0.001)
    _put(world, CONSUMER, {"lag_messages": 6.0, "consumer_pause_seconds": 0.0016})
    _put(
        world,
        PRODUCER,
        {
            'schedule_lag_seconds{quantile="0.5"}': 5e-5,
            'schedule_lag_seconds{quantile="0.99"}': 2e-4,
            "callback_delay_seconds": 0.0026,
            "process_cpu_ratio": 0.13,
        },
    )
    for name in ("failed_messages", "held_back_messages", "missed_messages"):
        world.values[f"{PRODUCER}|{name}"] = np.zeros(SECONDS)


def _host(world: World) -> None:
    rng = world.rng
    device, folder = 'device="vda"', 'directory="/data"'
    busy, written = 10 ** rng.uniform(-2.0, -0.7), 10 ** rng.uniform(6.0, 7.5)
    _put(
        world,
        PROBE,
        {
            f"disk_write_await_seconds{{{device}}}": 10 ** rng.uniform(-4.0, -2.7),
            f"disk_read_await_seconds{{{device}}}": 2e-4,
            f"disk_flush_await_seconds{{{device}}}": 1e-4,
            f"node_disk_write_time_seconds{{{device}}}": busy,
            f"node_disk_io_time_seconds{{{device}}}": busy,
            f"disk_queue_length{{{device}}}": 2.0 * busy,
            f"node_disk_written_bytes{{{device}}}": written,
            f"node_disk_writes_completed{{{device}}}": written / 2e4,
            f"node_disk_flush_requests{{{device}}}": 25.0,
            f"node_disk_discards_completed{{{device}}}": 8.0,
            f'fsync_latency_seconds{{{folder},quantile="0.5"}}': 0.0024,
            f'fsync_latency_seconds{{{folder},quantile="0.99"}}': 0.007,
            f"fsync_schedule_lag_seconds{{{folder}}}": 0.0018,
            "host_cpu_ratio": rng.uniform(0.15, 0.5),
            "node_pressure_cpu_waiting_seconds": 0.03,
            "node_pressure_io_waiting_seconds": 0.006,
        },
    )
    _put(world, PROBE, {"retention_poll_age_seconds": 0.12}, 0.3 * world.noise.channels)
    for name in ("host_cpu_iowait_ratio", "host_cpu_steal_ratio", "host_network_drops"):
        world.values[f"{PROBE}|{name}"] = np.abs(rng.normal(0.0, 0.002, SECONDS))
    reads = np.where(rng.random(SECONDS) < 0.2, world.rough(2e4), 0.0)  # from memory, mostly
    world.values[f"{PROBE}|node_disk_read_bytes{{{device}}}"] = reads
    world.values[f"{PROBE}|node_disk_reads_completed{{{device}}}"] = reads / 8192.0
    turned = np.linspace(0.0, 0.01, SECONDS) + rng.uniform(1.2, 6.0)
    world.values[f"{PROBE}|disk_device_turnover_ratio{{{device}}}"] = turned


def _pages(world: World) -> None:
    target = '{target="broker1"}'
    world.values[f"{PROBE}|up{target}"] = np.ones(SECONDS)
    _put(
        world,
        PROBE,
        {
            f"scrape_duration_seconds{target}": 0.012,
            f"jvm_gc_collection_seconds{target}": 0.003,
            "node_netstat_Tcp_RetransSegs": 0.3,
        },
    )
    flows = {
        f"kafka_server_brokertopicmetrics_bytes{way}{target}": RATE * 1024 for way in ("in", "out")
    }
    _put(world, PROBE, flows, 0.005)
    zero = f"kafka_server_replicamanager_underreplicatedpartitions{target}"
    world.values[f"{PROBE}|{zero}"] = np.zeros(SECONDS)


def _usual_events(world: World) -> None:
    rng = world.rng
    for k in _now_and_then(rng, 4, 20):
        world.tell("gc_pause", [k], pause_seconds=float(rng.uniform(0.002, 0.009)))
    world.tell("segment_created", _now_and_then(rng, 15, 40), topic="soak-t", partition=0)


def _now_and_then(rng: np.random.Generator, least: int, most: int) -> list[int]:
    ks, k = [], int(rng.integers(0, most))
    while k < SECONDS:
        ks.append(k)
        k += int(rng.integers(least, most))
    return ks


def finished(world: World) -> tuple[Change, Nearby]:
    """Return the change that a detector would raise, and all that a cause may look at."""
    _latencies(world)
    _chance(world)
    return _change(world), _nearby(world)


def _latencies(world: World) -> None:
    noise = world.noise
    for latency, source in zip(LATENCIES, (PRODUCER, CONSUMER), strict=True):
        shared = np.log10(world.rough(1.0, noise.latency))
        for quantile, (level, strength) in QUANTILES.items():
            own = np.log10(world.rough(1.0, 0.3 * noise.latency))
            y = np.log10(0.0015 * level) + strength * (shared + world.slow[latency]) + own
            name = f'{source}|{latency}_latency_seconds{{quantile="{quantile}"}}'
            acked = world.values[f"{PRODUCER}|acked_messages"]
            world.values[name] = np.where(acked > 0.0, 10.0**y, np.nan)


def _chance(world: World) -> None:
    """Let some channels step at other times than latency does."""
    free = [n for n in world.values if "latency_seconds{quantile" not in n and "_messages" not in n]
    for name in world.rng.choice(free, world.noise.chance_steps, replace=False):
        at = int(
            world.rng.choice(
                [world.rng.integers(60, ONSET - 90), world.rng.integers(ONSET + 90, 880)]
            )
        )
        world.values[name][at:] *= world.rng.uniform(1.3, 4.0)


def _change(world: World) -> Change:
    rng, noise = world.rng, world.noise
    onset = ONSET + int(rng.integers(-noise.onset, noise.onset, endpoint=True))
    interval = (
        min(ONSET, onset) - int(rng.integers(0, noise.onset, endpoint=True)),
        max(ONSET, onset) + int(rng.integers(0, noise.onset, endpoint=True)),
    )
    values = world.values[world.headline]
    before, after = (
        float(np.nanmedian(part))
        for part in (values[ONSET - 120 : ONSET], values[ONSET : ONSET + 60])
    )
    if world.kind == "spikes":
        after = float(np.nanquantile(values[ONSET:], 0.97))
    return Change(
        world.headline, onset + 8, onset, interval, before, after, "confirmed", 0.999, world.kind
    )


def _nearby(world: World) -> Nearby:
    series = {}
    for name, values in world.values.items():
        is_there = np.isfinite(values) & (world.rng.random(SECONDS) >= world.noise.lost)
        ks = np.flatnonzero(is_there).astype(np.int64)
        series[name] = Series(name, ks, values[ks])
    return Nearby(
        k0=0,
        k1=SECONDS,
        series=series,
        events=tuple(sorted(world.events, key=lambda e: e.k)),
        earlier_events={"gc_pause": 300, "segment_created": 200},
        phases=((0, "soak"),),
        lag_seconds=world.lag_seconds,
    )
