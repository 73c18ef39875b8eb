"""The consumer daemon: reads everything, measures end to end, and keeps the audit of what came."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from pathlib import Path

from soak.core import header, plugins
from soak.core.model import Event
from soak.core.ports import Clock, Consumer
from soak.daemons.consume_second import ConsumeSecond
from soak.daemons.context import RESTART_CODE, Context, CpuMeter, boot_id, open_context
from soak.daemons.received import EARLIEST, LATEST, Received, restore

RECEIVE_SECONDS = 0.05
BATCH = 4000


def run(run_dir: Path, index: int, stop: threading.Event, clock: Clock) -> int:
    """Receive until the phases or `stop` end it; return the exit code."""
    context = open_context(run_dir, f"consume.{index}", clock)
    plan = context.plan
    first = LATEST if plan.topic.use_existing else EARLIEST
    received, is_restart = restore(
        context.folder.journal, context.source, dict.fromkeys(range(plan.topic.partitions), first)
    )
    module = plugins.load("soak.brokers", plan.broker_kind)
    broker = module.connect(plan.broker_config, clock)
    consumer = broker.consumer(plan.topic.name, received.positions)
    second = ConsumeSecond(header.boot_of(boot_id()), is_behind=is_restart)
    loop = ConsumeLoop(context, consumer, received, second, clock)
    while not (stop.is_set() or loop.is_over or context.recorder.is_suspended):
        loop.tick()
    loop.finish()
    context.writer.close(is_end=not context.recorder.is_suspended)
    return RESTART_CODE if context.recorder.is_suspended else 0


class ConsumeLoop:
    """One tick: take what is there, and write the record when a second is over."""

    def __init__(
        self,
        context: Context,
        consumer: Consumer,
        received: Received,
        second: ConsumeSecond,
        clock: Clock,
    ) -> None:
        self._context = context
        self._consumer = consumer
        self._received = received
        self._second = second
        self._clock = clock
        self._cpu = CpuMeter(clock)
        self._back_ns = clock.mono_ns()
        self._k = context.grid.k_at(self._back_ns)

    @property
    def is_over(self) -> bool:
        return self._context.phase_file.phases.at(self._k) == "end"

    def tick(self) -> None:
        away_ns = self._clock.mono_ns() - self._back_ns
        batch = self._consumer.receive(BATCH, RECEIVE_SECONDS)
        self._back_ns = self._clock.mono_ns()
        k = self._context.grid.k_at(batch.at_mono_ns)
        if k != self._k:
            if self._k >= 0:
                self._write(self._k, self._received.take_events(self._consumer, self._clock))
            self._k = k
            self._context.phase_file.poll()
        self._second.note_pause(away_ns)  # it delayed what has come only now
        if batch.heads:
            block, is_ours = header.parse(list(batch.heads))
            self._second.note(block[is_ours], batch)
            self._second.note_audit(
                self._received.note(block, is_ours, batch.partition, batch.offset)
            )

    def finish(self) -> None:
        """Record the last part of a second, and where reading ended."""
        events = self._received.final_events(self._consumer, self._clock)
        self._write(max(self._k, 0), events)
        self._consumer.close()

    def _write(self, k: int, events: Sequence[Event]) -> None:
        lags = [
            self._consumer.lag(partition, position)
            for partition, position in self._received.positions.items()
        ]
        lag = None if None in lags else sum(one for one in lags if one is not None)
        reason = self._second.reason()  # as of this second; a lag that is gone now was there in it
        if lag is not None:
            self._second.note_lag(lag, float(self._context.plan.load.rate))
        self._context.recorder.append(
            k,
            self._second.samples(math.nan if lag is None else lag, self._cpu.ratio()),
            histograms={"end_to_end_latency_seconds": self._second.latency.encode()},
            received=self._received.take_spans(),
            events=events,
            trust={"reason": reason},
        )
        self._second.clear()
