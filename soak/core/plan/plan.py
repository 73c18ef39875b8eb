"""The plan of a run and the plan of a probe host: frozen dataclasses with every default."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import field
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_type_hints

from pydantic import BeforeValidator
from pydantic.dataclasses import dataclass

from soak.core.plan.config import STRICT, FormerName, PluginConfigs, Settings, check_between
from soak.core.plan.load import Consumers, Load
from soak.core.plan.objectives import Objective, ObjectiveText, parse_objective
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
    """A run above any of these limits starts only with `--yes`."""

    rate: Rate = field(
        default_factory=lambda: rate_per_second("100k/s")
    )  # highest rate of the plan
    bytes_per_day: Size = 10 * 2**40  # written at that rate, all copies together
    partitions: int = 1000  # of all topics that the run creates
    topics: int = 100

    def __post_init__(self) -> None:
        for key in ("partitions", "topics"):
            if getattr(self, key) < 0:
                raise ValueError(f"{key} must not be below 0")


MINUTE_NS = 60 * SECOND_NS
MAX_SHIP_TIMEOUT_NS = 12 * SECOND_NS
"""Four such waits fit into the 60 s of the shipping daemon's systemd watchdog."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Sampling:
    """How one probe is read; work on a thread of its own has a period of its own."""

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
    key: str = ""  # reference to the secret with which hosts sign what they send
    unsigned: bool = False  # take what is not signed, where the plan names no key

    def __post_init__(self) -> None:
        if not self.topic:
            raise ValueError("topic must have a name")
        if not SECOND_NS <= self.timeout <= MAX_SHIP_TIMEOUT_NS:
            raise ValueError(
                f"timeout must lie between 1s and {format_duration(MAX_SHIP_TIMEOUT_NS)}"
            )
        if self.buffer < 2**20:
            raise ValueError("buffer must be at least 1MiB")
        if self.key and self.unsigned:
            raise ValueError(
                "unsigned contradicts key: what is not signed is refused where there is one"
            )


_SERVER = r"(\[[0-9a-fA-F]*:[0-9a-fA-F:.]*(%\w+)?\]|[^\s,/@:\[\]]+):\d+"
_STORE_URL = re.compile(rf"kafka://{_SERVER}(,{_SERVER})*/?")
_STORE_URL_RULE = (
    "must be kafka://host:port, with more host:port after commas and IPv6 addresses in brackets"
)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Store:
    """The Kafka cluster that keeps findings and notifications, in soak.findings and soak.outbox."""

    url: str
    client: Settings = field(default_factory=dict)  # settings of librdkafka, such as security
    timeout: Duration = duration_ns("10s")
    keep: Duration = duration_ns("90d")  # the run is deleted when it was not used for so long

    def __post_init__(self) -> None:
        if not _STORE_URL.fullmatch(self.url):
            raise ValueError(f"url {_STORE_URL_RULE}")
        if not SECOND_NS <= self.timeout <= MAX_SHIP_TIMEOUT_NS:
            raise ValueError(
                f"timeout must lie between 1s and {format_duration(MAX_SHIP_TIMEOUT_NS)}"
            )
        if self.keep < duration_ns("1d"):
            raise ValueError("keep must be at least 1d")

    @property
    def servers(self) -> str:
        """Return the addresses of the cluster, as a client wants them."""
        return self.url.removeprefix("kafka://").rstrip("/")

    @property
    def target(self) -> Ship:
        """Return what its clients need, in the form that all clients of a second cluster share."""
        return Ship(bootstrap_servers=self.servers, client=self.client, timeout=self.timeout)


