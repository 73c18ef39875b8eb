"""Start offsets in topics that existed before the run, stored before its load begins.

A consumer that asked when it starts would skip what was acknowledged before: after a kill, or a slow start.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from soak.core.errors import RunFolderError
from soak.core.plan.plan import Plan
from soak.core.ports import EARLIEST, LATEST, Broker
from soak.runtime.context import topics_of
from soak.service.files import write_atomically
from soak.store.run_folder import Run, RunFolder


def store_start_offsets(folder: RunFolder, run: Run, plan: Plan, broker: Broker) -> None:
    """Keep where the logs end by now, where the run did not make them: what they hold is not ours to read.

    Raises:
        BrokerError: the cluster did not answer for all of them in time.
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
    """Return from which offset on a partition's messages are ours to read.

    Raises:
        RunFolderError: it was not kept before the load, or the file is damaged.
    """
    if not plan.topic.use_existing:
        return dict.fromkeys(partitions, EARLIEST)
    try:
        kept = json.loads(folder.begin.read_text())
        return {at: int(kept[at]) for at in partitions}
    except FileNotFoundError as error:
        raise RunFolderError(
            f"nobody kept where the run's topics ended: no {folder.begin}"
        ) from error
    except (ValueError, TypeError, LookupError) as error:
        raise RunFolderError(f"{folder.begin} is damaged: {error}") from error
