"""The Kafka topic that carries journal lines between the hosts of a run, keyed by source.

The lines of a source are in one partition, in the order in which they were written. Headers name the run and
its start. Sending or reading a line twice changes nothing: (source, epoch, interval) identifies a record.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewTopic

from soak.clients import client_settings
from soak.clients.kafka_log import ClientLog, ErrorCause, error_text, headers_of_message
from soak.core.errors import BrokerError
from soak.core.plan.plan import Ship
from soak.core.ports import Clock
from soak.core.retry import Once
from soak.core.units import SECOND_NS
from soak.store.admission import SIGNATURE_HEADER, Signer, is_same, signer_of

LOG = logging.getLogger(__name__)
PARTITIONS = 8  # of a created topic; an existing one is used as it is
MAX_MESSAGE_BYTES = 16 * 2**20  # of a line
SOURCE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}@[A-Za-z0-9.-]{1,100}")
"""The key of a line; it becomes the name of a folder."""
_CLIENT = {
    "log_level": "3",
    "reconnect.backoff.ms": "500",  # the default of 100 costs 1 % of a core while no broker answers
    "reconnect.backoff.max.ms": "2000",
}
_RETENTION_MS = 7 * 24 * 3600 * 1000  # of a created topic, whatever the default of the cluster
_EXISTS = KafkaError.TOPIC_ALREADY_EXISTS
_PRODUCER = {
    "acks": "all",
    "enable.idempotence": "true",
    "linger.ms": "50",
    "compression.type": "lz4",
    # Batches of more than one line stay below this, so a small limit of the topic refuses no line that fits.
    "batch.size": str(2**16),
    "message.max.bytes": str(MAX_MESSAGE_BYTES),
}
_CONSUMER = {
    "group.id": "soak-samples",  # never joined: the partitions are assigned
    "enable.auto.commit": "false",
    "auto.offset.reset": "earliest",
    "fetch.max.bytes": str(MAX_MESSAGE_BYTES),
    "queued.max.messages.kbytes": str(MAX_MESSAGE_BYTES // 1024),  # of each partition
    "isolation.level": "read_uncommitted",  # or an open transaction of another client could stop all reading
}
MAX_POLL_BYTES = 32 * 2**20
_SLICE_SECONDS = 0.05
ANNOUNCEMENT_HEADER = "announces"  # its value is the name of the plan
ANNOUNCEMENTS = "announcements"
"""What stands for the source where an announcement is refused."""
PACKED = (
    "takes compressed batches, and a small one may unpack to gigabytes in each reader: "
    "set its compression.type to uncompressed"
)
_COMPRESSION, _UNPACKED = "compression.type", "uncompressed"
EVERYBODY = "everybody who reaches the cluster may write to it"
_AUTHORIZER = "authorizer.class.name"
_ALLOWS = "allow.everyone.if.no.acl.found"
_WRITES = (AclOperation.WRITE, AclOperation.ALL)
_SKEW_MS = 60_000  # the clocks of hosts may differ by this much
_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE)


class SamplesClients:
    """Creates clients of the samples topic; `cause` says why the brokers do not answer the newest one."""

    def __init__(self, ship: Ship, name: str, clock: Clock) -> None:
        self._ship = ship
        self._name = name
        self._log = ClientLog(LOG, clock)
        self._is_checked = False
        self.cause = ErrorCause()

    def create(self, kind: type[Any], settings: Mapping[str, str]) -> Any:  # noqa: ANN401  # a client
        """Return a client of this kind; settings of the plan override those of soakd.

        Raises:
            BrokerError: a secret of the plan is missing, or the client refuses its settings.
        """
        self.cause = ErrorCause()
        ours = {"client.id": self._name, **_CLIENT, **settings}
        given: dict[str, Any] = {**ours, **client_settings.resolve_secrets(self._ship.client)}
        given["bootstrap.servers"] = self._ship.bootstrap_servers
        try:
            return kind({**given, "error_cb": self.cause.note}, logger=self._log)
        except KafkaException as error:
            raise BrokerError(f"the client refuses its settings: {error_text(error)}") from error

    def check_connection(self) -> None:
        """Check that the cluster answers.

        Raises:
            BrokerError: it does not, or a secret of the plan is missing.
        """
        admin = self.create(AdminClient, {})
        self.cause.metadata(admin, self._ship.bootstrap_servers, self._ship.timeout / SECOND_NS)

    def ensure_topic(self) -> None:
        """Create the topic unless it exists; of one that does, let the broker unpack batches where we may.

        Raises:
            BrokerError: the cluster does not answer, or refuses to create it.
        """
        ship, timeout = self._ship, self._ship.timeout / SECOND_NS
        admin = self.create(AdminClient, {})
        if ship.topic in self.cause.metadata(admin, ship.bootstrap_servers, timeout).topics:
            self._check_settings(admin, timeout)
            return
        new = NewTopic(
            ship.topic,
            num_partitions=PARTITIONS,
            replication_factor=-1,  # the default of the cluster
            config={
                "max.message.bytes": str(MAX_MESSAGE_BYTES),
                "cleanup.policy": "delete",  # compaction would keep one line a source, which is its key
                "retention.ms": str(_RETENTION_MS),
                # The broker unpacks what it is sent and refuses it where it is larger than a message may be;
                # else 1.5 MB of zeros would take 2.5 GB of each reader.
                _COMPRESSION: _UNPACKED,
            },
        )
        try:
            admin.create_topics([new], operation_timeout=timeout)[ship.topic].result(timeout)
        except (KafkaException, TimeoutError) as error:
            reason = error.args[0] if error.args else None
            exists = isinstance(reason, KafkaError) and reason.code() == _EXISTS
            if not exists:  # another host may have created it meanwhile
                raise BrokerError(
                    f"cannot create topic {ship.topic}: {error_text(error)}"
                ) from error

    def _check_settings(self, admin: Any, timeout: float) -> None:  # noqa: ANN401  # a client
        """Mend a setting of an existing topic that costs memory of its readers; log what may not be, once."""
        if self._is_checked:
            return
        # A user that may write need not be allowed to read settings.
        with contextlib.suppress(KafkaException, TimeoutError):
            found = self._settings(admin, timeout)
            self._is_checked = True
            if "compact" in found.get("cleanup.policy", ""):
                policy = found["cleanup.policy"]
                LOG.error("topic_is_compacted topic=%s cleanup_policy=%s", self._ship.topic, policy)
            if found.get(_COMPRESSION, _UNPACKED) != _UNPACKED:
                self._let_broker_unpack(admin, timeout)

    def _let_broker_unpack(self, admin: Any, timeout: float) -> None:  # noqa: ANN401  # a client
        change = ConfigEntry(_COMPRESSION, _UNPACKED, incremental_operation=AlterConfigOpType.SET)
        topic = ConfigResource(
            ConfigResource.Type.TOPIC, self._ship.topic, incremental_configs=[change]
        )
        try:
            done = admin.incremental_alter_configs([topic], request_timeout=timeout)[topic]
            done.result(timeout)
        except (KafkaException, TimeoutError):  # this user may not
            LOG.warning("topic_takes_compressed_batches topic=%s: %s", self._ship.topic, PACKED)
        else:
            LOG.warning("topic_set topic=%s compression_type=%s", self._ship.topic, _UNPACKED)

    def _settings(self, admin: Any, timeout: float) -> dict[str, str]:  # noqa: ANN401  # a client
        topic = ConfigResource(ConfigResource.Type.TOPIC, self._ship.topic)
        found = admin.describe_configs([topic], request_timeout=timeout)[topic].result(timeout)
        return {name: str(entry.value) for name, entry in found.items()}

    def topic_warnings(self) -> list[str]:
        """Return what makes an existing topic unsafe to read: who may write to it, and what it unpacks.

        Raises:
            BrokerError: the cluster does not answer, or a secret of the plan is missing.
        """
        ship, timeout = self._ship, self._ship.timeout / SECOND_NS
        admin = self.create(AdminClient, {})
        topics = self.cause.metadata(admin, ship.bootstrap_servers, timeout).topics
        found = []
        with contextlib.suppress(KafkaException, TimeoutError):
            if (
                ship.topic in topics
                and self._settings(admin, timeout).get(_COMPRESSION, _UNPACKED) != _UNPACKED
            ):
                found.append(f"topic {ship.topic} {PACKED}")
        return [*found, *self._writers(admin, timeout)]

    def _writers(self, admin: Any, timeout: float) -> list[str]:  # noqa: ANN401  # a client
        topic = self._ship.topic
        anything = AclBindingFilter(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.MATCH,  # literal, prefixed and "*"
            None,  # type: ignore[arg-type]  # of any user
            None,  # type: ignore[arg-type]  # from any host
            AclOperation.ANY,
            AclPermissionType.ALLOW,
        )
        try:
            bindings = admin.describe_acls(anything, request_timeout=timeout).result(timeout)
        except (KafkaException, TimeoutError) as error:
            reason = error.args[0] if error.args else None
            code = reason.code() if isinstance(reason, KafkaError) else None
            if code == KafkaError.SECURITY_DISABLED:
                return [f"topic {topic}: {EVERYBODY}, for the cluster has no authorizer"]
            return []  # this user may not ask
        for one in bindings:
            if one.principal == "User:*" and one.operation in _WRITES:
                return [f"topic {topic}: {EVERYBODY}, by the ACL for User:* on {one.name}"]
        why = "" if bindings else self._allows_what_no_acl_names(admin, timeout)
        return [f"topic {topic}: {EVERYBODY}, for {why}"] if why else []

    def _allows_what_no_acl_names(self, admin: Any, timeout: float) -> str:  # noqa: ANN401  # a client
        """Return why a topic without an ACL is open to all, or nothing."""
        servers = self._ship.bootstrap_servers
        nodes = self.cause.metadata(admin, servers, timeout).brokers
        node = ConfigResource(ConfigResource.Type.BROKER, str(min(nodes)))
        with contextlib.suppress(KafkaException, TimeoutError):
            found = admin.describe_configs([node], request_timeout=timeout)[node].result(timeout)
            given = {
                name: str(found[name].value) for name in (_AUTHORIZER, _ALLOWS) if name in found
            }
            if given.get(_AUTHORIZER) == "":  # such a cluster says that there are no ACLs
                return "the cluster has no authorizer"
            if given.get(_ALLOWS) == "true":
                return f"it has no ACL and {_ALLOWS}=true"
        return ""


@dataclass(frozen=True, slots=True)
class ShippedLine:
    """One line of a journal without its line break; `sender` is the id of the run folder that it is from.

    `place` is where it lies on the topic, as partition and offset. `is_signed`: its signature holds; None
    where no key says so. `refusal`: why it is none of this run, where that is known already.
    """

    source: str
    raw: bytes
    sender: str = ""
    place: tuple[int, int] | None = None
    is_signed: bool | None = None
    refusal: str = ""


class SamplesWriter:
    """Sends the lines of one run; creates a client when it needs one, and a new one after a failure."""

    def __init__(
        self, ship: Ship, run_id: str, start_wall_ns: int, clock: Clock, sender: str = ""
    ) -> None:
        self._ship = ship
        self._sender = sender
        self._headers = {**headers_of(run_id, start_wall_ns), "sender": sender.encode()}
        self._signer: Signer | None = None
        self._clients = SamplesClients(ship, f"soakd-{run_id}-ship", clock)
        self._client: Any = None
        self.too_large = 0  # lines that the topic does not allow, left out

    def send(self, lines: Sequence[ShippedLine]) -> None:
        """Send all lines in order and wait until they are acknowledged.

        Raises:
            BrokerError: the cluster did not take all of them in time; it may have some.
        """
        if self._client is None:
            self._signer = signer_of(self._ship)
            self._clients.ensure_topic()
            timeout = {"message.timeout.ms": str(self._ship.timeout // 10**6)}
            self._client = self._clients.create(confluent_kafka.Producer, {**_PRODUCER, **timeout})
        failures: list[KafkaError] = []
        on_delivery = partial(self._note_delivery, failures)
        try:
            for line in lines:
                self._produce(line, on_delivery)
            unacknowledged = self._client.flush(2 * self._ship.timeout / SECOND_NS)
        except (KafkaException, BufferError) as error:
            self.close()
            raise BrokerError(f"cannot send to {self._ship.topic}: {error_text(error)}") from error
        if failures or unacknowledged:
            self.close()
            reason = self._clients.cause.or_else(failures[0].str() if failures else "no answer")
            raise BrokerError(f"{self._ship.topic} did not take all lines: {reason}")

    def close(self) -> None:
        """Drop the lines that are not acknowledged, and the client."""
        if self._client is not None:
            self._client.purge()
            self._client.poll(0)
            self._client = None

    def _produce(self, line: ShippedLine, on_delivery: Any) -> None:  # noqa: ANN401  # a callback
        try:
            self._client.produce(
                self._ship.topic,
                line.raw,
                line.source,
                headers=self._signed(line),
                on_delivery=on_delivery,
            )
        except KafkaException as error:
            if error.args[0].code() not in _TOO_LARGE:
                raise
            self.too_large += 1
        self._client.poll(0)

    def _signed(self, line: ShippedLine) -> dict[str, bytes]:
        if self._signer is None:
            return self._headers
        signature = self._signer.line(self._headers, line.source, self._sender, line.raw)
        return {**self._headers, SIGNATURE_HEADER: signature}

    def _note_delivery(
        self, failures: list[KafkaError], error: KafkaError | None, _message: object
    ) -> None:
        if error is None:
            return
        if error.code() in _TOO_LARGE:
            self.too_large += 1
        else:
            failures.append(error)


Judge = Callable[[bytes, Mapping[str, bytes | None], Signer | None], str]
"""Says why an announcement, of this text and with these headers, is refused; "" if it is not."""


class SamplesReader:
    """Reads the lines of one run, from stored offsets on or from the start of the run.

    With a `judge` it returns the announcements of `plan` besides that are refused, to be counted.
    """

    def __init__(
        self,
        ship: Ship,
        run_id: str,
        start_wall_ns: int,
        offsets: Mapping[int, int],
        clock: Clock,
        plan: str = "",
        judge: Judge | None = None,
    ) -> None:
        self._ship = ship
        self._plan = plan.encode()
        self._judge = judge
        self._headers = headers_of(run_id, start_wall_ns)
        self._start_ms = start_wall_ns // 10**6 - _SKEW_MS
        self.offsets = dict(offsets)  # the next to read, by partition
        self._clients = SamplesClients(ship, f"soakd-{run_id}-receive", clock)
        self._client: Any = None
        self._timeout_seconds = ship.timeout / SECOND_NS
        self._clock = clock
        self._deadline_ns = 0  # of the current request
        self._errors = Once(max_messages=100)  # by code
        self._signer: Signer | None = None
        self.skipped = 0  # messages of any run that were deleted before they were read

    def open(self) -> None:
        """Find the start offsets; stored ones that are out of range move to the oldest of the partition.

        Raises:
            BrokerError: the cluster does not answer.
        """
        self.close()
        self._signer = signer_of(self._ship)
        self._clients.ensure_topic()
        self._deadline_ns = self._clock.mono_ns() + self._ship.timeout
        self._client = self._clients.create(confluent_kafka.Consumer, _CONSUMER)
        topic, timeout = self._ship.topic, self._timeout_seconds
        found = self._request(lambda: self._client.list_topics(topic, timeout=timeout))
        since = [TopicPartition(topic, at, self._start_ms) for at in found.topics[topic].partitions]
        first = self._request(lambda: self._client.offsets_for_times(since, timeout=timeout))
        spans = self._spans(place.partition for place in first)
        self.offsets = {
            place.partition: self._begin(place.partition, place.offset, *spans[place.partition])
            for place in first
        }
        places = [TopicPartition(topic, at, offset) for at, offset in self.offsets.items()]
        self._client.assign(places)

    def _begin(self, partition: int, of_run: int, oldest: int, end: int) -> int:
        """Return the start offset of a partition: the stored one, or the first since the start of the run.

        `of_run` is negative when the partition has no message since then: reading starts at its present end.
        A stored offset below the oldest means that messages were deleted, one beyond the end that the topic
        was created again; either moves to the oldest.
        """
        offset = self.offsets.get(partition, of_run if of_run >= 0 else end)
        if oldest <= offset <= end:
            return offset
        LOG.warning(
            "offset_out_of_range partition=%d offset=%d oldest=%d", partition, offset, oldest
        )
        self._count_skipped(oldest - offset, partition)
        return oldest

    def ends(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return the end offset of each partition.

        Raises:
            BrokerError: the cluster does not answer.
        """
        self._deadline_ns = self._clock.mono_ns() + self._ship.timeout
        return {at: end for at, (_, end) in self._spans(partitions).items()}

    def _spans(self, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
        """Return the oldest offset and the end offset of each partition."""
        timeout = self._timeout_seconds
        found = {}
        for at in partitions:
            place = TopicPartition(self._ship.topic, at)
            ask = partial(self._client.get_watermark_offsets, place, timeout=timeout)
            found[at] = self._request(ask)
        return found

    def _request(self, ask: Callable[[], Any]) -> Any:  # noqa: ANN401  # the client ships no types
        """Repeat a request until it is answered: a new partition has a leader before it has a log."""
        while True:
            try:
                return ask()
            except KafkaException as error:
                now_ns = self._clock.mono_ns()
                if now_ns >= self._deadline_ns:
                    reason = self._clients.cause.or_else(error_text(error))
                    raise BrokerError(f"cannot read {self._ship.topic}: {reason}") from error
                self._clock.sleep_until(now_ns + SECOND_NS // 4)

    def poll(self, limit: int, timeout_seconds: float) -> list[ShippedLine]:
        """Return the new lines of this run; none while the cluster is unreachable."""
        found = []
        for message in new_messages(self._client, limit, timeout_seconds):
            if message.error() is not None:
                self._log_error(message.error())
                continue
            self._advance(message.partition(), message.offset())
            headers = dict(headers_of_message(message))
            if headers.items() >= self._headers.items() and message.key():
                found.append(self._line(message, headers))
            elif self._judge is not None and headers.get(ANNOUNCEMENT_HEADER) == self._plan:
                raw = message.value() or b""
                place = message.partition(), message.offset()
                if refusal := self._judge(raw, headers, self._signer):
                    found.append(ShippedLine(ANNOUNCEMENTS, raw, place=place, refusal=refusal))
        return found

    def _line(self, message: Any, headers: Mapping[str, bytes | None]) -> ShippedLine:  # noqa: ANN401  # a client's
        source = message.key().decode(errors="replace")
        sender = (headers.get("sender") or b"").decode(errors="replace")
        raw = message.value() or b""
        place = message.partition(), message.offset()
        is_signed = None
        if self._signer is not None:
            wanted = self._signer.line(self._headers, source, sender, raw)
            is_signed = is_same(headers.get(SIGNATURE_HEADER), wanted)
        return ShippedLine(source, raw, sender, place, is_signed)

    def _advance(self, partition: int, offset: int) -> None:
        """Move the offset of a partition behind a message, and count the skipped ones."""
        self._count_skipped(offset - self.offsets[partition], partition)
        self.offsets[partition] = offset + 1

    def _count_skipped(self, count: int, partition: int) -> None:
        if count <= 0:
            return
        before, self.skipped = self.skipped, self.skipped + count
        if before.bit_length() < self.skipped.bit_length():  # at 1, 2, 4, 8 ...
            LOG.warning(
                "offsets_skipped topic=%s partition=%d count=%d total=%d: deleted before they were read",
                self._ship.topic,
                partition,
                count,
                self.skipped,
            )

    def _log_error(self, error: KafkaError) -> None:
        """Log each kind of error once; the client recovers by itself."""
        if self._errors.is_new(error.code()):
            LOG.warning("samples_not_read topic=%s error=%s", self._ship.topic, error.str())

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def new_messages(client: Any, limit: int, timeout_seconds: float) -> list[Any]:  # noqa: ANN401  # a client
    """Return what a consumer gets within a time, at most `limit` messages.

    It ends early when they are more than `MAX_POLL_BYTES` together: each may be as large as the topic allows.
    """
    found: list[Any] = []
    size = 0
    for _ in range(max(1, round(timeout_seconds / _SLICE_SECONDS))):
        new = client.consume(limit - len(found), min(timeout_seconds, _SLICE_SECONDS))
        found += new
        size += sum(len(one) + len(one.key() or b"") for one in new)
        if len(found) >= limit or size >= MAX_POLL_BYTES:
            break
    return found


def headers_of(run_id: str, start_wall_ns: int) -> dict[str, bytes]:
    """Return the headers that identify the run of a line."""
    return {"run": run_id.encode(), "start_ns": str(start_wall_ns).encode()}
