"""The surroundings of a run on this machine: a cluster, its injected drives and a mail server that shows mail."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from soak.core import plugins
from soak.core.errors import PlanError
from soak.core.plan.plan import LabDrive
from soak.lab import jvm_attach
from soak.lab.drive import block_device, throttle
from soak.lab.drive import drive as injected
from soak.lab.drive.drive import Drive
from soak.lab.jars import cache
from soak.lab.mailbox import Mailbox
from soak.lab.ports import Running


@dataclass(frozen=True, slots=True)
class Lab:
    """What was started for a run; `stop` ends it all."""

    folder: Path
    broker: Running
    mailbox: Mailbox | None
    drives: Mapping[int, Drive]  # injected, by the place of their broker from 1

    def stop(self) -> None:
        with contextlib.ExitStack() as stack:  # one that fails does not keep the other running
            for drive in self.drives.values():
                stack.callback(drive.close)
            if self.mailbox is not None:
                stack.callback(self.mailbox.stop)
            stack.callback(self.broker.stop)
            for drive in self.drives.values():  # first: who waits for one cannot end
                stack.callback(drive.answer)


def fetch(kind: str, report: Callable[[str], None]) -> None:
    """Fetch what a kind of broker consists of; `report` is told when that takes its time, the first time.

    Raises:
        LabError: it could not be fetched.
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

    `partitions`, each copy counted, is what the cluster is to hold.

    Raises:
        PlanError: there is no lab broker of this kind, or it cannot have so many nodes.
        LabError: one of them could not be started; neither is left running.
    """
    module = plugins.load("soak.lab.brokers", kind)
    if nodes > module.MOST_NODES:
        raise PlanError(f"a lab's {kind} has at most {module.MOST_NODES} nodes, not {nodes}")
    throttle.clear()  # of a drill that was killed
    jvm_attach.clear()
    block_device.clear_left()  # of a keeper that was
    with contextlib.ExitStack() as undo:  # an interrupt too must leave nothing behind
        mailbox = Mailbox(on_mail) if with_mailbox else None
        if mailbox is not None:
            mailbox.start()
            undo.callback(mailbox.stop)
        drives: dict[int, Drive] = {}
        if drive is not None:
            for number in drive.brokers:
                where = folder / f"drive-{number}"
                made = injected.start(
                    where, capacity_bytes=drive.capacity, filesystem=drive.filesystem
                )
                undo.callback(made.close)
                if drive.dirty_limit is not None:
                    made.limit_dirty(drive.dirty_limit)
                if drive.write_rate is not None:
                    made.write_slowly(drive.write_rate)
                drives[number] = made
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
