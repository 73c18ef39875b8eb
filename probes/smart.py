"""Wear, media errors and temperature of the drives behind a directory, as they say themselves.

Source:   smartctl, or else nvme, asked about each drive below the device that holds `directory`.
Overhead: one process a drive every `period`; a sleeping disk is not woken.
Caveats:  Both need root, and say nothing of virtual drives: then this is said once. Wear is the maker's
          estimate and may pass 1. An ATA drive's media errors are what it reported as uncorrectable; what
          it calls bytes written differs by maker, so only NVMe's are given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pydantic.dataclasses import dataclass

from probes._block_device import Places, find, name_of
from probes._drive_health import UNITS, Health, Tool, ask, find_tool
from probes._worker import Stop, Worker
from soak.core.errors import NotAvailableError, ProbeError
from soak.core.model import Column, Event, Reading
from soak.core.plan_base import STRICT
from soak.core.ports import Clock
from soak.core.units import SECOND_NS, Duration, duration_ns

HANGING_NS = 60 * SECOND_NS  # no tool works that long
MAX_WAITING = 64  # readings of drives kept between two `read`


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    directory: str = ""  # empty: the broker's data folder, where the run knows it
    period: Duration = duration_ns("60s")  # each drive is asked this often

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
        places: Places = Places(),  # noqa: B008  # frozen
        tool: Callable[[], Tool] = find_tool,
        health: Callable[[Tool, str], Health] = ask,
    ) -> None:
        self._config = config
        self._clock = clock
        self._places = places
        self._tool = tool
        self._health = health
        self._worker = Worker("smart", self._work)
        self._told: deque[tuple[str, Health, float]] = deque(maxlen=MAX_WAITING)
        self._errors: dict[
            str, tuple[float, int]
        ] = {}  # by drive: how many, and when that was told
        self._asking: tuple[str, int] | None = None  # which drive, and since when

    def read(self) -> Reading:
        """Return what the drives have said since the last reading; mostly nothing.

        Raises:
            ProbeError: a drive could not be asked, or has not answered for long: its tool hangs.
        """
        self._worker.check()
        asking = self._asking
        if asking is not None:
            name, since_ns = asking
            age_ns = self._clock.mono_ns() - since_ns
            if age_ns > HANGING_NS:
                raise ProbeError(f"{name} has not answered for {age_ns // SECOND_NS} s")
        samples: list[tuple[Column, float]] = []
        events: list[Event] = []
        cost = 0.0
        while self._told:
            device, health, seconds = self._told.popleft()
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
            raise NotAvailableError("smart.directory is not set: which drive is to be watched?")
        tool = self._tool()
        while True:
            self._round(tool)
            if stop.wait(self._config.period / SECOND_NS):
                return

    def _round(self, tool: Tool) -> None:
        """Ask every drive that lies below the folder now: another may have been mounted there."""
        drives = find(self._config.directory, self._places).drives
        self._ask_all(tool, [name_of(drive.number, self._places.sys) for drive in drives])

    def _ask_all(self, tool: Tool, names: list[str]) -> None:
        """Ask every drive; one that tells nothing keeps no other from telling."""
        lacks: list[NotAvailableError] = []
        for name in names:
            begin_ns = self._clock.mono_ns()
            self._asking = (name, begin_ns)
            try:
                health = self._health(tool, "/dev/" + name.replace("!", "/"))
            except NotAvailableError as error:
                lacks.append(error)
            except ProbeError as error:
                self._worker.note(error)
            else:
                seconds = (self._clock.mono_ns() - begin_ns) / SECOND_NS
                self._told.append((name, health, seconds))
            finally:
                self._asking = None
        if len(lacks) == len(names):
            raise lacks[0]
