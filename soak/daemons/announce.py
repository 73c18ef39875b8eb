"""Says every few seconds which run goes on here, so that hosts which only probe join it and end with it."""

from __future__ import annotations

from typing import Protocol

from soak.core.announcement import EVERY_NS, Announcement
from soak.core.clock import Grid
from soak.core.ports import Clock
from soak.daemons.context import PhaseFile
from soak.store.run_folder import Run


class Voice(Protocol):
    """What says it; see `Announcer`."""

    def say(self, announcement: Announcement) -> None: ...
    def close(self) -> None: ...


class Announcing:
    """Call `poll` as often as you like."""

    def __init__(
        self, voice: Voice, run: Run, phase_file: PhaseFile, grid: Grid, clock: Clock
    ) -> None:
        self._voice = voice
        self._run = run
        self._phase_file = phase_file
        self._grid = grid
        self._clock = clock
        self._due_ns = clock.mono_ns()

    def poll(self) -> None:
        """Say it when it is time to."""
        now_ns = self._clock.mono_ns()
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + EVERY_NS
            self._voice.say(self._now())

    def close(self) -> None:
        """Say it a last time: whoever ends the run has decided by now."""
        self._voice.say(self._now())
        self._voice.close()

    def _now(self) -> Announcement:
        end_k = self._phase_file.poll().end_k
        k = self._grid.k_at(self._clock.mono_ns())
        is_over = end_k is not None and k >= end_k
        run, now_ns = self._run, self._clock.wall_ns()
        return Announcement(run.name, run.id, run.start_wall_ns, end_k, is_over, now_ns)
