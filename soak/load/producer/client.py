"""One client of a producer process: sends its share of the schedule, independently of the other clients."""

from __future__ import annotations

from soak.core.ports import Clock, Producer
from soak.core.units import SECOND_NS
from soak.load.producer.in_flight import InFlight
from soak.load.producer.interval import INVALID_LAG_SECONDS, ProducerInterval
from soak.load.producer.messages import MAX_BLOCK_MESSAGES, Block, Messages
from soak.load.producer.pacing import Pacer

INVALID_LAG_NS = round(INVALID_LAG_SECONDS * SECOND_NS)
QUEUE_FULL_PAUSE_NS = (
    2_000_000  # a refused send is not retried at once: trying costs more than it sends
)
MIN_BLOCK_MESSAGES = 8  # laid out for a partition whose queue may be full
MAX_PARTITION_TRIES = 32  # partitions with full queues that are tried in a row; then one every 2 ms


class ProducerClient:
    """A client with its schedule, its current block and its messages in flight."""

    def __init__(
        self,
        client: int,
        producer: Producer,
        pacer: Pacer,
        messages: Messages,
        interval: ProducerInterval,
        clock: Clock,
    ) -> None:
        self.producer = producer
        self.in_flight = InFlight()
        self.pacer = pacer
        self.interval = interval  # counts the sends
        self.next_ns = pacer.next_due_ns()  # when to call `begin` next
        self.remaining = 0  # messages that are due and to be sent now
        self._client = client
        self._messages = messages
        self._clock = clock
        self._max_block = MAX_BLOCK_MESSAGES
        self._tries = 0  # partitions with full queues since the last message was accepted
        self._block: Block | None = None  # laid out up to 10 ms ahead
        self.is_backpressured = False  # behind schedule because the cluster accepts no more

    def follow(self, pacer: Pacer) -> None:
        """Use this pacer from now on: a new one, or the same after its schedule was extended."""
        self.drop_block()
        self.pacer = pacer
        self.next_ns = pacer.next_due_ns()

    def begin(self, now_ns: int) -> int:
        """Skip messages that are too old and send the first block; return how many messages were sent."""
        due = self.pacer.due(now_ns)
        if self.is_backpressured:
            self.is_backpressured = now_ns - self.pacer.next_due_ns() > INVALID_LAG_NS
        if due.skipped:
            self.interval.skipped += due.skipped
            self.follow(self.pacer)
        self.remaining = due.count
        return self.send(now_ns) if due.count else 0

    def send(self, now_ns: int) -> int:
        """Send the next messages of one block with one call of the client; return how many were sent."""
        block = self._block
        if block is None:
            ahead_ns = self.pacer.ahead_ns()[: self._max_block]
            block = self._block = self._messages.block(self._client, ahead_ns, now_ns)
        ready = block.remaining
        count = min(self.remaining, ready)
        accepted = self._hand_over(block, count)
        self.pacer.sent(accepted)
        self.remaining -= accepted
        if accepted:
            self._tries = 0
        if accepted == ready:
            self._block = None
            self._max_block = min(2 * self._max_block, MAX_BLOCK_MESSAGES)
        if accepted < count:
            self._queue_was_full(block, count - accepted, now_ns)
        elif not self.remaining:
            self.next_ns = self.pacer.next_due_ns()
        return accepted

    def _queue_was_full(self, block: Block, count: int, now_ns: int) -> None:
        """Go on with other partitions at once, or wait for room."""
        self.drop_block()
        if self.producer.refused_by_partition:
            self.interval.queue_full += 1
            self._tries += 1
            self._max_block = max(MIN_BLOCK_MESSAGES, min(2 * block.sent, MAX_BLOCK_MESSAGES))
            partition = block.partition[block.sent]
            is_another_open = self._messages.pause_partition(self._client, partition, now_ns)
            if is_another_open and self._tries < MAX_PARTITION_TRIES:
                return
        else:
            self.interval.queue_full += count
        self.remaining = 0
        self.is_backpressured = True
        self.next_ns = now_ns + QUEUE_FULL_PAUSE_NS

    def drop_block(self) -> None:
        if self._block is not None:
            self._messages.drop(self._block)
            self._block = None

    def skip(self, until_ns: int) -> None:
        """Skip the messages that were due up to and at an instant and were not sent."""
        self.interval.skipped += self.pacer.skip(until_ns)
        self.is_backpressured = False
        self.follow(self.pacer)

    def _hand_over(self, block: Block, count: int) -> int:
        """Send the next messages of a block with one time stamp; return how many the client accepted."""
        first, end = block.sent, block.sent + count
        sent_ns = self._clock.mono_ns()
        delay_ns = sent_ns - block.intended_ns[first:end]
        in_flight = self.in_flight
        outgoing = block.stamped(delay_ns, self._clock.wall_ns(), in_flight.next_token)
        in_flight.add(block, first, end, sent_ns)
        accepted = self.producer.send(outgoing)
        if accepted < count:
            in_flight.remove_newest(count - accepted)
            delay_ns = delay_ns[:accepted]
        block.sent += accepted
        self.interval.note_sent(delay_ns)
        self.interval.backpressured += accepted if self.is_backpressured else 0
        return accepted
