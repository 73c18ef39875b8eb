"""The ports: protocols that a broker, a probe, a sink and a clock implement."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from soak.core.model import Reading

if TYPE_CHECKING:  # 12 MiB that the probe daemon can do without
    import numpy as np
    from numpy.typing import NDArray

    from soak.core.cluster.durability import Durability
    from soak.core.cluster.forecast import Limits, Stored
    from soak.core.plan.config import Settings
    from soak.core.plan.load import Load
    from soak.core.plan.plan import Topic
    from soak.core.plan.text import KeyPath


_Given = TypeVar("_Given")
_Found = TypeVar("_Found")


class Each(Protocol):
    """Calls a function with each of many things, in any order and perhaps in other processes."""

    def __call__(
        self, function: Callable[[_Given], _Found], things: Sequence[_Given], /
    ) -> list[_Found]:
        """Return what the function returns for each, in the order of the things."""
        ...


def each_here(function: Callable[[_Given], _Found], things: Sequence[_Given], /) -> list[_Found]:
    """Return what the function returns for each, called in this process one after the other."""
    return [function(one) for one in things]


Note = Callable[[str], None]
"""Takes what is done now, in a few words, for a person at the terminal."""


def no_note(_doing: str) -> None:
    """Take what is done now, and show it to no person."""


class Clock(Protocol):
    def mono_ns(self) -> int: ...
    def wall_ns(self) -> int: ...
    def boot_ns(self) -> int: ...
    def sleep_until(self, mono_ns: int) -> None: ...


FAILED_OFFSET = -1
"""Offset of a message that the client gave up."""
UNKNOWN_OFFSET = -2
"""Offset of a delivered message whose offset the cluster did not return (acks=0)."""

EARLIEST = -2
"""Position of a partition from which nothing has been received yet."""
LATEST = -1
"""Position at the end of a partition's log; it differs after each start of a consumer."""


@dataclass(frozen=True, slots=True)
class Topics:
    """Topics of the same kind; partition indexes count through all: topic x partitions + partition."""

    names: tuple[str, ...]
    partitions: int  # of each

    @property
    def total(self) -> int:
        return len(self.names) * self.partitions

    def split(self, at: int) -> tuple[str, int]:
        """Return topic and partition of a partition index."""
        topic, partition = divmod(at, self.partitions)
        return self.names[topic], partition


@dataclass(frozen=True, slots=True)
class TopicCreation:
    """How topics are marked when they are created, and where their creation is noted."""

    mark: str = ""  # of the creator: set on the topics where the cluster supports it
    begun: frozenset[str] = (
        frozenset()
    )  # created already by the same creator: only the missing steps are done
    note: Callable[[Mapping[str, str]], None] = lambda _identities: (
        None
    )  # called as each topic is confirmed


UNMARKED = TopicCreation()

Payload: TypeAlias = "bytes | NDArray[np.uint8]"
"""Bytes, or a row of a matrix of them."""
Heads: TypeAlias = "Sequence[bytes] | NDArray[np.void]"
"""The first bytes of each payload, or an array of headers, short ones padded with zeros."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Payloads that are consecutive rows of one matrix, which is not moved: from row `first` on."""

    matrix: NDArray[np.uint8]
    first: int


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Messages in the order in which they are sent; all sequences have the same length n.

    `partition` holds partition indexes; message i has the token `first_token + i`. A payload may be
    overwritten as soon as `send` has returned: a client that keeps it must copy it.
    """

    partition: Sequence[int]
    payload: Sequence[Payload]
    first_token: int
    key: Sequence[bytes] | None = None
    rows: Rows | None = None


@dataclass(frozen=True, slots=True)
class Acks:
    """A batch of delivery reports, arrays of shape (n,). `token` is what was given to `send`."""

    token: NDArray[np.int64]
    offset: NDArray[np.int64]  # or FAILED, or UNKNOWN_OFFSET
    at_mono_ns: NDArray[np.int64]
    failures: Mapping[str, int] = field(default_factory=dict)
    """How many of them failed, by the reason in the words of the client."""


@dataclass(frozen=True, slots=True)
class ReceiveError:
    """An error that a consumer's client reports, in its words; "" for what it does not name."""

    reason: str
    code: str = ""  # the client's name for the kind of error
    broker: str = ""  # host and port
    partition: str = ""  # of a topic: `topic-0`


@dataclass(frozen=True, slots=True)
class Batch:
    """Received messages in order of arrival."""

    heads: Heads
    partition: NDArray[np.int64]  # partition indexes
    offset: NDArray[np.int64]
    at_mono_ns: int
    at_wall_ns: int
    redelivered: int = 0  # delivered again and skipped
    came_mono_ns: NDArray[np.int64] | None = None
    """When each message arrived, up to `at_mono_ns`; None: all of them at that time."""
    errors: Mapping[ReceiveError, int] = field(default_factory=dict)
    """The errors that the client reported since the last batch, and how often."""


