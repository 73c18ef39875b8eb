"""Retention at work in Pulsar: which ledgers were trimmed, when, and when bookies really freed space.

Source:   ledgers by the admin interface (`internalStats` of the run's topics), once every `period` on a
          thread of its own; each bookie's metrics page, where `bookie_urls` names them.
Overhead: one question a topic and one a bookie; many ledgers are asked for less often, 2,500 a second.
Caveats:  Ledgers that came and went between two polls are not seen. What one trim frees cannot be told
          apart from what others do: a bookie frees a file of entries when all ledgers in it are gone, or when
          it compacts it. Bytes of ledgers are counted once, bytes freed once a copy.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol
from urllib.parse import urlsplit

from pydantic.dataclasses import dataclass

from probes._bookies import NAMES, Bookie
from probes._exposition import Exposition, Page
from probes._handed_over import HandedOver
from probes._ledgers import Ledgers, Log, Trim, read
from probes._rounds import go_round
from probes._worker import Worker
from soak.clients import known, secret
from soak.core.errors import NotAvailableError, ProbeError
from soak.core.model import Column, Event, Reading
from soak.core.plan_base import STRICT, Settings
from soak.core.ports import Clock
from soak.core.units import SECOND_NS, Duration, duration_ns

LEDGERS_A_SECOND = 2500
_SECRETS = ("token",)
_KNOWN = (
    "authentication",
    "token",
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
    namespace: str = ""  # of topics that are not named in full; empty: the broker's
    topics: tuple[str, ...] = ()  # empty: the run's topics
    client: Settings = field(
        default_factory=dict
    )  # token and TLS; empty: those of the broker's clients
    period: Duration = SECOND_NS
    timeout: Duration = duration_ns("10s")

    def __post_init__(self) -> None:
        if not duration_ns("100ms") <= self.period <= duration_ns("60s"):
            raise ValueError("period must lie between 100ms and 60s")
        if self.timeout <= 0:
            raise ValueError("timeout must be above 0s")


class Cluster(Protocol):
    """What is asked; see `_pulsar_cluster`."""

    @property
    def bookies(self) -> Sequence[str]: ...
    def ledgers(self, topic: str) -> Mapping[int, Any]: ...
    def page(self, bookie: str) -> bytes: ...


def build(config: Config, clock: Clock) -> RetentionPulsar:
    return RetentionPulsar(config, clock)


def check_settings(config: Config) -> None:
    """Refuse a secret in the plan, and settings that this probe has no use for.

    Raises:
        SettingError: about the first of them.
    """
    secret.refuse_literals("client", config.client, _SECRETS)
    known.refuse_unknown("client", config.client, _KNOWN)


def connect(config: Config, clock: Clock) -> Cluster:
    """Return the cluster that the settings name.

    Raises:
        ProbeError: a secret or a TLS file is not where the plan says.
    """
    from probes._pulsar_cluster import PulsarCluster  # noqa: PLC0415  # TLS and HTTP, only when used

    return PulsarCluster(
        config.admin_url,
        _pages(config.bookie_urls),
        config.namespace,
        config.client,
        config.timeout / SECOND_NS,
        clock,
    )


class RetentionPulsar:
    """`poll` is one round of the thread; tests call it themselves."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        *,
        connect: Callable[[Config, Clock], Cluster] = connect,
    ) -> None:
        self._config = config
        self._clock = clock
        self._connect = connect
        self._worker = Worker("retention_pulsar", self._work)
        self._handed = HandedOver(clock)
        # of the thread alone
        self._ledgers = Ledgers()
        self._exposition = Exposition(NAMES)
        self._bookies: dict[str, Bookie] = {}
        self._next_ask_ns = 0

    def read(self) -> Reading:
        """Return what the polls since the last reading saw; without a poll only how old the last one is."""
        begin_ns = self._clock.mono_ns()
        self._worker.check()
        return self.taken(begin_ns)

    def taken(self, begin_ns: int) -> Reading:
        return self._handed.take(begin_ns)

    def close(self) -> None:
        self._worker.close()

    def poll(self, cluster: Cluster) -> None:
        """Ask the cluster and its bookies once, and hand over what moved.

        Raises:
            ProbeError: one of them did not answer; the others were asked all the same.
        """
        troubles = [*self._poll_ledgers(cluster), *self._poll_bookies(cluster)]
        if troubles:
            raise troubles[0]

    def _work(self, stop: threading.Event) -> None:
        if not (self._config.admin_url and self._config.topics):
            raise NotAvailableError("retention_pulsar needs admin_url and topics")
        cluster = self._connect(self._config, self._clock)
        go_round(lambda: self.poll(cluster), self._config.period, stop, self._worker, self._clock)

    def _poll_ledgers(self, cluster: Cluster) -> Iterator[ProbeError]:
        begin_ns = self._clock.mono_ns()
        if begin_ns < self._next_ask_ns:
            return
        count = 0
        for topic in self._config.topics:
            topic_ns = self._clock.mono_ns()
            try:
                told, events, sums = self._asked(cluster, topic)
            except ProbeError as error:
                yield error
                return
            count += sum(len(one.ledgers) for one in told)
            held = float(sum(ledger.bytes for one in told for ledger in one.ledgers))
            column = Column("retention_held_bytes", (("topic", topic),), "bytes")
            self._handed.put(sums, [(column, held)], events, topic_ns)
        self._next_ask_ns = begin_ns + count * SECOND_NS // LEDGERS_A_SECOND
        self._handed.polled()

    def _asked(self, cluster: Cluster, topic: str) -> tuple[list[Log], list[Event], Samples]:
        """Return the log of each partition of a topic, what happened to its ledgers, and what went."""
        asked_ns = self._clock.wall_ns()
        stats = cluster.ledgers(topic)
        answered_ns = self._clock.wall_ns()
        told = {partition: read(one) for partition, one in sorted(stats.items())}
        events: list[Event] = []
        trims: list[Trim] = []
        for partition, log in told.items():
            moved = self._ledgers.update((topic, partition), log, asked_ns, answered_ns)
            events += moved.events
            if moved.trim is not None:
                trims.append(moved.trim)
        if trims:
            for bookie in self._bookies.values():
                bookie.trimmed_ns = bookie.trimmed_ns or answered_ns
        return list(told.values()), events, _sums(topic, trims)

    def _poll_bookies(self, cluster: Cluster) -> Iterator[ProbeError]:
        for url in cluster.bookies:
            begin_ns, asked_ns = self._clock.mono_ns(), self._clock.wall_ns()
            bookie = self._bookies.setdefault(url, Bookie(urlsplit(url).netloc))
            try:
                page: Page = self._exposition.parse(cluster.page(url))
                sums, newest, events = bookie.take(page, asked_ns, self._clock.wall_ns())
            except ProbeError as error:
                yield error
                continue
            self._handed.put(sums, newest, events, begin_ns)


def _sums(topic: str, trims: Sequence[Trim]) -> Samples:
    """Return what went of a topic; a size that is not known makes the sum unknown."""
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
    """Return the metrics pages of bookies; an address without a path is that of its admin interface."""
    found = [url.strip().rstrip("/") for url in urls.split(",") if url.strip()]
    return [url if urlsplit(url).path else f"{url}/metrics" for url in found]
