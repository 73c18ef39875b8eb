"""The plan of a run and the plan of a probe host: frozen dataclasses with every default."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic.dataclasses import dataclass

from soak.core.plan.config import STRICT, FormerName, PluginConfigs, Settings, check_between
from soak.core.plan.load import Consumers, Load
from soak.core.plan.phases import PhaseLengths
from soak.core.units import (
    SECOND_NS,
    Duration,
    Rate,
    Size,
    duration_ns,
    format_duration,
    rate_per_second,
)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Limits:
    """Above any of them a run begins only where it is told `--yes`."""

    rate: Rate = field(default_factory=lambda: rate_per_second("100k/s"))  # the highest of the plan
    bytes_per_day: Size = 10 * 2**40  # written at that rate, all copies together
    partitions: int = 1000  # of all topics that the run makes
    topics: int = 100

    def __post_init__(self) -> None:
        for key in ("partitions", "topics"):
            if getattr(self, key) < 0:
                raise ValueError(f"{key} must not be below 0")


MINUTE_NS = 60 * SECOND_NS
MAX_SHIP_TIMEOUT_NS = 12 * SECOND_NS
"""Four such waits in a row fit into the 60 s after which systemd takes the shipping for hung."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Sampling:
    """How one probe is read; what it does on a thread of its own has a period of its own."""

    period: Duration = SECOND_NS
    timeout: Duration = duration_ns("10s")  # a reading that takes longer has failed

    def __post_init__(self) -> None:
        if self.period % SECOND_NS:
            raise ValueError("period must be whole seconds: the grid that all probes share")
        for key, high_ns in (("period", 60 * MINUTE_NS), ("timeout", 10 * MINUTE_NS)):
            if not SECOND_NS <= getattr(self, key) <= high_ns:
                raise ValueError(f"{key} must lie between 1s and {format_duration(high_ns)}")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Metrics:
    """A page for Prometheus on each daemon."""

    port: int = 0  # of the first daemon, each further one takes the next; 0: one that is free
    address: str = "127.0.0.1"

    def __post_init__(self) -> None:
        check_between(self, "port", 0, 65_535)
        if not self.address:  # to the kernel that is every address of this host
            raise ValueError("address must not be empty; 0.0.0.0 is for all to read")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Ship:
    """The Kafka topic over which hosts bring their records together."""

    bootstrap_servers: str = ""  # empty: the cluster that the plan measures
    topic: str = "soak.samples"
    client: Settings = field(default_factory=dict)  # settings of librdkafka, such as security
    timeout: Duration = duration_ns("10s")
    buffer: Size = 2**30  # journal that a stand-alone host keeps, whether it was sent or not

    def __post_init__(self) -> None:
        if not self.topic:
            raise ValueError("topic must have a name")
        if not SECOND_NS <= self.timeout <= MAX_SHIP_TIMEOUT_NS:
            raise ValueError(
                f"timeout must lie between 1s and {format_duration(MAX_SHIP_TIMEOUT_NS)}"
            )
        if self.buffer < 2**20:
            raise ValueError("buffer must be at least 1MiB")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Maintenance:
    """A window in which no message is sent; pending messages wait for its end."""

    cron: str  # when it begins, in UTC
    length: Duration

    def __post_init__(self) -> None:
        if not SECOND_NS <= self.length <= duration_ns("7d"):
            raise ValueError("length must lie between 1s and 7d")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Alerts:
    # Messages to each sink; the others wait.
    max_per_hour: Annotated[int, FormerName("most_per_hour")] = 20
    digest: str = ""  # when, as cron in UTC; empty: none
    maintenance: tuple[Maintenance, ...] = ()

    def __post_init__(self) -> None:
        check_between(self, "max_per_hour", 1, 10_000)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AlertingPlan:
    """The part of a plan that may change while a run goes on: where notifications go, and when."""

    name: str  # of the plan
    sinks: PluginConfigs = field(default_factory=dict)
    alerts: Alerts = field(default_factory=Alerts)


MAX_PARTITIONS = 100_000
MIN_DIRTY_BYTES = 2**20  # a write or two of a broker
MIN_WRITE_RATE = (
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
        if self.write_rate is not None and self.write_rate < MIN_WRITE_RATE:
            raise ValueError("write_rate must be at least 1MiB")
        if self.dirty_limit is not None and self.dirty_limit < MIN_DIRTY_BYTES:
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
        if self.total_partitions > MAX_PARTITIONS:
            raise ValueError(f"partitions must be at most {MAX_PARTITIONS} of all topics together")

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


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ProbePlan:
    """Sections mean what they mean in a `Plan`."""

    name: str
    probes: PluginConfigs
    sampling: dict[str, Sampling] = field(default_factory=dict)
    journal: Journal = field(default_factory=Journal)
    ship: Ship | None = None
    metrics: Metrics | None = None
    run_directory: str = "runs"
    free_space_floor: Size = 2**30  # with less free there nothing is recorded

    def __post_init__(self) -> None:
        check_name(self.name)
        if not self.probes:
            raise ValueError("probes must name at least one probe")
        if self.ship is not None and not self.ship.bootstrap_servers:
            raise ValueError("ship.bootstrap_servers names no cluster, and this plan measures none")

    @property
    def daemons(self) -> tuple[str, ...]:
        """Return the daemons of such a host, in the order in which they start."""
        return ("probe", *(("ship",) if self.ship else ()))


AnyPlan = Plan | ProbePlan
"""What the probe daemon reads: it needs no more than both have."""


def with_plugin_values(plan: Plan, section: str, values: Mapping[str, object]) -> Plan:
    """Return the plan with `values` set in each plug-in of a section whose *first* named field is empty.

    A field that a plug-in does not have is passed over: `{"host": h, "port": p}` sets both where no
    host is named, and touches nothing else.
    """
    configs: PluginConfigs = {
        name: _with_values(config, values) for name, config in getattr(plan, section).items()
    }
    changes: dict[str, Any] = {section: configs}
    return dataclasses.replace(plan, **changes)


def plugins_without(plan: AnyPlan, section: str, field: str) -> list[str]:
    """Return the plug-ins of a section that need this field and were not given it.

    A field that may be None is one that the plug-in can do without.
    """
    return [
        name
        for name, config in getattr(plan, section).items()
        if getattr(config, field, None) in ("", ())
        and NoneType not in get_args(get_type_hints(type(config))[field])
    ]


def with_ship_target(plan: Plan) -> Plan:
    """Return the plan with the measured cluster as where records go, unless it names another."""
    config, ship = plan.broker_config, plan.ship
    if ship is None or ship.bootstrap_servers:
        return plan
    client = ship.client or getattr(config, "common", {})
    servers = config.addresses.get("bootstrap_servers", "")
    ship = dataclasses.replace(ship, bootstrap_servers=servers, client=client)
    return dataclasses.replace(plan, ship=ship)


def _with_values(config: Any, values: Mapping[str, object]) -> Any:  # noqa: ANN401  # a plug-in's Config
    if getattr(config, next(iter(values)), None) not in ("", (), {}):
        return config
    known = {item.name for item in dataclasses.fields(config)}
    return dataclasses.replace(
        config, **{name: value for name, value in values.items() if name in known}
    )