class WakeUp(Protocol):
    fd: int
    """An eventfd; writing the number 1 in eight bytes wakes the waiting thread."""

    def wait(self, mono_ns: int) -> None:
        """Return at the first wake-up since the last call, or at this instant."""
        ...


class Producer(Protocol):
    @property
    def refused_by_partition(self) -> bool:
        """True if `send` last refused a message because its partition's queue was full."""
        ...

    def rings(self, bell: int) -> bool:
        """Write to this eventfd when a delivery report arrives; return False if that is not supported.

        A client that timestamps reports itself does not write to it and returns True.
        """
        ...

    def send(self, messages: Outgoing) -> int:
        """Pass messages to the client; return how many it accepted before its queue was full.

        Raises:
            BrokerError: the client refuses a message for good.
        """
        ...

    def serve(self) -> None:
        """Let the client process acknowledgements and record their times; return at once."""
        ...

    def take(self) -> Acks:
        """Return the delivery reports noted since the last call."""
        ...

    def throttle_seconds(self) -> Mapping[str, float] | None:
        """Return how long each broker makes this client wait now because of a quota.

        In seconds, by host and port; a broker without such a wait is absent. None while that is not known.
        """
        ...

    def close(self, timeout_seconds: float) -> Acks:
        """Wait for outstanding messages; return the last reports, without those still outstanding."""
        ...


