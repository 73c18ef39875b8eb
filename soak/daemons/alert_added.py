"""Findings for sinks that a run's plan did not have when it began: the detector queues for those it had."""

from __future__ import annotations

from collections.abc import Sequence

from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.store.findings import FindingsStore
from soak.store.run_folder import Run, RunFolder

PERIOD_NS = 5 * SECOND_NS


class Added:
    """Call `poll` each round: what lasts, and what comes from now on, is owed to these sinks too."""

    def __init__(self, folder: RunFolder, run: Run, sinks: Sequence[str], clock: Clock) -> None:
        self._folder = folder
        self._run = run
        self._sinks = sinks
        self._clock = clock
        self._since_k: int | None = None
        self._next_ns = 0

    def poll(self) -> None:
        """Raise `FindingsError` when the file cannot be used."""
        if self._sinks and self._clock.mono_ns() >= self._next_ns:
            self._next_ns = self._clock.mono_ns() + PERIOD_NS
            self.queue()

    def queue(self) -> None:
        """Queue at once what there is; raises as `poll`."""
        if not self._sinks or not self._folder.findings.exists():
            return
        now_ns = self._clock.wall_ns()
        if self._since_k is None:
            self._since_k = (now_ns - self._run.start_wall_ns) // SECOND_NS
        with FindingsStore(self._folder.findings) as store:
            store.queue_added(self._run.id, self._sinks, self._since_k, now_ns)
