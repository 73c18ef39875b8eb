"""What a drive says of its own wear, through smartctl or nvme, both as JSON.

A value that is missing or no plain number is left out: makers differ, and a wrong number is worse than none.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from soak.core.errors import NotAvailableError, ProbeError

LIMIT_SECONDS = 30.0
UNITS: Mapping[str, str] = {
    "smart_passed": "ratio",
    "smart_wear_ratio": "ratio",
    "smart_available_spare_ratio": "ratio",
    "smart_media_errors": "errors",
    "smart_reallocated_sectors": "sectors",
    "smart_temperature_celsius": "celsius",
    "smart_written_bytes": "bytes",
}
_SBIN = "/usr/sbin:/sbin"  # where both lie, and not on everybody's PATH
_DATA_UNIT_BYTES = 512_000  # NVMe base specification: a thousand sectors of 512 bytes
_KELVIN = 273  # nvme's own conversion
_ATA = {
    "Reported_Uncorrect": "smart_media_errors",
    "Reallocated_Sector_Ct": "smart_reallocated_sectors",
}

Health = Mapping[str, float]
"""Metric to value; the keys are those of UNITS."""


@dataclass(frozen=True, slots=True)
class Tool:
    command: tuple[str, ...]  # the device's path comes last
    parse: Callable[[Mapping[str, object]], Health]


def find_tool(which: Callable[..., str | None] = shutil.which) -> Tool:
    """Return what this machine has for it.

    Raises:
        NotAvailableError: neither smartctl nor nvme.
    """
    path = f"{os.environ.get('PATH', os.defpath)}:{_SBIN}"
    smartctl, nvme = which("smartctl", path=path), which("nvme", path=path)
    if smartctl:
        return Tool((smartctl, "--json", "-iAH", "--nocheck=standby"), of_smartctl)
    if nvme:
        return Tool((nvme, "smart-log", "--output-format=json"), of_nvme)
    raise NotAvailableError("neither smartctl nor nvme is installed: no wear, no media errors")


def ask(tool: Tool, device: str) -> Health:
    """Run the tool on a device, such as `/dev/sda`; may block for LIMIT_SECONDS.

    Raises:
        NotAvailableError: it may not open the device, or the device tells nothing.
        ProbeError: it did not answer, or not in JSON.
    """
    name = os.path.basename(tool.command[0])  # noqa: PTH119  # a path of the machine's own
    try:
        done = subprocess.run(
            [*tool.command, device],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProbeError(f"cannot ask {name} about {device}: {error}") from error
    body = _json(done.stdout)
    health = tool.parse(body) if body is not None else {}
    if health:  # smartctl's exit code has bits for a drive that fails, too
        return health
    printed = (done.stderr.strip() or done.stdout.strip()).splitlines()
    said = _message(body or {}) or (printed[0] if printed else "")  # nvme adds all of its options
    if body is None and not done.returncode:
        raise ProbeError(f"{name} said no JSON about {device}: {said!r}")
    rights = "" if os.geteuid() == 0 else "; it needs root, which this probe does not have"
    raise NotAvailableError(f"{name} tells nothing of {device}: {said}{rights}")


def of_smartctl(body: Mapping[str, object]) -> Health:
    """Return what `smartctl --json -iAH` says of an NVMe, ATA or SCSI drive."""
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
        if isinstance(attribute, Mapping) and attribute.get("name") in _ATA:
            found[_ATA[str(attribute["name"])]] = _number(_part(attribute, "raw"), "value")
    return _known(found)


def of_nvme(body: Mapping[str, object]) -> Health:
    """Return what `nvme smart-log` says."""
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
        body = json.loads(text)
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
    value = body.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def _percent(body: Mapping[str, object], key: str) -> float | None:
    value = _number(body, key)
    return None if value is None else value / 100