def _store_of_url(value: object) -> object:
    """Return `store: kafka://host:port` as the section that it is short for."""
    if not isinstance(value, str):
        return value
    if not _STORE_URL.fullmatch(value):
        raise ValueError(_STORE_URL_RULE)
    return {"url": value}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Maintenance:
    """A window in which no message is sent; pending messages wait for its end."""

    cron: str  # start, in UTC
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
    runbook_url: str = "docs/reference/causes.md"  # a page with a heading for each cause
    report_url: str = ""  # where people find reports; empty: messages name the command

    def __post_init__(self) -> None:
        check_between(self, "max_per_hour", 1, 10_000)
        if not self.runbook_url.isprintable() or {" ", "#"} & set(self.runbook_url):
            raise ValueError("runbook_url must have no blanks and no '#': the cause follows it")
        if self.report_url and not _WEB_ADDRESS.fullmatch(self.report_url):
            raise ValueError("report_url must be an address such as http://host:8000/{run}/")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AlertingPlan:
    """The part of a plan that may change while a run goes on: where notifications go, and when."""

    name: str  # of the plan
    sinks: PluginConfigs = field(default_factory=dict)
    alerts: Alerts = field(default_factory=Alerts)


_WEB_ADDRESS = re.compile(r"https?://[^\s<>\"']+")
MAX_PARTITIONS = 100_000
MIN_DIRTY_BYTES = 2**20  # one or two writes of a broker
MIN_WRITE_RATE = 2**20  # bytes a second; pending writes on a slower drive would block its removal


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LabDrive:
    """An injected drive for the data of some of a lab's brokers, one each."""

    capacity: Size = 2**30  # in memory, only for what is written
    filesystem: Literal["ext4", "xfs"] = "ext4"
    dirty_limit: Size | None = None  # dirty pages of this drive before writers are throttled
    write_rate: Size | None = None  # bytes a second; faster writes are throttled
    brokers: tuple[int, ...] = (1,)  # counted from 1

    def __post_init__(self) -> None:
        if self.write_rate is not None and self.write_rate < MIN_WRITE_RATE:
            raise ValueError("write_rate must be at least 1MiB")
        if self.dirty_limit is not None and self.dirty_limit < MIN_DIRTY_BYTES:
            raise ValueError("dirty_limit must be at least 1MiB")
        if not self.brokers or min(self.brokers) < 1:
            raise ValueError("brokers are counted from 1, and at least one must be named")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Lab:
    """A broker that soakd downloads, starts and stops, on loopback."""

    broker: str = ""  # kind; empty: that of the plan
    nodes: int = 1  # brokers of one cluster
    settings: Settings = field(default_factory=dict)
    mailbox: bool = True  # start a mail server that prints its mails; sinks.mail uses it
    drive: LabDrive | None = None  # an injected drive for their data; needs root and FUSE
    relayed: bool = False  # clients connect through a relay, which injects network faults

    def __post_init__(self) -> None:
        check_between(self, "nodes", 1, 9)
        if self.drive and max(self.drive.brokers) > self.nodes:
            raise ValueError(f"drive.brokers must name brokers from 1 to {self.nodes}")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Topic:
    name: str = ""  # empty: soak-<run id>
    count: int = 1  # number of topics; more than one are named <name>-0 and so on
    use_existing: bool = False  # write to topics that the run did not create
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
        """Return the names of the topics; the run sets an empty name before."""
        if self.count == 1:
            return (self.name,)
        return tuple(f"{self.name}-{number}" for number in range(self.count))

    @property
    def total_partitions(self) -> int:
        return self.count * self.partitions


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Journal:
    sync: Duration = 5 * SECOND_NS  # flushed to disk this often


