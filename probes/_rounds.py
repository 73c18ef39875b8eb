"""Work that is done once a period on a thread of its own, between the readings."""

from __future__ import annotations

import threading
from collections.abc import Callable

from probes._worker import Worker
from soak.core.errors import ProbeError
from soak.core.ports import Clock
from soak.core.units import SECOND_NS


def go_round(
    work: Callable[[], None], period_ns: int, stop: threading.Event, worker: Worker, clock: Clock
) -> None:
    """Work until told to stop; rounds that were missed are not made up, one that failed is told."""
    next_ns = clock.mono_ns() + period_ns // 2  # between the readings, not at them
    while not stop.wait(max(0.0, (next_ns - clock.mono_ns()) / SECOND_NS)):
        try:
            work()
        except ProbeError as error:
            worker.note(error)
        late_ns = clock.mono_ns() - next_ns
        next_ns += period_ns * (1 + max(0, late_ns // period_ns))
