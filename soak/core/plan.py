"""The plan of a run: frozen, with every default in it. Plug-in sections hold the plug-in's own `Config`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from soak.core.plan_alerts import Alerts
from soak.core.plan_base import STRICT, PluginConfigs, Settings, check_between
from soak.core.plan_limits import Limits
from soak.core.plan_load import Consumers, Load
from soak.core.plan_phases import PhaseLengths
from soak.core.plan_records import Metrics, Sampling, Ship
from soak.core.units import SECOND_NS, Duration, Size

MOST_PARTITIONS = 100_000
LEAST_DIRTY_BYTES = 2**20  # a write or two of a broker
LEAST_WRITE_RATE = (
    2**20
)  # bytes a second; what waits on a slower drive keeps it from being taken apart


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LabDrive:
    """An injected drive for the data of some of a lab's brokers, one for each of them."""

    capacity: Size = 2**30  # in memory, as far as it is written
    filesystem: Literal["ext4", "xfs"] = "ext4"
    dirty_limit: Size | None = None  # what the kernel holds back of it before who writes must wait
    write_rate: Size | None = None  # bytes a second; beyond them writes wait for each other
    brokers: tuple[int, ...] = (1,)  # counted from 1

    def __post_init__(self) -> None:
        if self.write_rate is not None and self.write_rate < LEAST_WRITE_RATE:
            raise ValueError("write_rate must be at least 1MiB")
        if self.dirty_limit is not None and self.dirty_limit < LEAST_DIRTY_BYTES:
            raise ValueError("dirty_limit must be at least 1MiB")
        if not self.brokers or min(self.brokers) < 1:
            raise ValueError("brokers are counted from 1, and at least one is named")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Lab:
    """A broker that soakd fetches, starts and stops itself, on loopback."""

    broker: str = ""  # which one; empty: the plan's kind
    nodes: int = 1  # brokers of one cluster
    settings: Settings = field(default_factory=dict)
    mailbox: bool = True  # start a mail server that prints what it gets; sinks.mail goes to it
    drive: LabDrive | None = None  # an injected one for their data; needs root and FUSE
    relayed: bool = False  # clients come through a relay, in which a network's faults are injected

    def __post_init__(self) -> None:
        check_between(self, "nodes", 1, 9)
        if self.drive and max(self.drive.brokers) > self.nodes:
            raise ValueError(f"drive.brokers names more than the {self.nodes} that there are")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Topic:
    name: str = ""  # empty: soak-<run id>
    count: int = 1  # topics alike; with more than one they are named <name>-0 and so on
    use_existing: bool = False  # a topic that the run did not create is refused unless told
    partitions: int = 2  # of each
    replication: int = 1
    settings: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in ("count", "partitions", "replication"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, not {getattr(self, key)}")
        if self.total_partitions > MOST_PARTITIONS:
            raise ValueError(f"partitions must be at most {MOST_PARTITIONS} of all topics together")

    @property
    def names(self) -> tuple[str, ...]:
        """Return the topics' names, once the run has given them one."""
        if self.count == 1:
            return (self.name,)
        return tuple(f"{self.name}-{number}" for number in range(self.count))

    @property
    def total_partitions(self) -> int:
        return self.count * self.partitions


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Journal:
    sync: Duration = 5 * SECOND_NS  # flushed to disk this often


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Detection:
    trigger: Duration = 5 * SECOND_NS  # Spark takes what has come in this often
    detectors: PluginConfigs = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.trigger < SECOND_NS // 2:
            raise ValueError("trigger must be at least 500ms")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Plan:
    name: str
    broker: PluginConfigs
    lab: Lab | None = None
    topic: Topic = field(default_factory=Topic)
    load: Load = field(default_factory=Load)
    limits: Limits = field(default_factory=Limits)  # beyond them a run wants a person's word
    consumers: Consumers = field(default_factory=Consumers)
    phases: PhaseLengths = field(default_factory=PhaseLengths)
    journal: Journal = field(default_factory=Journal)
    probes: PluginConfigs = field(default_factory=dict)
    sampling: dict[str, Sampling] = field(default_factory=dict)  # by probe
    detection: Detection = field(default_factory=Detection)
    sinks: PluginConfigs = field(default_factory=dict)
    alerts: Alerts = field(default_factory=Alerts)
    ship: Ship | None = None  # how records of other hosts come here while the run goes on
    metrics: Metrics | None = None
    drive_check: Duration = 0  # each broker drive is measured so long before and after; 0s: not
    run_directory: str = "runs"  # each run makes a folder of its own below it
    free_space_floor: Size = 2**30  # the run does not start, and stops, below this much free space

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.drive_check and not SECOND_NS <= self.drive_check <= 3600 * SECOND_NS:
            raise ValueError("drive_check must be 0s, or lie between 1s and 1h")
        if len(self.broker) != 1:
            raise ValueError(f"broker must name exactly one kind, not {len(self.broker)}")
        if self.lab is not None and not self.lab.broker:
            lab = dataclasses.replace(self.lab, broker=self.broker_kind)
            object.__setattr__(self, "lab", lab)

    @property
    def measuring(self) -> tuple[str, ...]:
        """Return the daemons that write a journal, in the order in which they start."""
        return (
            *(f"consume.{index}" for index in range(self.consumers.processes)),
            *(("probe",) if self.probes else ()),
            *(f"produce.{index}" for index in range(self.load.producers)),
        )

    @property
    def daemons(self) -> tuple[str, ...]:
        """Return all daemons of a run, in the order in which they start."""
        return ("conduct", *self.measuring, *self.over_hosts, "detect-stream", "alert")

    @property
    def over_hosts(self) -> tuple[str, ...]:
        """Return the daemons that bring the records of several hosts together."""
        return ("ship", "receive") if self.ship else ()

    @property
    def broker_kind(self) -> str:
        return next(iter(self.broker))

    @property
    def broker_config(self) -> Any:  # noqa: ANN401  # the plug-in's own type
        return self.broker[self.broker_kind]


_NAME_CHARACTERS = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")


def check_name(name: str) -> None:
    """Raise `ValueError` when a run's folder and topics cannot be named so."""
    if not name or not set(name) <= _NAME_CHARACTERS or name[0] in "-.":
        raise ValueError(
            f"name {name!r} must be letters, digits, '-', '_' or '.', and begin with none of '-.'"
        )


PLUGIN_SECTIONS: Mapping[tuple[str, ...], str] = {
    ("broker",): "soak.brokers",
    ("probes",): "probes",
    ("detection", "detectors"): "detectors",
    ("sinks",): "soak.sinks",
}
"""Where a plan names plug-ins, and the package in which their files lie."""

STREAM_DETECTOR = "level_shift"
"""What detects in every run: a loaded plan has its configuration, whether it was named or not."""
