"""The plan of a run: frozen, with every default in it. Plug-in sections hold the plug-in's own `Config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict
from pydantic.dataclasses import dataclass

from soak.core.units import SECOND_NS, Duration, Rate, Size, duration_ns, rate_per_second

STRICT = ConfigDict(extra="forbid")
"""For every configuration: an unknown key is an error."""


def _texts(value: object) -> object:
    """Client and topic settings are text on the wire, while YAML reads numbers and booleans."""
    if not isinstance(value, Mapping):
        return value
    for key, item in value.items():
        if item is None or isinstance(item, Mapping | list):
            raise ValueError(f"{key} must be text, a number or true or false")
    return {
        key: str(item).lower() if isinstance(item, bool) else str(item)
        for key, item in value.items()
    }


SMALLEST_MESSAGE_BYTES = 64  # the header takes 48
LARGEST_MESSAGE_BYTES = 16 * 2**20
LARGEST_CATCH_UP = 100

Settings = Annotated[dict[str, str], BeforeValidator(_texts)]
"""Settings passed through to a client or broker under their real names."""

PluginConfigs = dict[str, Any]
"""Name of a plug-in to its `Config`; `plan_text` fills it from the plug-in's file."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Lab:
    """A broker that soakd fetches, starts and stops itself, on loopback."""

    broker: str = "kafka"
    settings: Settings = field(default_factory=dict)
    mailbox: bool = True  # start a mail server that prints what it gets; sinks.mail goes to it


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Topic:
    name: str = ""  # empty: soak-<run id>
    use_existing: bool = False  # a topic that the run did not create is refused unless told
    partitions: int = 2
    replication: int = 1
    settings: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, value in (("partitions", self.partitions), ("replication", self.replication)):
            if value < 1:
                raise ValueError(f"{key} must be at least 1, not {value}")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Load:
    rate: Rate = field(default_factory=lambda: rate_per_second("1k/s"))
    message_size: Size = 1024
    catch_up_ratio: float = (
        1.2  # after a stall, missed sends go out at most at this multiple of rate
    )
    backlog: Duration = 10 * SECOND_NS  # sends later than this are counted as missed and skipped

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ValueError("rate must be above 0/s")
        if not SMALLEST_MESSAGE_BYTES <= self.message_size <= LARGEST_MESSAGE_BYTES:
            raise ValueError("message_size must lie between 64B and 16MiB")
        if not 1 <= self.catch_up_ratio <= LARGEST_CATCH_UP:
            raise ValueError(f"catch_up_ratio must lie between 1 and {LARGEST_CATCH_UP}")
        if self.backlog < SECOND_NS:
            raise ValueError("backlog must be at least 1s")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PhaseLengths:
    warm_up: Duration = duration_ns("60s")  # in the data, marked, and not judged
    soak: Duration = duration_ns("24h")
    drain: Duration = duration_ns("30s")  # longest wait for the consumer after the last send

    def __post_init__(self) -> None:
        for key in ("warm_up", "soak", "drain"):
            value = getattr(self, key)
            if value % SECOND_NS or value < 0:
                raise ValueError(f"{key} must be whole seconds")
        if self.soak < 20 * SECOND_NS:
            raise ValueError("soak must be at least 20s: there is no level to judge before")


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
    phases: PhaseLengths = field(default_factory=PhaseLengths)
    journal: Journal = field(default_factory=Journal)
    probes: PluginConfigs = field(default_factory=dict)
    detection: Detection = field(default_factory=Detection)
    sinks: PluginConfigs = field(default_factory=dict)
    run_directory: str = "runs"  # each run makes a folder of its own below it
    free_space_floor: Size = 2**30  # the run does not start, and stops, below this much free space

    def __post_init__(self) -> None:
        if not self.name or not set(self.name) <= _NAME_CHARACTERS or self.name[0] in "-.":
            raise ValueError(
                f"name {self.name!r} must be letters, digits, '-', '_' or '.', and begin with none of '-.'"
            )
        if len(self.broker) != 1:
            raise ValueError(f"broker must name exactly one kind, not {len(self.broker)}")

    @property
    def broker_kind(self) -> str:
        return next(iter(self.broker))

    @property
    def broker_config(self) -> Any:  # noqa: ANN401  # the plug-in's own type
        return self.broker[self.broker_kind]


_NAME_CHARACTERS = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")

PLUGIN_SECTIONS: Mapping[tuple[str, ...], str] = {
    ("broker",): "soak.brokers",
    ("probes",): "probes",
    ("detection", "detectors"): "detectors",
    ("sinks",): "soak.sinks",
}
"""Where a plan names plug-ins, and the package in which their files lie."""
