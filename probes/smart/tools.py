"""What smartctl and nvme print about a drive, and what of it is a metric."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from soak.core import json_text
from soak.core.errors import NotAvailableError, ProbeError

TOOL_TIMEOUT_SECONDS = 30.0
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"  # where both are installed, and not on every user's PATH
_DATA_UNIT_BYTES = 512_000  # NVMe base specification: a thousand sectors of 512 bytes
_KELVIN = 273  # nvme's own conversion
_ATA_COUNTS = {5: "smart_reallocated_sectors", 187: "smart_media_errors"}
"""By the number of the attribute: manufacturers agree on what these mean, and differ in their names."""

_SOLID_STATE_PAGE, _PERCENTAGE_USED = 7, 8
"""ATA Command Set 4, 9.5.10: where a page of the device statistics has the wear of an SSD, in percent."""

_LOG = f"--log=devstat,{_SOLID_STATE_PAGE}"  # of other drives than ATA it asks nothing

_ATA_LIFE_LEFT = frozenset(  # whose normalised value falls from 100 to 0, whatever the name says
    {
        "Wear_Leveling_Count",
        "Media_Wearout_Indicator",
        "SSD_Life_Left",
        "Percent_Lifetime_Remain",
        "Percent_Life_Remaining",
        "Remaining_Lifetime_Perc",
        "Available_Reservd_Life",
        "Percent_Lifetime_Used",
        "Perc_Rated_Life_Used",
    }
)
_ATA_EITHER_WAY = 230
"""Its normalised value rises on some drives of WD and SanDisk, and falls on others."""

_ATA_RAW = re.compile(r"([0-9]+)(?: \(.*\))?")
"""A raw value as smartctl prints it, which knows how many of its 48 bits are the count."""

_ATA_WRITTEN = re.compile(
    r"\w*(?:Host|Lifetime|Total)_Writes_(?:(?P<number>\d+))?(?P<unit>[MGT]iB)"
)
_UNIT_BYTES = {"MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_FULL_LIFE = 100

_GROUPED = re.compile(
    r"[0-9]{1,3}(?:(?P<mark>[,.'\u2019_ \u00a0\u202f])(?:[0-9]{2,3}(?P=mark))*[0-9]{3})?|[0-9]+"
)
"""A whole number as text: nvme 2.3 and 2.4 group its digits as the locale says."""

_FIRST_WITH_THROTTLING = 8  # smartctl
_THROTTLED_SECONDS = (  # printed once one is above 0
    "thermal_mgmt_temperature_1_total_time",
    "thermal_mgmt_temperature_2_total_time",
)

Health = Mapping[str, float]
"""Metric -> value; the keys are those of `probe.UNITS`."""


@dataclass(frozen=True, slots=True)
class Tool:
    command: tuple[str, ...]  # the device's path comes last
    parse: Callable[[Mapping[str, object]], Health]
    needs: str = ""  # the version that prints JSON whatever the drive answers


def find_program(name: str, which: Callable[..., str | None] = shutil.which) -> str | None:
    """Return the path of a program of this host, also where it is only on root's PATH."""
    return which(name, path=f"{os.environ.get('PATH', os.defpath)}:{_SBIN}")


def find_tool(which: Callable[..., str | None] = shutil.which) -> Tool:
    """Return the tool that this host has: smartctl, or else nvme.

    Raises:
        NotAvailableError: neither is installed.
    """
    smartctl, nvme = find_program("smartctl", which), find_program("nvme", which)
    if smartctl:
        command = (smartctl, "--json", "-iAH", "--log=error,1", _LOG, "--nocheck=standby")
        return Tool(command, parse_smartctl, "smartctl 7.0 or newer")
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
            env={**os.environ, "LC_ALL": "C"},  # its reasons in English, its digits not grouped
            timeout=TOOL_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProbeError(f"cannot run {name} on {device}: {error}") from error
    body = _json(done.stdout)
    health = tool.parse(body) if body is not None else {}
    if health:  # smartctl's exit code also has bits for a failing drive
        return health
    lacks = f"{name} has no data of {device}"
    if body is None:
        printed = (done.stderr.strip() or done.stdout.strip()).splitlines()
        reason = printed[0] if printed else ""  # nvme prints its usage, too
        if not done.returncode:
            raise ProbeError(f"{name} printed no JSON about {device}: {reason!r}")
        if tool.needs:
            raise NotAvailableError(f"{lacks}: it must be {tool.needs}, to print JSON: {reason!r}")
    else:
        reason = _message(body)
        if not reason:
            raise NotAvailableError(
                f"{lacks}: it keeps no health log, as most virtual drives and RAID volumes"
            )
    is_refused = "permi" in reason.lower() and os.geteuid() != 0  # denied, or not permitted
    rights = "; it needs root, which this probe does not have" if is_refused else ""
    raise NotAvailableError(f"{lacks}: {reason}{rights}")


