"""A bell that others ring: who sleeps wakes when something has come, not when he looks again."""

from __future__ import annotations

import os
from select import select

from soak.core.ports import Clock
from soak.core.units import SECOND_NS


class EventBell:
    """An eventfd(2). Make it early: `select` takes no descriptor above 1023."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def wait(self, mono_ns: int) -> None:
        """Return at the first ring since the last call, or at this instant."""
        wait_ns = max(0, mono_ns - self._clock.mono_ns())
        rung, _, _ = select((self.fd,), (), (), wait_ns / SECOND_NS)
        if rung:
            os.eventfd_read(self.fd)

    def close(self) -> None:
        """Only when nobody rings it any more: the descriptor's number may become another file's."""
        os.close(self.fd)
