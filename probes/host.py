"""The host under the broker, or under the load: CPU with steal, memory, swap, network, load, our own daemons.

Source:   psutil: /proc/stat, meminfo, vmstat, net/dev and loadavg; stat and statm of our daemons' processes.
Overhead: five reads of /proc a second and two a process of ours; a look at the command lines
          of processes that are new, and every 30 s of all.
Caveats:  Steal is what a hypervisor tells; in a container, CPU and memory are those of the whole host.
          Network is the sum over interfaces but loopback: traffic of a bond or bridge counts at each layer,
          and an interface counts from its second look on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass as plain_dataclass

import psutil
from pydantic.dataclasses import dataclass

from probes._deltas import Deltas, Growth
from probes._interfaces import Counters, Interfaces
from probes._own_daemons import OwnDaemons
from soak.core.errors import ProbeError
from soak.core.model import Column, Reading
from soak.core.plan_base import STRICT
from soak.core.ports import Clock
from soak.core.units import SECOND_NS

_IDLE = ("idle", "iowait")
_CPU = ("user", "nice", "system", *_IDLE, "irq", "softirq", "steal")  # guest is inside user
_SWAP = {
    "swap_in": ("host_swap_in_bytes", "bytes"),
    "swap_out": ("host_swap_out_bytes", "bytes"),
}
_NETWORK = {
    "received": ("host_network_received_bytes", "bytes"),
    "sent": ("host_network_sent_bytes", "bytes"),
    "errors": ("host_network_errors", "packets"),
    "drops": ("host_network_drops", "packets"),
}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    pass


@plain_dataclass(frozen=True, slots=True)
class Snapshot:
    """What the host says now. Counters: CPU seconds by mode, and swap; of interfaces those of `_NETWORK`."""

    counters: Mapping[str, float]
    interfaces: Counters
    memory_available_bytes: int
    swap_used_bytes: int
    load_1m: float
    cpu_count: int


def build(config: Config, clock: Clock) -> Host:
    return Host(config, clock)


def snapshot() -> Snapshot:
    """Ask psutil.

    Raises:
        ProbeError: something in /proc could not be read.
    """
    try:
        cpu, swap = psutil.cpu_times(), psutil.swap_memory()
        nics = psutil.net_io_counters(pernic=True, nowrap=False)
        available = psutil.virtual_memory().available
        load_1m, cpu_count = psutil.getloadavg()[0], psutil.cpu_count() or 0
    except (OSError, psutil.Error, ValueError) as error:
        raise ProbeError(f"cannot read the host's counters: {error}") from error
    counters = {mode: float(getattr(cpu, mode, 0.0)) for mode in _CPU}
    counters |= {"swap_in": swap.sin, "swap_out": swap.sout}
    interfaces = {
        name: {
            "received": nic.bytes_recv,
            "sent": nic.bytes_sent,
            "errors": nic.errin + nic.errout,
            "drops": nic.dropin + nic.dropout,
        }
        for name, nic in nics.items()
        if name != "lo"
    }
    return Snapshot(counters, interfaces, available, swap.used, load_1m, cpu_count)


class Host:
    def __init__(
        self,
        config: Config,
        clock: Clock,
        *,
        ask: Callable[[], Snapshot] = snapshot,
        daemons: OwnDaemons | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._ask = ask
        self._daemons = daemons or OwnDaemons(clock)
        self._deltas: Deltas[str] = Deltas()
        self._interfaces = Interfaces()

    def read(self) -> Reading:
        """Return levels at once and rates from the second reading on."""
        begin_ns = self._clock.mono_ns()
        now = self._ask()
        now_ns = self._clock.mono_ns()
        grown = self._deltas.take(now.counters, now_ns)
        traffic = self._interfaces.take(now.interfaces, now_ns)
        levels = [
            (Column("host_memory_available_bytes", (), "bytes"), float(now.memory_available_bytes)),
            (Column("host_swap_used_bytes", (), "bytes"), float(now.swap_used_bytes)),
            (Column("host_load_1m", (), "tasks"), now.load_1m),
            (Column("host_cpu_count", (), "processors"), float(now.cpu_count)),
        ]
        rates = (*_rate_samples(grown, _SWAP), *_rate_samples(traffic, _NETWORK))
        host = (*_cpu_samples(grown), *levels, *rates)
        samples = (*host, *self._daemons.samples())
        return Reading(samples, (), (self._clock.mono_ns() - begin_ns) / SECOND_NS)

    def close(self) -> None:
        """Nothing is held."""


def _cpu_samples(grown: Growth[str]) -> list[tuple[Column, float]]:
    """Return shares of all cores together; nothing when a mode went backwards, as iowait may."""
    spent = [grown.by.get(mode) for mode in _CPU]
    known = [value for value in spent if value is not None]
    total = sum(known)
    if len(known) < len(_CPU) or total <= 0:
        return []
    idle = sum(grown.by[mode] for mode in _IDLE)
    return [
        (Column("host_cpu_ratio", (), "ratio"), (total - idle) / total),
        (Column("host_cpu_steal_ratio", (), "ratio"), grown.by["steal"] / total),
        (Column("host_cpu_iowait_ratio", (), "ratio"), grown.by["iowait"] / total),
    ]


def _rate_samples(
    grown: Growth[str], named: Mapping[str, tuple[str, str]]
) -> list[tuple[Column, float]]:
    rates = ((metric, unit, grown.per_second(key)) for key, (metric, unit) in named.items())
    return [(Column(metric, (), unit), rate) for metric, unit, rate in rates if rate is not None]
