"""What a plan says of its records: how often probes are read, who may look on, and where records go."""

from __future__ import annotations

from dataclasses import field

from pydantic.dataclasses import dataclass

from soak.core.plan_base import STRICT, Settings, check_between
from soak.core.units import SECOND_NS, Duration, Size, duration_ns, format_duration

MINUTE_NS = 60 * SECOND_NS
LONGEST_SHIP_NS = 12 * SECOND_NS
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
        if not SECOND_NS <= self.timeout <= LONGEST_SHIP_NS:
            raise ValueError(f"timeout must lie between 1s and {format_duration(LONGEST_SHIP_NS)}")
        if self.buffer < 2**20:
            raise ValueError("buffer must be at least 1MiB")
