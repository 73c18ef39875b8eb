"""Wear, media errors and temperature of the drives behind directories, as the drives report them.

Source:   smartctl, or else nvme, for each drive below the device that holds each `directory`.
Overhead: one process for each drive every `period`; a sleeping disk is not woken.
Caveats:  Both need root, and have nothing about virtual drives: that is reported once. Wear is the
          manufacturer's estimate and may exceed 1. The media errors of an ATA drive are its reported
          uncorrectable errors. Its count of written bytes differs by manufacturer, so it is read only where
          its name has the unit; wear likewise only where the name says what the value means. A value that is
          missing or not a number is left out.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pydantic.dataclasses import dataclass as config_dataclass

from probes.common.block_device import SystemPaths, device_name, find_devices
from probes.common.folders import FolderList, folders_of
from probes.common.polling import Stop, Worker
from soak.core import json_text
from soak.core.errors import NotAvailableError, ProbeError
from soak.core.model import Column, Event, Reading
from soak.core.plan.config import STRICT
from soak.core.ports import Clock
from soak.core.units import SECOND_NS, Duration, duration_ns

TOOL_TIMEOUT_SECONDS = 30.0
UNITS: Mapping[str, str] = {
    "smart_passed": "ratio",
    "smart_wear_ratio": "ratio",
    "smart_available_spare_ratio": "ratio",
    "smart_media_errors": "errors",
    "smart_reallocated_sectors": "sectors",
    "smart_temperature_celsius": "celsius",
    "smart_written_bytes": "bytes",
}
_SBIN = "/usr/sbin:/sbin"  # where both are installed, and not on every user's PATH
_DATA_UNIT_BYTES = 512_000  # NVMe base specification: a thousand sectors of 512 bytes
_KELVIN = 273  # nvme's own conversion
_ATA_COUNTS = {5: "smart_reallocated_sectors", 187: "smart_media_errors"}
"""By the number of the attribute: manufacturers agree on what these mean, and differ in their names."""

_ATA_LIFE_LEFT = frozenset(  # whose normalised value falls from 100 to 0
    {
        "Wear_Leveling_Count",
        "Media_Wearout_Indicator",
        "SSD_Life_Left",
        "Percent_Lifetime_Remain",
        "Percent_Life_Remaining",
        "Remaining_Lifetime_Perc",
        "Available_Reservd_Life",
    }
)
_ATA_WRITTEN = re.compile(
    r"\w*(?:Host|Lifetime|Total)_Writes_(?:(?P<number>\d+))?(?P<unit>[MGT]iB)"
)
_UNIT_BYTES = {"MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_FULL_LIFE = 100

_GROUPED = re.compile(
    r"[0-9]{1,3}(?:(?P<mark>[,.'\u2019_ \u00a0\u202f])(?:[0-9]{2,3}(?P=mark))*[0-9]{3})?|[0-9]+"
)
"""A whole number as text: nvme 2.3 and 2.4 group its digits as the locale says."""

Health = Mapping[str, float]
"""Metric -> value; the keys are those of `UNITS`."""

HANGING_NS = 60 * SECOND_NS  # no tool runs that long
MAX_WAITING = 64  # results kept between two readings


@dataclass(frozen=True, slots=True)
class Tool:
    command: tuple[str, ...]  # the device's path comes last
    parse: Callable[[Mapping[str, object]], Health]


def find_tool(which: Callable[..., str | None] = shutil.which) -> Tool:
    """Return the tool that this host has: smartctl, or else nvme.

    Raises:
        NotAvailableError: neither is installed.
    """
    path = f"{os.environ.get('PATH', os.defpath)}:{_SBIN}"
    smartctl, nvme = which("smartctl", path=path), which("nvme", path=path)
    if smartctl:
        return Tool((smartctl, "--json", "-iAH", "--nocheck=standby"), parse_smartctl)
    if nvme:
        return Tool((nvme, "smart-log", "--output-format=json"), parse_nvme)
    raise NotAvailableError("neither smartctl nor nvme is installed: no wear, no media errors")


def ask_drive(tool: Tool, device: str) -> Health:
    """Run the tool on a device, such as `/dev/sda`; may block for `TOOL_TIMEOUT_SECONDS`.

    Raises:
        NotAvailableError: the tool may not open the device, or the device reports nothing.
        ProbeError: the tool did not end in time, or did not print JSON.
    """
    name = os.path.basename(tool.command[0])  # noqa: PTH119  # a path on this host
    try:
        done = subprocess.run(
            [*tool.command, device],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TOOL_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProbeError(f"cannot run {name} on {device}: {error}") from error
    body = _json(done.stdout)
    health = tool.parse(body) if body is not None else {}
    if health:  # smartctl's exit code also has bits for a failing drive
        return health
    printed = (done.stderr.strip() or done.stdout.strip()).splitlines()
    reason = _message(body or {}) or (printed[0] if printed else "")  # nvme prints its usage, too
    if body is None and not done.returncode:
        raise ProbeError(f"{name} printed no JSON about {device}: {reason!r}")
    rights = "" if os.geteuid() == 0 else "; it needs root, which this probe does not have"
    raise NotAvailableError(f"{name} has no data of {device}: {reason}{rights}")


def parse_smartctl(body: Mapping[str, object]) -> Health:
    """Return the health of an NVMe, ATA or SCSI drive from the output of `smartctl --json -iAH`."""
    log = _part(body, "nvme_smart_health_information_log")
    wear = _percent(log, "percentage_used")
    units = _number(log, "data_units_written")
    passed = _part(body, "smart_status").get("passed")
    found = {
        "smart_passed": float(passed) if isinstance(passed, bool) else None,
        "smart_wear_ratio": _percent(_part(body, "endurance_used"), "current_percent")
        if wear is None
        else wear,
        "smart_available_spare_ratio": _percent(log, "available_spare"),
        "smart_media_errors": _number(log, "media_errors"),
        "smart_temperature_celsius": _number(_part(body, "temperature"), "current"),
        "smart_written_bytes": None if units is None else units * _DATA_UNIT_BYTES,
    }
    table = _part(body, "ata_smart_attributes").get("table")
    for attribute in table if isinstance(table, list) else []:
        if isinstance(attribute, Mapping):
            found |= {
                metric: value
                for metric, value in _ata_values(attribute).items()
                if found.get(metric) is None
            }
    if found.get("smart_reallocated_sectors") is None:
        found["smart_reallocated_sectors"] = _number(body, "scsi_grown_defect_list")
    return _known(found)


def _ata_values(attribute: Mapping[str, object]) -> dict[str, float | None]:
    """Return what one attribute of an ATA drive says."""
    name, raw = str(attribute.get("name", "")), _number(_part(attribute, "raw"), "value")
    number = attribute.get("id")
    if isinstance(number, int) and number in _ATA_COUNTS:
        return {_ATA_COUNTS[number]: raw}
    left = _number(attribute, "value")
    if name in _ATA_LIFE_LEFT and left is not None and left <= _FULL_LIFE:
        return {"smart_wear_ratio": (_FULL_LIFE - left) / _FULL_LIFE}
    written = _ATA_WRITTEN.fullmatch(name)
    if written is not None and raw is not None:
        unit_bytes = int(written["number"] or 1) * _UNIT_BYTES[written["unit"]]
        return {"smart_written_bytes": raw * unit_bytes}
    return {}


def parse_nvme(body: Mapping[str, object]) -> Health:
    """Return the health of a drive from the output of `nvme smart-log`."""
    units, kelvin = _number(body, "data_units_written"), _number(body, "temperature")
    found = {
        "smart_wear_ratio": _percent(body, "percent_used"),
        "smart_available_spare_ratio": _percent(body, "avail_spare"),
        "smart_media_errors": _number(body, "media_errors"),
        "smart_temperature_celsius": None if kelvin is None else kelvin - _KELVIN,
        "smart_written_bytes": None if units is None else units * _DATA_UNIT_BYTES,
    }
    return _known(found)


def _known(found: Mapping[str, float | None]) -> Health:
    return {metric: value for metric, value in found.items() if value is not None}


def _json(text: str) -> Mapping[str, object] | None:
    try:
        body = json_text.loads(text)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, Mapping) else None


def _message(body: Mapping[str, object]) -> str:
    messages = _part(body, "smartctl").get("messages")
    for message in messages if isinstance(messages, list) else []:
        if isinstance(message, Mapping):
            return str(message.get("string", ""))
    return ""


def _part(body: Mapping[str, object], key: str) -> Mapping[str, object]:
    part = body.get(key)
    return part if isinstance(part, Mapping) else {}


def _number(body: Mapping[str, object], key: str) -> float | None:
    """Return a number that is not negative, also one that is written as text, with its digits in groups."""
    value = body.get(key)
    if isinstance(value, str):
        text = value.strip().removesuffix("%").rstrip()
        value = float(re.sub("[^0-9]", "", text)) if _GROUPED.fullmatch(text) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def _percent(body: Mapping[str, object], key: str) -> float | None:
    value = _number(body, key)
    return None if value is None else value / 100


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
    ) -> None:
        self._config = config
        self._clock = clock
        self._places = paths
        self._tool = tool
        self._health = health
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
        names: dict[str, None] = {}
        errors: list[ProbeError | NotAvailableError] = []
        for folder in folders_of(self._config.directory):
            try:
                drives = find_devices(folder, self._places).drives
            except (ProbeError, NotAvailableError) as error:
                errors.append(error)
            else:
                names |= dict.fromkeys(
                    device_name(drive.number, self._places.sys) for drive in drives
                )
        if errors and not names:
            raise errors[0]
        if errors:
            self._worker.note(ProbeError(str(errors[0])))
        self._query_all(tool, list(names))

    def _query_all(self, tool: Tool, names: list[str]) -> None:
        """Query every drive; one without data does not affect the others."""
        lacks: list[NotAvailableError] = []
        for name in names:
            begin_ns = self._clock.mono_ns()
            self._running = (name, begin_ns)
            try:
                health = self._health(tool, "/dev/" + name.replace("!", "/"))
            except NotAvailableError as error:
                lacks.append(error)
            except ProbeError as error:
                self._worker.note(error)
            else:
                seconds = (self._clock.mono_ns() - begin_ns) / SECOND_NS
                self._results.append((name, health, seconds))
            finally:
                self._running = None
        if len(lacks) == len(names):
            raise lacks[0]