MAX_SHARDS = 64


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Detection:
    trigger: Duration = 5 * SECOND_NS  # interval between batches of Spark
    shards: int = 1  # parts of a run, each of its sources in one, that Spark works on at once
    detectors: PluginConfigs = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.trigger < SECOND_NS // 2:
            raise ValueError("trigger must be at least 500ms")
        if not 1 <= self.shards <= MAX_SHARDS:
            raise ValueError(f"shards must lie between 1 and {MAX_SHARDS}")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Plan:
    name: str
    broker: PluginConfigs
    lab: Lab | None = None
    topic: Topic = field(default_factory=Topic)
    load: Load = field(default_factory=Load)
    limits: Limits = field(default_factory=Limits)  # a run above them needs `--yes`
    consumers: Consumers = field(default_factory=Consumers)
    phases: PhaseLengths = field(default_factory=PhaseLengths)
    journal: Journal = field(default_factory=Journal)
    probes: PluginConfigs = field(default_factory=dict)
    sampling: dict[str, Sampling] = field(default_factory=dict)  # by probe
    detection: Detection = field(default_factory=Detection)
    objectives: tuple[ObjectiveText, ...] = ()  # limits of users, each with its target
    sinks: PluginConfigs = field(default_factory=dict)
    alerts: Alerts = field(default_factory=Alerts)
    ship: Ship | None = None  # how records of other hosts arrive during the run
    # Where findings and notifications are kept; None: in findings.db of the run folder.
    store: Annotated[Store | None, BeforeValidator(_store_of_url)] = None
    metrics: Metrics | None = None
    drive_check: Duration = 0  # time for measuring each broker drive before and after; 0s: none
    run_directory: str = "runs"  # parent of the run folders
    free_space_floor: Size = 2**30  # the run does not start, and stops, below this much free space

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.drive_check and not SECOND_NS <= self.drive_check <= 3600 * SECOND_NS:
            raise ValueError("drive_check must be 0s, or lie between 1s and 1h")
        if len(self.broker) != 1:
            raise ValueError(f"broker must name exactly one kind, not {len(self.broker)}")
        check_objectives(self.objectives)
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

    def knows_source(self, source: str) -> bool:
        """Return whether a source, `daemon@host`, may be of this plan; other hosts may probe in any case."""
        daemon, _, host = source.partition("@")
        return bool(host) and (daemon == "probe" or daemon in self.measuring)

    @property
    def daemons(self) -> tuple[str, ...]:
        """Return all daemons of a run, in the order in which they start."""
        return ("conduct", *self.measuring, *self.over_hosts, "detect-stream", "alert")

    @property
    def over_hosts(self) -> tuple[str, ...]:
        """Return the daemons that merge the records of several hosts."""
        return ("ship", "receive") if self.ship else ()

    @property
    def least_soak(self) -> int:
        """Return how much soak a run needs to be judged, in ns: with less the detector compares nothing."""
        detector = self.detection.detectors[STREAM_DETECTOR]
        return int(detector.baseline + detector.confirm)

    @property
    def service_objectives(self) -> tuple[Objective, ...]:
        return tuple(map(parse_objective, self.objectives))

    @property
    def broker_kind(self) -> str:
        return next(iter(self.broker))

    @property
    def broker_config(self) -> Any:  # noqa: ANN401  # the plug-in's own type
        return self.broker[self.broker_kind]


MAX_OBJECTIVES = 20


def check_objectives(objectives: tuple[str, ...]) -> None:
    """Raise `ValueError` when there are too many objectives, or one twice."""
    if len(objectives) > MAX_OBJECTIVES:
        raise ValueError(f"objectives must be at most {MAX_OBJECTIVES}")
    for number, text in enumerate(objectives):
        if (first := objectives.index(text)) < number:
            raise ValueError(f"objectives.{number} is the same as objectives.{first}")


_NAME_CHARACTERS = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")


def check_name(name: str) -> None:
    """Raise `ValueError` when a run folder and topics cannot have this name."""
    if not name or not set(name) <= _NAME_CHARACTERS or name[0] in "-.":
        raise ValueError(
            f"name {name!r} must be letters, digits, '-', '_' or '.', and must not start with '-' or '.'"
        )


PLUGIN_SECTIONS: Mapping[tuple[str, ...], str] = {
    ("broker",): "soak.brokers",
    ("probes",): "probes",
    ("detection", "detectors"): "detectors",
    ("sinks",): "soak.sinks",
}
"""The sections of a plan that name plug-ins, and the packages of these."""

STREAM_DETECTOR = "level_shift"
"""The detector of every run; a loaded plan always has its configuration."""

