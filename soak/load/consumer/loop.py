"""The consumer daemon: reads all messages, measures end-to-end latency, and tracks what was received."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from soak.core import header
from soak.core.model import Event, Span
from soak.core.plan.load import process_index
from soak.core.plan.objectives import recorded_limits
from soak.core.plan.rates import rates_between
from soak.core.ports import Batch, Clock, Consumer
from soak.core.units import SECOND_NS
from soak.load.client_waits import CpuWaitMeter, Throttling
from soak.load.consumer.interval import ConsumerInterval, merge_batches, split_batch
from soak.load.consumer.sequence_tracker import SequenceTracker, restore_tracker
from soak.load.consumer.start_offsets import read_start_offsets
from soak.load.leaders import Leaders
from soak.runtime.context import (
    CLIENT_EVENT,
    RESTART_CODE,
    Context,
    CpuMeter,
    connect,
    open_context,
    topics_of,
)
from soak.runtime.grid import boot_id_for_messages
from soak.service.scheduling import reduce_garbage_collection
from soak.service.systemd import notifier
from soak.store.run_folder import rate_table

RECEIVE_SECONDS = 0.2
MIN_RECEIVE_SECONDS = 0.001
BATCH_MESSAGES = 4000
COUNT_NS = SECOND_NS // 5  # messages are stamped on arrival, and counted in merged batches
_DONE = object()


def run(run_dir: Path, index: int, stop: threading.Event, clock: Clock) -> int:
    """Receive until the phases or `stop` end it; return the exit code."""
    context = open_context(run_dir, f"consume.{index}", clock)
    plan, topics = context.plan, topics_of(context.plan)
    consumers = plan.consumers
    partitions = range(consumers.member_of(index), topics.total, consumers.per_subscription)
    start_offsets = read_start_offsets(context.folder, plan, partitions)
    broker = connect(plan, clock)
    context.recorder.note_event(CLIENT_EVENT, broker.client_facts())
    tracker, is_restart = restore_tracker(
        context.folder.journal,
        context.source,
        start_offsets,
        broker.block_bits,
        own_instances(context),
    )
    subscription = f"audit-{consumers.subscription_of(index)}"
    consumer = broker.consumer(topics, subscription, tracker.positions)
    leaders = Leaders(broker, topics)
    leaders.start()
    is_late = context.grid.interval_index_at(clock.mono_ns()) >= 0  # the load has begun
    boot = header.boot_of(boot_id_for_messages())
    limits = recorded_limits(plan.objectives, "end-to-end")
    interval = ConsumerInterval(
        boot, leaders, is_behind=is_restart or is_late, limits_seconds=limits
    )
    loop = ConsumerLoop(context, consumer, tracker, interval, clock)
    reduce_garbage_collection()
    manager, last_k = notifier(), loop.k
    manager.ready()
    while not (stop.is_set() or loop.is_over or context.recorder.is_suspended):
        loop.tick()
        if loop.k != last_k:
            last_k = loop.k
            manager.alive()
    manager.stopping()
    loop.finish()
    leaders.close()
    context.writer.close(is_end=not context.recorder.is_suspended)
    return RESTART_CODE if context.recorder.is_suspended else 0


def own_instances(context: Context) -> frozenset[int]:
    """Return the instances of all clients that produce on this host."""
    plan, host = context.plan, context.source.partition("@")[2]
    return frozenset(
        header.instance_of(context.run.id, f"{name}@{host}", client)
        for name in plan.measuring
        if name.startswith("produce.")
        for client in range(plan.load.clients_per_producer)
    )


class ConsumerLoop:
    """One tick: receive the messages that have arrived, and write the record of a finished second."""

    def __init__(
        self,
        context: Context,
        consumer: Consumer,
        tracker: SequenceTracker,
        interval: ConsumerInterval,
        clock: Clock,
    ) -> None:
        self._context = context
        self._consumer = consumer
        self._tracker = tracker
        self._interval = interval
        self._clock = clock
        self._cpu, self._cpu_wait = CpuMeter(clock), CpuWaitMeter(clock)
        self._throttling = Throttling([consumer], context.recorder)
        self._run = header.run_of(context.run.id)
        self._writing: Iterator[None] = iter(())  # the record of the second before, piece by piece
        self._uncounted: list[Batch] = []
        self._uncounted_messages = 0
        self._received_ns = self._count_ns = clock.mono_ns()  # when `receive` last returned
        self._k = context.grid.interval_index_at(self._received_ns)
        self._table = rate_table(context.plan, context.folder)
        self._share = len(tracker.positions) / topics_of(context.plan).total
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
        is_writing = next(self._writing, _DONE) is not _DONE  # another piece follows
        is_building = self._context.phase_file.phases.is_building(self._k)
        self._pause(is_paused=is_building and self._catches_up)
        away_ns = self._clock.mono_ns() - self._received_ns
        remaining_ns = self._context.grid.start_of(self._k + 1) - self._clock.mono_ns()
        timeout = min(RECEIVE_SECONDS, max(remaining_ns / SECOND_NS, MIN_RECEIVE_SECONDS))
        if is_writing:
            timeout = MIN_RECEIVE_SECONDS
        batch = self._consumer.receive(BATCH_MESSAGES, timeout)
        self._received_ns = batch.at_mono_ns
        k = self._context.grid.interval_index_at(batch.at_mono_ns)
        if k != self._k:  # `receive` returned in the next second; most messages arrived before it
            before, batch = split_batch(batch, self._context.grid.start_of(self._k + 1))
            self._keep(before)
            self._count()
            if self._k >= 0:
                self._write(self._k, self._tracker.take_events(self._consumer, self._clock))
            self._k = k
            self._context.phase_file.poll()
        self._interval.note_pause(away_ns)  # it delayed the messages that arrived now
        self._interval.redelivered += batch.redelivered
        self._interval.note_errors(batch.errors)
        self._keep(batch)
        if self._uncounted_messages >= BATCH_MESSAGES or self._received_ns >= self._count_ns:
            self._count()

    def finish(self) -> None:
        """Write the last record, with the final positions."""
        self._count()
        self._consumer.pause(is_paused=True)  # requests would wait behind each fetch
        events = self._tracker.final_events(self._consumer, self._clock)
        self._write(max(self._k, 0), events)
        self._finish_writing()
        if self.is_over:
            self._consumer.close_for_good()
        else:  # stopped early: the next process continues
            self._consumer.close()

    def _keep(self, batch: Batch) -> None:
        if len(batch.heads):
            self._uncounted.append(batch)
            self._uncounted_messages += len(batch.heads)

    def _count(self) -> None:
        """Measure the messages that arrived since the last call, and add them to the audit."""
        self._count_ns = self._received_ns + COUNT_NS
        if not self._uncounted:
            return
        batch = merge_batches(self._uncounted)
        self._uncounted, self._uncounted_messages = [], 0
        block, is_ours = header.parse(batch.heads, self._run)
        is_ours = self._tracker.admitted(block, is_ours)
        counts = self._tracker.add(block, is_ours, batch.partition, batch.offset)
        self._interval.note(block, is_ours, batch, counts)

    def _pause(self, *, is_paused: bool) -> None:
        """Pause while a catch-up builds its backlog, and resume after it."""
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            self._consumer.pause(is_paused=is_paused)

    def _rate(self, k: int) -> float:
        """Return the messages a second that are sent to the partitions of this consumer."""
        phases, load = self._context.phase_file.phases, self._context.plan.load
        _, rate = next(rates_between(load, phases, self._table, k, k + 1))
        return float(rate) * self._share

    def _write(self, k: int, events: Sequence[Event]) -> None:
        """End a second; its record is written piece by piece while the next second is measured."""
        self._finish_writing()
        lag, spans = self._consumer.lag(self._tracker.positions), self._tracker.take_spans()
        done, cpu = self._interval, (self._cpu.ratio(), self._cpu_wait.ratio())
        at_ns = self._clock.wall_ns()
        events = [*events, *done.error_events(at_ns, max(0, at_ns - SECOND_NS))]
        self._writing = self._pieces(k, done, lag, cpu, spans, events)
        self._interval = done.following(lag, self._rate(k))

    def _pieces(
        self,
        k: int,
        interval: ConsumerInterval,
        lag: int | None,
        cpu: tuple[float, float],
        spans: dict[str, tuple[Span, ...]],
        events: Sequence[Event],
    ) -> Iterator[None]:
        """Write a record in pieces: messages that arrive meanwhile are stamped after each piece."""
        samples = [
            *interval.samples(math.nan if lag is None else lag, *cpu),
            *self._throttling.columns(k),
        ]
        yield
        encoded, distributions = {}, {}
        for name, histogram in interval.histograms().items():
            encoded[name], distributions[name] = histogram.encode(), histogram.distribution()
            yield
        self._context.recorder.append(
            k,
            samples,
            histograms=encoded,
            distributions=distributions,
            received=spans,
            events=events,
            validity={"reason": interval.reason()},
        )

    def _finish_writing(self) -> None:
        for _ in self._writing:
            pass
