"""All producers or all consumers of a plan as one service; one that dies or hangs is restarted alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from soak.core.ports import Clock
from soak.service.systemd import START_LIMIT_NS, ChildWatchdog, notifier, watchdog_limit_ns
from soak.store.run_folder import RunFolder, read_plan
from soak.supervisor.run import PROGRAM, Supervisor, roles_of

POLL_SECONDS = 0.5

RunOne = Callable[[Path, int, threading.Event, Clock], int]
"""Runs one process of the kind by its number."""


def run(
    run_dir: Path,
    kind: str,
    run_one: RunOne,
    stop: threading.Event,
    clock: Clock,
    program: Sequence[str] = PROGRAM,
) -> int:
    """Run the processes of one kind and return the exit code; a single one runs in this process.

    Raises:
        GaveUpError: one of them keeps dying.
    """
    folder = RunFolder(run_dir)
    plan = read_plan(folder)
    roles = [role for role in roles_of(plan) if role.name.startswith(f"{kind}.")]
    if len(roles) == 1:
        return run_one(run_dir, 0, stop, clock)
    manager = notifier()
    with ChildWatchdog(clock, START_LIMIT_NS) as watchdog:
        supervisor = Supervisor(
            folder,
            clock,
            roles=[replace(role, silence_ns=watchdog_limit_ns(role.silence_ns)) for role in roles],
            on_death=lambda *_: None,
            program=program,
            watchdog=watchdog,
        )
        try:
            supervisor.start()
            is_ready = False
            while not stop.wait(POLL_SECONDS):
                is_over = supervisor.poll()
                if not is_ready and (is_over or watchdog.ready >= set(supervisor.pids().values())):
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