OUTAGE_DETECTOR = "outage"
"""Another one of every run, with a configuration as well."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ProbePlan:
    """The plan of a probe host, without broker, load and phases; sections are those of a `Plan`."""

    name: str
    probes: PluginConfigs
    sampling: dict[str, Sampling] = field(default_factory=dict)
    journal: Journal = field(default_factory=Journal)
    ship: Ship | None = None
    metrics: Metrics | None = None
    run_directory: str = "runs"
    free_space_floor: Size = 2**30  # nothing is recorded below this much free space

    def __post_init__(self) -> None:
        check_name(self.name)
        if not self.probes:
            raise ValueError("probes must name at least one probe")
        if self.ship is not None and not self.ship.bootstrap_servers:
            raise ValueError("ship.bootstrap_servers names no cluster, and this plan measures none")

    @property
    def daemons(self) -> tuple[str, ...]:
        """Return the daemons of a probe host, in the order in which they start."""
        return ("probe", *(("ship",) if self.ship else ()))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FleetPlan:
    """The plan of a detector for many runs; sections are those of a `Plan`.

    `detection` and `sinks` are for every run; detectors of a run that announces its own are as that one says.
    """

    name: str
    ship: Ship
    store: Annotated[Store, BeforeValidator(_store_of_url)]
    detection: Detection = field(default_factory=Detection)
    sinks: PluginConfigs = field(default_factory=dict)
    metrics: Metrics | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        if not self.ship.bootstrap_servers:
            raise ValueError("ship.bootstrap_servers names no cluster, and this plan measures none")

    @property
    def daemons(self) -> tuple[str, ...]:
        """Return the daemons of this plan."""
        return ("detect-fleet",)


AnyPlan = Plan | ProbePlan
"""What the probe daemon reads; it needs only what both have."""


def with_plugin_values(plan: Plan, section: str, values: Mapping[str, object]) -> Plan:
    """Return the plan with `values` set in each plug-in of a section whose *first* named field is empty.

    Fields that a plug-in does not have are ignored: `{"host": h, "port": p}` sets both if the host is empty,
    and nothing else.
    """
    configs: PluginConfigs = {
        name: _with_values(config, values) for name, config in getattr(plan, section).items()
    }
    changes: dict[str, Any] = {section: configs}
    return dataclasses.replace(plan, **changes)


def with_measured_cluster(plan: Plan) -> Plan:
    """Return the plan whose probes have the address, client settings and topics of the plan's own cluster.

    Those of a probe that names them itself stay.
    """
    broker = plan.broker_config
    own: list[Mapping[str, object]] = [
        {"client": getattr(broker, "common", None) or getattr(broker, "client", {})},
        *({name: address} for name, address in broker.addresses.items()),
        {"namespace": getattr(broker, "namespace", "")},
        {"topics": plan.topic.names},
    ]
    for values in own:
        plan = with_plugin_values(plan, "probes", values)
    return plan


def plugins_without(plan: AnyPlan, section: str, field: str) -> list[str]:
    """Return the plug-ins of a section in which this required field is empty.

    A field that may be None is optional.
    """
    return [
        name
        for name, config in getattr(plan, section).items()
        if getattr(config, field, None) in ("", ())
        and NoneType not in get_args(get_type_hints(type(config))[field])
    ]


def with_ship_target(plan: Plan) -> Plan:
    """Return the plan with the measured cluster as the target of shipping, unless it names another."""
    config, ship = plan.broker_config, plan.ship
    if ship is None or ship.bootstrap_servers:
        return plan
    client = ship.client or getattr(config, "common", {})
    servers = config.addresses.get("bootstrap_servers", "")
    ship = dataclasses.replace(ship, bootstrap_servers=servers, client=client)
    return dataclasses.replace(plan, ship=ship)


def with_store_client(plan: Plan) -> Plan:
    """Return the plan with the load's client settings for the store, where that is the measured cluster."""
    config, store = plan.broker_config, plan.store
    measured = config.addresses.get("bootstrap_servers", "")
    if store is None or store.client or store.servers != measured:
        return plan
    store = dataclasses.replace(store, client=getattr(config, "common", {}))
    return dataclasses.replace(plan, store=store)


def _with_values(config: Any, values: Mapping[str, object]) -> Any:  # noqa: ANN401  # a plug-in's Config
    if getattr(config, next(iter(values)), None) not in ("", (), {}):
        return config
    known = {item.name for item in dataclasses.fields(config)}
    return dataclasses.replace(
        config, **{name: value for name, value in values.items() if name in known}
    )
