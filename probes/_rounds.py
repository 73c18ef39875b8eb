"""Polls once a period on a thread of its own, and readings of what the polls handed over."""

from __future__ import annotations

from collections.abc import Callable

from probes._handed_over import HandedOver
from probes._worker import Stop, Worker
from soak.core.errors import ProbeError
from soak.core.model import Reading
from soak.core.ports import Clock
from soak.core.units import SECOND_NS


class Rounds:
    """`begin` is run on the thread, and returns the poll; a poll that raises `ProbeError` ends no round."""

    def __init__(
        self, name: str, begin: Callable[[], Callable[[], None]], period_ns: int, clock: Clock
    ) -> None:
        self._begin = begin
        self._period_ns = period_ns
        self._clock = clock
        self._worker = Worker(name, self._work)
        self.handed = HandedOver(clock)

    def read(self) -> Reading:
        """Return what the polls since the last reading saw; without a poll only how old the last one is.

        Raises:
            ProbeError: a poll failed, and nothing was handed over; else its failure is an event.
        """
        begin_ns = self._clock.mono_ns()
        self._worker.check()
        return self.handed.take(begin_ns)

    def wait(self, timeout_seconds: float) -> None:
        """Wait for the thread to end, at most this long."""
        self._worker.wait(timeout_seconds)

    def close(self) -> None:
        self._worker.close()

    def _work(self, stop: Stop) -> None:
        """Poll until told to stop; rounds that were missed are not made up."""
        poll = self._begin()
        next_ns = self._clock.mono_ns() + self._period_ns // 2  # between the readings, not at them
        while not stop.wait((next_ns - self._clock.mono_ns()) / SECOND_NS):
            try:
                poll()
            except ProbeError as error:
                self.handed.failed(error)
            late_ns = self._clock.mono_ns() - next_ns
            next_ns += self._period_ns * (1 + max(0, late_ns // self._period_ns))
