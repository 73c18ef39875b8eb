"""What data centre drives log about themselves: flash written, blocks free, requests that were slow.

Source: OCP Datacenter NVMe SSD specification 2.0 and later: log 0xC0, "SMART / health information extended",
        and log 0xC3, "latency monitor", both of 512 bytes. Their last 16 bytes say that they are these logs;
        other manufacturers use the same numbers for logs of their own.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping

from probes.smart.tools import Health

HEALTH_LOG, LATENCY_LOG = 0xC0, 0xC3
_SIZE = 512
_TIMEOUT_SECONDS = 5.0
_MARKS = {  # bytes 496 to 511, the lowest first
    HEALTH_LOG: bytes.fromhex("c5af1028eabff2a49c4f6f7cc914d5af"),
    LATENCY_LOG: bytes.fromhex("927ac08cd0846c9c7043e6d4585ed485"),
}
_UUID_INDEXES = (0, 1, 2)
"""Where a drive has logs of several specifications, this chooses one; 0 is the manufacturer's default."""

_FULL = 255  # of a counter of one byte, which stays there


def parse_health_log(log: bytes) -> Health:
    """Return what a drive says in its log 0xC0; empty if it is another log."""
    if not _is_log(HEALTH_LOG, log):
        return {}
    found = {
        "smart_media_written_bytes": float(int.from_bytes(log[:16], "little")),
        "smart_throttle_level": float(log[97]),
    }
    events, free = log[96], log[120]
    if events < _FULL:
        found["smart_throttle_events"] = float(events)
    if free <= 100:  # noqa: PLR2004  # per cent
        found["smart_free_blocks_ratio"] = free / 100
    return found


def parse_latency_log(log: bytes) -> Health:
    """Return how many requests a drive counted as slow in its present window; empty if it does not count."""
    if not _is_log(LATENCY_LOG, log) or not log[0] & 1:
        return {}
    buckets = log[0x20:0x60]  # four limits, each of reads, writes and deallocations; 32 bits each
    slow = sum(int.from_bytes(buckets[at : at + 4], "little") for at in range(0, len(buckets), 4))
    return {"smart_slow_requests": float(slow)}


def _is_log(number: int, log: bytes) -> bool:
    return len(log) == _SIZE and log[-16:] == _MARKS[number]


_PARSERS: Mapping[int, Callable[[bytes], Health]] = {
    HEALTH_LOG: parse_health_log,
    LATENCY_LOG: parse_latency_log,
}


class OcpLogs:
    """Asks drives for both logs; one that has none at the first time is not asked again."""

    def __init__(self, nvme: str | None) -> None:
        """`nvme` is the path of the program; without it, nothing is known of any drive."""
        self._nvme = nvme
        self._indexes: dict[tuple[str, int], int | None] = {}

    def read(self, device: str) -> Health:
        """Return what a drive such as `/dev/nvme0n1` logs; may block for half a minute."""
        found: dict[str, float] = {}
        if self._nvme is None or not device.startswith("/dev/nvme"):
            return found
        for number in _MARKS:
            log = self._log(self._nvme, device, number)
            if log is not None:
                found |= _PARSERS[number](log)
        return found

    def _log(self, nvme: str, device: str, number: int) -> bytes | None:
        place = device, number
        known = self._indexes.get(place, -1)
        if known is None:
            return None
        for index in _UUID_INDEXES if known < 0 else (known,):
            log = _ask(nvme, device, number, index)
            if _is_log(number, log):
                self._indexes[place] = index
                return log
        if known < 0:
            self._indexes[place] = None
        return None


def _ask(nvme: str, device: str, number: int, index: int) -> bytes:
    """Return a log as it is, empty if the drive or the program refuses."""
    log = ["get-log", device, f"--log-id={number:#x}", f"--log-len={_SIZE}", "--raw-binary"]
    chosen = [f"--uuid-index={index}"] if index else []
    try:
        done = subprocess.run(
            [nvme, *log, *chosen], capture_output=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return b""
    return done.stdout
