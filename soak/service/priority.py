"""Real-time priority for a thread that must wake on time, where the user may have it.

Without it a wake-up waits for whatever runs on the core, a broker's collector or a compiler: at 10,000/s on
two cores beside a broker some 1 ms at the 99th percentile, against 0.4 ms. Root may have it, and a service
with `LimitRTPRIO=`.
"""

from __future__ import annotations

import contextlib
import logging
import os

MOST_BUSY = 0.5
"""Cores; a thread that has work all the time must not keep the broker beside it waiting."""
BUSY_NO_MORE = 0.35
"""Below this it goes first again: a load between the two changes nothing."""
_LOWEST = 1

LOG = logging.getLogger("soak.service.priority")


class Priority:
    """Of the thread that makes it; threads that it starts have the usual one."""

    def __init__(self) -> None:
        self._is_first = self._set(is_first=True)
        self._may = self._is_first
        LOG.info("priority real_time=%s", self._is_first)

    @property
    def is_first(self) -> bool:
        """True while the thread goes before all that have the usual priority."""
        return self._is_first

    def adapt(self, busy_ratio: float) -> None:
        """Give way while the thread itself uses much of a core (`busy_ratio`, of the last second)."""
        is_wanted = self._may and busy_ratio < (MOST_BUSY if self._is_first else BUSY_NO_MORE)
        if is_wanted != self._is_first and self._set(is_first=is_wanted):
            self._is_first = is_wanted
            LOG.info("priority real_time=%s busy_ratio=%.2f", is_wanted, busy_ratio)

    @staticmethod
    def _set(*, is_first: bool) -> bool:
        policy = os.SCHED_RR if is_first else os.SCHED_OTHER
        number = _LOWEST if is_first else 0
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, os.sched_param(number))
            return True
        return False
