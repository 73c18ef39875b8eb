"""Producer and consumer loops on a fake clock, with a fake broker."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from soak.core import header
from soak.core.clock import Grid
from soak.core.model import Record
from soak.core.plan.plan import Plan
from soak.core.ports import EARLIEST, Batch, Consumer, Producer, Topics, WakeUp
from soak.load.consumer.interval import ConsumerInterval
from soak.load.consumer.loop import ConsumerLoop
from soak.load.consumer.sequence_tracker import SequenceTracker
from soak.load.leaders import Leaders
from soak.load.producer.interval import ProducerInterval
from soak.load.producer.loop import ProducerLoop
from soak.load.producer.messages import Messages
from soak.runtime.context import Context, PhaseFile, topics_of
from soak.runtime.recorder import Recorder
from soak.store.journal.reader import read_source
from soak.store.journal.writer import JournalWriter, Write
from soak.store.run_folder import Run, RunFolder
from tests.support.fakes import FakeBell, FakeBroker, FakeClock

BOOT, INSTANCE = 9, 5


def context_of(
    path: Path, plan: Plan, clock: FakeClock, role: str, phases: str, write: Write = os.write
) -> Context:
    """Return a run that starts now; `phases` is the text of its phases file."""
    folder = RunFolder(path)
    folder.phases.write_text(phases)
    source = f"{role}@host"
    writer = JournalWriter(folder.journal / source, clock, write=write).open()
    run = Run("x", clock.wall_ns(), "host", {}, "running")
    grid = Grid.anchored(run.start_wall_ns, clock)
    phase_file = PhaseFile(folder.phases)
    phase_file.poll()
    return Context(
        folder, plan, run, source, grid, writer, Recorder(writer, grid, clock), phase_file
    )


def producer_loop(
    context: Context,
    producers: Sequence[Producer],
    clock: FakeClock,
    *,
    index: int = 0,
    broker: FakeBroker | None = None,
    wake_up: WakeUp | None = None,
) -> ProducerLoop:
    """Return producer process `index`, with one client for each producer."""
    broker, topics = broker or FakeBroker(), topics_of(context.plan)
    epoch, instances = context.writer.epoch, range(INSTANCE, INSTANCE + len(producers))
    return ProducerLoop(
        context,
        index,
        producers,
        Messages(context.plan.load, topics, instances, epoch, BOOT, broker),
        ProducerInterval(instances, epoch, topics.total),
        Leaders(broker, topics),
        clock,
        wake_up or FakeBell(clock),
    )


def consumer_interval(
    *, is_behind: bool = False, broker: FakeBroker | None = None
) -> ConsumerInterval:
    leaders = Leaders(broker or FakeBroker(), Topics(("soak-x",), 2))
    return ConsumerInterval(BOOT, leaders, is_behind=is_behind)


def consumer_loop(
    context: Context,
    consumer: Consumer,
    clock: FakeClock,
    *,
    partitions: Sequence[int] = (0, 1),
    is_behind: bool = False,
) -> ConsumerLoop:
    tracker = SequenceTracker(dict.fromkeys(partitions, EARLIEST))
    return ConsumerLoop(context, consumer, tracker, consumer_interval(is_behind=is_behind), clock)


def batch_of(
    clock: FakeClock, rows: Sequence[tuple[int, int]] = (), epoch: int = 1, run: str = "x"
) -> Batch:
    """Return messages (sequence, offset) of one producer stream in partition 0, due a millisecond ago."""
    block = header.headers(len(rows), INSTANCE, epoch, BOOT, header.run_of(run))
    block["sequence"] = [sequence for sequence, _ in rows]
    block["intended_mono_ns"] = clock.mono_ns() - 1_000_000
    return Batch(
        heads=[row.tobytes() + b"body" for row in block],
        partition=np.zeros(len(rows), dtype=np.int64),
        offset=np.array([offset for _, offset in rows], dtype=np.int64),
        at_mono_ns=clock.mono_ns(),
        at_wall_ns=clock.wall_ns(),
    )


def records_of(context: Context) -> list[tuple[Record, dict[str, float]]]:
    """End the journal; return its records, with their values by column name."""
    context.writer.close(is_end=True)
    return [
        (record, dict(zip((column.name for column in columns), record.values, strict=True)))
        for record, columns in read_source(context.folder.journal, context.source)
    ]