class Consumer(Protocol):
    def receive(self, limit: int, timeout_seconds: float) -> Batch:
        """Wait for the first message, at most this long, and return it with those that follow."""
        ...

    def pause(self, *, is_paused: bool) -> None:
        """Stop or resume fetching; messages fetched already may still be delivered."""
        ...

    def lag(self, positions: Mapping[int, int]) -> int | None:
        """Return the number of messages between the positions and the last known ends of the logs.

        Return None while nothing is known. It sends no request, as it is called every second.
        """
        ...

    def log_bounds(self, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return the earliest readable offset of each partition and the next one to be written.

        Raises:
            BrokerError: the cluster did not answer for all of them in time.
        """
        ...

    def throttle_seconds(self) -> Mapping[str, float] | None:
        """Return how long each broker makes this client wait now because of a quota.

        In seconds, by host and port; a broker without such a wait is absent. None while that is not known.
        """
        ...

    def close(self) -> None:
        """Close; the cluster keeps the state of this subscription, so that the next consumer continues."""
        ...

    def close_for_good(self) -> None:
        """Close, and delete the state of this subscription: no consumer will continue."""
        ...


class LeaderSource(Protocol):
    def leaders(self, topics: Topics) -> NDArray[np.int64]:
        """Return the id of the broker that leads each partition, shape (total,); -1 without a leader.

        Raises:
            BrokerError: the cluster did not answer in time.
        """
        ...

    def leader_name(self, number: int) -> str:
        """Return the name of a leading broker, the same in every process and on every host."""
        ...

    def leader_address(self, number: int) -> str:
        """Return host and port of that broker for clients; "" when its name says so or it is unknown."""
        ...

    def broker_count(self) -> int:
        """Return the number of brokers that can lead partitions.

        Raises:
            BrokerError: the cluster did not answer in time, or does not say.
        """
        ...


class Partitioner(Protocol):
    def partition_of(self, key: bytes, partitions: int) -> int:
        """Return the partition that the client chooses for a key."""
        ...


class Guarantees(Protocol):
    """What a cluster guarantees for the topics of a plan, and how long it retains them."""

    def durability(self, topic: Topic, written: Container[KeyPath]) -> Durability:
        """Return the durability of a plan's topics; of several the weakest.

        `written` are the keys that the broker's section of the plan has in its text.

        Raises:
            BrokerError: the cluster does not answer.
        """
        ...

    def retention(self, topic: Topic) -> Limits:
        """Return the limits of retention of a plan's topics, as the cluster has them.

        Raises:
            BrokerError: the cluster does not answer.
        """
        ...

    def assumed_retention(self, topic: Topic, broker_settings: Settings) -> Limits:
        """Return the limits that a plan's topics will have on brokers with these settings."""
        ...

    def stored_size(self, load: Load, topic: Topic, limits: Limits) -> Stored:
        """Return how many bytes the log takes for the messages of a load."""
        ...


class Broker(LeaderSource, Partitioner, Protocol):
    guarantees: Guarantees
    block_bits: int
    """0: the offsets of a partition are dense. Otherwise the bits of an offset from this one up name a block
    that retention deletes as a whole (a ledger); offsets rise, with gaps that mean nothing."""
    wait_ns: int
    """How long a message waits for others that are passed to the client with it; the schedule lag is
    this wait plus the delay of the wake-up."""

    def check_settings(self) -> None:
        """Raise `BrokerError` when the client does not know its settings; it sends no request."""
        ...

    def check(self) -> None:
        """Raise `BrokerError` when the settings are wrong or the cluster cannot be reached."""
        ...

    def replication_error(self, topic: Topic) -> str:
        """Return why the cluster has too few nodes for the copies of a topic, and what to do, or "".

        Raises:
            BrokerError: the cluster did not answer in time.
        """
        ...

    def topic_error(self, topic: Topic) -> str:
        """Return why a run could not create its topics, or not use existing ones; "" if nothing is known.

        Creates nothing. What may be done with a topic that does not exist is not known.

        Raises:
            BrokerError: the cluster did not answer in time.
        """
        ...

    def cluster_warnings(self) -> list[str]:
        """Return what is wrong with the cluster before the run, such as partitions without a leader.

        Raises:
            BrokerError: the cluster did not answer in time.
        """
        ...

    def existing(self, names: Sequence[str]) -> list[str]:
        """Return which of these topics exist."""
        ...

    def identities(self, names: Sequence[str]) -> dict[str, str]:
        """Return an identity of each topic that exists, which a later topic of its name does not have.

        "" when the cluster has no such identity, or the topic has no mark.

        Raises:
            BrokerError: the cluster did not answer in time.
        """
        ...

    def create_topics(
        self,
        topics: Topics,
        replication: int,
        settings: Mapping[str, str],
        making: TopicCreation = UNMARKED,
    ) -> None:
        """Create topics and wait until every partition has a leader.

        Raises:
            BrokerError: a topic exists, the settings are refused, or a partition has no leader in time.
        """
        ...

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete topics and their messages; a missing topic is no error.

        Raises:
            BrokerError: the cluster refuses, or did not answer in time.
        """
        ...

    def producer(self, topics: Topics) -> Producer: ...

    def consumer(self, topics: Topics, subscription: str, positions: Mapping[int, int]) -> Consumer:
        """Return a consumer of these partitions that starts at these offsets (or EARLIEST, or LATEST)."""
        ...

    def client_versions(self) -> Mapping[str, str]:
        """Return the versions of the client's libraries by name."""
        ...

    def client_facts(self) -> Mapping[str, str]:
        """Return facts about the client for the journal: its versions, and which of its calls are used."""
        ...

    def broker_versions(self) -> Mapping[str, str]:
        """Return the version of each broker by its address; "" where it cannot be known.

        Raises:
            BrokerError: the cluster did not answer in time, or does not list its brokers.
        """
        ...


class Probe(Protocol):
    def read(self) -> Reading:
        """Return at once; calls that may block run on a thread of their own.

        Raises:
            NotAvailableError: this machine lacks what the probe reads; reported once.
            ProbeError: this reading failed; a `PartialReadingError` has what was measured all the same.
        """
        ...

    def close(self) -> None: ...


CHART_URL = "cid:chart"
"""Refers to the chart of a message in its HTML."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message about a finding, the run or its daemons, ready to be rendered by a sink."""

    key: str  # the same for every try; becomes the Message-ID
    subject: str
    text: str
    html: str = ""  # the same content as a page, for sinks that can show one
    chart_png: bytes | None = None
    follows: str = ""  # key of the message that this one refers to
    at_wall_ns: int = 0  # when it was queued; the same for every try
    labels: Mapping[str, str] = field(default_factory=dict)  # identify the subject and never change
    runbook_url: str = ""  # where to read what to do about the cause; may change with the cause
    begin_wall_ns: int = 0  # when the subject began
    end_wall_ns: int | None = None  # when the subject ended; None while it is open
    progress: str = ""  # as returned by the last try, see `Outcome`


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a try: `retry` is a temporary failure, `never` a permanent one."""

    result: Literal["delivered", "retry", "never"]
    detail: str = ""
    progress: str = ""  # for the next try, such as which recipients have it; empty: unchanged
    may_have_arrived: bool = False  # a recipient has it, or may have, though not all of them


class Sink(Protocol):
    def send(self, message: Message) -> Outcome: ...


@runtime_checkable
class DigestOptionalSink(Sink, Protocol):
    """A sink that may refuse digests; all other sinks get them."""

    wants_digests: bool


@runtime_checkable
class RepeatingSink(Sink, Protocol):
    """A sink whose receiver expects open findings to be sent again every few minutes."""

    def send_again(self, messages: Sequence[Message]) -> Outcome:
        """Send the messages about all open findings again."""
        ...
