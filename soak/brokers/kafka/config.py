"""The `broker: kafka:` section of a plan, and the producer settings that soakd adds to it.

Source: librdkafka accepts `all` in capitals too, and any number from -1 to 1000; a broker rejects any
number of acknowledgements other than -1, 0 and 1 (Kafka's protocol, Produce).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Protocol

from pydantic.dataclasses import dataclass

from soak.clients import client_settings
from soak.core.errors import SettingError, raise_settings, wrong_settings
from soak.core.plan.config import STRICT, Settings
from soak.core.units import SECOND_NS, Duration

ACKS_SETTINGS = ("acks", "request.required.acks")
_ACKS_VALUES = {"all": "all", "-1": "all", "1": "1", "0": "0"}
_FIXED_SETTINGS: Mapping[str, tuple[frozenset[str], str]] = {
    "auto.offset.reset": (
        frozenset({"earliest", "smallest", "beginning"}),
        "messages that a consumer skips would count as lost",
    ),
    "isolation.level": (
        frozenset({"read_uncommitted"}),
        "messages behind an open transaction of another client would count as lost",
    ),
    "delivery.report.only.error": (frozenset({"false"}), "every message's report is measured"),
    "transactional.id": (frozenset({""}), "nothing is sent in transactions"),
}
"""Settings that soakd fixes: the values that it allows, and why no other."""


class KafkaProtocolConfig(Protocol):
    """The part of a plan that Kafka and Redpanda have in common."""

    @property
    def bootstrap_servers(self) -> str: ...
    @property
    def timeout(self) -> int: ...
    @property
    def producer(self) -> Settings: ...
    @property
    def common(self) -> Settings: ...


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    bootstrap_servers: str = ""  # empty: the lab's broker
    timeout: Duration = 10 * SECOND_NS  # of every request that carries no message
    producer: Settings = field(default_factory=dict)  # over those of `producer_settings`
    consumer: Settings = field(default_factory=dict)
    common: Settings = field(default_factory=dict)  # security and the like, for every client

    def __post_init__(self) -> None:
        client_settings.refuse_secrets_in_addresses("bootstrap_servers", [self.bootstrap_servers])
        if self.timeout <= 0:
            raise ValueError("timeout must be above 0s")
        settings = producer_settings(self.producer, self.common, linger_ms=1)
        object.__setattr__(self, "producer", settings)

    @property
    def addresses(self) -> dict[str, str]:
        """Return where the cluster is, under the names that other sections of a plan use."""
        return {"bootstrap_servers": self.bootstrap_servers}

    def with_client_id(self, name: str) -> Config:
        """Return the same with a name for its clients, unless the plan names them.

        A cluster's quotas, metrics and logs tell clients apart by it.
        """
        return replace(self, common={"client.id": name, **self.common})


def producer_settings(
    given: Mapping[str, str], common: Mapping[str, str], *, linger_ms: int
) -> dict[str, str]:
    """Return a producer's settings: those of a plan over soakd's own.

    Where the plan does not decide it, a producer is idempotent if its acknowledgements allow that.
    """
    plan = {**common, **given}
    acks = normalised_acks(plan) or {"acks": "all"}
    found = {**given, **acks}
    if not plan.keys() & {"linger.ms", "queue.buffering.max.ms"}:  # one setting with two names
        found["linger.ms"] = str(linger_ms)
    if "enable.idempotence" not in plan:
        found["enable.idempotence"] = "true" if next(iter(acks.values())) == "all" else "false"
    return dict(sorted(found.items()))


def normalised_acks(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the acknowledgements of these settings, under the name they use: `all`, `1` or `0`.

    A value that no broker accepts is returned as it is.
    """
    given = {name: settings[name] for name in ACKS_SETTINGS if name in settings}
    return {name: _ACKS_VALUES.get(value.lower(), value) for name, value in given.items()}


def check_settings(section: str, settings: Mapping[str, str]) -> None:
    """Check the settings in one section of a plan, such as `producer`; connects to nothing.

    Raises:
        SettingError: what `check_librdkafka` refuses, values that no broker accepts, or settings that soakd
            fixes.
    """
    faults = wrong_settings(lambda: client_settings.check_librdkafka(section, settings))
    faults += [
        SettingError((section, name), "must be all, 1 or 0: a broker accepts no other")
        for name, value in normalised_acks(settings).items()
        if value not in _ACKS_VALUES.values()
    ]
    faults += [
        SettingError((section, name), f"is fixed by soakd: {reason}")
        for name, (allowed, reason) in _FIXED_SETTINGS.items()
        if name in settings and settings[name] not in allowed
    ]
    raise_settings(faults)
