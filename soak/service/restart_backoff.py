"""Keeps the starts of a service apart that dies again and again: systemd 252 starts it at one pace for ever.

A drive may be read-only for an hour. Seven daemons that fork every two seconds beside a broker are felt in
its latency, so each start waits until twice as long after the one before, up to a minute. It is done before
anything is opened or a JVM is started, and forgotten when the service is stopped: its note lies in the
folder that systemd keeps below /run for as long as the service is started again by itself. Systemd 252 leaves
it when it is stopped between two tries: then it is forgotten after `CALM_NS`.
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

LOG = logging.getLogger("soak.service.restart_backoff")
BACKOFF = Backoff(2 * SECOND_NS, 60 * SECOND_NS)
"""What `RestartSec=` of the units waits already: a first death costs no more than that."""
CALM_NS = 2 * BACKOFF.max_ns
"""A start so long after the one before is taken for the first."""
START_SECONDS = 120
"""What is left for the start itself; the units give as much."""
_NOTE = "starts"


def keep_apart(clock: Clock, environment: Mapping[str, str] | None = None) -> None:
    """Wait, in the main process of a service alone, until this start is far enough from those before."""
    if environment is None:
        environment = os.environ
    folder = environment.get("RUNTIME_DIRECTORY", "")
    # who starts a child again keeps its starts apart
    if not (is_main_process(environment) and folder and "NOTIFY_SOCKET" in environment):
        return
    note = Path(folder) / _NOTE
    now_ns = clock.mono_ns()
    quick, due_ns = _next(_read(note), now_ns)
    if due_ns > now_ns:
        seconds = (due_ns - now_ns) / SECOND_NS
        LOG.warning("start_put_off seconds=%.0f quick_starts=%d", seconds, quick)
        manager = notifier(environment)
        manager.status(f"started {quick + 1} times in a row: waits {seconds:.0f} s")
        manager.more_time(seconds + START_SECONDS)
        clock.sleep_until(due_ns)
        manager.status("starting")
    _write(note, quick, max(due_ns, now_ns))


def in_a_row(environment: Mapping[str, str] | None = None) -> int:
    """Return how many quick starts in a row led to this one, as `keep_apart` noted; 0 where it did not."""
    folder = (os.environ if environment is None else environment).get("RUNTIME_DIRECTORY", "")
    known = _read(Path(folder) / _NOTE) if folder else None
    return known[0] if known else 0


def _next(before: tuple[int, int] | None, now_ns: int) -> tuple[int, int]:
    """Return how many quick starts in a row this one makes, and the instant at which it is due."""
    if before is None:
        return 0, now_ns
    quick, last_ns = before
    if not 0 <= now_ns - last_ns < CALM_NS:
        return 0, now_ns
    return quick + 1, last_ns + BACKOFF.wait_ns(quick + 1)


def _read(note: Path) -> tuple[int, int] | None:
    """Return how many quick starts there were in a row, and when the last start was; None if nobody knows."""
    try:
        quick, last_ns = map(int, note.read_text().split())
    except (OSError, ValueError):
        return None
    return quick, last_ns


def _write(note: Path, quick: int, at_ns: int) -> None:
    try:
        note.write_text(f"{quick} {at_ns}\n")
    except OSError as error:
        LOG.warning("start_not_noted path=%s error=%s", note, error.strerror)
