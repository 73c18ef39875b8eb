"""Start offsets in topics that existed before the run, stored before its load begins.

A consumer that asked for them when it starts would miss messages that were acknowledged before: after a kill,
or after a slow start.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from soak.core.errors import RunFolderError
from soak.core.plan.plan import Plan
from soak.core.ports import EARLIEST, LATEST, Broker
from soak.runtime.context import topics_of
from soak.service.files import read_json, write_atomically
from soak.store.run_folder import Run, RunFolder


def store_start_offsets(folder: RunFolder, run: Run, plan: Plan, broker: Broker) -> None:
    """Store the current end of each partition, unless the run created the topics itself.

    Raises:
        BrokerError: the cluster did not answer for all partitions in time.
    """
    if not plan.topic.use_existing:
        return
    every = dict.fromkeys(range(plan.topic.total_partitions), LATEST)
    consumer = broker.consumer(topics_of(plan), f"begin-{run.id}-{run.host}", every)
    try:
        bounds = consumer.log_bounds(list(every))
    finally:
        consumer.close_for_good()
    write_atomically(folder.begin, json.dumps([bounds[at][1] for at in every]) + "\n")


def read_start_offsets(folder: RunFolder, plan: Plan, partitions: Iterable[int]) -> dict[int, int]:
    """Return the offset of each partition from which on messages belong to the run.

    Raises:
        RunFolderError: the offsets were not stored before the load, or the file is damaged.
    """
    if not plan.topic.use_existing:
        return dict.fromkeys(partitions, EARLIEST)
    try:
        stored = read_json(folder.begin)
        return {at: int(stored[at]) for at in partitions}
    except FileNotFoundError as error:
        raise RunFolderError(
            f"{folder.begin} is missing: the start offsets of its topics were not stored; start a new run"
        ) from error
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        raise RunFolderError(f"{folder.begin} is damaged: {error}") from error
