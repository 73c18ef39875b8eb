"""The producer daemon: sends on the schedule whatever the broker does, and records every second."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from soak.core import header, plugins
from soak.core.phases import LOADED
from soak.core.ports import Clock, Producer
from soak.core.schedule import Schedule
from soak.core.units import SECOND_NS
from soak.daemons.context import RESTART_CODE, Context, CpuMeter, boot_id, open_context
from soak.daemons.in_flight import InFlight
from soak.daemons.pacing import Pacer
from soak.daemons.produce_second import ProduceSecond

TICK_NS = 300_000  # shortest pause: schedule lag stays under half a millisecond
IDLE_NS = 20_000_000
DIGEST_NS = 50_000_000  # acknowledgements are noted at once and counted in batches
CHUNK = 64  # messages that share one send stamp
STICKY_NS = 10_000_000  # one lane for this long: batches stay whole
FLUSH_SECONDS = 15.0


def run(run_dir: Path, index: int, stop: threading.Event, clock: Clock) -> int:
    """Send until the phases or `stop` end it; return the exit code."""
    context = open_context(run_dir, f"produce.{index}", clock)
    module = plugins.load("soak.brokers", context.plan.broker_kind)
    broker = module.connect(context.plan.broker_config, clock)
    loop = ProduceLoop(context, broker.producer(context.plan.topic.name), clock)
    while not (stop.is_set() or loop.is_over or context.recorder.is_suspended):
        loop.tick()
    loop.finish()
    context.writer.close(is_end=not context.recorder.is_suspended)
    return RESTART_CODE if context.recorder.is_suspended else 0


class ProduceLoop:
    """One tick: send what is due, take the acknowledgements, write the record when a second is over."""

    def __init__(self, context: Context, producer: Producer, clock: Clock) -> None:
        self._context = context
        self._producer = producer
        self._clock = clock
        plan = context.plan
        inc = context.writer.inc
        self._instance = header.instance_of(context.run.id, context.source)
        self._template = header.headers(CHUNK, self._instance, inc, header.boot_of(boot_id()))
        rng = np.random.default_rng(self._instance)
        self._body = rng.bytes(plan.load.message_size - header.SIZE)
        self._schedule = Schedule(context.grid.start_mono_ns, plan.load.rate)
        now_ns = clock.mono_ns()
        self._pacer = Pacer(self._schedule, plan.load.catch_up_ratio, plan.load.backlog, now_ns)
        self._k = context.grid.k_at(now_ns)
        self._sequence = [0] * plan.topic.partitions
        self._in_flight = InFlight()
        self._second = ProduceSecond(self._instance, inc)
        self._cpu = CpuMeter(clock)
        self._digest_ns = now_ns

    @property
    def is_over(self) -> bool:
        return self._context.phase_file.phases.at(self._k) == "end"

    def tick(self) -> None:
        now_ns = self._clock.mono_ns()
        self._roll(now_ns)
        next_ns = now_ns + IDLE_NS
        if self._context.phase_file.phases.at(self._k) in LOADED:
            self._send_due(now_ns)
            next_ns = min(max(self._pacer.next_due_ns(), now_ns + TICK_NS), now_ns + IDLE_NS)
        self._producer.serve()
        if now_ns >= self._digest_ns:
            self._digest_ns = now_ns + DIGEST_NS
            self._take()
        self._clock.sleep_until(min(next_ns, self._context.grid.start_of(self._k + 1)))

    def finish(self) -> None:
        """Wait for what is out, and record the last part of a second."""
        acks = self._producer.close(FLUSH_SECONDS)
        self._second.note_settled(self._in_flight.settle(acks))
        self._write(max(0, self._context.grid.k_at(self._clock.mono_ns())))

    def _roll(self, now_ns: int) -> None:
        k = self._context.grid.k_at(now_ns)
        if k == self._k:
            return
        before = self._context.phase_file.phases.at(self._k) in LOADED
        after = self._context.phase_file.poll().at(k) in LOADED
        if before and not after:  # the last sends of the phase; what it owes beyond them is missed
            edge_ns = self._context.grid.start_of(self._k + 1) - 1
            self._send_due(edge_ns)
            self._second.missed += self._pacer.give_up(edge_ns)
        if self._k >= 0:
            self._producer.serve()
            self._take()
            self._write(self._k)
        self._k = k
        if after and not before:  # what was due while nothing was to be sent is not missed
            load = self._context.plan.load
            begin_ns = max(self._context.grid.start_of(k), self._context.grid.start_mono_ns)
            self._pacer = Pacer(self._schedule, load.catch_up_ratio, load.backlog, begin_ns)

    def _send_due(self, now_ns: int) -> None:
        due = self._pacer.due(now_ns)
        self._second.missed += due.missed
        for first in range(due.first, due.first + due.count, CHUNK):
            count = min(CHUNK, due.first + due.count - first)
            taken = self._send_chunk(self._schedule.due_many_ns(first, count))
            self._pacer.sent(taken)
            if taken < count:
                self._second.queue_full += 1
                return

    def _send_chunk(self, intended_ns: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
        """Send messages that share one stamp; return how many the client took."""
        count = intended_ns.size
        sent_ns = self._clock.mono_ns()
        partition = int(sent_ns // STICKY_NS) % len(self._sequence)
        begin = self._sequence[partition]
        block = self._template[:count]
        block["sequence"] = np.arange(begin, begin + count)
        block["intended_mono_ns"] = intended_ns
        block["delay_ns"] = sent_ns - intended_ns
        block["sent_wall_ns"] = self._clock.wall_ns()
        raw = block.tobytes()
        taken = 0
        for at in range(count):
            token = self._in_flight.add(partition, begin + at, int(intended_ns[at]), sent_ns)
            payload = raw[at * header.SIZE : (at + 1) * header.SIZE] + self._body
            if not self._producer.send(partition, payload, token):
                self._in_flight.take_back()
                break
            taken += 1
        self._sequence[partition] = begin + taken
        self._second.note_sent(sent_ns - intended_ns[:taken])
        return taken

    def _take(self) -> None:
        self._second.note_settled(self._in_flight.settle(self._producer.take()))

    def _write(self, k: int) -> None:
        second, grid = self._second, self._context.grid
        at_ns = self._clock.wall_ns()
        following = {
            header.lane(self._instance, self._context.writer.inc, at): sequence
            for at, sequence in enumerate(self._sequence)
            if sequence
        }
        self._context.recorder.append(
            k,
            second.samples(self._in_flight.count, self._cpu.ratio()),
            histograms={"publish_latency_seconds": second.latency.encode()},
            acknowledged=second.acknowledged(),
            sent_next=following,
            events=second.failures(at_ns, max(0, at_ns - SECOND_NS, grid.wall_of(k) - SECOND_NS)),
            trust={"reason": second.reason()},
        )
        second.clear()
