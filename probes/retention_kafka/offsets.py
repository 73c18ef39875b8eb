"""Asks a Kafka cluster for partitions, their offsets and their copies, through librdkafka's admin client.

librdkafka 2.16 does not pause between the connections of an admin request: while one waits for a leader that
is down, two of its threads connect a thousand times a second, whatever `reconnect.backoff.ms` says, and no
answer of another leader is passed on. So each leader is asked by a request of its own. A request to a leader
that refuses connections, or ends them at once as a balancer without a backend does, ends with its client, and
that leader is not asked again before it keeps one open, or another broker leads. While none does, nothing is
requested: a few leaders and bootstrap servers are looked at in turn, and a new client asks once one is back.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs
    AdminClient,
    ListOffsetsResultInfo,
    OffsetSpec,
)

from probes.retention_kafka.cluster import Choose, Listing
from probes.retention_kafka.log_starts import Partition
from soak.core.clock import SystemClock
from soak.core.errors import ProbeError
from soak.core.ports import Clock
from soak.core.units import SECOND_NS

LOG = logging.getLogger("soak.probes.retention_kafka")

LOOK_SECONDS = 0.2  # a leader that takes longer is looked at, and again after as long
ENDED_SECONDS = 0.05  # a broker waits for the first request for much longer
MAX_LOOKS = 4  # at leaders and bootstrap servers, while none of them is up
GRACE_SECONDS = 1.0  # for the answers of others, before the client is given up
CONNECT_SECONDS = 1.0
LIST_PERIOD_NS = 5 * SECOND_NS  # while a leader is down: another one will be elected
PARTITIONS_PER_REQUEST = 200  # of 2,000 in one request each costs the client 1.8 times as much
_NOT_ANSWERING = "its leader does not answer"
_NOBODY = "no broker of the cluster answers: nothing can be measured"

Answers = dict[Partition, Future[ListOffsetsResultInfo]]


class Leader(NamedTuple):
    """A broker and where clients reach it."""

    number: int
    host: str
    port: int


def is_unreachable(leader: Leader) -> bool:
    """Return whether a broker refuses a connection or ends it, or has no host; one that is slow is there."""
    try:
        with socket.create_connection((leader.host, leader.port), CONNECT_SECONDS) as connection:
            connection.settimeout(ENDED_SECONDS)
            return not connection.recv(1)
    except TimeoutError:
        return False
    except OSError:
        return True


def servers_of(text: str) -> tuple[Leader, ...]:
    """Return the servers of `bootstrap.servers`; none where one of them cannot be read."""
    found = []
    for one in filter(None, (part.strip() for part in text.split(","))):
        host, _, port = one.rpartition("://")[2].rpartition(":")
        if not (host and port.isdigit()):
            return ()
        found.append(Leader(-1, host.strip("[]"), int(port)))
    return tuple(found)


class KafkaOffsets:
    """One admin client; every request has a time limit. Tests replace `connect` and `is_down`."""

    def __init__(
        self,
        settings: Mapping[str, str],
        timeout_seconds: float,
        *,
        clock: Clock | None = None,
        connect: Callable[[dict[str, str]], Any] | None = None,
        is_down: Callable[[Leader], bool] = is_unreachable,
    ) -> None:
        self._settings = {
            **settings,
            "log_level": "0",
        }  # failures are raised; the client would log them too
        self._timeout_seconds = timeout_seconds
        self._clock = clock or SystemClock()
        self._connect = connect or _admin_client
        self._is_down = is_down
        self._choose: Choose = _no_topics
        self._leaders: dict[Partition, Leader] = {}
        self._down: set[Leader] = set()
        self._bootstrap = servers_of(settings.get("bootstrap.servers", ""))
        self._looked = 0  # at how many of those that are asked in turn
        self._next_list_ns = 0
        self._admin = self._connect(self._settings)

    def partitions(
        self, topics: Sequence[str], failed: Callable[[ProbeError], None]
    ) -> list[Partition]:
        """Return the partitions of these topics, in order; a missing topic is reported to `failed`.

        Raises:
            ProbeError: the cluster does not answer, or has none of the topics.
        """
        self._choose = lambda counts: [topic for topic in topics if topic in counts]
        if self._are_all_down:
            raise ProbeError(_NOBODY)
        listed = self._list().topics
        found: list[Partition] = []
        errors: list[ProbeError] = []
        for topic in topics:
            refused = listed[topic].error if topic in listed else None
            if topic in listed and refused is None:
                found += [(topic, partition) for partition in sorted(listed[topic].partitions)]
            else:
                why = "unknown topic" if refused is None else refused.str()
                errors.append(ProbeError(f"cannot list topic {topic}: {why}"))
        _report(errors, failed, is_nothing_found=not found)
        return found

    def listing(self, choose: Choose) -> Listing:
        """Return what the cluster says of the copies of all topics; `choose` names those to follow.

        Raises:
            ProbeError: the cluster does not answer.
        """
        self._choose = choose
        if self._are_all_down:
            self._await_return(lambda _: None)
        listed = self._list()
        behind: Counter[int] = Counter()
        for topic in listed.topics.values():
            for one in topic.partitions.values():
                if len(one.isrs) < len(one.replicas):
                    behind.update(set(one.replicas).difference(one.isrs))
        return Listing(
            {number: f"{one.host}:{one.port}" for number, one in listed.brokers.items()},
            behind,
            sum(len(topic.partitions) for topic in listed.topics.values()),
            list(self._leaders),
        )

    def earliest(
        self, partitions: Sequence[Partition], failed: Callable[[ProbeError], None]
    ) -> dict[Partition, int]:
        """Return the earliest offsets that are answered in time; the others are reported to `failed`.

        Raises:
            ProbeError: none is answered.
        """
        return self._offsets(partitions, OffsetSpec.earliest(), failed)  # type: ignore[no-untyped-call]  # the client's

    def latest(
        self, partitions: Sequence[Partition], failed: Callable[[ProbeError], None]
    ) -> dict[Partition, int]:
        """Return the offsets after the newest messages, whether committed or not; as `earliest`."""
        return self._offsets(partitions, OffsetSpec.latest(), failed)  # type: ignore[no-untyped-call]  # the client's

    def _offsets(
        self,
        partitions: Sequence[Partition],
        spec: OffsetSpec,
        failed: Callable[[ProbeError], None],
    ) -> dict[Partition, int]:
        if self._are_all_down:
            self._await_return(failed)
        elif self._down:
            self._look_again(failed)
        groups: dict[Leader | None, list[Partition]] = {}
        for partition in partitions:
            groups.setdefault(self._leaders.get(partition), []).append(partition)
        asked = {
            leader: _unanswered(group) if leader in self._down else self._ask(group, spec)
            for leader, group in groups.items()
        }
        self._await(asked)
        self._note_failed(asked)
        of = {partition: one for answers in asked.values() for partition, one in answers.items()}
        return offsets_of({partition: of[partition] for partition in partitions}, failed)

    @property
    def _are_all_down(self) -> bool:
        return bool(self._down) and self._down.issuperset(self._leaders.values())

    def _await_return(self, failed: Callable[[ProbeError], None]) -> None:
        """Look at some of the servers; once one is back, ask with a new client, which connects at once.

        Raises:
            ProbeError: none of them is back.
        """
        places = [*sorted(set(self._leaders.values())), *self._bootstrap]
        turn = [*places, *places][self._looked : self._looked + min(MAX_LOOKS, len(places))]
        self._looked = (self._looked + len(turn)) % len(places)
        if all(self._is_down(one) for one in turn):
            raise ProbeError(_NOBODY)
        self._admin = self._connect(self._settings)
        self._list()
        self._look_again(failed)

    def _list(self) -> Any:  # noqa: ANN401  # the client's ClusterMetadata
        """Ask for all topics, and note who leads the partitions of those that are chosen."""
        try:
            # All topics: a request for one by name may create it.
            listed = self._admin.list_topics(timeout=self._timeout_seconds)
        except KafkaException as error:
            self._admin.poll(0)  # drops the callbacks that came meanwhile, which would be kept
            raise ProbeError(f"cannot list topics: {_reason(error)}") from error
        finally:
            self._next_list_ns = self._clock.mono_ns() + LIST_PERIOD_NS
        brokers = {
            number: Leader(number, str(one.host), int(one.port or 0))
            for number, one in listed.brokers.items()
        }
        counts = {name: len(topic.partitions) for name, topic in listed.topics.items()}
        self._leaders = {
            (topic, partition): brokers[one.leader]
            for topic in self._choose(counts)
            for partition, one in listed.topics[topic].partitions.items()
            if one.leader in brokers
        }
        return listed

    def _look_again(self, failed: Callable[[ProbeError], None]) -> None:
        """Take back those that are up again, and see from time to time who leads instead of the others."""
        self._down = {leader for leader in self._down if self._is_down(leader)}
        is_any_up = not self._down.issuperset(self._leaders.values())
        if self._down and is_any_up and self._clock.mono_ns() >= self._next_list_ns:
            try:
                self._list()
            except ProbeError as error:
                failed(error)

    def _ask(self, group: Sequence[Partition], spec: OffsetSpec) -> Answers:
        found: Answers = {}
        for at in range(0, len(group), PARTITIONS_PER_REQUEST):
            wanted = {TopicPartition(*one): spec for one in group[at : at + PARTITIONS_PER_REQUEST]}
            try:
                futures = self._admin.list_offsets(wanted, request_timeout=self._timeout_seconds)
            except (KafkaException, ValueError) as error:
                raise ProbeError(f"cannot list offsets: {_reason(error)}") from error
            for asked, future in futures.items():
                found[asked.topic, asked.partition] = future
        return found

    def _await(self, asked: dict[Leader | None, Answers]) -> None:
        """Wait for the answers in time; give up those of a leader that is down, and the client with them."""
        end_ns = self._clock.mono_ns() + round(self._timeout_seconds * SECOND_NS)
        while pending := {one: answers for one, answers in asked.items() if not _are_done(answers)}:
            remaining = (end_ns - self._clock.mono_ns()) / SECOND_NS
            if remaining <= 0.0:
                return
            wait(_futures_of(pending), min(remaining, LOOK_SECONDS))
            waiting = [one for one in pending if one is not None and not _are_done(pending[one])]
            down = {one for one in waiting if self._is_down(one)}
            if down:
                others = {one: answers for one, answers in pending.items() if one not in down}
                wait(_futures_of(others), min(remaining, GRACE_SECONDS))
                for one in down:
                    asked[one] = _unanswered(asked[one])
                self._down |= down
                self._admin = self._connect(self._settings)
                return

    def _note_failed(self, asked: Mapping[Leader | None, Answers]) -> None:
        """Note the leaders that are down among those whose requests the client failed at once."""
        failed = [one for one, answers in asked.items() if one is not None and _are_failed(answers)]
        looked_at = sorted(set(failed) - self._down)[:MAX_LOOKS]
        down = {one for one in looked_at if self._is_down(one)}
        if down:
            self._down |= down
            self._admin = self._connect(self._settings)


def _no_topics(_counts: Mapping[str, int]) -> Sequence[str]:
    return ()


def _admin_client(settings: dict[str, str]) -> AdminClient:
    try:
        return AdminClient({**settings}, logger=LOG)
    except KafkaException as error:
        raise ProbeError(f"the Kafka client refuses its settings: {_reason(error)}") from error


def _unanswered(partitions: Iterable[Partition]) -> Answers:
    """Return answers that say that there will be none."""
    found: Answers = {partition: Future() for partition in partitions}
    for future in found.values():
        future.set_exception(ValueError(_NOT_ANSWERING))
    return found


def _are_done(answers: Answers) -> bool:
    return all(future.done() for future in answers.values())


def _are_failed(answers: Answers) -> bool:
    return all(one.done() and one.exception() is not None for one in answers.values())


def _futures_of(groups: Mapping[Leader | None, Answers]) -> list[Future[ListOffsetsResultInfo]]:
    return [future for answers in groups.values() for future in answers.values()]


def offsets_of(
    futures: Mapping[Partition, Future[ListOffsetsResultInfo]], failed: Callable[[ProbeError], None]
) -> dict[Partition, int]:
    """Return the offsets of the answers that have come; as `KafkaOffsets.earliest`."""
    found: dict[Partition, int] = {}
    errors: list[ProbeError] = []
    for (topic, partition), future in futures.items():
        try:
            found[topic, partition] = _offset(future)
        except ProbeError as error:
            place = f"{topic}, partition {partition}"
            errors.append(ProbeError(f"cannot list offsets of {place}: {error}"))
    _report(errors, failed, is_nothing_found=not found)
    return found


def _offset(future: Future[ListOffsetsResultInfo]) -> int:
    if not future.done():
        raise ProbeError("no answer in time")
    try:
        offset = int(future.result().offset)
    except (KafkaException, ValueError) as error:
        raise ProbeError(_reason(error)) from error
    if offset < 0:  # librdkafka 2.16 returns -1001 and no error if a leader has just died
        raise ProbeError(_NOT_ANSWERING)
    return offset


def _report(
    errors: Sequence[ProbeError], failed: Callable[[ProbeError], None], *, is_nothing_found: bool
) -> None:
    """Report the first error, or raise it if nothing was found."""
    if not errors:
        return
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    first = ProbeError(f"{errors[0]}{more}")
    if is_nothing_found:
        raise first from errors[0]
    failed(first)


def _reason(error: BaseException) -> str:
    """Return the client's message without its codes."""
    inner = error.args[0] if error.args else error
    return inner.str() if isinstance(inner, KafkaError) else str(inner) or type(error).__name__
