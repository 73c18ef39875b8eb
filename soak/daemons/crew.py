"""All producers, or all consumers, of a plan as one service: what dies or hangs is started again alone."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.daemons.supervise import PROGRAM, Supervisor, roles_of
from soak.service.notify import notifier
from soak.service.watch import Watch, limit_ns
from soak.store.run_folder import RunFolder, read_plan

LOG = logging.getLogger("soak.daemons.crew")
USUAL_LIMIT_NS = 30 * SECOND_NS
START_LIMIT_NS = 600 * SECOND_NS  # a consumer may have days of a journal to read before it is ready
POLL_SECONDS = 0.5

Single = Callable[[Path, int, threading.Event, Clock], int]
"""What runs one process of the kind by its number."""


def run(
    run_dir: Path,
    kind: str,
    single: Single,
    stop: threading.Event,
    clock: Clock,
    program: Sequence[str] = PROGRAM,
) -> int:
    """Run as many processes of a kind as the plan has, one of them in this process; return the exit code.

    Raises:
        GaveUpError: one of them keeps dying.
    """
    folder = RunFolder(run_dir)
    plan = read_plan(folder)
    roles = [role for role in roles_of(plan) if role.name.startswith(f"{kind}.")]
    if len(roles) == 1:
        return single(run_dir, 0, stop, clock)
    manager = notifier()
    with Watch(clock, limit_ns(USUAL_LIMIT_NS), START_LIMIT_NS) as watch:
        supervisor = Supervisor(
            folder,
            clock,
            roles=roles,
            on_death=lambda *_: None,
            environment=watch.environment(os.environ),
            program=program,
        )
        try:
            supervisor.start()
            is_ready = False
            while not stop.wait(POLL_SECONDS):
                is_over = supervisor.poll()
                watch.take()
                pids = supervisor.pids()
                _kill_hanging(watch, pids)
                if not is_ready and (is_over or watch.ready >= set(pids.values())):
                    is_ready = True
                    manager.ready()
                manager.alive()
                if is_over:
                    return 0
            manager.stopping()
            supervisor.stop()
        finally:
            supervisor.close()
    return 0


def _kill_hanging(watch: Watch, pids: dict[str, int]) -> None:
    hanging = watch.hanging(pids.values())
    for name, pid in pids.items():
        if pid in hanging:
            LOG.warning("daemon_hangs daemon=%s pid=%d", name, pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
