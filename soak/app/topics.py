"""The topics of a run: create them, recognise the ones that the run created, delete those once it is over."""

from __future__ import annotations

import logging
import secrets
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from soak.core.clock import SystemClock
from soak.core.errors import BrokerError, PlanError, RunFolderError, SoakError, not_now
from soak.core.plan.plan import Plan
from soak.core.plan.text import PlanFile
from soak.core.ports import Broker, Note, TopicCreation
from soak.runtime.context import connect, topics_of
from soak.service.files import file_lock
from soak.store.plan_home import is_in_use
from soak.store.run_folder import (
    RunFolder,
    read_created_topics,
    read_plan,
    read_run,
    write_created_topics,
)

LOG = logging.getLogger(__name__)
_TOPICS_PER_CALL = 20


def create_topics(
    plan_file: PlanFile, plan: Plan, folder: RunFolder, broker: Broker, *, has_own_names: bool
) -> None:
    """Create the topics of a plan; those that its run created before stay.

    Raises:
        PlanError: the cluster rejects the request.
        NotNowError: it does not answer any more.
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
        raise _creation_error(plan_file, broker, error) from error


def _creation_error(plan_file: PlanFile, broker: Broker, error: BrokerError) -> PlanError:
    """Return the error of a request at the plan's `topic`: a cluster that is gone has rejected nothing."""
    try:
        broker.check()
    except BrokerError as gone:
        return not_now(
            plan_file.error("topic", f"{error}; the cluster does not answer now: {gone}")
        )
    return plan_file.error("topic", str(error))


def own_topics(folder: RunFolder, broker: Broker, names: Sequence[str]) -> list[str]:
    """Return which of these topics exist and were created by the run of a folder.

    Raises:
        BrokerError: the cluster did not answer in time.
        RunFolderError: the list of created topics is damaged.
    """
    noted = read_created_topics(folder)
    there = broker.identities([name for name in names if name in noted.asked])
    return [name for name, identity in there.items() if noted.is_own(name, identity)]


def why_not_own(folder: RunFolder, name: str) -> str:
    """Return why an existing topic does not count as created by the run; "" if the run never requested it."""
    noted = read_created_topics(folder)
    if name not in noted.asked:
        return ""
    if noted.made.get(name):
        return "it is not the topic that this run created"
    if name in noted.made:
        return "the cluster has no identity by which to distinguish a topic from a later one of the same name"
    return "this run requested it, and the cluster never confirmed it"


def check_same_topics(folder: RunFolder, plan: Plan, broker: Broker) -> None:
    """Check, if the cluster answers, that the topics of a resumed run are the ones that it created.

    Raises:
        RunFolderError: one of them is another topic of the same name.
    """
    noted = read_created_topics(folder)
    names = [name for name in plan.topic.names if noted.made.get(name)]
    if not names or folder.stop_request.exists():  # then the run only receives what it sent before
        return
    try:
        there = broker.identities(names)
    except BrokerError as error:  # the daemons wait for the cluster
        LOG.warning("topics_not_checked why=%r", str(error))
        return
    for name, identity in there.items():
        if not noted.is_own(name, identity):
            raise RunFolderError(
                f"topic {name} is not the one that the run in {folder.path} created, and the run does not "
                f"write to it; `soak stop {shlex.quote(str(folder.path))}` ends the run when it is resumed"
            )


def remaining_text(folder: RunFolder) -> str:
    """Return which topics of a start that failed stay, and the command that deletes them; "" where none does.

    Raises:
        RunFolderError: the list of created topics is damaged.
    """
    made = list(read_created_topics(folder).made)
    if not made:
        return ""
    which = (
        f"the empty topic {made[0]} stays" if len(made) == 1 else f"{len(made)} empty topics stay"
    )
    return f"{which}: `soak clean {shlex.quote(str(folder.path))}` deletes what the run created"


@contextmanager
def remaining_topics_named(folder: RunFolder, note: Note) -> Iterator[None]:
    """Note of topics that were created before a start failed that they stay, and how to delete them.

    The failure of the start is raised, whatever the list of created topics looks like.
    """
    try:
        yield
    except SoakError:
        try:
            remaining = remaining_text(folder)
        except RunFolderError as error:
            remaining = f"it is not known whether topics stay: {error}"
        if remaining:
            note(remaining)
        raise


@dataclass(frozen=True, slots=True)
class RunTopics:
    """The topics that a run requested: its own, missing ones, and foreign topics of the same name."""

    own: tuple[str, ...]
    missing: tuple[str, ...]
    foreign: tuple[str, ...]  # nothing shows that the run created them


def check_run_is_over(folder: RunFolder) -> None:
    """Reject a run whose topics are in use, or will be.

    Raises:
        RunFolderError: the run is not over, is just starting, or there is none.
    """
    run = read_run(folder)
    if run.state == "running":
        how = f"`soak stop {shlex.quote(str(folder.path))}` ends it as soon as it runs"
        raise RunFolderError(f"run {run.id} is not over, its topics stay: {how}")
    if run.state == "beginning" and is_in_use(folder):
        raise RunFolderError(f"run {run.id} is starting, or the next start resumes it")


def clean_run(folder: RunFolder, may_delete: Callable[[], bool]) -> bool:
    """List the topics that a run created, and delete them if `may_delete` agrees; return if none is left.

    Raises:
        SoakError: the run is not over, its folder is damaged, or the cluster does not answer or delete.
    """
    check_run_is_over(folder)
    plan = read_plan(folder)
    if plan.lab is not None:
        print("its topics went with the lab's broker")
        return True
    with file_lock(folder.path / "run.lock", "this run folder"):
        found = find_run_topics(folder, connect(plan, SystemClock()))
        print("\n".join(describe_topics(found, plan)), flush=True)
        if not found.own:
            return True
        if not may_delete():
            print("nothing was deleted: --yes deletes them")
            return False
        delete_topics(found, connect(plan, SystemClock()))
    print(f"deleted: {len(found.own)}")
    return True


def find_run_topics(folder: RunFolder, broker: Broker) -> RunTopics:
    """Return the topics of a run by whether they still exist and are its own.

    Raises:
        BrokerError: the cluster does not answer.
    """
    asked = read_created_topics(folder).asked
    existing = broker.existing(asked)
    own = own_topics(folder, broker, existing)
    missing = tuple(name for name in asked if name not in existing)
    return RunTopics(tuple(own), missing, tuple(name for name in existing if name not in own))


def describe_topics(found: RunTopics, plan: Plan) -> Iterator[str]:
    """Give a line for each topic of a run, to read before any is deleted."""
    where = next(iter(plan.broker_config.addresses.values()))
    if not (found.own or found.missing or found.foreign):
        yield "the run created no topic"
    for name in found.own:
        yield f"to delete     {name} at {where}"
    for name in found.missing:
        yield f"already gone  {name}"
    for name in found.foreign:
        yield f"not deleted   {name}: nothing shows that this run created it"


def delete_topics(found: RunTopics, broker: Broker) -> None:
    """Delete the run's own topics.

    Raises:
        BrokerError: the cluster did not delete one.
    """
    for first in range(0, len(found.own), _TOPICS_PER_CALL):
        broker.delete_topics(found.own[first : first + _TOPICS_PER_CALL])
