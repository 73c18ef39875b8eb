"""The round trips to each bootstrap server, over connections that are asked all at the same instants."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass as plain
from dataclasses import field

from pydantic.dataclasses import dataclass as config_dataclass

from probes.common.polling import Stop, Worker
from probes.round_trip.connection import (
    LoginRefusedError,
    Security,
    connect,
    read_answer,
    read_security,
    request,
    why_unsupported,
)
from soak.clients.client_settings import check_librdkafka, refuse_secrets_in_addresses
from soak.core.errors import NotAvailableError, ProbeError
from soak.core.model import Column, Reading
from soak.core.plan.config import STRICT, Settings
from soak.core.ports import Clock
from soak.core.retry import Backoff, Retry
from soak.core.units import SECOND_NS, Duration, duration_ns

_KEPT_INSTANTS = 1024  # an answer later than that is not compared with the first of its instant
_REQUEST = request(18, 0)  # ApiVersions, version 0
_DEFAULT_PORT = 9092  # of an address without a port, as librdkafka takes it
_REFUSED_SECONDS = (
    60.0  # until a login that was refused is tried again: a broker may lock the user out
)

_METRICS = (
    "broker_round_trip_seconds",
    "broker_lone_delay_seconds",
    "broker_stall_seconds",
)


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


def check_settings(config: Config) -> None:
    """Raise `SettingError` for client settings that a plan must not have."""
    check_librdkafka("client", config.client)


def preflight(config: Config, clock: Clock) -> list[str]:
    """Return a warning if the probe cannot use the listener as the settings of its clients say."""
    del clock
    why = why_unsupported(config.client)
    if not why:
        return []
    advice = (
        "take it out of the plan, or name a listener that it can use in probes.round_trip.bootstrap_servers, "
        "with the settings for it in client"
    )
    return [f"the probe round_trip will measure nothing: {why}; {advice}"]


@plain(slots=True)
class RoundTrips:
    """The round trips to one server, by the number of the instant at which a request was sent."""

    first_seconds: dict[int, float] = field(default_factory=dict)  # the first of each instant
    shortest_seconds: float | None = None  # since the last reading, as the next
    lone_delay_seconds: float = 0.0
    stall_seconds: float = 0.0

    def add(self, instant: int, seconds: float) -> None:
        if instant not in self.first_seconds:
            self.first_seconds[instant] = seconds
            self.stall_seconds = max(self.stall_seconds, seconds)
        first = self.first_seconds[instant]
        self.lone_delay_seconds = max(self.lone_delay_seconds, seconds - first)
        if self.shortest_seconds is None or seconds < self.shortest_seconds:
            self.shortest_seconds = seconds
        if len(self.first_seconds) > _KEPT_INSTANTS:
            del self.first_seconds[next(iter(self.first_seconds))]

    def take(self) -> tuple[float, float, float] | None:
        """Return the shortest round trip, longest lone delay and longest stall since the last one, if any.

        A stall is the wait for the first answer of an instant.
        """
        shortest, lone, stall = self.shortest_seconds, self.lone_delay_seconds, self.stall_seconds
        self.shortest_seconds, self.lone_delay_seconds, self.stall_seconds = None, 0.0, 0.0
        return None if shortest is None else (shortest, lone, stall)


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
        """Return the metrics of each server that has answered.

        Raises:
            NotAvailableError: there is no server, or the probe cannot use its listener.
            ProbeError: no server has answered, or a secret is not where the plan says.
        """
        begin_ns = self._clock.mono_ns()
        why = why_unsupported(self._config.client)
        if why or not self._answers:
            raise NotAvailableError(f"round_trip: {why or 'it needs bootstrap_servers'}")
        self._worker.check()
        with self._lock:
            taken = {server: one.take() for server, one in self._answers.items()}
            trouble = self._failure  # until any server answers
        samples = [
            (Column(metric, (("target", server),), "seconds"), value)
            for server, values in taken.items()
            if values is not None
            for metric, value in zip(_METRICS, values, strict=True)
        ]
        if trouble and not samples:
            raise ProbeError(trouble)
        return Reading(tuple(samples), (), (self._clock.mono_ns() - begin_ns) / SECOND_NS)

    def close(self) -> None:
        self._worker.close()

    def _work(self, stop: Stop) -> None:
        asyncio.run(self._ask_all(stop))

    async def _ask_all(self, stop: Stop) -> None:
        security = read_security(self._config.client)
        tasks = [
            asyncio.create_task(self._ask_repeatedly(server, security))
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

    async def _ask_repeatedly(self, server: str, security: Security) -> None:
        """Send requests over one connection after another, until cancelled."""
        period_ns = self._config.period
        tries = Retry(Backoff(period_ns, max(period_ns, SECOND_NS)))
        while True:
            try:
                await self._ask(server, security, tries)
            except LoginRefusedError as error:
                self._note_failure(f"cannot log in at {server}: {error}")
                await asyncio.sleep(_REFUSED_SECONDS)
            except (OSError, EOFError, ValueError, OverflowError) as error:
                self._note_failure(f"cannot reach {server}: {str(error) or 'no answer in time'}")
                wait_ns = tries.note_failure(self._clock.mono_ns()) - period_ns
                await asyncio.sleep(wait_ns / SECOND_NS)
                await self._next_instant()

    def _note_failure(self, trouble: str) -> None:
        with self._lock:
            self._failure = trouble

    async def _ask(self, server: str, security: Security, tries: Retry) -> None:
        """Send a request at each instant at which the previous one has been answered.

        Raises:
            LoginRefusedError: the broker refuses the login.
            OSError, EOFError: the connection has failed.
            ValueError, OverflowError: the address is invalid, or the answer is not in Kafka's protocol.
        """
        limit = self._config.timeout / SECOND_NS
        reader, writer = await asyncio.wait_for(connect(*parse_address(server), security), limit)
        try:
            while True:
                instant = await self._next_instant()
                begin_ns = self._clock.mono_ns()
                writer.write(_REQUEST)
                async with asyncio.timeout(limit):
                    await read_answer(reader)
                seconds = (self._clock.mono_ns() - begin_ns) / SECOND_NS
                tries.note_success()
                with self._lock:
                    self._answers[server].add(instant, seconds)
                    self._failure = ""
        finally:
            writer.transport.abort()

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
