"""Our side: the daemons as they run in a soak, on a run folder of their own, journal and audit on."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hdrh.histogram import HdrHistogram

from soak.core import header, histogram
from soak.core.clock import SystemClock
from soak.core.errors import SoakError
from soak.core.plan import text
from soak.core.plan.phases import decision_line
from soak.core.plan.plan import Plan, with_plugin_values
from soak.core.ports import EARLIEST
from soak.core.units import SECOND_NS
from soak.runtime.context import connect, topics_of
from soak.runtime.grid import host_name
from soak.service.files import write_atomically
from soak.store.journal.reader import last_record, read_source
from soak.store.run_folder import Run, RunFolder, write_run
from tests.bench.process import Process, start

LEAD_SECONDS = 4  # every daemon is ready by then
SETTLE_SECONDS = 3  # from the last send to the end
_LATENCY = "publish_latency_seconds"
_READ_LIMIT = 4000
_PATIENCE_SECONDS = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class Second:
    """One record of a daemon: its columns by name, and how long it covers."""

    k: int
    length_ns: int
    values: dict[str, float]
    histograms: dict[str, str]


def plan_of(raw: dict[str, Any], addresses: dict[str, str]) -> Plan:
    """Return a plan as a run would resolve it; `raw` is what a plan file holds."""
    plan = text.load(json.dumps(raw), "bench").plan  # JSON is YAML
    return with_plugin_values(plan, "broker", addresses)


def create_topics(plan: Plan) -> None:
    broker = connect(plan, SystemClock())
    broker.create_topics(topics_of(plan), plan.topic.replication, plan.topic.settings)


def prepare(
    path: Path, plan: Plan, load_seconds: int, lead_seconds: int = LEAD_SECONDS
) -> RunFolder:
    """Write a run folder whose load begins `lead_seconds` from now, all phases decided.

    Runs on one topic have one id: a consumer counts the messages of its own run alone.
    """
    folder = RunFolder(path)
    folder.logs.mkdir(parents=True)
    write_atomically(folder.plan, text.dump(plan))
    start_ns = SystemClock().wall_ns() + lead_seconds * SECOND_NS
    write_run(folder, Run(plan.topic.name, start_ns, host_name(), {}, "running", plan.name))
    end = load_seconds + SETTLE_SECONDS
    lines = [
        decision_line("soak", 0),
        decision_line("drain", load_seconds),
        decision_line("end", end),
    ]
    write_atomically(folder.phases, "".join(lines))
    return folder


def spawn(folder: RunFolder, role: str) -> Process:
    """Start `produce` or `consume` as the supervisor does."""
    argv = [sys.executable, "-m", "soak.cli.main", role, "--run-dir", str(folder.path)]
    return start(argv, folder.logs / f"{role}.log")


def seconds(folder: RunFolder, role: str) -> list[Second]:
    """Return what the daemon recorded, in order."""
    return [
        Second(
            record.k,
            record.length_ns,
            dict(zip((column.name for column in columns), record.values, strict=True)),
            dict(record.histograms),
        )
        for record, columns in read_source(folder.journal, _source(role))
    ]


def total(found: Sequence[Second], name: str) -> int:
    return round(sum(one.values[name] for one in found))


def rate(found: Sequence[Second], name: str) -> float:
    """Return how many a second over records that lie wholly inside the load."""
    return total(found, name) * SECOND_NS / sum(one.length_ns for one in found)


def busy(found: Sequence[Second], name: str) -> list[Second]:
    """Return the records between the first and the last in which something was counted.

    Raises:
        SoakError: there is none between: too few messages to tell a rate from.
    """
    counted = [at for at, one in enumerate(found) if one.values[name]]
    between = list(found[counted[0] + 1 : counted[-1]]) if counted else []
    if not between:
        raise SoakError(f"{name} were counted in {len(counted)} seconds, too few for a rate")
    return between


def has_received(folder: RunFolder, count: int) -> Callable[[], bool]:
    """Return a question whether the consumer has recorded `count` messages; costs a read of one line."""
    seen: dict[int, float] = {}

    def is_done() -> bool:
        if not (folder.journal / _source("consume")).is_dir():
            return False
        found = last_record(folder.journal, _source("consume"))
        if found is not None:
            record, columns = found
            names = [column.name for column in columns]
            seen[record.k] = record.values[names.index("received_messages")]
        return sum(seen.values()) >= count

    return is_done


def publish_latency_ms(found: Sequence[Second], percentile: float) -> float:
    """Return a quantile of the latency from the intended time to the acknowledgement."""
    merged = HdrHistogram(histogram.LOWEST_US, histogram.HIGHEST_US, histogram.DIGITS)
    for one in found:
        merged.add(histogram.decode(one.histograms[_LATENCY]))
    return float(merged.get_value_at_percentile(percentile)) / 1000


def delays_ns(plan: Plan, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return how late each message was sent, and when it was due, shape (count, 2), as the messages say.

    Read back from the topic, so it is what was sent, whatever the producer has recorded of it.
    """
    topics = topics_of(plan)
    begin = dict.fromkeys(range(topics.total), EARLIEST)
    consumer = connect(plan, SystemClock()).consumer(topics, "bench", begin)
    parts: list[np.ndarray[Any, np.dtype[np.int64]]] = []
    left = count
    while left > 0:
        batch = consumer.receive(_READ_LIMIT, _PATIENCE_SECONDS)
        if not len(batch.heads):
            raise SoakError(f"{left} of {count} messages are not in {plan.topic.name}")
        block, is_ours = header.parse(batch.heads)
        parts.append(np.stack([block["delay_ns"], block["intended_mono_ns"]], axis=1)[is_ours])
        left -= len(batch.heads)
    consumer.close()
    return np.concatenate(parts)


def _source(role: str) -> str:
    return f"{role}.0@{host_name()}"
