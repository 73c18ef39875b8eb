"""The probe daemon: reads every probe of the plan at the end of each second and records the values."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from soak.core.plan import plugins
from soak.core.ports import Clock, Probe
from soak.core.units import SECOND_NS
from soak.runtime.context import RESTART_CODE, OpenJournal, open_journal
from soak.sampling.backfill import record_backfill
from soak.sampling.scheduler import Scheduler
from soak.service.systemd import notifier
from soak.store.journal.reader import last_record
from soak.store.run_folder import RunFolder, read_any_plan

LOG = logging.getLogger("soak.sampling.daemon")
SLICE_NS = SECOND_NS  # how often a stop is checked
FAILED_CODE = 1


def run(
    run_dir: Path,
    stop: threading.Event,
    clock: Clock,
    meanwhile: Callable[[], None] = lambda: None,
) -> int:
    """Record until the phases or `stop` end it; return the exit code.

    A probe may leave a thread that hangs in the kernel, so the caller ends the process by `os._exit`.
    `meanwhile` is called every second and must return at once.
    """
    folder = RunFolder(run_dir)
    plan = read_any_plan(folder)
    to = open_journal(folder, plan, "probe", clock)
    probes = build(plan.probes, clock)
    last = last_record(folder.journal, to.source)
    probes = record_backfill(to, probes, 0 if last is None else last[0].k + 1, stop, clock)
    try:
        return record(to, Scheduler(probes, clock, plan.sampling), stop, clock, meanwhile)
    finally:
        to.end_page()


def record(
    to: OpenJournal,
    scheduler: Scheduler,
    stop: threading.Event,
    clock: Clock,
    meanwhile: Callable[[], None] = lambda: None,
) -> int:
    """Record the rows of the scheduler, then close it and the journal; returns as `run`."""
    manager = notifier()
    manager.ready()

    def wait_until(instant_ns: int) -> bool:
        """Sleep until the instant; return False if stopped before."""
        while not stop.is_set():
            manager.alive()
            meanwhile()
            now_ns = clock.mono_ns()
            if now_ns >= instant_ns:
                return True
            clock.sleep_until(min(instant_ns, now_ns + SLICE_NS))
        return False

    try:
        _each_second(to, scheduler, wait_until, clock)
    except Exception:  # the caller must reach `os._exit`, or a hung thread keeps the process alive
        LOG.exception("probe_daemon_failed")
        code = FAILED_CODE
    else:
        code = RESTART_CODE if to.recorder.is_suspended else 0
    manager.stopping()
    try:
        to.writer.close(is_end=code == 0)
    except Exception:
        LOG.exception("journal_not_closed source=%s", to.source)
        code = FAILED_CODE
    finally:
        scheduler.close()
    return code


def build(configs: Mapping[str, Any], clock: Clock) -> dict[str, Probe]:
    """Return the probes of a plan by name."""
    return {
        name: plugins.load("probes", name).build(config, clock) for name, config in configs.items()
    }


def _each_second(
    to: OpenJournal, scheduler: Scheduler, wait_until: Callable[[int], bool], clock: Clock
) -> None:
    grid, recorder = to.grid, to.recorder
    k = max(0, grid.interval_index_at(clock.mono_ns()))
    while to.phase_file.poll().at(k) != "end" and not recorder.is_suspended:
        due_ns = grid.start_of(k + 1)
        if not wait_until(due_ns):
            return
        samples, events = scheduler.read(k, due_ns)
        recorder.append(k, samples, events=events)
        k = max(
            k + 1, grid.interval_index_at(clock.mono_ns())
        )  # seconds that were missed are a gap
