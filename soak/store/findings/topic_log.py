"""Two compacted Kafka topics as one log that several processes write, one at a time, and read to its end.

A writer takes its turn by starting a transactional producer under the id that all writers of a run share.
That ends the turn of the writer before it: the broker refuses what that one still wants to commit. So what a
writer read at the start of its turn holds until it commits, as in a database with one lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewTopic

from soak.clients.kafka_log import error_text, headers_of_message
from soak.core.errors import BrokerError, FindingsBusyError, FindingsError
from soak.core.plan.plan import Store
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.store.samples_topic import MAX_MESSAGE_BYTES, SamplesClients

FINDINGS_TOPIC = "soak.findings"
OUTBOX_TOPIC = "soak.outbox"
TOPICS = (FINDINGS_TOPIC, OUTBOX_TOPIC)
_NEW_TOPIC = {
    "cleanup.policy": "compact",
    "max.message.bytes": str(MAX_MESSAGE_BYTES),  # a finding may name thousands of series
    # Only closed segments are compacted, and each start reads what is left of all of them.
    "segment.bytes": str(64 * 2**20),
    "segment.ms": str(24 * 3600 * 1000),
}
JOIN_NS = 15 * SECOND_NS
"""How long the first claim waits for the group to answer; a group of one needs about 3 s."""

_CONSUMER = {
    "group.id": "soak-findings",  # never joined: the partitions are assigned
    "enable.auto.commit": "false",
    "auto.offset.reset": "error",  # an offset that is out of range is of a topic that was created again
    "enable.partition.eof": "true",
    # The end behind a transaction shows in an answer without records, for which a broker waits this long.
    "fetch.wait.max.ms": "100",
    "isolation.level": "read_committed",
}
_END_ASKER = {**_CONSUMER, "isolation.level": "read_uncommitted"}
_MEMBER = {
    "enable.auto.commit": "false",
    "auto.offset.reset": "latest",
    # The owner keeps the partition when another daemon joins.
    "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": "10000",
    "isolation.level": "read_committed",
}
_PRODUCER = {
    "acks": "all",
    "enable.idempotence": "true",
    "linger.ms": "0",
    "compression.type": "lz4",
    "message.max.bytes": str(MAX_MESSAGE_BYTES),
    "transaction.timeout.ms": "10000",  # of a killed process: readers wait for its end
}
_POLL_SECONDS = 0.5
_FIRST_TURN_SECONDS = 30.0  # the first one of a cluster creates the log of its transactions
OPEN_NS = 30 * SECOND_NS
"""So long a transaction of a killed process may hide what was committed behind it: its time-out, and the
period in which a broker looks for those that are over."""
_MESSAGES = 1000  # taken at once
_KEEP = "keep_ms"  # header of a record: how long its run is kept
_EXISTS = KafkaError.TOPIC_ALREADY_EXISTS
_FENCED = {
    KafkaError._FENCED,  # noqa: SLF001  # its public name
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.CONCURRENT_TRANSACTIONS,
}
_NOT_OWNER = {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
}
_UNKNOWN_TOPIC = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001  # its public name
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001  # its public name
}


class TurnLostError(FindingsBusyError):
    """Another process began to write: what this one read may have changed, and nothing was written."""


class NotOwnerError(FindingsError):
    """Another alert daemon sends the notifications of this run: nothing was written."""


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record; a value of None deletes its key."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes | None
    expires_ms: int  # wall clock: until then its run is kept, though nothing more is written of it

    @property
    def place(self) -> str:
        return f"topic {self.topic}, partition {self.partition}, offset {self.offset}"


Place = tuple[str, int]
"""A topic and one of its partitions."""
Write = tuple[str, bytes, bytes | None]
"""Topic, key and value of a record to write."""


class FindingsLog(Protocol):
    """What a topic store needs of its log; every call raises `FindingsError` when the log cannot be used."""

    @property
    def has_turn(self) -> bool:
        """True from `take_turn` on, until a write fails or the turn is given up."""

    def read_new(self, *, to_end: bool = False) -> Iterable[LogRecord]:
        """Return the records since the last call, or since the beginning, up to the present end.

        What lies behind a transaction that has not ended yet, be it of another run, is left for the next
        call; with `to_end` its end is awaited, so that all that was committed before the call is there.
        Nothing was read when the call itself fails; the records may fail later.
        """

    def rewind(self) -> None:
        """Read from the beginning again."""

    def take_turn(self) -> None:
        """Become the only writer; the writer before finds its turn lost. Read to the end before writing."""

    def end_turn(self) -> None:
        """Give the turn up, as what was read in it is not known any more."""

    def write(self, records: Sequence[Write]) -> None:
        """Write all records or none.

        Raises:
            TurnLostError: another writer took its turn.
            NotOwnerError: this process had a claim that another one has now.
        """

    def claim(self) -> bool:
        """Return whether this process owns the outbox of the run; the first call joins its group.

        Raises:
            FindingsError: also when the group does not take this process as a member.
        """

    def close(self) -> None:
        """Give up claim, turn and connections."""


class KafkaFindingsLog:
    """The log on a Kafka cluster; clients are created when they are needed, in the thread that needs them."""

    def __init__(
        self,
        store: Store,
        run: str,
        clock: Clock,
        partitions: Callable[[], Sequence[Place]] | None = None,
    ) -> None:
        """`partitions` are known for sure, such as those of a cluster without an admin API."""
        self._store = store
        self._partitions = partitions or self._ensure_topics
        self._run = run
        self._clock = clock
        self._timeout_seconds = store.timeout / SECOND_NS
        self._clients = SamplesClients(store.target, f"soakd-{run}-findings", clock)
        self._group = f"soak-alert-{run}"
        self._reader: Any = None
        self._end_asker: Any = None  # a client that sees transactions that have not ended
        self._next: dict[Place, int] = {}  # the next offset, by topic and partition
        self._read_error = ""  # of a partition that cannot be read
        self._writer: Any = None
        self._member: Any = None
        self._has_joined = False  # the group has answered, be it with no partition
        self._member_error = ""  # why it does not
        self._membership: Any = None  # of the group, while this process owns the outbox
        self._vanished: FindingsError | None = (
            None  # raised until `close`, not to start again silently
        )

    @property
    def has_turn(self) -> bool:
        return self._writer is not None

    def read_new(self, *, to_end: bool = False) -> Iterable[LogRecord]:
        self._ensure_reader()
        if to_end and self._end_asker is None:
            self._end_asker = self._create(confluent_kafka.Consumer, _END_ASKER)
        asker = self._end_asker if to_end else self._reader
        ends = {place: self._end(asker, place) for place in self._next}
        for place, end in ends.items():
            if end < self._next[place]:
                raise self._vanish(place[0], "was emptied or created again")
        patience_ns = max(self._store.timeout, OPEN_NS if to_end else 0)
        return self._read_up_to(ends, patience_ns)

    def _read_up_to(self, ends: Mapping[Place, int], patience_ns: int) -> Iterator[LogRecord]:
        """Yield the records before these offsets; `patience_ns` is how long there may be no progress."""
        self._read_error = ""
        deadline_ns = self._clock.mono_ns() + patience_ns
        while any(self._next[place] < end for place, end in ends.items()):
            before = dict(self._next)
            first = self._reader.poll(_POLL_SECONDS)  # `consume` would wait for all of its messages
            if first is not None:
                for message in (first, *self._reader.consume(_MESSAGES, 0)):
                    yield from self._take(message)
            now_ns = self._clock.mono_ns()
            if self._next != before:
                deadline_ns = now_ns + patience_ns
            elif now_ns >= deadline_ns:
                reason = self._read_error or self._clients.cause.or_else("no answer")
                raise FindingsError(f"cannot read {' and '.join(TOPICS)}: {reason}")

    def rewind(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def take_turn(self) -> None:
        self._writer = None
        writer = self._create(
            confluent_kafka.Producer, {**_PRODUCER, "transactional.id": f"soakd-{self._run}"}
        )
        try:
            writer.init_transactions(_FIRST_TURN_SECONDS)
        except KafkaException as error:
            raise self._write_error(error) from error
        self._writer = writer

    def end_turn(self) -> None:
        self._writer = None

    def write(self, records: Sequence[Write]) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            raise TurnLostError("another process writes to the findings topics: try again")
        if self._member is not None and self._membership is None:
            raise _not_owner(self._run)
        try:
            writer.begin_transaction()
            for topic, key, value in records:
                writer.produce(topic, value, key, headers={_KEEP: str(self._store.keep // 10**6)})
            if self._membership is not None:
                at = self._next.get((OUTBOX_TOPIC, 0), 0)
                writer.send_offsets_to_transaction(
                    [TopicPartition(OUTBOX_TOPIC, 0, at)], self._membership, self._timeout_seconds
                )
            writer.commit_transaction(self._timeout_seconds)
        except (KafkaException, BufferError) as error:
            self._abort(writer, error)
            raise self._write_error(error) from error
        self._writer = writer

    def claim(self) -> bool:
        if self._member is None:
            self._ensure_reader()  # the topics exist from then on
            self._member = self._create(
                confluent_kafka.Consumer, {**_MEMBER, "group.id": self._group}
            )
            self._has_joined, self._member_error = False, ""
            self._member.subscribe(
                [OUTBOX_TOPIC],
                on_assign=self._note_assigned,
                on_revoke=self._note_revoked,
                on_lost=self._note_revoked,
            )
            self._await_group()
        # After a new generation of the group, an owner that wrote too early learns here that it still is one.
        self._serve_member(0.0 if self._membership is not None else _POLL_SECONDS)
        if self._membership is None and (self._member_error or not self._has_joined):
            reason = self._member_error or self._clients.cause.or_else("no answer yet")
            raise FindingsError(
                f"cannot join group {self._group}, whose owner sends the messages: {reason}"
            )
        return self._membership is not None

    def close(self) -> None:
        self._writer = self._membership = self._vanished = None
        member, self._member = self._member, None
        asker, self._end_asker = self._end_asker, None
        for client in filter(None, (member, asker)):
            client.close()
        self.rewind()

    def _await_group(self) -> None:
        deadline_ns = self._clock.mono_ns() + JOIN_NS
        while not (self._has_joined or self._member_error) and self._clock.mono_ns() < deadline_ns:
            self._serve_member(_POLL_SECONDS)

    def _serve_member(self, timeout_seconds: float) -> None:
        """Run the callbacks that are due; what the member reads is of no use, the reader has it too."""
        message = self._member.poll(timeout_seconds)
        for _ in range(_MESSAGES):
            if message is None:
                return
            error = message.error()
            # A member that was away for too long joins again by itself.
            if error is not None and error.code() != KafkaError._MAX_POLL_EXCEEDED:  # noqa: SLF001  # its public name
                self._member_error = error.str()
                if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    self._member_error += "; allow Read on it to the user of `store`"
            message = self._member.poll(0)

    def _note_assigned(self, member: Any, places: Sequence[TopicPartition]) -> None:  # noqa: ANN401  # a client
        """Note the place in the group; `places` are new ones, none when another daemon joins or leaves."""
        self._has_joined, self._member_error = True, ""
        # As it is now: a later one may be that of a member that has lost the partition.
        if any(place.partition == 0 for place in (*places, *member.assignment())):
            self._membership = member.consumer_group_metadata()

    def _note_revoked(self, _member: Any, places: Sequence[TopicPartition]) -> None:  # noqa: ANN401  # a client
        if any(place.partition == 0 for place in places):
            self._membership = None

    def _ensure_reader(self) -> None:
        if self._vanished is not None:
            raise self._vanished
        if self._reader is not None:
            return
        partitions = self._partitions()
        self._reader = self._create(confluent_kafka.Consumer, _CONSUMER)
        self._next = dict.fromkeys(partitions, 0)
        self._reader.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in partitions])

    def _end(self, asker: Any, place: Place) -> int:  # noqa: ANN401  # a client
        """Return the end of a partition; a new one has a leader before it has a log."""
        topic = place[0]
        ask = partial(
            asker.get_watermark_offsets, TopicPartition(*place), timeout=self._timeout_seconds
        )
        deadline_ns = self._clock.mono_ns() + self._store.timeout
        while True:
            try:
                return int(ask()[1])
            except KafkaException as error:
                now_ns = self._clock.mono_ns()
                if now_ns < deadline_ns:
                    self._clock.sleep_until(now_ns + SECOND_NS // 4)
                elif _code(error) in _UNKNOWN_TOPIC:
                    raise self._vanish(topic, "was deleted") from error
                else:
                    reason = self._clients.cause.or_else(error_text(error))
                    raise FindingsError(f"cannot read {topic}: {reason}") from error

    def _take(self, message: Any) -> Iterator[LogRecord]:  # noqa: ANN401  # the client ships no types
        """Move behind a message, and yield it if it is a record."""
        place = message.topic(), message.partition()
        error = message.error()
        if error is None:
            self._next[place] = message.offset() + 1
            if message.key() is not None:
                yield LogRecord(
                    *place,
                    message.offset(),
                    message.key(),
                    message.value(),
                    message.timestamp()[1] + self._keep_ms(message),
                )
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # its public name
            self._next[place] = message.offset()  # behind the mark that ends a transaction
        elif error.code() in _UNKNOWN_TOPIC:
            raise self._vanish(place[0], "was deleted")
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001  # its public name
            raise self._vanish(place[0], "was emptied or created again")
        else:
            self._read_error = error.str()

    def _keep_ms(self, message: Any) -> int:  # noqa: ANN401  # the client ships no types
        """Return how long the plan of a record's run keeps it; a record without a mark is kept as ours."""
        text = dict(headers_of_message(message)).get(_KEEP) or b""
        return int(text) if text.isdigit() else self._store.keep // 10**6

    def _ensure_topics(self) -> list[Place]:
        """Create the topics that are missing, check the others, and return all partitions."""
        admin = self._create(AdminClient, {})
        known = self._metadata(admin)
        for topic in TOPICS:
            if topic in known:
                self._check_topic(admin, topic, len(known[topic].partitions))
            else:
                self._create_topic(admin, topic)
        return [
            (topic, partition)
            for topic in TOPICS
            for partition in (known[topic].partitions if topic in known else (0,))
        ]

    def _metadata(self, admin: Any) -> Any:  # noqa: ANN401  # the client ships no types
        try:
            return self._clients.cause.metadata(
                admin, self._store.servers, self._timeout_seconds
            ).topics
        except BrokerError as error:
            raise FindingsError(f"store: {error}") from error

    def _create_topic(self, admin: Any, topic: str) -> None:  # noqa: ANN401  # a client
        new = NewTopic(
            topic,
            num_partitions=1,  # the owner of the one partition sends
            replication_factor=-1,  # the default of the cluster
            config=_NEW_TOPIC,
        )
        try:
            admin.create_topics([new], operation_timeout=self._timeout_seconds)[topic].result(
                self._timeout_seconds
            )
        except (KafkaException, TimeoutError) as error:
            if _code(error) != _EXISTS:  # another process may have created it meanwhile
                raise FindingsError(f"cannot create topic {topic}: {error_text(error)}") from error

    def _check_topic(self, admin: Any, topic: str, partitions: int) -> None:  # noqa: ANN401  # a client
        """Refuse a topic that would lose findings, or that two daemons could own."""
        if topic == OUTBOX_TOPIC and partitions != 1:
            raise FindingsError(
                f"topic {topic} has {partitions} partitions and needs exactly one, whose owner sends: "
                "delete it, and soakd creates it with one"
            )
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        try:
            found = admin.describe_configs([resource], request_timeout=self._timeout_seconds)
            settings = found[resource].result(self._timeout_seconds)
        except (KafkaException, TimeoutError) as error:
            raise FindingsError(
                f"cannot read the settings of topic {topic}: {error_text(error)}; "
                "allow DescribeConfigs on it to the user of `store`"
            ) from error
        policy = settings["cleanup.policy"].value
        if policy != "compact":
            raise FindingsError(
                f"topic {topic} has cleanup.policy={policy} and would lose findings; set it with "
                f"kafka-configs.sh --alter --entity-type topics --entity-name {topic} "
                "--add-config cleanup.policy=compact"
            )

    def _create(self, kind: type[Any], settings: dict[str, str]) -> Any:  # noqa: ANN401  # a client
        try:
            return self._clients.create(kind, settings)
        except BrokerError as error:
            raise FindingsError(f"store: {error}") from error

    def _abort(self, writer: Any, error: BaseException) -> None:  # noqa: ANN401  # a client
        """End the transaction where the client asks for it; the next turn ends it in any case."""
        reason = error.args[0] if error.args else None
        if isinstance(reason, KafkaError) and reason.txn_requires_abort():
            _attempt(lambda: writer.abort_transaction(self._timeout_seconds))
        writer.purge()

    def _vanish(self, topic: str, what: str) -> FindingsError:
        self._vanished = FindingsError(
            f"topic {topic} {what} while it was in use, and with it the findings of all runs: restart "
            "detect-stream and alert to begin with an empty one"
        )
        return self._vanished

    def _write_error(self, error: BaseException) -> FindingsError:
        code = _code(error)
        if code in _FENCED:
            return TurnLostError(
                f"another process writes to the findings topics: {error_text(error)}"
            )
        if code in _NOT_OWNER:
            self._membership = None
            return _not_owner(self._run)
        reason = self._clients.cause.or_else(error_text(error))
        return FindingsError(f"cannot write to the findings topics: {reason}")


def check_store(store: Store, clock: Clock) -> None:
    """Check that the cluster answers, and that each client of the log takes the settings of the plan.

    Raises:
        BrokerError: it does not, or a secret of the plan is missing.
    """
    clients = SamplesClients(store.target, "soakd", clock)
    clients.create(confluent_kafka.Consumer, {**_MEMBER, "group.id": "soak-alert"}).close()
    clients.create(confluent_kafka.Producer, {**_PRODUCER, "transactional.id": "soakd"})
    clients.check_connection()


def _attempt(work: Callable[[], object]) -> bool:
    """Return whether it could be done."""
    try:
        work()
    except KafkaException:
        return False
    return True


def _code(error: BaseException) -> int | None:
    reason = error.args[0] if error.args else None
    return reason.code() if isinstance(reason, KafkaError) else None


def _not_owner(run: str) -> NotOwnerError:
    return NotOwnerError(f"another alert daemon sends the messages of {run}")
