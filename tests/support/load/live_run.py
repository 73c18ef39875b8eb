"""A run's measuring daemons under their supervisor, on a broker that is there: no Spark and no report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from soak.core.clock import SystemClock
from soak.core.plan import text
from soak.core.plan.plan import Plan
from soak.core.units import SECOND_NS
from soak.runtime.context import connect, topics_of
from soak.runtime.grid import host_name
from soak.store.run_folder import Run, RunFolder, write_run
from soak.supervisor.run import Supervisor, roles_of

LEAD_SECONDS = 4
"""From the start of the daemons to the first message: by then all of them are ready."""


class LiveRun:
    """A run whose daemons have just been started."""

    def __init__(self, folder: RunFolder, plan: Plan, clock: SystemClock) -> None:
        self.folder = folder
        self._clock = clock
        self.start_ns = clock.wall_ns() + LEAD_SECONDS * SECOND_NS
        write_run(folder, Run(plan.name, self.start_ns, host_name(), {}, "running", plan.name))
        roles = [role for role in roles_of(plan) if role.is_needed]
        self._supervisor = Supervisor(folder, clock, roles=roles, on_death=print)
        self._supervisor.start()

    def wait(self) -> None:
        """Return when every daemon has written its last record."""
        while not self._supervisor.poll():
            self._clock.sleep_until(self._clock.mono_ns() + SECOND_NS // 5)

    def close(self) -> None:
        self._supervisor.close()


@contextmanager
def started(path: Path, plan: Plan) -> Iterator[LiveRun]:
    """Make the plan's topics and start its daemons; none of them is left at the end."""
    clock = SystemClock()
    topics = topics_of(plan)
    connect(plan, clock).create_topics(topics, plan.topic.replication, plan.topic.settings)
    folder = RunFolder(path)
    folder.logs.mkdir(parents=True)
    folder.plan.write_text(text.dump(plan))
    run = LiveRun(folder, plan, clock)
    try:
        yield run
    finally:
        run.close()
