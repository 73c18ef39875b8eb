"""The consumer daemon: reads all messages, measures end-to-end latency, and tracks what was received."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from soak.conductor.load_records import process_index
from soak.core import header
from soak.core.model import Event, Span
from soak.core.plan.rates import rates_between
from soak.core.ports import Batch, Clock, Consumer
from soak.core.units import SECOND_NS
from soak.load.consumer.interval import ConsumerInterval, merge_batches, split_batch
from soak.load.consumer.sequence_tracker import SequenceTracker, restore_tracker
from soak.load.consumer.start_offsets import read_start_offsets
from soak.load.cpu_wait import CpuWaitMeter
from soak.load.leaders import Leaders
from soak.load.producer.pacing import rate_table
from soak.runtime.context import (
    RESTART_CODE,
    Context,
    CpuMeter,
    boot_id,
    connect,
    open_context,
    topics_of,
)
from soak.service.scheduling import reduce_garbage_collection
from soak.service.systemd import notifier

RECEIVE_SECONDS = 0.2
MIN_RECEIVE_SECONDS = 0.001
BATCH_MESSAGES = 4000
DIGEST_NS = SECOND_NS // 5  # messages are stamped as they come, and looked at in lots
_DONE = object()


def run(run_dir: Path, index: int, stop: threading.Event, clock: Clock) -> int:
    """Receive until the phases or `stop` end it; return the exit code."""
    context = open_context(run_dir, f"consume.{index}", clock)
    plan, topics = context.plan, topics_of(context.plan)
    who = plan.consumers
    mine = range(who.member_of(index), topics.total, who.per_subscription)
    begin = read_start_offsets(context.folder, plan, mine)
    broker = connect(plan, clock)
    received, is_restart = restore_tracker(
        context.folder.journal, context.source, begin, broker.block_bits
    )
    subscription = f"audit-{who.subscription_of(index)}"
    consumer = broker.consumer(topics, subscription, received.positions)
    leaders = Leaders(broker, topics)
    leaders.start()
    is_late = context.grid.k_at(clock.mono_ns()) >= 0  # the load has begun
    second = ConsumerInterval(header.boot_of(boot_id()), leaders, is_behind=is_restart or is_late)
    loop = ConsumerLoop(context, consumer, received, second, clock)
    reduce_garbage_collection()
    manager, second_k = notifier(), loop.k
    manager.ready()
    while not (stop.is_set() or loop.is_over or context.recorder.is_suspended):
        loop.tick()
        if loop.k != second_k:
            second_k = loop.k
            manager.alive()
    manager.stopping()
    loop.finish()
    leaders.close()
    context.writer.close(is_end=not context.recorder.is_suspended)
    return RESTART_CODE if context.recorder.is_suspended else 0


class ConsumerLoop:
    """One tick: take what is there, and write the record when a second is over."""

    def __init__(
        self,
        context: Context,
        consumer: Consumer,
        received: SequenceTracker,
        second: ConsumerInterval,
        clock: Clock,
    ) -> None:
        self._context = context
        self._consumer = consumer
        self._received = received
        self._second = second
        self._clock = clock
        self._cpu, self._cpu_wait = CpuMeter(clock), CpuWaitMeter(clock)
        self._run = header.run_of(context.run.id)
        self._writing: Iterator[None] = iter(())  # of the second before
        self._waiting: list[Batch] = []
        self._waiting_messages = 0
        self._waited_ns = self._digest_ns = clock.mono_ns()  # until when it waited for messages
        self._k = context.grid.k_at(self._waited_ns)
        self._table = rate_table(context.plan, context.folder)
        self._share = len(received.positions) / topics_of(context.plan).total
        self._is_paused = False
        self._catches_up = context.plan.consumers.catches_up(process_index(context.source))

    @property
    def k(self) -> int:
        """Return the second that is being measured."""
        return self._k

    @property
    def is_over(self) -> bool:
        return self._context.phase_file.phases.at(self._k) == "end"

    def tick(self) -> None:
        is_writing = next(self._writing, _DONE) is not _DONE  # another piece is to come
        is_building = self._context.phase_file.phases.is_building(self._k)
        self._hold(is_paused=is_building and self._catches_up)
        away_ns = self._clock.mono_ns() - self._waited_ns
        left_ns = self._context.grid.start_of(self._k + 1) - self._clock.mono_ns()
        patience = min(RECEIVE_SECONDS, max(left_ns / SECOND_NS, MIN_RECEIVE_SECONDS))
        if is_writing:
            patience = MIN_RECEIVE_SECONDS
        batch = self._consumer.receive(BATCH_MESSAGES, patience)
        self._waited_ns = batch.at_mono_ns
        k = self._context.grid.k_at(batch.at_mono_ns)
        if k != self._k:  # the wait ended after the edge; most of what it brought had come before
            before, batch = split_batch(batch, self._context.grid.start_of(self._k + 1))
            self._wait_with(before)
            self._digest()
            if self._k >= 0:
                self._write(self._k, self._received.take_events(self._consumer, self._clock))
            self._k = k
            self._context.phase_file.poll()
        self._second.note_pause(away_ns)  # it delayed what has come only now
        self._second.redelivered += batch.redelivered
        self._wait_with(batch)
        if self._waiting_messages >= BATCH_MESSAGES or self._waited_ns >= self._digest_ns:
            self._digest()

    def finish(self) -> None:
        """Record the last part of a second, and where reading ended."""
        self._digest()
        self._consumer.pause(is_paused=True)  # a question would wait behind each fetch
        events = self._received.final_events(self._consumer, self._clock)
        self._write(max(self._k, 0), events)
        self._finish_writing()
        if self.is_over:
            self._consumer.close_for_good()
        else:  # stopped before its time: who starts again reads on
            self._consumer.close()

    def _wait_with(self, batch: Batch) -> None:
        if len(batch.heads):
            self._waiting.append(batch)
            self._waiting_messages += len(batch.heads)

    def _digest(self) -> None:
        """Look at what has come since the last time: measure it, and note it for the audit."""
        self._digest_ns = self._waited_ns + DIGEST_NS
        if not self._waiting:
            return
        lot = merge_batches(self._waiting)
        self._waiting, self._waiting_messages = [], 0
        block, is_ours = header.parse(lot.heads, self._run)
        counts = self._received.note(block, is_ours, lot.partition, lot.offset)
        self._second.note(block, is_ours, lot, counts)

    def _hold(self, *, is_paused: bool) -> None:
        """Let a backlog grow while a catch-up builds one, and read on after it."""
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            self._consumer.pause(is_paused=is_paused)

    def _rate(self, k: int) -> float:
        """Return how many messages a second are sent to the partitions that are read here."""
        phases, load = self._context.phase_file.phases, self._context.plan.load
        return float(next(rates_between(load, phases, self._table, k, k + 1))[1]) * self._share

    def _write(self, k: int, events: Sequence[Event]) -> None:
        """End a second; its record is written piece by piece while the next one is collected."""
        self._finish_writing()
        lag, spans = self._consumer.lag(self._received.positions), self._received.take_spans()
        done, cpu = self._second, (self._cpu.ratio(), self._cpu_wait.ratio())
        self._writing = self._pieces(k, done, lag, cpu, spans, events)
        self._second = done.following(lag, self._rate(k))

    def _pieces(
        self,
        k: int,
        second: ConsumerInterval,
        lag: int | None,
        cpu: tuple[float, float],
        spans: dict[str, tuple[Span, ...]],
        events: Sequence[Event],
    ) -> Iterator[None]:
        """Do a piece between two: what comes during one is stamped after it."""
        samples = second.samples(math.nan if lag is None else lag, *cpu)
        yield
        encoded = {}
        for name, histogram in second.histograms().items():
            encoded[name] = histogram.encode()
            yield
        self._context.recorder.append(
            k,
            samples,
            histograms=encoded,
            received=spans,
            events=events,
            validity={"reason": second.reason()},
        )

    def _finish_writing(self) -> None:
        for _ in self._writing:
            pass
