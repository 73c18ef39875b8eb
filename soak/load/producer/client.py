"""One client of a producer process: sends its own share of the schedule, independently of the other clients."""

from __future__ import annotations

from soak.core.ports import Clock, Producer
from soak.core.units import SECOND_NS
from soak.load.producer.in_flight import InFlight
from soak.load.producer.interval import INVALID_LAG_SECONDS, ProducerInterval
from soak.load.producer.messages import MAX_BLOCK_MESSAGES, Block, Messages
from soak.load.producer.pacing import Pacer

INVALID_LAG_NS = round(INVALID_LAG_SECONDS * SECOND_NS)
QUEUE_FULL_PAUSE_NS = 2_000_000  # after a send that the client's queue refused: to try at once costs more than it sends
MIN_BLOCK_MESSAGES = 8  # messages that are laid out for a partition that may be full
MAX_PARTITION_TRIES = 32  # of partitions one after the other that take nothing: then one every 2 ms


class ProducerClient:
    """A client with its schedule, the block that it sends from, and what it has out."""

    def __init__(
        self,
        client: int,
        producer: Producer,
        pacer: Pacer,
        messages: Messages,
        second: ProducerInterval,
        clock: Clock,
    ) -> None:
        self.producer = producer
        self.in_flight = InFlight()
        self.pacer = pacer
        self.second = second  # where it notes what it does
        self.next_ns = pacer.next_due_ns()  # when it is to be asked next
        self.left = 0  # due, and to be sent now
        self._client = client
        self._messages = messages
        self._clock = clock
        self._most = MAX_BLOCK_MESSAGES  # messages that are laid out at once
        self._tries = 0  # of partitions, since one took something
        self._block: Block | None = None  # the next to be sent, laid out up to 10 ms ahead
        self.is_held = False  # behind the schedule because the cluster took no more

    def follow(self, pacer: Pacer) -> None:
        """Go by this pacer from now on: another one, or the same when its schedule was extended."""
        self.drop_block()
        self.pacer = pacer
        self.next_ns = pacer.next_due_ns()

    def begin(self, now_ns: int) -> int:
        """Send the first block of what is due, and return how much; what is too old for that is missed."""
        due = self.pacer.due(now_ns)
        if self.is_held:
            self.is_held = now_ns - self.pacer.next_due_ns() > INVALID_LAG_NS
        if due.missed:
            self.second.missed += due.missed
            self.follow(self.pacer)
        self.left = due.count
        return self.send(now_ns) if due.count else 0

    def send(self, now_ns: int) -> int:
        """Send of what is left what lies in one block, and return how much: one call of the client's."""
        block = self._block
        if block is None:
            ahead_ns = self.pacer.ahead_ns()[: self._most]
            block = self._block = self._messages.block(self._client, ahead_ns, now_ns)
        ready = block.left
        count = min(self.left, ready)
        taken = self._hand_over(block, count)
        self.pacer.sent(taken)
        self.left -= taken
        if taken:
            self._tries = 0
        if taken == ready:
            self._block = None
            self._most = min(2 * self._most, MAX_BLOCK_MESSAGES)
        if taken < count:
            self._refused(block, count - taken, now_ns)
        elif not self.left:
            self.next_ns = self.pacer.next_due_ns()
        return taken

    def _refused(self, block: Block, count: int, now_ns: int) -> None:
        """Go on with other partitions at once, or wait for room."""
        self.drop_block()
        if self.producer.refused_by_partition:
            self.second.queue_full += 1
            self._tries += 1
            self._most = max(MIN_BLOCK_MESSAGES, min(2 * block.sent, MAX_BLOCK_MESSAGES))
            is_rest_open = self._messages.leave_out(
                self._client, block.partition[block.sent], now_ns
            )
            if is_rest_open and self._tries < MAX_PARTITION_TRIES:
                return
        else:
            self.second.queue_full += count
        self.left = 0
        self.is_held = True
        self.next_ns = now_ns + QUEUE_FULL_PAUSE_NS

    def drop_block(self) -> None:
        if self._block is not None:
            self._messages.drop(self._block)
            self._block = None

    def give_up(self, until_ns: int) -> None:
        """Count as missed what was due up to and at an instant and was not sent."""
        self.second.missed += self.pacer.give_up(until_ns)
        self.is_held = False
        self.follow(self.pacer)

    def _hand_over(self, block: Block, count: int) -> int:
        """Send the next messages of a block under one stamp; return how many the client took."""
        first, end = block.sent, block.sent + count
        sent_ns = self._clock.mono_ns()
        delay_ns = sent_ns - block.intended_ns[first:end]
        in_flight = self.in_flight
        outgoing = block.stamped(delay_ns, self._clock.wall_ns(), in_flight.next_token)
        in_flight.add(block, first, end, sent_ns)
        taken = self.producer.send(outgoing)
        if taken < count:
            in_flight.take_back(count - taken)
            delay_ns = delay_ns[:taken]
        block.sent += taken
        self.second.note_sent(delay_ns)
        self.second.held_back += taken if self.is_held else 0
        return taken
