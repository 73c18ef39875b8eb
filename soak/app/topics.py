"""The topics of a run: create them, recognise the ones that the run created, delete those once it is over."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from soak.core.errors import BrokerError, RunFolderError
from soak.core.plan.plan import Plan
from soak.core.plan.text import PlanFile
from soak.core.ports import Broker, TopicCreation
from soak.runtime.context import topics_of
from soak.store.plan_home import is_in_use
from soak.store.run_folder import RunFolder, read_created_topics, read_run, write_created_topics

LOG = logging.getLogger("soak.cli.topics")


def make_topics(
    plan_file: PlanFile, plan: Plan, folder: RunFolder, broker: Broker, *, has_own_names: bool
) -> None:
    """Have the topics of a plan there, those that its run has made already included.

    Raises:
        PlanError: the cluster refuses.
    """
    noted = read_created_topics(folder)
    mark = noted.mark or secrets.token_hex(8)
    noted = replace(noted, mark=mark, asked=plan.topic.names, has_own_names=has_own_names)
    write_created_topics(folder, noted)

    def note(identities: Mapping[str, str]) -> None:
        write_created_topics(folder, read_created_topics(folder).with_made(identities))

    try:
        making = TopicCreation(mark, frozenset(own_topics(folder, broker, plan.topic.names)), note)
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
    noted = read_created_topics(folder)
    there = broker.identities([name for name in names if name in noted.asked])
    return [name for name, identity in there.items() if noted.is_own(name, identity)]


def why_not_own(folder: RunFolder, name: str) -> str:
    """Return why a topic that is there is not taken for one of the run's; "" where it never asked for it."""
    noted = read_created_topics(folder)
    if name not in noted.asked:
        return ""
    if noted.made.get(name):
        return "it is another than the one that this run made"
    if name in noted.made:
        return "the cluster gives a topic nothing that tells it from a later one of its name"
    return "this run asked for it, and was never told that it has it"


def check_same_topics(folder: RunFolder, plan: Plan, broker: Broker) -> None:
    """Check, where the cluster answers, that the topics of a run that goes on are those that it made.

    Raises:
        RunFolderError: one of them is another of the same name.
    """
    noted = read_created_topics(folder)
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


# --- Which topics of a run may be deleted: those that it made, once nobody writes or reads them any more.

_TOPICS_PER_CALL = 20


@dataclass(frozen=True, slots=True)
class RunTopics:
    """The topics that a run asked for, by what they are now."""

    own: tuple[str, ...]
    gone: tuple[str, ...]
    strange: tuple[str, ...]  # of that name, and nothing shows that the run made them


def check_run_is_over(folder: RunFolder) -> None:
    """Refuse a run whose topics are in use, or may be once more.

    Raises:
        RunFolderError: it goes on or is being begun, or there is none.
    """
    run = read_run(folder)
    if run.state == "running":
        how = f"`soak stop {folder.path}` ends it once it goes on"
        raise RunFolderError(f"run {run.id} is not over, its topics stay: {how}")
    if run.state == "beginning" and is_in_use(folder):
        raise RunFolderError(f"run {run.id} is being begun, or the next start goes on with it")


def find_run_topics(folder: RunFolder, broker: Broker) -> RunTopics:
    """Return what has become of the topics; raises `BrokerError` when the cluster does not tell."""
    asked = read_created_topics(folder).asked
    there = broker.existing(asked)
    own = own_topics(folder, broker, there)
    gone = tuple(name for name in asked if name not in there)
    return RunTopics(tuple(own), gone, tuple(name for name in there if name not in own))


def describe_topics(found: RunTopics, plan: Plan) -> Iterator[str]:
    """Give what there is to tell before anything is deleted."""
    where = next(iter(plan.broker_config.addresses.values()))
    if not (found.own or found.gone or found.strange):
        yield "the run made no topic"
    for name in found.own:
        yield f"to delete        {name} at {where}"
    for name in found.gone:
        yield f"not there        {name}"
    for name in found.strange:
        yield f"left alone       {name}: nothing shows that it is the one that the run made"


def delete_topics(found: RunTopics, broker: Broker) -> None:
    """Delete what is the run's own; raises `BrokerError` at the first that the cluster keeps."""
    for first in range(0, len(found.own), _TOPICS_PER_CALL):
        broker.delete_topics(found.own[first : first + _TOPICS_PER_CALL])
