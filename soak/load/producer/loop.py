"""The producer daemon: sends on schedule whatever the broker does, and writes a record every second."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import thread_time

import numpy as np
from numpy.typing import NDArray

from soak.core import header
from soak.core.phases import LOAD_PHASES, Phases
from soak.core.ports import Clock, Producer, WakeUp
from soak.core.schedule import NEVER_NS
from soak.core.units import SECOND_NS
from soak.load.cpu_wait import CpuWaitMeter
from soak.load.leaders import Leaders
from soak.load.producer.client import ProducerClient
from soak.load.producer.interval import ProducerInterval
from soak.load.producer.messages import Messages
from soak.load.producer.pacing import AHEAD, MIN_AHEAD, Pacer, rate_plan_of
from soak.runtime.context import (
    RESTART_CODE,
    Context,
    CpuMeter,
    boot_id,
    connect,
    open_context,
    topics_of,
)
from soak.service.scheduling import (
    RealTimePriority,
    minimise_timer_slack,
    reduce_garbage_collection,
)
from soak.service.signals import WakeupFd
from soak.service.systemd import notifier
from soak.store.journal.writer import segments

WAIT_NS = 260_000  # so long a message waits for others, unless the broker says otherwise
IDLE_NS = 20_000_000
DIGEST_NS = SECOND_NS // 10  # acknowledgements are noted at once, and counted so often
DIGEST_MESSAGES = 1 << 14  # or when so many were sent: what counts them long holds up the schedule
MAX_WAITING_SECONDS = 10
FLUSH_SECONDS = 15.0
FLUSH_TICK_NS = 2_000_000
PIECE_NS = 1_000_000  # at most between two pieces of a record
REPORT_DELAY_NS = (
    500_000  # so late a report may be noticed; what wakes for it costs more than it is worth
)
_DONE = object()


def run(run_dir: Path, index: int, stop: threading.Event, clock: Clock) -> int:
    """Send until the phases or `stop` end it; return the exit code."""
    context = open_context(run_dir, f"produce.{index}", clock)
    plan, topics = context.plan, topics_of(context.plan)
    broker = connect(plan, clock)
    instances = [
        header.instance_of(context.run.id, context.source, client)
        for client in range(plan.load.clients_per_producer)
    ]
    epoch, boot, run_ = (
        context.writer.epoch,
        header.boot_of(boot_id()),
        header.run_of(context.run.id),
    )
    messages = Messages(plan.load, topics, instances, epoch, boot, broker, run_)
    second = ProducerInterval(instances, epoch, topics.total, block_bits=broker.block_bits)
    leaders = Leaders(broker, topics)
    leaders.start()
    bell = WakeupFd(clock)
    producers = [broker.producer(topics) for _ in instances]
    adapt = RealTimePriority().adapt
    loop = ProducerLoop(context, index, producers, messages, second, leaders, clock, bell, adapt)
    loop.wait_ns = broker.wait_ns
    if is_first_start(context):
        loop.owe_all()
    reduce_garbage_collection()
    minimise_timer_slack()
    manager, second_k = notifier(), loop.k
    manager.ready()
    while not (stop.is_set() or loop.is_over or context.recorder.is_suspended):
        loop.tick()
        if loop.k != second_k:
            second_k = loop.k
            manager.alive()
    manager.stopping()
    loop.finish()
    bell.close()
    leaders.close()
    context.writer.close(is_end=not context.recorder.is_suspended)
    return RESTART_CODE if context.recorder.is_suspended else 0


def is_first_start(context: Context) -> bool:
    """Return False where an earlier life of this producer has recorded a second."""
    return not segments(context.folder.journal / context.source)


class ProducerLoop:
    """One tick: send what is due, take the acknowledgements, write the record when a second is over."""

    def __init__(
        self,
        context: Context,
        index: int,
        producers: Sequence[Producer],
        messages: Messages,
        second: ProducerInterval,
        leaders: Leaders,
        clock: Clock,
        bell: WakeUp,
        adapt: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`adapt` is told each second how much of a core this thread has used."""
        self._context = context
        self._messages = messages
        self._second = second
        self._writing: Iterator[None] = iter(())  # of the second before
        self._leaders = leaders
        self._clock = clock
        self._bell = bell
        rings = [one.rings(bell.fd) for one in producers]  # each of them: no short cut
        self._are_heard = all(rings)
        now_ns = clock.mono_ns()
        self._rate_plan = rate_plan_of(context, index)
        self._rate_plan.follow(context.phase_file.poll(), context.grid.k_at(now_ns))
        self._clients = len(producers)
        self._senders = [
            ProducerClient(client, producer, self._paced(client, now_ns), messages, second, clock)
            for client, producer in enumerate(producers)
        ]
        self._enter(context.grid.k_at(now_ns))
        self._recorded = np.zeros_like(messages.next_sequences)
        self._uncounted = 0  # sent since acknowledgements were last counted
        self._cpu, self._cpu_wait = CpuMeter(clock), CpuWaitMeter(clock)
        self._busy = CpuMeter(clock, thread_time)
        self._adapt = adapt
        self.wait_ns = WAIT_NS  # see `Broker.wait_ns`
        self._digest_ns = self._served_ns = now_ns

    @property
    def k(self) -> int:
        """Return the second that is being measured."""
        return self._k

    @property
    def is_over(self) -> bool:
        return self._phase == "end"

    def owe_all(self) -> None:
        """Send what was due before now as well, or miss it: who starts late left it out, and nobody else.

        An earlier life may have sent what was due after its last record; those seconds are a gap.
        """
        for one in self._senders:
            one.pacer.next_index = 0
            one.follow(one.pacer)

    def tick(self) -> None:
        now_ns = self._clock.mono_ns()
        if now_ns >= self._end_ns:
            self._roll(now_ns)
        next_ns = now_ns + IDLE_NS
        if self._phase in LOAD_PHASES:
            self._send_due(now_ns)
            next_ns = min(max(self._wake_ns(), now_ns + self.wait_ns), next_ns)
        self._serve()
        if now_ns >= self._digest_ns or self._uncounted >= DIGEST_MESSAGES:
            self._digest_ns = now_ns + DIGEST_NS
            self._take()
        elif self._has_written_a_piece():
            next_ns = min(next_ns, now_ns + PIECE_NS)
        self._sleep_until(min(next_ns, self._end_ns))

    def finish(self) -> None:
        """Wait for what is out, and record the last part of a second; what stays out counts as failed."""
        deadline_ns = self._clock.mono_ns() + round(FLUSH_SECONDS * SECOND_NS)
        while self._clock.mono_ns() < deadline_ns and self._in_flight():
            self._clock.sleep_until(self._clock.mono_ns() + FLUSH_TICK_NS)
            self._serve()  # all of them: no client's reports wait for another's
            self._take()
        for one in self._senders:
            settled = one.in_flight.settle(one.producer.close(0.0))
            self._second.note_settled(settled, self._leaders)
            given_up = one.in_flight.give_up(self._clock.mono_ns())
            self._second.note_settled(given_up, self._leaders)
        self._write(max(0, self._context.grid.k_at(self._clock.mono_ns())))
        self._finish_writing()

    def _sleep_until(self, mono_ns: int) -> None:
        """Sleep, and wake for a report: it is stamped when it is looked at, and that may be long after.

        Who is held up goes on when there is room, which is soon: to wake for each report only takes CPU.
        """
        soon_ns = self._clock.mono_ns() + REPORT_DELAY_NS
        is_held = any(one.is_held and one.next_ns < NEVER_NS for one in self._senders)
        if mono_ns <= soon_ns or is_held or not self._in_flight():
            self._clock.sleep_until(mono_ns)
        elif self._are_heard:
            self._bell.wait(mono_ns)
        else:
            self._clock.sleep_until(soon_ns)

    def _roll(self, now_ns: int) -> None:
        k, before = self._context.grid.k_at(now_ns), self._phase in LOAD_PHASES
        phases = self._context.phase_file.poll()
        self._rate_plan.follow(phases, k)
        for one in self._senders:
            one.follow(one.pacer)  # its schedule may have been extended
        after, turn_k = phases.at(k) in LOAD_PHASES, self._turn_k(phases, k)
        if before and not after:  # the last sends of the phase; what it owes beyond them is missed
            edge_ns = self._context.grid.start_of(turn_k) - 1
            self._send_due(edge_ns)
            for one in self._senders:
                one.give_up(edge_ns)
        if self._k >= 0:
            self._serve()
            self._take()
            self._write(self._k)
        self._enter(k)
        if after and not before:  # what was due while nothing was to be sent is not missed
            begin_ns = max(self._context.grid.start_of(turn_k), self._context.grid.start_mono_ns)
            for client, one in enumerate(self._senders):
                one.follow(self._paced(client, begin_ns))

    def _turn_k(self, phases: Phases, k: int) -> int:
        """Return in which of the seconds since the last one sending began or ended: k, but for a stall."""
        before = self._phase in LOAD_PHASES
        turns = (
            one.from_k for one in phases.after(self._k) if (one.phase in LOAD_PHASES) != before
        )
        return min(k, next(turns, k))

    def _enter(self, k: int) -> None:
        """Look up once a second what a tick asks thousands of times."""
        self._k = k
        self._phase = self._context.phase_file.phases.at(k)
        self._end_ns = self._context.grid.start_of(k + 1)

    def _paced(self, client: int, now_ns: int) -> Pacer:
        """Return what paces one client, which has every n-th of the process's messages."""
        load, schedule = (
            self._context.plan.load,
            self._rate_plan.schedule.share(client, self._clients),
        )
        ahead = max(AHEAD // self._clients, 2 * MIN_AHEAD)
        return Pacer(schedule, load.catch_up_ratio, load.backlog, now_ns, ahead)

    def _send_due(self, now_ns: int) -> None:
        """Send what is due: of each client a block in turn, as long as there is more."""
        left = 0
        for one in self._senders:
            if one.next_ns <= now_ns:
                self._uncounted += one.begin(now_ns)
                left += one.left
        while left:  # much is due: acknowledgements must not wait for the last of it
            self._serve()
            left = 0
            for one in self._senders:
                if one.left:
                    self._uncounted += one.send(now_ns)
                    left += one.left

    def _wake_ns(self) -> int:
        """Return when the last message is due, of any client, that the first may wait for."""
        first_ns = NEVER_NS
        for one in self._senders:
            first_ns = min(first_ns, one.next_ns)
        until_ns, last_ns = first_ns + self.wait_ns, first_ns
        for one in self._senders:
            if one.next_ns <= until_ns:
                last_ns = max(last_ns, one.pacer.last_due_ns(until_ns))
        return last_ns

    def _serve(self) -> None:
        now_ns = self._clock.mono_ns()
        self._second.note_pause(now_ns - self._served_ns)
        for one in self._senders:
            one.producer.serve()
        self._served_ns = self._clock.mono_ns()

    def _take(self) -> None:
        self._uncounted = 0
        for one in self._senders:
            settled = one.in_flight.settle(one.producer.take())
            self._second.note_settled(settled, self._leaders)
        self._second.count_delays()

    def _in_flight(self) -> int:
        return sum(one.in_flight.count for one in self._senders)

    def _waiting_seconds(self) -> int:
        """Return for how many whole seconds the oldest message has waited for its acknowledgement.

        That shows a cluster that acknowledges nothing: its latencies are known only when it is over. While
        all is well it is 0, whatever the latency; after MOST_WAITING_SECONDS nobody learns more from it,
        and what rose on and on would be told again and again.
        """
        oldest_ns = [one.in_flight.oldest_ns() for one in self._senders]
        now_ns = self._clock.mono_ns()
        if self._phase in LOAD_PHASES:  # what a client would not take has waited, too
            oldest_ns += [one.pacer.next_due_ns() for one in self._senders]
        first_ns = min((one for one in oldest_ns if one is not None), default=now_ns)
        return min(max(0, now_ns - first_ns) // SECOND_NS, MAX_WAITING_SECONDS)

    def _write(self, k: int) -> None:
        """End a second; its record is written piece by piece while the next one is collected."""
        self._finish_writing()
        for one in self._senders:
            one.drop_block()  # what was not sent has no number yet
        following = self._messages.next_sequences
        touched = np.where(following != self._recorded, following, 0)
        self._recorded = following.copy()
        busy_ratio = self._busy.ratio()
        self._adapt(busy_ratio)
        cpu = self._cpu.ratio(), self._cpu_wait.ratio()
        state = (self._in_flight(), self._waiting_seconds(), *cpu, busy_ratio)
        self._writing = self._pieces(k, self._clock.wall_ns(), self._second, state, touched)
        self._second = self._second.following()
        for one in self._senders:
            one.second = self._second

    def _pieces(
        self,
        k: int,
        at_ns: int,
        second: ProducerInterval,
        state: tuple[int, int, float, float, float],
        touched: NDArray[np.int64],
    ) -> Iterator[None]:
        """Do a piece between two: in one go they hold up sends and acknowledgements for milliseconds."""
        samples = second.samples(*state)
        yield
        encoded = {}
        for name, histogram in second.histograms().items():
            encoded[name] = histogram.encode()
            yield
        acknowledged = second.acknowledged()
        yield
        since_ns = max(0, at_ns - SECOND_NS, self._context.grid.wall_of(k) - SECOND_NS)
        self._context.recorder.append(
            k,
            samples,
            histograms=encoded,
            acknowledged=acknowledged,
            sent_next=second.sent_next(touched),
            events=second.failures(at_ns, since_ns),
            validity={"reason": second.reason(state[-1])},
        )

    def _has_written_a_piece(self) -> bool:
        return next(self._writing, _DONE) is not _DONE

    def _finish_writing(self) -> None:
        for _ in self._writing:
            pass
