"""The surroundings of a run on this machine: a broker of its own and a mail server that shows mail."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from soak.core import plugins
from soak.core.errors import PlanError
from soak.lab.mailbox import Mailbox
from soak.lab.ports import Running


@dataclass(frozen=True, slots=True)
class Lab:
    """What was started for a run; `stop` ends it all."""

    broker: Running
    mailbox: Mailbox | None

    def stop(self) -> None:
        with contextlib.ExitStack() as stack:  # one that fails does not keep the other running
            if self.mailbox is not None:
                stack.callback(self.mailbox.stop)
            stack.callback(self.broker.stop)


def start_lab(
    folder: Path,
    settings: Mapping[str, str],
    *,
    kind: str = "kafka",
    nodes: int = 1,
    partitions: int = 0,
    with_mailbox: bool,
    on_mail: Callable[[bytes], None],
) -> Lab:
    """Start a cluster and a mail server below `folder`; from the main thread.

    `partitions`, each copy counted, is what the cluster is to hold.

    Raises:
        PlanError: there is no lab broker of this kind, or it cannot have so many nodes.
        LabError: one of them could not be started; neither is left running.
    """
    module = plugins.load("soak.lab.brokers", kind)
    if nodes > module.MOST_NODES:
        raise PlanError(f"a lab's {kind} has at most {module.MOST_NODES} nodes, not {nodes}")
    mailbox = Mailbox(on_mail) if with_mailbox else None
    if mailbox is not None:
        mailbox.start()
    try:
        broker: Running = module.start(folder / kind, settings, nodes=nodes, partitions=partitions)
    except BaseException:  # an interrupt too must leave nothing behind
        if mailbox is not None:
            mailbox.stop()
        raise
    return Lab(broker, mailbox)
