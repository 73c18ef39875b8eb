"""The producer daemon: sends on the schedule whatever the broker does, and records every second."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import thread_time

import numpy as np

from soak.core import header
from soak.core.phases import LOADED, Phases
from soak.core.ports import Clock, Producer
from soak.core.units import SECOND_NS
from soak.daemons.context import (
    RESTART_CODE,
    Context,
    CpuMeter,
    boot_id,
    connect,
    open_context,
    topics_of,
)
from soak.daemons.in_flight import InFlight
from soak.daemons.leaders import Leaders
from soak.daemons.messages import Block, Messages
from soak.daemons.pacing import Pacer
from soak.daemons.produce_second import LAG_UNTRUSTED_SECONDS, ProduceSecond
from soak.daemons.rate_plan import rate_plan_of
from soak.service.lean import spare_collections, wake_on_time
from soak.service.notify import notifier
from soak.service.priority import Priority

TICK_NS = 260_000  # so long a message waits for others: the lag is that and what a wake-up is late
FULL_NS = 2_000_000  # after a send that the client's queue refused: to try at once costs more than it sends
IDLE_NS = 20_000_000
DIGEST_NS = SECOND_NS // 5  # acknowledgements are noted at once, and counted so often
DIGEST_MESSAGES = 1 << 14  # or when so many were sent: what counts them long holds up the schedule
MOST_WAITING_SECONDS = 10
FLUSH_SECONDS = 15.0
FLUSH_TICK_NS = 2_000_000
LAG_UNTRUSTED_NS = round(LAG_UNTRUSTED_SECONDS * SECOND_NS)


def run(run_dir: Path, index: int, stop: threading.Event, clock: Clock) -> int:
    """Send until the phases or `stop` end it; return the exit code."""
    context = open_context(run_dir, f"produce.{index}", clock)
    plan, topics = context.plan, topics_of(context.plan)
    broker = connect(plan, clock)
    instances = [
        header.instance_of(context.run.id, context.source, client)
        for client in range(plan.load.clients_per_producer)
    ]
    inc, boot, run_ = context.writer.inc, header.boot_of(boot_id()), header.run_of(context.run.id)
    messages = Messages(plan.load, topics, instances, inc, boot, broker, run_)
    second = ProduceSecond(instances, inc, topics.total, block_bits=broker.block_bits)
    leaders = Leaders(broker, topics)
    leaders.start()
    producers = [broker.producer(topics) for _ in instances]
    adapt = Priority().adapt
    loop = ProduceLoop(context, index, producers, messages, second, leaders, clock, adapt)
    spare_collections()
    wake_on_time()
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


class ProduceLoop:
    """One tick: send what is due, take the acknowledgements, write the record when a second is over."""

    def __init__(
        self,
        context: Context,
        index: int,
        producers: Sequence[Producer],
        messages: Messages,
        second: ProduceSecond,
        leaders: Leaders,
        clock: Clock,
        adapt: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`adapt` is told each second how much of a core this thread has used."""
        self._context = context
        self._producers = producers
        self._messages = messages
        self._second = second
        self._leaders = leaders
        self._clock = clock
        now_ns = clock.mono_ns()
        self._rate_plan = rate_plan_of(context, index)
        self._rate_plan.follow(context.phase_file.poll(), context.grid.k_at(now_ns))
        self._pacer = self._paced(now_ns)
        self._enter(context.grid.k_at(now_ns))
        self._turn = 0
        self._block: Block | None = None  # the next to be sent, laid out up to 10 ms ahead
        self._in_flight = [InFlight() for _ in producers]
        self._recorded = np.zeros_like(messages.next_sequences)
        self._uncounted = 0  # sent since acknowledgements were last counted
        self._is_held = False  # behind the schedule because the cluster took no more
        self._cpu = CpuMeter(clock)
        self._busy = CpuMeter(clock, thread_time)
        self._adapt = adapt
        self._digest_ns = self._served_ns = now_ns

    @property
    def k(self) -> int:
        """Return the second that is being measured."""
        return self._k

    @property
    def is_over(self) -> bool:
        return self._phase == "end"

    def tick(self) -> None:
        now_ns = self._clock.mono_ns()
        if now_ns >= self._end_ns:
            self._roll(now_ns)
        next_ns = now_ns + IDLE_NS
        if self._phase in LOADED:
            pause_ns = TICK_NS if self._send_due(now_ns) else FULL_NS
            next_ns = min(max(self._pacer.wake_ns(TICK_NS), now_ns + pause_ns), now_ns + IDLE_NS)
        self._serve()
        if now_ns >= self._digest_ns or self._uncounted >= DIGEST_MESSAGES:
            self._digest_ns = now_ns + DIGEST_NS
            self._take()
        self._clock.sleep_until(min(next_ns, self._end_ns))

    def finish(self) -> None:
        """Wait for what is out, and record the last part of a second; what stays out counts as failed."""
        deadline_ns = self._clock.mono_ns() + round(FLUSH_SECONDS * SECOND_NS)
        while self._clock.mono_ns() < deadline_ns and any(one.count for one in self._in_flight):
            self._clock.sleep_until(self._clock.mono_ns() + FLUSH_TICK_NS)
            self._serve()  # all of them: no client's reports wait for another's
            self._take()
        for producer, in_flight in zip(self._producers, self._in_flight, strict=True):
            self._second.note_settled(in_flight.settle(producer.close(0.0)), self._leaders)
            given_up = in_flight.give_up(self._clock.mono_ns())
            self._second.note_settled(given_up, self._leaders)
        self._write(max(0, self._context.grid.k_at(self._clock.mono_ns())))

    def _roll(self, now_ns: int) -> None:
        k, before = self._context.grid.k_at(now_ns), self._phase in LOADED
        phases = self._context.phase_file.poll()
        self._rate_plan.follow(phases, k)
        self._drop_block()  # the schedule may have been extended
        after, turn_k = phases.at(k) in LOADED, self._turn_k(phases, k)
        if before and not after:  # the last sends of the phase; what it owes beyond them is missed
            edge_ns = self._context.grid.start_of(turn_k) - 1
            self._send_due(edge_ns)
            self._second.missed += self._pacer.give_up(edge_ns)
            self._drop_block()
        if self._k >= 0:
            self._serve()
            self._take()
            self._write(self._k)
        self._enter(k)
        if after and not before:  # what was due while nothing was to be sent is not missed
            begin_ns = max(self._context.grid.start_of(turn_k), self._context.grid.start_mono_ns)
            self._pacer = self._paced(begin_ns)

    def _turn_k(self, phases: Phases, k: int) -> int:
        """Return in which of the seconds since the last one sending began or ended: k, but for a stall."""
        before = self._phase in LOADED
        turns = (one.from_k for one in phases.after(self._k) if (one.phase in LOADED) != before)
        return min(k, next(turns, k))

    def _enter(self, k: int) -> None:
        """Look up once a second what a tick asks thousands of times."""
        self._k = k
        self._phase = self._context.phase_file.phases.at(k)
        self._end_ns = self._context.grid.start_of(k + 1)

    def _paced(self, now_ns: int) -> Pacer:
        load = self._context.plan.load
        return Pacer(self._rate_plan.schedule, load.catch_up_ratio, load.backlog, now_ns)

    def _send_due(self, now_ns: int) -> bool:
        """Send what is due; return whether the client took all of it."""
        due = self._pacer.due(now_ns)
        self._is_held = self._is_held and now_ns - self._pacer.next_due_ns() > LAG_UNTRUSTED_NS
        if due.missed:
            self._second.missed += due.missed
            self._drop_block()
        left = due.count
        while left:
            block = self._block or self._lay_out(now_ns)
            count = min(left, block.left)
            taken = self._send(block, count)
            self._pacer.sent(taken)
            if taken < count:
                self._second.queue_full += count - taken
                self._is_held = True
                self._drop_block()  # the next client, another partition may take them
                return False
            left -= count
            if left:  # much is due: acknowledgements must not wait for the last of it
                self._serve()
        return True

    def _lay_out(self, now_ns: int) -> Block:
        """Lay out, for the next client, what is due while one partition is kept; at least one message."""
        client = self._turn
        self._turn = (client + 1) % len(self._producers)
        self._block = self._messages.block(client, self._pacer.ahead_ns(), now_ns)
        return self._block

    def _drop_block(self) -> None:
        if self._block is not None:
            self._messages.drop(self._block)
            self._block = None

    def _send(self, block: Block, count: int) -> int:
        """Send the next messages of a block under one stamp; return how many its client took."""
        first, end = block.sent, block.sent + count
        sent_ns = self._clock.mono_ns()
        intended_ns = block.intended_ns[first:end]
        delay_ns = sent_ns - intended_ns
        in_flight = self._in_flight[block.client]
        outgoing = block.stamped(delay_ns, self._clock.wall_ns(), in_flight.next_token)
        in_flight.add(block, first, end, sent_ns)
        taken = self._producers[block.client].send(outgoing)
        if taken < count:
            in_flight.take_back(count - taken)
            delay_ns = delay_ns[:taken]
        block.sent += taken
        if not block.left:
            self._block = None
        self._uncounted += taken
        self._second.note_sent(delay_ns)
        self._second.held_back += taken if self._is_held else 0
        return taken

    def _serve(self) -> None:
        now_ns = self._clock.mono_ns()
        self._second.note_pause(now_ns - self._served_ns)
        for producer in self._producers:
            producer.serve()
        self._served_ns = self._clock.mono_ns()

    def _take(self) -> None:
        self._uncounted = 0
        for producer, in_flight in zip(self._producers, self._in_flight, strict=True):
            self._second.note_settled(in_flight.settle(producer.take()), self._leaders)
        self._second.count_delays()

    def _waiting_seconds(self) -> int:
        """Return for how many whole seconds the oldest message has waited for its acknowledgement.

        That shows a cluster that acknowledges nothing: its latencies are known only when it is over. While
        all is well it is 0, whatever the latency; after MOST_WAITING_SECONDS nobody learns more from it,
        and what rose on and on would be told again and again.
        """
        oldest_ns = [one.oldest_ns() for one in self._in_flight]
        now_ns = self._clock.mono_ns()
        if self._phase in LOADED:  # what the client would not take has waited, too
            oldest_ns.append(self._pacer.next_due_ns())
        first_ns = min((one for one in oldest_ns if one is not None), default=now_ns)
        return min(max(0, now_ns - first_ns) // SECOND_NS, MOST_WAITING_SECONDS)

    def _write(self, k: int) -> None:
        second, grid = self._second, self._context.grid
        self._drop_block()  # what was not sent has no number yet
        at_ns = self._clock.wall_ns()
        following = self._messages.next_sequences
        touched = np.where(following != self._recorded, following, 0)
        self._recorded = following.copy()
        in_flight = sum(one.count for one in self._in_flight)
        busy_ratio = self._busy.ratio()
        self._adapt(busy_ratio)
        self._context.recorder.append(
            k,
            second.samples(in_flight, self._waiting_seconds(), self._cpu.ratio(), busy_ratio),
            histograms=second.encoded(),
            acknowledged=second.acknowledged(),
            sent_next=second.sent_next(touched),
            events=second.failures(at_ns, max(0, at_ns - SECOND_NS, grid.wall_of(k) - SECOND_NS)),
            trust={"reason": second.reason(busy_ratio)},
        )
        second.clear()
