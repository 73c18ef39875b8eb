"""Ends what a host that only probes records when the run that it joined is over, by what is said of that run.

It is over by its plan's end, when a newer run of the plan goes on, or when nothing was said of it for an hour
in which the topic could be read: nobody receives it, and when somebody does again, it is joined again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from soak.core.announcement import Announcement
from soak.core.clock import Grid
from soak.core.phases import to_line
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.daemons.context import PhaseFile
from soak.daemons.listening import Listening
from soak.store.run_folder import Run, RunFolder, write_atomically

LOG = logging.getLogger("soak.daemons.follow")
LOST_NS = 3600 * SECOND_NS


class Following:
    """Call `poll` about once a second; the end goes into `phases.jsonl`, which the probe daemon reads."""

    def __init__(
        self,
        folder: RunFolder,
        run: Run,
        listening: Listening,
        may_join: Callable[[Announcement], bool],
        grid: Grid,
        clock: Clock,
    ) -> None:
        self._folder = folder
        self._run = run
        self._listening = listening
        self._may_join = may_join
        self._grid = grid
        self._clock = clock
        self._end_k = PhaseFile(folder.phases).poll().end_k
        self._heard_ns = clock.mono_ns()

    def poll(self) -> None:
        """Take in what was said since the last call; waits for nothing but a cluster that is away."""
        found = self._listening.hear(0.0)
        now_ns = self._clock.mono_ns()
        if not self._listening.is_open:  # then silence tells nothing
            self._heard_ns = now_ns
        for one in found:
            self._take(one, now_ns)
        if now_ns - self._heard_ns >= LOST_NS:
            self._leave("nobody has received it for an hour")

    def close(self) -> None:
        self._listening.close()

    def _take(self, one: Announcement, now_ns: int) -> None:
        run = self._run
        if one.run_id == run.id:
            if one.start_wall_ns == run.start_wall_ns:
                self._heard_ns = now_ns
                self._follow(one)
        elif (
            one.order > (run.start_wall_ns, run.id)
            and one.goes_on(self._clock.wall_ns())
            and self._may_join(one)
        ):
            self._leave(f"run {one.run_id} of the same plan goes on, which is newer")

    def _follow(self, one: Announcement) -> None:
        if one.is_over:
            self._leave("it is over")
        elif one.end_k is not None:
            self._end_at(one.end_k, "announced")

    def _leave(self, why: str) -> None:
        self._end_at(max(0, self._grid.k_at(self._clock.mono_ns())), why)

    def _end_at(self, k: int, why: str) -> None:
        """Write the end, unless it is past: what cannot be written is tried with the next word."""
        is_past = self._end_k is not None and self._end_k <= self._grid.k_at(self._clock.mono_ns())
        if is_past or k == self._end_k:
            return
        try:
            write_atomically(self._folder.phases, to_line("end", k, why))
        except OSError as error:
            LOG.warning("end_not_written error=%s", error)
            return
        LOG.info("run_ends_here run=%s k=%d why=%s", self._run.id, k, why)
        self._end_k = k
