"""The round trip between this host and the brokers, for a request that costs a broker no work.

Source:   ApiVersions requests, which a broker answers from memory, over `connections` TCP connections of
          our own to each bootstrap server, all at the same instants. `broker_round_trip_seconds` is the
          shortest of a second: a longer network path raises it, a broker that is busy at times does not.
          `broker_lone_delay_seconds` is the longest delay of one connection's answer after the first answer
          of the same instant: a broker that stalls delays all connections, a lost packet only one.
Overhead: 40 requests of 30 bytes a second and server; 0.5 % of a core here, about as much at the broker.
Caveats:  Only Kafka's protocol in plain text: before a login a broker answers one such request. A request
          without an answer has no value in its second; after `timeout` its connection is opened again. A
          server that refuses is tried ever more rarely, once a second in the end.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from dataclasses import dataclass as plain
from dataclasses import field

from pydantic.dataclasses import dataclass as config_dataclass

from probes.common.polling import Stop, Worker
from soak.clients.client_settings import refuse_secrets_in_addresses
from soak.core.errors import NotAvailableError, ProbeError
from soak.core.model import Column, Reading
from soak.core.plan.config import STRICT, Settings
from soak.core.ports import Clock
from soak.core.retry import Backoff, Retry
from soak.core.units import SECOND_NS, Duration, duration_ns

_KEPT_INSTANTS = 1024  # an answer later than that is not compared with the first of its instant
_REQUEST = struct.pack(">hhih4s", 18, 0, 0, 4, b"soak")  # ApiVersions, version 0, as client `soak`
_PLAINTEXT = "plaintext"
_DEFAULT_PORT = 9092  # of an address without a port, as librdkafka takes it
_MAX_ANSWER_BYTES = 2**20  # a broker's answer has some hundred

_METRICS = ("broker_round_trip_seconds", "broker_lone_delay_seconds")


@config_dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    bootstrap_servers: str = ""  # empty: the run's broker
    client: Settings = field(default_factory=dict)  # security; empty: that of the broker's clients
    period: Duration = duration_ns("100ms")
    connections: int = 4  # to each server
    timeout: Duration = duration_ns("10s")

    def __post_init__(self) -> None:
        refuse_secrets_in_addresses("bootstrap_servers", [self.bootstrap_servers])
        if not duration_ns("10ms") <= self.period <= SECOND_NS:
            raise ValueError("period must lie between 10ms and 1s")
        if not 1 <= self.connections <= 16:  # noqa: PLR2004  # a broker has other work
            raise ValueError("connections must lie between 1 and 16")
        if self.timeout <= 0:
            raise ValueError("timeout must be above 0s")


def build(config: Config, clock: Clock) -> RoundTrip:
    return RoundTrip(config, clock)


@plain(slots=True)
class RoundTrips:
    """The round trips to one server, by the number of the instant at which a request was sent."""

    first_seconds: dict[int, float] = field(default_factory=dict)  # the first of each instant
    shortest_seconds: float | None = None  # since the last reading, as the next
    lone_delay_seconds: float = 0.0

    def add(self, instant: int, seconds: float) -> None:
        first = self.first_seconds.setdefault(instant, seconds)
        self.lone_delay_seconds = max(self.lone_delay_seconds, seconds - first)
        if self.shortest_seconds is None or seconds < self.shortest_seconds:
            self.shortest_seconds = seconds
        if len(self.first_seconds) > _KEPT_INSTANTS:
            del self.first_seconds[next(iter(self.first_seconds))]

    def take(self) -> tuple[float, float] | None:
        """Return the shortest round trip and the longest lone delay since the last reading, if any."""
        shortest, lone = self.shortest_seconds, self.lone_delay_seconds
        self.shortest_seconds, self.lone_delay_seconds = None, 0.0
        return None if shortest is None else (shortest, lone)


class RoundTrip:
    """A thread sends the requests; a reading returns the answers since the last one."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._worker = Worker("round_trip", self._work)
        self._lock = threading.Lock()
        self._answers = {
            one.strip(): RoundTrips() for one in config.bootstrap_servers.split(",") if one.strip()
        }
        self._failure = ""

    def read(self) -> Reading:
        """Return both metrics of each server that has answered.

        Raises:
            NotAvailableError: there is no server, or it does not speak plain text.
            ProbeError: no server has answered.
        """
        begin_ns = self._clock.mono_ns()
        protocol = self._config.client.get("security.protocol", _PLAINTEXT)
        if not self._answers or protocol.lower() != _PLAINTEXT:
            raise NotAvailableError("round_trip needs bootstrap_servers without TLS and SASL")
        self._worker.check()
        with self._lock:
            taken = {server: one.take() for server, one in self._answers.items()}
            trouble = self._failure  # until any server answers
        samples = [
            (Column(metric, (("target", server),), "seconds"), value)
            for server, both in taken.items()
            if both is not None
            for metric, value in zip(_METRICS, both, strict=True)
        ]
        if trouble and not samples:
            raise ProbeError(trouble)
        return Reading(tuple(samples), (), (self._clock.mono_ns() - begin_ns) / SECOND_NS)

    def close(self) -> None:
        self._worker.close()

    def _work(self, stop: Stop) -> None:
        asyncio.run(self._ask_all(stop))

    async def _ask_all(self, stop: Stop) -> None:
        tasks = [
            asyncio.create_task(self._ask_repeatedly(server))
            for server in self._answers
            for _ in range(self._config.connections)
        ]
        while not (stop.is_set() or any(one.done() for one in tasks)):  # noqa: ASYNC110  # a thread's event
            await asyncio.sleep(self._config.period / SECOND_NS)
        for one in tasks:
            one.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended

    async def _ask_repeatedly(self, server: str) -> None:
        """Send requests over one connection after another, until cancelled."""
        period_ns = self._config.period
        tries = Retry(Backoff(period_ns, max(period_ns, SECOND_NS)))
        while True:
            try:
                await self._ask(server, tries)
            except (OSError, EOFError, ValueError, OverflowError) as error:
                with self._lock:
                    self._failure = f"cannot reach {server}: {str(error) or 'no answer in time'}"
                wait_ns = tries.note_failure(self._clock.mono_ns()) - period_ns
                await asyncio.sleep(wait_ns / SECOND_NS)
                await self._next_instant()

    async def _ask(self, server: str, tries: Retry) -> None:
        """Send a request at each instant at which the previous one has been answered.

        Raises:
            OSError, EOFError: the connection has failed.
            ValueError, OverflowError: the address is invalid, or the answer is not in Kafka's protocol.
        """
        limit = self._config.timeout / SECOND_NS
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(*parse_address(server)), limit
        )
        try:
            while True:
                instant = await self._next_instant()
                begin_ns = self._clock.mono_ns()
                writer.write(struct.pack(">i", len(_REQUEST)) + _REQUEST)
                async with asyncio.timeout(limit):
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    if not 0 <= size <= _MAX_ANSWER_BYTES:
                        raise ValueError("the answer is not in Kafka's protocol")
                    await reader.readexactly(size)
                seconds = (self._clock.mono_ns() - begin_ns) / SECOND_NS
                tries.note_success()
                with self._lock:
                    self._answers[server].add(instant, seconds)
                    self._failure = ""
        finally:
            writer.close()

    async def _next_instant(self) -> int:
        """Wait for the next multiple of the period, the same for all connections; return its number."""
        loop, period = asyncio.get_running_loop(), self._config.period / SECOND_NS
        instant = int(loop.time() / period) + 1
        await asyncio.sleep(instant * period - loop.time())
        return instant


def parse_address(server: str) -> tuple[str, int]:
    """Return the host and port of `[protocol://]host[:port]`."""
    place = server.rpartition("://")[2]
    host, colon, port = place.rpartition(":")
    if not colon or place.endswith("]"):
        host, port = place, str(_DEFAULT_PORT)
    return host.strip("[]"), int(port)
