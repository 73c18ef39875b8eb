"""Faults of the run's own daemons: paused or slow ones, catch-up from a cold drive, and one crash."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import signal
from pathlib import Path

from pydantic.dataclasses import dataclass

from soak.core.errors import LabError
from soak.core.plan.config import STRICT
from soak.core.units import SECOND_NS, Duration, duration_ns
from soak.lab.drive.block_device import drop_all_from_page_cache
from soak.lab.faults.active import (
    ActiveFault,
    Fault,
    ThreadedFault,
    activating,
    drive_of,
    missing_drive_of_node,
    node_of,
    start_threaded,
)
from soak.lab.ports import Target


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ClientPauseConfig:
    """Stop the producers of the run, like a host that swaps or is migrated: the delay is our own fault.

    Needs: nothing. SIGSTOP and SIGCONT go to children of this process that end with it.
    """


def _inject_client_pause(target: Target, _config: ClientPauseConfig) -> ActiveFault:
    return _stop_daemons(target, "produce")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ConsumerPauseConfig:
    """Stop the consumers of the run: a backlog grows, which they read afterwards, with the new messages.

    The onset is the lifting: a stopped consumer receives nothing, late or not.

    Needs: nothing. SIGSTOP and SIGCONT go to children of this process that end with it.
    """


def _inject_consumer_pause(target: Target, _config: ConsumerPauseConfig) -> ActiveFault:
    active = _stop_daemons(target, "consume")
    active.set_onset_at_lift()
    return active


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ConsumerSlowConfig:
    """Make a consumer slower than its producers: its process runs for a part of the time only.

    Needs: nothing. SIGSTOP and SIGCONT go to a child of this process that ends with it.
    """

    daemon: str = "consume.0"
    pause: Duration = duration_ns("400ms")  # length of each stop
    every: Duration = duration_ns("500ms")  # from the start of a stop to the next

    def __post_init__(self) -> None:
        if self.pause <= 0:
            raise ValueError("pause must be above 0s")
        if self.pause >= self.every:
            raise ValueError("pause must be below every, or the consumer never runs")


def _inject_consumer_slow(target: Target, config: ConsumerSlowConfig) -> ThreadedFault:
    _pid_of_daemon(target, config.daemon)

    def slow_down(active: ThreadedFault) -> None:
        active.stop_process_every(
            config.every, config.pause, lambda: target.daemons().get(config.daemon)
        )

    return start_threaded("consumer_slow", target, slow_down)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ColdCatchUpConfig:
    """Stop the consumers of the run and let them catch up from the drive, whose reads delay its writes.

    The onset is the lifting, as with `consumer_pause`. Then the topics are dropped from the page cache, which
    would not hold a backlog of hours; the drive reads slowly until the run is over.

    Needs: a Kafka on an injected drive (`lab.drive`), so root and FUSE.
    """

    node: int = 1  # the broker, from 1
    per_mib: Duration = duration_ns("800ms")  # of a read, during which the drive writes nothing
    topics: str = "soak-*"

    def __post_init__(self) -> None:
        if self.per_mib <= 0:
            raise ValueError("per_mib must be above 0s")


def _inject_cold_catch_up(target: Target, config: ColdCatchUpConfig) -> ActiveFault:
    drive, node = drive_of(target, config.node), node_of(target, config.node)
    with contextlib.ExitStack() as undo:
        undo.callback(drive.read_slowly, 0.0)
        drive.read_slowly(config.per_mib / SECOND_NS)
        active = _stop_daemons(target, "consume")
        undo.pop_all()
    active.on_close(drive.read_slowly, 0.0)
    active.on_lift(drive.drop_page_cache)
    active.on_lift(drop_segments, node.data_directory, config.topics)
    active.set_onset_at_lift()
    return active


def drop_segments(data: Path, topics: str) -> None:
    """Drop the segments of these topics from the page cache, except for pages that are not written yet."""
    drop_all_from_page_cache(
        segment
        for segment in data.glob("*/*.log")
        if fnmatch.fnmatchcase(segment.parent.name.rpartition("-")[0], topics)
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class QuietConfig:
    """Kill one of our daemons, as happens in any run: it is started again, and nothing may be found.

    Needs: nothing.
    """

    kills: str = "consume.0"  # the daemon


def _inject_quiet(target: Target, config: QuietConfig) -> ActiveFault:
    """Kill the daemon; the run's supervisor starts it again."""
    with activating(target) as active:
        os.kill(_pid_of_daemon(target, config.kills), signal.SIGKILL)
        active.record(killed=config.kills)
    return active


def _pid_of_daemon(target: Target, name: str) -> int:
    """Return the process of a daemon of the run, such as `consume.0`.

    Raises:
        LabError: there is none.
    """
    daemons = target.daemons()
    if name not in daemons:
        raise LabError(f"no daemon `{name}` runs; known: {', '.join(sorted(daemons))}")
    return daemons[name]


def _stop_daemons(target: Target, kind: str) -> ActiveFault:
    """Stop every daemon of a kind, such as `consume`, until the fault is lifted.

    Raises:
        LabError: none of them runs.
    """
    with activating(target) as active:
        found = {
            name: pid for name, pid in target.daemons().items() if name.partition(".")[0] == kind
        }
        if not found:
            raise LabError(f"no daemon `{kind}` runs that could be paused")
        for pid in found.values():
            descriptor = os.pidfd_open(pid)
            active.on_lift(_resume, descriptor)
            signal.pidfd_send_signal(descriptor, signal.SIGSTOP)
        active.record(paused=sorted(found))
    return active


def _resume(descriptor: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it was killed meanwhile
        signal.pidfd_send_signal(descriptor, signal.SIGCONT)
    os.close(descriptor)


FAULTS = {
    "client_pause": Fault(config=ClientPauseConfig, inject=_inject_client_pause),
    "consumer_pause": Fault(config=ConsumerPauseConfig, inject=_inject_consumer_pause),
    "consumer_slow": Fault(config=ConsumerSlowConfig, inject=_inject_consumer_slow),
    "cold_catch_up": Fault(
        config=ColdCatchUpConfig,
        inject=_inject_cold_catch_up,
        missing_from_lab=missing_drive_of_node,
    ),
    "quiet": Fault(config=QuietConfig, inject=_inject_quiet),
}
