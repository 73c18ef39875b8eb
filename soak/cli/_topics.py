"""The topics that a run makes: which are its own, however often it is cut short."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace

from soak.core.errors import BrokerError, RunFolderError
from soak.core.plan import Plan
from soak.core.plan_text import PlanFile
from soak.core.ports import Broker, Making
from soak.daemons.context import topics_of
from soak.store.made_topics import read_made, write_made
from soak.store.run_folder import RunFolder

LOG = logging.getLogger("soak.cli.topics")


def make(
    plan_file: PlanFile, plan: Plan, folder: RunFolder, broker: Broker, *, has_own_names: bool
) -> None:
    """Have the topics of a plan there, those that its run has made already included.

    Raises:
        PlanError: the cluster refuses.
    """
    noted = read_made(folder)
    mark = noted.mark or secrets.token_hex(8)
    noted = replace(noted, mark=mark, asked=plan.topic.names, has_own_names=has_own_names)
    write_made(folder, noted)

    def note(identities: Mapping[str, str]) -> None:
        write_made(folder, read_made(folder).with_made(identities))

    try:
        making = Making(mark, frozenset(own_topics(folder, broker, plan.topic.names)), note)
        topic = plan.topic
        broker.create_topics(topics_of(plan), topic.replication, topic.settings, making)
    except BrokerError as error:
        raise plan_file.error("topic", str(error)) from error


def own_topics(folder: RunFolder, broker: Broker, names: Sequence[str]) -> list[str]:
    """Return which of these topics are there and were made by the run of a folder.

    Raises:
        BrokerError: the cluster did not answer in time.
        RunFolderError: nobody can tell, as its notes are damaged.
    """
    noted = read_made(folder)
    there = broker.identities([name for name in names if name in noted.asked])
    return [name for name, identity in there.items() if noted.is_own(name, identity)]


def why_strange(folder: RunFolder, name: str) -> str:
    """Return why a topic that is there is not taken for one of the run's; "" where it never asked for it."""
    noted = read_made(folder)
    if name not in noted.asked:
        return ""
    if noted.made.get(name):
        return "it is another than the one that this run made"
    if name in noted.made:
        return "the cluster gives a topic nothing that tells it from a later one of its name"
    return "this run asked for it, and was never told that it has it"


def check_same(folder: RunFolder, plan: Plan, broker: Broker) -> None:
    """Check, where the cluster answers, that the topics of a run that goes on are those that it made.

    Raises:
        RunFolderError: one of them is another of the same name.
    """
    noted = read_made(folder)
    names = [name for name in plan.topic.names if noted.made.get(name)]
    if not names or folder.stop_request.exists():  # to end, it only reads what it had sent
        return
    try:
        there = broker.identities(names)
    except BrokerError as error:  # the daemons wait for a cluster, and so may a run
        LOG.warning("topics_not_checked why=%r", str(error))
        return
    for name, identity in there.items():
        if not noted.is_own(name, identity):
            raise RunFolderError(
                f"topic {name} is another than the one that the run in {folder.path} made, and is not "
                f"written into; after `soak stop {folder.path}` it ends when it goes on"
            )
