"""Faults of the run's own daemons: paused producers and consumers, slow consumers, cold catch-up, one crash."""

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
from soak.lab.drive import block_device
from soak.lab.faults.active import ActiveFault, activating, drive_of, lacking_own_drive, node_of
from soak.lab.faults.stopping import Stopping
from soak.lab.ports import Target


def daemon_of(target: Target, name: str) -> int:
    """Return the process of a daemon of the run, such as `consume.0`.

    Raises:
        LabError: there is none.
    """
    daemons = target.daemons()
    if name not in daemons:
        raise LabError(f"no daemon `{name}` runs; known: {', '.join(sorted(daemons))}")
    return daemons[name]


def paused(target: Target, kind: str) -> ActiveFault:
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
            active.on_lift(_let_go, descriptor)
            signal.pidfd_send_signal(descriptor, signal.SIGSTOP)
        active.did(paused=sorted(found))
    return active


def _let_go(descriptor: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it was killed meanwhile
        signal.pidfd_send_signal(descriptor, signal.SIGCONT)
    os.close(descriptor)


# --- Stops the producers of the run, as a host does that swaps or is moved: what is late then is our own
# fault.
# Needs: nothing. SIGSTOP and SIGCONT, to children of this process that die with it.


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ClientPauseConfig:
    """There is nothing to set."""


def inject_client_pause(target: Target, config: ClientPauseConfig) -> ActiveFault:  # noqa: ARG001  # the seam
    """Begin at once.

    Raises:
        LabError: none of them runs.
    """
    return paused(target, "produce")


# --- Stops the consumers of the run: a backlog grows, and is read beside the new messages afterwards.
# It is felt from the lifting on: who is stopped receives nothing, late or not.
# Needs: nothing. SIGSTOP and SIGCONT, to children of this process that die with it.


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ConsumerPauseConfig:
    """There is nothing to set."""


def inject_consumer_pause(target: Target, config: ConsumerPauseConfig) -> ActiveFault:  # noqa: ARG001  # the seam
    """Begin at once.

    Raises:
        LabError: none of them runs.
    """
    active = paused(target, "consume")
    active.is_felt_when_lifted()
    return active


# --- Makes a consumer slower than its producers: its process runs for a part of the time only.
# Needs: nothing. SIGSTOP and SIGCONT, to a child of this process that dies with it.


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ConsumerSlowConfig:
    daemon: str = "consume.0"
    pause: Duration = duration_ns("400ms")  # how long it is stopped at a time
    every: Duration = duration_ns("500ms")  # from one stop to the next

    def __post_init__(self) -> None:
        if self.pause <= 0:
            raise ValueError("pause must be above 0s")
        if self.pause >= self.every:
            raise ValueError("pause must be below every, or the consumer never runs")


def inject_consumer_slow(target: Target, config: ConsumerSlowConfig) -> Stopping:
    """Begin at once.

    Raises:
        LabError: there is no such daemon.
    """
    daemon_of(target, config.daemon)

    def slow_down(active: Stopping) -> None:
        while True:
            pid = target.daemons().get(config.daemon)
            at_wall_ns = None if pid is None else active.stop(pid, config.pause)
            if at_wall_ns is not None:
                active.has_begun(at_wall_ns)
            if active.is_lifted_in(config.every - config.pause):
                return

    active = Stopping("consumer_slow", target, slow_down)
    active.begin()
    return active


# --- Stops the consumers of the run and lets them catch up from the drive: its reads hold up who publishes.
# It is felt from the lifting on, as `consumer_pause` is. Then the kernel is asked to forget what it keeps of
# the topics in memory, as it would have forgotten a backlog of hours; the drive goes on to read as slowly
# until the run is over.
# Needs: a Kafka on an injected drive (`lab.drive`), so root and FUSE.


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ColdCatchUpConfig:
    node: int = 1  # whose drive, from 1
    per_mib: Duration = duration_ns("800ms")  # that is read, in which the drive writes nothing
    topics: str = "soak-*"

    def __post_init__(self) -> None:
        if self.per_mib <= 0:
            raise ValueError("per_mib must be above 0s")


cold_catch_up_lacks = lacking_own_drive


def inject_cold_catch_up(target: Target, config: ColdCatchUpConfig) -> ActiveFault:
    """Begin at once.

    Raises:
        LabError: the broker has no injected drive, or no consumer runs.
    """
    drive, node = drive_of(target, config.node), node_of(target, config.node)
    with contextlib.ExitStack() as undo:
        undo.callback(drive.read_slowly, 0.0)
        drive.read_slowly(config.per_mib / SECOND_NS)
        active = paused(target, "consume")
        undo.pop_all()
    active.on_close(drive.read_slowly, 0.0)
    active.on_lift(drive.forget)
    active.on_lift(forget, node.data_directory, config.topics)
    active.is_felt_when_lifted()
    return active


def forget(data: Path, topics: str) -> None:
    """Have the kernel keep nothing in memory of these topics' segments; what is not yet written stays."""
    block_device.drop_folder_from_page_cache(
        segment
        for segment in data.glob("*/*.log")
        if fnmatch.fnmatchcase(segment.parent.name.rpartition("-")[0], topics)
    )


# --- Does what happens in any run: a daemon of ours dies once and is started again; nothing may be found.
# Needs: nothing.


@dataclass(frozen=True, kw_only=True, config=STRICT)
class QuietConfig:
    kills: str = "consume.0"  # which daemon


def inject_quiet(target: Target, config: QuietConfig) -> ActiveFault:
    """Begin at once; the run's supervisor starts it again.

    Raises:
        LabError: there is no such daemon.
    """
    with activating(target) as active:
        os.kill(daemon_of(target, config.kills), signal.SIGKILL)
        active.did(killed=config.kills)
    return active
