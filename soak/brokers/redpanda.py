"""Redpanda: Kafka's protocol through the same client, with a metrics page of its own.

There was no Redpanda to be had where this was written: only the client's side, which is Kafka's, ran live.
"""

from __future__ import annotations

from dataclasses import field, replace

from pydantic.dataclasses import dataclass

from soak.brokers import kafka
from soak.clients import secret
from soak.core.plan_base import STRICT, Settings
from soak.core.ports import Clock
from soak.core.units import SECOND_NS, Duration


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    bootstrap_servers: str
    metrics_urls: tuple[
        str, ...
    ] = ()  # http://host:9644/metrics; the first's Admin API is asked, by no probe
    timeout: Duration = 10 * SECOND_NS
    producer: Settings = field(default_factory=dict)  # over those of `kafka.producer_settings`
    consumer: Settings = field(default_factory=dict)
    common: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Redpanda flushes before it acknowledges unless write caching is on, so larger batches pay off.
        settings = kafka.producer_settings(self.producer, self.common, linger_ms=5)
        object.__setattr__(self, "producer", settings)
        secret.refuse_in_addresses("bootstrap_servers", [self.bootstrap_servers])
        if self.timeout <= 0:
            raise ValueError("timeout must be above 0s")
        secret.refuse_in_addresses("metrics_urls", self.metrics_urls)

    @property
    def addresses(self) -> dict[str, str]:
        """Return where the cluster is, under the names that other parts of a plan use."""
        return {"bootstrap_servers": self.bootstrap_servers}


def named(config: Config, name: str) -> Config:
    """Return the configuration of clients that have a name, as `kafka.named`."""
    return replace(config, common={"client.id": name, **config.common})


check_topic = kafka.check_topic


def connect(config: Config, clock: Clock) -> kafka.KafkaBroker:
    same = kafka.Config(
        bootstrap_servers=config.bootstrap_servers,
        timeout=config.timeout,
        producer=config.producer,
        consumer=config.consumer,
        common=config.common,
    )
    return kafka.connect(same, clock)
