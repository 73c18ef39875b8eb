"""The producer daemon: sends on schedule whatever the broker does, and writes a record every second."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import thread_time

import numpy as np
from numpy.typing import NDArray

from soak.core import header
from soak.core.plan.objectives import recorded_limits
from soak.core.plan.phases import LOAD_PHASES, Phases
from soak.core.ports import Clock, Producer, WakeUp
from soak.core.schedule import NEVER_NS
from soak.core.units import SECOND_NS
from soak.load.client_waits import CpuWaitMeter, Throttling
from soak.load.leaders import Leaders
from soak.load.producer.client import ProducerClient
from soak.load.producer.interval import ProducerInterval
from soak.load.producer.messages import Messages
from soak.load.producer.pacing import AHEAD, MIN_AHEAD, Pacer, RatePlan
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
from soak.service.scheduling import (
    RealTimePriority,
    minimise_timer_slack,
    reduce_garbage_collection,
)
from soak.service.signals import WakeupFd
from soak.service.systemd import notifier
from soak.store.journal.reader import segments
from soak.store.run_folder import rate_table

WAIT_NS = (
    260_000  # a due message waits for so long for others, unless the broker sets another value
)
IDLE_NS = 20_000_000
COUNT_NS = SECOND_NS // 10  # acknowledgements are taken at once, and counted every 100 ms
COUNT_MESSAGES = 1 << 14  # or after so many sends: counting more at once would delay the schedule
MAX_WAITING_SECONDS = 10
FLUSH_SECONDS = 15.0
FLUSH_TICK_NS = 2_000_000
PIECE_NS = 1_000_000  # at most between two pieces of a record
REPORT_DELAY_NS = (
    500_000  # a delivery report may be noticed this late: waking earlier costs more CPU
)
_DONE = object()


def run(run_dir: Path, index: int, stop: threading.Event, clock: Clock) -> int:
    """Send until the phases or `stop` end it; return the exit code."""
    context = open_context(run_dir, f"produce.{index}", clock)
    plan, topics = context.plan, topics_of(context.plan)
    broker = connect(plan, clock)
    context.recorder.note_event(CLIENT_EVENT, broker.client_facts())
    instances = [
        header.instance_of(context.run.id, context.source, client)
        for client in range(plan.load.clients_per_producer)
    ]
    epoch, boot, run_ = (
        context.writer.epoch,
        header.boot_of(boot_id_for_messages()),
        header.run_of(context.run.id),
    )
    messages = Messages(plan.load, topics, instances, epoch, boot, broker, run_)
    interval = ProducerInterval(
        instances,
        epoch,
        topics.total,
        block_bits=broker.block_bits,
        limits_seconds=recorded_limits(plan.objectives, "publish"),
    )
    leaders = Leaders(broker, topics)
    leaders.start()
    wake_up = WakeupFd(clock)
    producers = [broker.producer(topics) for _ in instances]
    adapt = RealTimePriority().adapt
    loop = ProducerLoop(
        context, index, producers, messages, interval, leaders, clock, wake_up, adapt
    )
    loop.wait_ns = broker.wait_ns
    if is_first_start(context):
        loop.include_past()
    reduce_garbage_collection()
    minimise_timer_slack()
    manager, last_k = notifier(), loop.k
    manager.ready()
    while not (stop.is_set() or loop.is_over or context.recorder.is_suspended):
        loop.tick()
        if loop.k != last_k:
            last_k = loop.k
            manager.alive()
    manager.stopping()
    loop.finish()
    wake_up.close()
    leaders.close()
    context.writer.close(is_end=not context.recorder.is_suspended)
    return RESTART_CODE if context.recorder.is_suspended else 0


def is_first_start(context: Context) -> bool:
    """Return whether this producer has not recorded anything before."""
    return not segments(context.folder.journal / context.source)


class ProducerLoop:
    """One tick: send due messages, take acknowledgements, and write the record of a finished second."""

    def __init__(
        self,
        context: Context,
        index: int,
        producers: Sequence[Producer],
        messages: Messages,
        interval: ProducerInterval,
        leaders: Leaders,
        clock: Clock,
        wake_up: WakeUp,
        adapt: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`adapt` is called each second with the share of a core that this thread has used.

        Raises:
            PlanError: the run's copy of the load profile cannot be read.
        """
        self._context = context
        self._messages = messages
        self._interval = interval
        self._writing: Iterator[None] = iter(())  # the record of the second before, piece by piece
        self._leaders = leaders
        self._clock = clock
        self._wake_up = wake_up
        wakes_up = [one.rings(wake_up.fd) for one in producers]  # every producer must be asked
        self._wakes_up = all(wakes_up)
        now_ns = clock.mono_ns()
        load, table = context.plan.load, rate_table(context.plan, context.folder)
        self._rate_plan = RatePlan(load, table, context.grid, index, load.producers)
        self._rate_plan.follow(context.phase_file.poll(), context.grid.interval_index_at(now_ns))
        self._client_count = len(producers)
        self._clients = [
            ProducerClient(client, producer, self._paced(client, now_ns), messages, interval, clock)
            for client, producer in enumerate(producers)
        ]
        self._enter(context.grid.interval_index_at(now_ns))
        self._recorded = np.zeros_like(messages.next_sequences)
        self._uncounted = 0  # messages sent since acknowledgements were last counted
        self._cpu, self._cpu_wait = CpuMeter(clock), CpuWaitMeter(clock)
        self._busy = CpuMeter(clock, thread_time)
        self._throttling = Throttling(producers, context.recorder)
        self._adapt = adapt
        self.wait_ns = WAIT_NS  # see `Broker.wait_ns`
        self._count_ns = self._served_ns = now_ns

    @property
    def k(self) -> int:
        """Return the second that is being measured."""
        return self._k

    @property
    def is_over(self) -> bool:
        return self._phase == "end"

    def include_past(self) -> None:
        """Send or skip what was due before now as well: this producer started late, and no other one sent it.

        After a restart the past is left out: messages due after the last record may have been sent, and those
        seconds are a gap.
        """
        for client in self._clients:
            client.pacer.next_index = 0
            client.follow(client.pacer)

    def tick(self) -> None:
        now_ns = self._clock.mono_ns()
        if now_ns >= self._end_ns:
            self._roll(now_ns)
        next_ns = now_ns + IDLE_NS
        if self._phase in LOAD_PHASES:
            self._send_due(now_ns)
            next_ns = min(max(self._wake_ns(), now_ns + self.wait_ns), next_ns)
        self._serve()
        if now_ns >= self._count_ns or self._uncounted >= COUNT_MESSAGES:
            self._count_ns = now_ns + COUNT_NS
            self._count_acks()
        elif self._has_written_a_piece():
            next_ns = min(next_ns, now_ns + PIECE_NS)
        self._sleep_until(min(next_ns, self._end_ns))

    def finish(self) -> None:
        """Wait for messages in flight and write the last record; what stays in flight counts as failed."""
        deadline_ns = self._clock.mono_ns() + round(FLUSH_SECONDS * SECOND_NS)
        while self._clock.mono_ns() < deadline_ns and self._in_flight():
            self._clock.sleep_until(self._clock.mono_ns() + FLUSH_TICK_NS)
            self._serve()  # all clients, so that no reports wait for another client
            self._count_acks()
        for client in self._clients:
            acks = client.producer.close(0.0)
            self._interval.note_failures(acks.failures)
            settled = client.in_flight.settle(acks)
            self._interval.note_settled(settled, self._leaders)
            failed = client.in_flight.fail_all(self._clock.mono_ns())
            self._interval.note_settled(failed, self._leaders)
        self._write(max(0, self._context.grid.interval_index_at(self._clock.mono_ns())))
        self._finish_writing()

    def _sleep_until(self, mono_ns: int) -> None:
        """Sleep, but wake up for delivery reports: a report is stamped when it is taken.

        A backpressured client sends again within milliseconds; waking up for each report would only use CPU.
        """
        soon_ns = self._clock.mono_ns() + REPORT_DELAY_NS
        is_backpressured = any(
            one.is_backpressured and one.next_ns < NEVER_NS for one in self._clients
        )
        if mono_ns <= soon_ns or is_backpressured or not self._in_flight():
            self._clock.sleep_until(mono_ns)
        elif self._wakes_up:
            self._wake_up.wait(mono_ns)
        else:
            self._clock.sleep_until(soon_ns)

    def _roll(self, now_ns: int) -> None:
        """End a second and begin the current one."""
        k, was_loaded = self._context.grid.interval_index_at(now_ns), self._phase in LOAD_PHASES
        phases = self._context.phase_file.poll()
        self._rate_plan.follow(phases, k)
        for client in self._clients:
            client.follow(client.pacer)  # its schedule may have been extended
        is_loaded, turn_k = phases.at(k) in LOAD_PHASES, self._turn_k(phases, k)
        if was_loaded and not is_loaded:  # send up to the end of the load, and skip the remainder
            edge_ns = self._context.grid.start_of(turn_k) - 1
            self._send_due(edge_ns)
            for client in self._clients:
                client.skip(edge_ns)
        if self._k >= 0:
            self._serve()
            self._count_acks()
            self._write(self._k)
        self._enter(k)
        if is_loaded and not was_loaded:  # messages due before the load begins are not skipped
            begin_ns = max(self._context.grid.start_of(turn_k), self._context.grid.start_mono_ns)
            for number, client in enumerate(self._clients):
                client.follow(self._paced(number, begin_ns))

    def _turn_k(self, phases: Phases, k: int) -> int:
        """Return the second in which the load began or ended: k unless there was a stall."""
        was_loaded = self._phase in LOAD_PHASES
        turns = (
            one.from_k for one in phases.after(self._k) if (one.phase in LOAD_PHASES) != was_loaded
        )
        return min(k, next(turns, k))

    def _enter(self, k: int) -> None:
        """Look up once a second what ticks need thousands of times."""
        self._k = k
        self._phase = self._context.phase_file.phases.at(k)
        self._end_ns = self._context.grid.start_of(k + 1)

    def _paced(self, client: int, now_ns: int) -> Pacer:
        """Return the pacer of one client, which sends every n-th of the process's messages."""
        load = self._context.plan.load
        schedule = self._rate_plan.schedule.share(client, self._client_count)
        ahead = max(AHEAD // self._client_count, 2 * MIN_AHEAD)
        return Pacer(schedule, load.catch_up_ratio, load.backlog, now_ns, ahead)

    def _send_due(self, now_ns: int) -> None:
        """Send the messages that are due: one block of each client in turn while there is more."""
        remaining = 0
        for client in self._clients:
            if client.next_ns <= now_ns:
                self._uncounted += client.begin(now_ns)
                remaining += client.remaining
        while remaining:  # acknowledgements must not wait until all is sent
            self._serve()
            remaining = 0
            for client in self._clients:
                if client.remaining:
                    self._uncounted += client.send(now_ns)
                    remaining += client.remaining

    def _wake_ns(self) -> int:
        """Return the due time of the last message, of any client, that the next message may wait for."""
        first_ns = NEVER_NS
        for client in self._clients:
            first_ns = min(first_ns, client.next_ns)
        until_ns, last_ns = first_ns + self.wait_ns, first_ns
        for client in self._clients:
            if client.next_ns <= until_ns:
                last_ns = max(last_ns, client.pacer.last_due_ns(until_ns))
        return last_ns

    def _serve(self) -> None:
        """Let the clients take delivery reports."""
        now_ns = self._clock.mono_ns()
        self._interval.note_pause(now_ns - self._served_ns)
        for client in self._clients:
            client.producer.serve()
        self._served_ns = self._clock.mono_ns()

    def _count_acks(self) -> None:
        self._uncounted = 0
        for client in self._clients:
            acks = client.producer.take()
            self._interval.note_failures(acks.failures)
            self._interval.note_settled(client.in_flight.settle(acks), self._leaders)
        self._interval.count_delays()

    def _in_flight(self) -> int:
        return sum(client.in_flight.count for client in self._clients)

    def _waiting_seconds(self) -> int:
        """Return for how many whole seconds the oldest message has waited for its acknowledgement.

        It shows a cluster that acknowledges nothing, whose latencies are known only afterwards; otherwise it
        is 0, whatever the latency. It stops at MAX_WAITING_SECONDS: a value that rose on and on would raise
        one finding after the other.
        """
        oldest_ns = [client.in_flight.oldest_ns() for client in self._clients]
        now_ns = self._clock.mono_ns()
        if self._phase in LOAD_PHASES:  # messages that the client did not accept have waited, too
            oldest_ns += [client.pacer.next_due_ns() for client in self._clients]
        first_ns = min((one for one in oldest_ns if one is not None), default=now_ns)
        return min(max(0, now_ns - first_ns) // SECOND_NS, MAX_WAITING_SECONDS)

    def _write(self, k: int) -> None:
        """End a second; its record is written piece by piece while the next second is measured."""
        self._finish_writing()
        for client in self._clients:
            client.drop_block()  # unsent messages get their numbers later
        following = self._messages.next_sequences
        changed = np.where(following != self._recorded, following, 0)
        self._recorded = following.copy()
        busy_ratio = self._busy.ratio()
        self._adapt(busy_ratio)
        cpu = self._cpu.ratio(), self._cpu_wait.ratio()
        state = (self._in_flight(), self._waiting_seconds(), *cpu, busy_ratio)
        self._writing = self._pieces(k, self._clock.wall_ns(), self._interval, state, changed)
        self._interval = self._interval.following()
        for client in self._clients:
            client.interval = self._interval

    def _pieces(
        self,
        k: int,
        at_ns: int,
        interval: ProducerInterval,
        state: tuple[int, int, float, float, float],
        changed: NDArray[np.int64],
    ) -> Iterator[None]:
        """Write a record in pieces: at once it would delay sends and acknowledgements by milliseconds."""
        samples = [*interval.samples(*state), *self._throttling.columns(k)]
        yield
        encoded, distributions = {}, {}
        for name, histogram in interval.histograms().items():
            encoded[name], distributions[name] = histogram.encode(), histogram.distribution()
            yield
        acknowledged = interval.acknowledged()
        yield
        since_ns = max(0, at_ns - SECOND_NS, self._context.grid.wall_of(k) - SECOND_NS)
        self._context.recorder.append(
            k,
            samples,
            histograms=encoded,
            distributions=distributions,
            acknowledged=acknowledged,
            sent_next=interval.sent_next(changed),
            events=interval.failures(at_ns, since_ns),
            validity={"reason": interval.reason(state[-1])},
        )

    def _has_written_a_piece(self) -> bool:
        return next(self._writing, _DONE) is not _DONE

    def _finish_writing(self) -> None:
        for _ in self._writing:
            pass