def parse_smartctl(body: Mapping[str, object]) -> Health:
    """Return the health of an NVMe, ATA or SCSI drive from the JSON of smartctl.

    The wear that a standard defines comes before the attributes of manufacturers.
    Nothing of a drive that keeps none: it may have a temperature of 0 nevertheless.
    """
    log = _part(body, "nvme_smart_health_information_log")
    spare, units = _percent(log, "available_spare"), _number(log, "data_units_written")
    if _part(body, "smart_support").get("available") is False or _is_blank(spare, units):
        return {}
    wear = [
        _percent(log, "percentage_used"),
        _percent(_part(body, "endurance_used"), "current_percent"),
        _percent(body, "scsi_percentage_used_endurance_indicator"),  # before smartctl 7.5
        _ata_percentage_used(body),
    ]
    passed = _part(body, "smart_status").get("passed")
    found = {
        "smart_passed": float(passed) if isinstance(passed, bool) else None,
        "smart_wear_ratio": next((one for one in wear if one is not None), None),
        "smart_available_spare_ratio": spare,
        "smart_media_errors": _number(log, "media_errors"),
        "smart_temperature_celsius": _number(_part(body, "temperature"), "current"),
        "smart_written_bytes": None if units is None else units * _DATA_UNIT_BYTES,
        "smart_hot_seconds": _minutes(log, "warning_temp_time"),
        "smart_throttled_seconds": _throttled_seconds(body, log),
    }
    for attribute in _rows(_part(body, "ata_smart_attributes"), "table"):
        found |= {
            metric: value
            for metric, value in _ata_values(attribute).items()
            if found.get(metric) is None
        }
    if found.get("smart_reallocated_sectors") is None:
        found["smart_reallocated_sectors"] = _number(body, "scsi_grown_defect_list")
    if found.get("smart_media_errors") is None:
        found["smart_media_errors"] = _uncorrected_errors(body)
    return _known(found)


def _ata_percentage_used(body: Mapping[str, object]) -> float | None:
    """Return the wear in the device statistics of an ATA drive; None where it says that it is not valid."""
    for page in _rows(_part(body, "ata_device_statistics"), "pages"):
        for row in _rows(page, "table") if page.get("number") == _SOLID_STATE_PAGE else []:
            if row.get("offset") == _PERCENTAGE_USED and _part(row, "flags").get("valid") is True:
                return _percent(row, "value")
    return None


def _ata_values(attribute: Mapping[str, object]) -> dict[str, float | None]:
    """Return what one attribute of an ATA drive says."""
    name, raw = str(attribute.get("name", "")), _raw_value(_part(attribute, "raw"))
    number = attribute.get("id")
    if isinstance(number, int) and number in _ATA_COUNTS:
        return {_ATA_COUNTS[number]: raw}
    left = _number(attribute, "value")
    falls = name in _ATA_LIFE_LEFT and number != _ATA_EITHER_WAY
    if falls and left is not None and left <= _FULL_LIFE:
        return {"smart_wear_ratio": (_FULL_LIFE - left) / _FULL_LIFE}
    written = _ATA_WRITTEN.fullmatch(name)
    if written is not None and raw is not None:
        unit_bytes = int(written["number"] or 1) * _UNIT_BYTES[written["unit"]]
        return {"smart_written_bytes": raw * unit_bytes}
    return {}


def _raw_value(raw: Mapping[str, object]) -> float | None:
    printed = _ATA_RAW.fullmatch(str(raw.get("string", "")))
    return _number(raw, "value") if printed is None else _number({"value": printed[1]}, "value")


