"""The probe `retention_pulsar`: polls ledgers and the metrics pages of bookies on a thread of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol
from urllib.parse import urlsplit

from pydantic.dataclasses import dataclass

from probes.common.exposition import ExpositionParser, Page
from probes.common.polling import PollingLoop
from probes.retention_pulsar.bookies import NAMES, Bookie
from probes.retention_pulsar.ledgers import LedgerList, Ledgers, Trim, parse_internal_stats
from soak.clients import client_settings
from soak.clients.pulsar_admin import ADMIN_HOSTS
from soak.core.errors import NotAvailableError, ProbeError
from soak.core.model import Column, Reading
from soak.core.plan.config import STRICT, Settings
from soak.core.ports import Clock
from soak.core.units import SECOND_NS, Duration, duration_ns

LEDGERS_PER_SECOND = 2500
_SECRETS = ("token",)
_KNOWN = (
    "authentication",
    "token",
    ADMIN_HOSTS,
    client_settings.UNENCRYPTED,
    "tls_allow_insecure_connection",
    "tls_certificate_file_path",
    "tls_private_key_file_path",
    "tls_trust_certs_file_path",
)

Samples = list[tuple[Column, float]]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    admin_url: str = ""  # empty: the run's broker
    bookie_urls: str = ""  # http://host:8000,...; empty: the broker's
    namespace: str = ""  # of topics without a full name; empty: that of the broker
    topics: tuple[str, ...] = ()  # empty: the run's topics
    client: Settings = field(
        default_factory=dict
    )  # token and TLS; empty: those of the broker's clients
    period: Duration = SECOND_NS
    timeout: Duration = duration_ns("10s")

    def __post_init__(self) -> None:
        for name in ("admin_url", "bookie_urls"):
            client_settings.refuse_secrets_in_addresses(name, getattr(self, name).split(","))
        if not duration_ns("100ms") <= self.period <= duration_ns("60s"):
            raise ValueError("period must lie between 100ms and 60s")
        if self.timeout <= 0:
            raise ValueError("timeout must be above 0s")


class Cluster(Protocol):
    """The requests to a cluster; see `PulsarCluster`."""

    @property
    def bookies(self) -> Sequence[str]: ...
    def ledgers(self, topic: str) -> Mapping[int, Any]: ...
    def page(self, bookie: str) -> bytes: ...


def build(config: Config, clock: Clock) -> RetentionPulsar:
    return RetentionPulsar(config, clock)


def check_settings(config: Config) -> None:
    """Raise `SettingError` for a secret in the plan, and for settings that this probe does not use."""
    client_settings.refuse_literal_secrets("client", config.client, _SECRETS)
    client_settings.refuse_unknown("client", config.client, _KNOWN)
    urls = (config.admin_url,)  # pages of bookies get no token
    client_settings.refuse_unencrypted("client", config.client, _SECRETS, urls)


def connect(config: Config) -> Cluster:
    """Connect to the cluster that the settings name.

    Raises:
        ProbeError: a secret or a TLS file is not where the plan says.
    """
    from probes.retention_pulsar.cluster import PulsarCluster  # noqa: PLC0415  # TLS and HTTP, only when used

    return PulsarCluster(
        config.admin_url,
        _pages(config.bookie_urls),
        config.namespace,
        config.client,
        config.timeout / SECOND_NS,
    )


def preflight(config: Config, clock: Clock) -> list[str]:
    """Return a warning for each page of a bookie that does not answer."""
    del clock
    if not config.admin_url or not config.bookie_urls:
        return []
    warnings = []
    try:
        cluster = connect(config)
    except ProbeError as error:
        return [f"the probe retention_pulsar: {error}"]
    for url in cluster.bookies:
        try:
            cluster.page(url)
        except ProbeError as error:
            warnings.append(
                f"the probe retention_pulsar cannot read the bookie {url}: {error}; without it the space that"
                " it frees is not seen: correct bookie_urls or start its metrics page"
            )
    return warnings


class RetentionPulsar:
    """`poll` is one round of the thread; tests call it themselves."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        *,
        connect: Callable[[Config], Cluster] = connect,
    ) -> None:
        self._config = config
        self._clock = clock
        self._connect = connect
        self.loop = PollingLoop("retention_pulsar", self._begin, config.period, clock)
        self._buffer = self.loop.buffer
        # used by the thread only
        self._ledgers = Ledgers()
        self._exposition = ExpositionParser(NAMES)
        self._bookies: dict[str, Bookie] = {}
        self._next_ask_ns = 0
        self._turn = 0
        self._partitions: dict[str, set[int]] = {}  # by topic, those that were listed before

    def read(self) -> Reading:
        return self.loop.read()

    def close(self) -> None:
        self.loop.close()

    def poll(self, cluster: Cluster) -> None:
        """Ask the cluster and its bookies once, and pass on the changes.

        A topic, partition or bookie that does not answer is reported, and does not affect the others.
        """
        self._poll_ledgers(cluster)
        self._poll_bookies(cluster)

    def _begin(self) -> Callable[[], None]:
        if not (self._config.admin_url and self._config.topics):
            raise NotAvailableError("retention_pulsar needs admin_url and topics")
        cluster = self._connect(self._config)
        return lambda: self.poll(cluster)

    def _poll_ledgers(self, cluster: Cluster) -> None:
        begin_ns = self._clock.mono_ns()
        if begin_ns < self._next_ask_ns:
            return
        count, is_whole = 0, True
        for topic in self._in_turn(begin_ns + self._config.timeout):
            ledgers, is_complete = self._poll_topic(cluster, topic)
            count += ledgers
            is_whole = is_whole and is_complete
        self._next_ask_ns = begin_ns + count * SECOND_NS // LEDGERS_PER_SECOND
        if is_whole:
            self._buffer.polled()

    def _in_turn(self, end_ns: int) -> Iterator[str]:
        """Yield the topics, from where the last poll ended, until `end_ns`: bookies must be polled, too."""
        topics = self._config.topics
        for _ in topics:
            yield topics[self._turn % len(topics)]
            self._turn += 1
            if self._clock.mono_ns() >= end_ns:
                return

    def _poll_topic(self, cluster: Cluster, topic: str) -> tuple[int, bool]:
        """Pass on the changes of a topic's ledgers; return their number, and whether all have answered."""
        begin_ns, asked_ns = self._clock.mono_ns(), self._clock.wall_ns()
        try:
            stats = cluster.ledgers(topic)
        except ProbeError as error:
            self._buffer.failed(error)
            return 0, False
        answered_ns = self._clock.wall_ns()
        logs = self._logs(topic, stats)
        changes = [
            self._ledgers.update((topic, partition), log, asked_ns, answered_ns)
            for partition, log in logs.items()
        ]
        trims = [trim for change in changes for trim in change.trims]
        if trims:
            for bookie in self._bookies.values():
                bookie.trimmed_ns = bookie.trimmed_ns or answered_ns
        sizes = [ledger.bytes for log in logs.values() for ledger in log.ledgers]
        is_whole = len(logs) == len(self._partitions[topic])
        column = Column("retention_held_bytes", (("topic", topic),), "bytes")
        held = [(column, float(sum(sizes)))] if is_whole else []  # a part would look like a fall
        events = [event for change in changes for event in change.events]
        self._buffer.put(_sums(topic, trims), held, events, begin_ns)
        return len(sizes), is_whole

    def _logs(self, topic: str, stats: Mapping[int, Any]) -> dict[int, LedgerList]:
        """Return the ledgers of those partitions that are complete in the answer.

        The answering broker leaves out partitions whose brokers do not answer it.
        """
        found = {}
        known_partitions = self._partitions.setdefault(topic, set())
        known_partitions.update(stats)
        for partition in sorted(known_partitions - stats.keys()):
            self._buffer.failed(ProbeError(f"{topic}, partition {partition}: no answer"))
        for partition, one in sorted(stats.items()):
            try:
                found[partition] = parse_internal_stats(one)
            except ProbeError as error:
                self._buffer.failed(ProbeError(f"{topic}, partition {partition}: {error}"))
        return found

    def _poll_bookies(self, cluster: Cluster) -> None:
        for url in cluster.bookies:
            begin_ns, asked_ns = self._clock.mono_ns(), self._clock.wall_ns()
            bookie = self._bookies.setdefault(url, Bookie(urlsplit(url).netloc))
            try:
                page: Page = self._exposition.parse(cluster.page(url))
                sums, newest, events = bookie.take(page, asked_ns, self._clock.wall_ns())
            except ProbeError as error:
                self._buffer.failed(error)
                continue
            self._buffer.put(sums, newest, events, begin_ns)


def _sums(topic: str, trims: Sequence[Trim]) -> Samples:
    """Return what was trimmed of a topic; a size that is unknown makes the sum unknown."""
    labels = (("topic", topic),)
    numbers: list[tuple[str, str, float]] = [("deletions", "deletions", float(len(trims)))]
    for name, amounts in (
        ("entries", [trim.entries for trim in trims]),
        ("bytes", [trim.bytes for trim in trims]),
    ):
        known_amounts = [math.nan if amount is None else float(amount) for amount in amounts]
        numbers.append((f"deleted_{name}", name, sum(known_amounts)))
    return [(Column(f"retention_{name}", labels, unit), value) for name, unit, value in numbers]


def _pages(urls: str) -> list[str]:
    """Return the metrics pages of bookies; an address without a path gets that of their metrics page."""
    found = [url.strip().rstrip("/") for url in urls.split(",") if url.strip()]
    return [url if urlsplit(url).path else f"{url}/metrics" for url in found]
