"""Delay the start of a service that dies again and again: systemd 252 restarts it at a constant rate.

A drive may be read-only for an hour, and seven daemons that start every two seconds next to a broker raise
its latency. So each start waits until twice as long after the previous one, up to a minute, before it opens
anything or starts a JVM. The state is in the folder that systemd keeps below /run while it restarts the
service by itself, and stopping the service removes it. Systemd 252 leaves it when the service is stopped
between two attempts: then it expires after `RESET_NS`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from soak.core.ports import Clock
from soak.core.retry import Backoff
from soak.core.units import SECOND_NS
from soak.service.systemd import is_main_process, notifier

LOG = logging.getLogger(__name__)
BACKOFF = Backoff(2 * SECOND_NS, 60 * SECOND_NS)
"""The first wait is that of `RestartSec=` in the units, so a first death costs no more than that."""
RESET_NS = 2 * BACKOFF.max_ns
"""A start this long after the previous one counts as the first."""
START_SECONDS = 120
"""Time for the start itself, as in the units."""
_STATE_FILE = "starts"


def delay_start(clock: Clock, environment: Mapping[str, str] | None = None) -> None:
    """Wait until this start is due; only in the main process of a service, whose parent is systemd."""
    if environment is None:
        environment = os.environ
    folder = environment.get("RUNTIME_DIRECTORY", "")
    if not (is_main_process(environment) and folder and "NOTIFY_SOCKET" in environment):
        return
    path = Path(folder) / _STATE_FILE
    now_ns = clock.mono_ns()
    quick, due_ns = _next(_read(path), now_ns)
    if due_ns > now_ns:
        seconds = (due_ns - now_ns) / SECOND_NS
        LOG.warning("start_delayed seconds=%.0f quick_starts=%d", seconds, quick)
        manager = notifier(environment)
        manager.status(f"started {quick + 1} times in a row: waits {seconds:.0f} s")
        manager.more_time(seconds + START_SECONDS)
        clock.sleep_until(due_ns)
        manager.status("starting")
    _write(path, quick, max(due_ns, now_ns))


def quick_starts(environment: Mapping[str, str] | None = None) -> int:
    """Return how many quick starts in a row led to this one; 0 where `delay_start` did not record any."""
    folder = (os.environ if environment is None else environment).get("RUNTIME_DIRECTORY", "")
    known = _read(Path(folder) / _STATE_FILE) if folder else None
    return known[0] if known else 0


def _next(before: tuple[int, int] | None, now_ns: int) -> tuple[int, int]:
    """Return how many quick starts in a row there are with this one, and when it is due."""
    if before is None:
        return 0, now_ns
    quick, last_ns = before
    if not 0 <= now_ns - last_ns < RESET_NS:
        return 0, now_ns
    return quick + 1, last_ns + BACKOFF.wait_ns(quick + 1)


def _read(path: Path) -> tuple[int, int] | None:
    """Return the number of quick starts in a row and the time of the last start; None where it is unknown."""
    try:
        quick, last_ns = map(int, path.read_text().split())
    except (OSError, ValueError):
        return None
    return quick, last_ns


def _write(path: Path, quick: int, at_ns: int) -> None:
    try:
        path.write_text(f"{quick} {at_ns}\n")
    except OSError as error:
        LOG.warning("start_not_recorded path=%s error=%s", path, error.strerror)
