"""The probe: each drive below the folders, asked on a thread of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from pydantic.dataclasses import dataclass as config_dataclass

from probes.common.block_device import SystemPaths, device_name, find_devices, ways_to
from probes.common.folders import FolderList, folders_of
from probes.common.polling import Stop, Worker
from probes.smart.ocp_logs import OcpLogs
from probes.smart.tools import Health, Tool, ask_drive, find_program, find_tool
from soak.core.errors import NotAvailableError, ProbeError
from soak.core.model import Column, Event, Reading
from soak.core.plan.config import STRICT
from soak.core.ports import Clock
from soak.core.units import SECOND_NS, Duration, duration_ns

UNITS: Mapping[str, str] = {
    "smart_passed": "ratio",
    "smart_wear_ratio": "ratio",
    "smart_available_spare_ratio": "ratio",
    "smart_media_errors": "errors",
    "smart_reallocated_sectors": "sectors",
    "smart_temperature_celsius": "celsius",
    "smart_written_bytes": "bytes",  # by the host
    "smart_media_written_bytes": "bytes",  # to the flash, by whatever the drive does
    "smart_free_blocks_ratio": "ratio",
    "smart_hot_seconds": "seconds",  # above the temperature that the drive warns of
    "smart_throttled_seconds": "seconds",
    "smart_throttle_events": "events",
    "smart_throttle_level": "level",  # 0: not throttled; 1 to 3
    "smart_slow_requests": "requests",  # beyond the limits that the drive was given, in its present window
}
HANGING_NS = 60 * SECOND_NS  # no tool runs that long
MAX_WAITING = 64  # results kept between two readings


@config_dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    directory: FolderList = ""  # empty: the brokers' data folders, where the run knows them
    period: Duration = duration_ns("60s")  # between two queries of a drive

    def __post_init__(self) -> None:
        if not duration_ns("10s") <= self.period <= duration_ns("1d"):
            raise ValueError("period must lie between 10s and 1d")


def build(config: Config, clock: Clock) -> Smart:
    return Smart(config, clock)


class Smart:
    def __init__(
        self,
        config: Config,
        clock: Clock,
        *,
        paths: SystemPaths = SystemPaths(),  # noqa: B008  # frozen
        tool: Callable[[], Tool] = find_tool,
        health: Callable[[Tool, str], Health] = ask_drive,
        logs: OcpLogs | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._places = paths
        self._tool = tool
        self._health = health
        self._logs = logs or OcpLogs(find_program("nvme"))
        self._worker = Worker("smart", self._work)
        self._results: deque[tuple[str, Health, float]] = deque(maxlen=MAX_WAITING)
        self._errors: dict[
            str, tuple[float, int]
        ] = {}  # by drive: how many, and when that was read
        self._running: tuple[str, int] | None = None  # which drive is queried, and since when

    def read(self) -> Reading:
        """Return the results since the last reading; mostly there are none.

        Raises:
            ProbeError: a drive cannot be queried, or its tool hangs.
        """
        self._worker.check()
        running = self._running
        if running is not None:
            name, since_ns = running
            age_ns = self._clock.mono_ns() - since_ns
            if age_ns > HANGING_NS:
                raise ProbeError(f"{name} has not answered for {age_ns // SECOND_NS} s")
        samples: list[tuple[Column, float]] = []
        events: list[Event] = []
        cost = 0.0
        while self._results:
            device, health, seconds = self._results.popleft()
            cost += seconds
            labels = (("device", device),)
            samples += [
                (Column(metric, labels, UNITS[metric]), value) for metric, value in health.items()
            ]
            events += self._new_errors(device, health)
        return Reading(tuple(samples), tuple(events), cost)

    def close(self) -> None:
        self._worker.close()

    def _new_errors(self, device: str, health: Health) -> list[Event]:
        now_ns = self._clock.wall_ns()
        errors = health.get("smart_media_errors")
        if errors is None:
            return []
        before, since_ns = self._errors.get(device, (errors, now_ns))
        self._errors[device] = (errors, now_ns)
        if errors <= before:
            return []
        fields: dict[str, str | float] = {"device": device, "errors": errors - before}
        return [Event("smart_media_errors", now_ns, since_ns, fields)]

    def _work(self, stop: Stop) -> None:
        if not self._config.directory:
            raise NotAvailableError("smart.directory is not set: name a folder on the drive")
        tool = self._tool()
        while True:
            self.poll(tool)
            if stop.wait(self._config.period / SECOND_NS):
                return

    def poll(self, tool: Tool) -> None:
        """Query every drive that is below the folders now, each once; tests call it themselves."""
        found: dict[str, list[str]] = {}
        errors: list[ProbeError | NotAvailableError] = []
        sys = self._places.sys
        for folder in folders_of(self._config.directory):
            try:
                drives = [drive.number for drive in find_devices(folder, self._places).drives]
                found |= {device_name(drive, sys): ways_to(drive, sys) for drive in drives}
            except (ProbeError, NotAvailableError) as error:
                errors.append(error)
        if errors and not found:
            raise errors[0]
        if errors:
            self._worker.note(ProbeError(str(errors[0])))
        self._query_all(tool, found)

    def _query_all(self, tool: Tool, drives: Mapping[str, Sequence[str]]) -> None:
        """Query every drive; one without data does not affect the others."""
        lacks: list[NotAvailableError] = []
        for name, ways in drives.items():
            begin_ns = self._clock.mono_ns()
            try:
                health = self._query(tool, name, ways)
            except NotAvailableError as error:
                lacks.append(error)
            except ProbeError as error:
                self._worker.note(error)
            else:
                seconds = (self._clock.mono_ns() - begin_ns) / SECOND_NS
                self._results.append((name, health, seconds))
            finally:
                self._running = None
        if len(lacks) == len(drives):
            raise lacks[0]

    def _query(self, tool: Tool, name: str, ways: Sequence[str]) -> Health:
        """Query a drive by the first way to it that answers; no tool knows a multipath device."""
        for way in ways[:-1]:
            with suppress(NotAvailableError, ProbeError):
                return self._answer(tool, name, f"/dev/{way}")
        return self._answer(tool, name, f"/dev/{ways[-1]}")

    def _answer(self, tool: Tool, name: str, device: str) -> Health:
        self._running = (name, self._clock.mono_ns())
        health = self._health(tool, device)
        return {**self._logs.read(device), **health}