def _throttled_seconds(body: Mapping[str, object], log: Mapping[str, object]) -> float | None:
    """Return how long an NVMe drive throttled itself: 0 where a smartctl that prints this prints nothing."""
    version = _part(body, "smartctl").get("version")
    major = version[0] if isinstance(version, list) and version else 0
    is_printed = bool(log) and isinstance(major, int) and major >= _FIRST_WITH_THROTTLING
    found = _sum(log, *_THROTTLED_SECONDS)
    return 0.0 if found is None and is_printed else found


def _uncorrected_errors(body: Mapping[str, object]) -> float | None:
    """Return how often a SCSI drive failed to read, write or verify; None if it does not count that."""
    log = _part(body, "scsi_error_counter_log")
    read, write, verify = (
        _number(_part(log, kind), "total_uncorrected_errors")
        for kind in ("read", "write", "verify")
    )
    if read is None or write is None:  # one alone was not answered: their sum would jump
        return None
    return read + write + (verify or 0.0)


def parse_nvme(body: Mapping[str, object]) -> Health:
    """Return the health of a drive from the output of `nvme smart-log`; nothing of one that keeps none."""
    spare, units = _percent(body, "avail_spare"), _number(body, "data_units_written")
    kelvin = _number(body, "temperature")
    if _is_blank(spare, units):
        return {}
    found = {
        "smart_wear_ratio": _percent(body, "percent_used"),
        "smart_available_spare_ratio": spare,
        "smart_media_errors": _number(body, "media_errors"),
        "smart_temperature_celsius": kelvin - _KELVIN if kelvin else None,  # 0: not measured
        "smart_written_bytes": None if units is None else units * _DATA_UNIT_BYTES,
        "smart_hot_seconds": _minutes(body, "warning_temp_time"),
        "smart_throttled_seconds": _sum(body, "thm_temp1_total_time", "thm_temp2_total_time"),
        "smart_throttle_events": _sum(body, "thm_temp1_trans_count", "thm_temp2_trans_count"),
    }
    return _known(found)


def _is_blank(spare: float | None, units: float | None) -> bool:
    """Return True for the log of an NVMe drive that keeps none: all zero, as of virtual drives.

    A real one has spare blocks, or was written to.
    """
    return spare == 0.0 and units == 0.0


def _known(found: Mapping[str, float | None]) -> Health:
    return {metric: value for metric, value in found.items() if value is not None}


def _json(text: str) -> Mapping[str, object] | None:
    try:
        body = json_text.loads(text)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, Mapping) else None


def _message(body: Mapping[str, object]) -> str:
    """Return why a tool could not read the drive, from the JSON of smartctl, or of nvme from 2.0 on."""
    error = body.get("error")
    if isinstance(error, str):
        return error
    messages = _part(body, "smartctl").get("messages")
    for message in messages if isinstance(messages, list) else []:
        if isinstance(message, Mapping):
            return str(message.get("string", ""))
    return ""


def _part(body: Mapping[str, object], key: str) -> Mapping[str, object]:
    part = body.get(key)
    return part if isinstance(part, Mapping) else {}


def _rows(body: Mapping[str, object], key: str) -> list[Mapping[str, object]]:
    rows = body.get(key)
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _number(body: Mapping[str, object], key: str) -> float | None:
    """Return a number that is not negative, also one that is written as text, with its digits in groups."""
    value = body.get(key)
    if isinstance(value, str):
        text = value.strip().removesuffix("%").rstrip()
        value = float(re.sub("[^0-9]", "", text)) if _GROUPED.fullmatch(text) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def _minutes(body: Mapping[str, object], key: str) -> float | None:
    """Return in seconds what a drive counts in minutes."""
    value = _number(body, key)
    return None if value is None else value * 60


def _sum(body: Mapping[str, object], *keys: str) -> float | None:
    """Return the sum of counters; None if one is missing."""
    values = [_number(body, key) for key in keys]
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(keys) else None


def _percent(body: Mapping[str, object], key: str) -> float | None:
    value = _number(body, key)
    return None if value is None else value / 100
