"""Which topics of a run may be deleted: those that it made, once nobody writes or reads them any more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from soak.cli._topics import own_topics
from soak.core.errors import RunFolderError
from soak.core.plan import Plan
from soak.core.ports import Broker
from soak.store.home import is_taken
from soak.store.made_topics import read_made
from soak.store.run_folder import RunFolder, read_run

_A_CALL = 20


@dataclass(frozen=True, slots=True)
class Found:
    """The topics that a run asked for, by what they are now."""

    own: tuple[str, ...]
    gone: tuple[str, ...]
    strange: tuple[str, ...]  # of that name, and nothing shows that the run made them


def refuse_unended(folder: RunFolder) -> None:
    """Refuse a run whose topics are in use, or may be once more.

    Raises:
        RunFolderError: it goes on or is being begun, or there is none.
    """
    run = read_run(folder)
    if run.state == "running":
        how = f"`soak stop {folder.path}` ends it once it goes on"
        raise RunFolderError(f"run {run.id} is not over, its topics stay: {how}")
    if run.state == "beginning" and is_taken(folder):
        raise RunFolderError(f"run {run.id} is being begun, or the next start goes on with it")


def look(folder: RunFolder, broker: Broker) -> Found:
    """Return what has become of the topics; raises `BrokerError` when the cluster does not tell."""
    asked = read_made(folder).asked
    there = broker.existing(asked)
    own = own_topics(folder, broker, there)
    gone = tuple(name for name in asked if name not in there)
    return Found(tuple(own), gone, tuple(name for name in there if name not in own))


def lines(found: Found, plan: Plan) -> Iterator[str]:
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


def delete(found: Found, broker: Broker) -> None:
    """Delete what is the run's own; raises `BrokerError` at the first that the cluster keeps."""
    for first in range(0, len(found.own), _A_CALL):
        broker.delete_topics(found.own[first : first + _A_CALL])
