"""The surroundings of a run on this machine: a cluster, its injected drives and a mail server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from soak.core.errors import PlanError
from soak.core.plan import plugins
from soak.core.plan.plan import LabDrive
from soak.lab import jvm_attach
from soak.lab.drive import block_device, throttle
from soak.lab.drive.drive import Drive, start_drive
from soak.lab.jars import cache
from soak.lab.mailbox import Mailbox
from soak.lab.ports import Running


@dataclass(frozen=True, slots=True)
class Lab:
    """The processes that were started for a run; `stop` ends all of them, and may be called twice."""

    folder: Path
    broker: Running
    mailbox: Mailbox | None
    drives: Mapping[int, Drive]  # injected drives by the place of their broker, from 1

    def stop(self) -> None:
        with contextlib.ExitStack() as stack:
            if self.mailbox is not None:
                stack.callback(self.mailbox.stop)
            stack.callback(self.stop_cluster)

    def stop_cluster(self) -> None:
        """Stop the brokers and their drives; the mail server stays for what is sent after the load."""
        with contextlib.ExitStack() as stack:  # an error in one step does not skip the others
            for drive in self.drives.values():
                stack.callback(drive.close)
            stack.callback(self.broker.stop)
            for drive in self.drives.values():  # first: a broker that waits for one cannot stop
                stack.callback(drive.answer)


def fetch(kind: str, report: Callable[[str], None]) -> None:
    """Fetch the jars of a kind of broker, once; `report` gets a line if that is necessary.

    Raises:
        LabError: they could not be fetched.
    """
    lock = plugins.load("soak.lab.brokers", kind).LOCK
    cache.fetch(lock, report=lambda text: report(f"{text}; this takes minutes"))


def start_lab(
    folder: Path,
    settings: Mapping[str, str],
    *,
    kind: str = "kafka",
    nodes: int = 1,
    partitions: int = 0,
    drive: LabDrive | None = None,
    relayed: bool = False,
    with_mailbox: bool,
    on_mail: Callable[[bytes], None],
) -> Lab:
    """Start a cluster, its injected drives and a mail server below `folder`; from the main thread.

    `partitions` is the number of replicas that the cluster will hold.

    Raises:
        PlanError: there is no lab broker of this kind, or it cannot have this many nodes.
        LabError: one of them could not be started; the others are stopped.
    """
    module = plugins.load("soak.lab.brokers", kind)
    if nodes > module.MAX_NODES:
        raise PlanError(f"a lab's {kind} has at most {module.MAX_NODES} nodes, not {nodes}")
    # The remains of killed drills and keepers.
    throttle.clear_abandoned()
    jvm_attach.remove_sockets_of_ended_jvms()
    block_device.clear_abandoned()
    with contextlib.ExitStack() as undo:  # an interrupt too must leave nothing behind
        mailbox = Mailbox(on_mail) if with_mailbox else None
        if mailbox is not None:
            mailbox.start()
            undo.callback(mailbox.stop)
        drives: dict[int, Drive] = {}
        if drive is not None:
            for number in drive.brokers:
                drives[number] = _start_drive(folder / f"drive-{number}", drive)
                undo.callback(drives[number].close)
        broker: Running = module.start(
            folder / kind,
            settings,
            nodes=nodes,
            partitions=partitions,
            drives={number: made.mount_point for number, made in drives.items()},
            relayed=relayed,
        )
        undo.pop_all()
    return Lab(folder, broker, mailbox, drives)


def _start_drive(folder: Path, config: LabDrive) -> Drive:
    drive = start_drive(folder, capacity_bytes=config.capacity, filesystem=config.filesystem)
    try:
        if config.dirty_limit is not None:
            drive.limit_dirty(config.dirty_limit)
        if config.write_rate is not None:
            drive.write_slowly(config.write_rate)
    except BaseException:  # an interrupt too must leave nothing behind
        drive.close()
        raise
    return drive
