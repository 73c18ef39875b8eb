"""Announcements of runs on the samples topic: which run of a plan goes on, and until when.

They go to partition 0, so that a host that waits for weeks reads an eighth of a topic full of records. A
reader starts at the end of the partition: older announcements may be of a run that has ended.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, get_args

import confluent_kafka
from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition

from soak.clients.kafka_log import error_text, headers_of_message
from soak.core import json_text
from soak.core.errors import BrokerError
from soak.core.journal_format import MAX_TIME_NS
from soak.core.plan.phases import Phase
from soak.core.plan.plan import Ship
from soak.core.ports import Clock
from soak.core.retry import Once
from soak.core.units import SECOND_NS
from soak.store.admission import SIGNATURE_HEADER, Signer, is_same, signer_of
from soak.store.samples_topic import (
    ANNOUNCEMENT_HEADER,
    MAX_MESSAGE_BYTES,
    SamplesClients,
    new_messages,
)

LOG = logging.getLogger(__name__)
ANNOUNCE_PERIOD_NS = 5 * SECOND_NS
JOIN_AHEAD_NS = 60 * SECOND_NS
"""A run is joined at most this long before its first interval: a run of tomorrow must end none of today."""
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
"""An id becomes a part of topic names and of a folder name."""
ANNOUNCEMENT_PARTITION = 0  # every topic has it
MAX_MESSAGES = 1000  # taken at once
MAX_TAKES = 10  # at each poll
MAX_BEHIND = MAX_TAKES * MAX_MESSAGES
"""Messages: a reader that is further behind goes on at the end of the partition."""
MAX_PHASES = 64
"""The newest of a run that an announcement has."""
MAX_DETECTION_CHARACTERS = 100_000
MAX_ANNOUNCEMENT_BYTES = 2**19
MAX_PLAN_CHARACTERS = 200
MAX_AGE_NS = 300 * SECOND_NS
"""A signed announcement counts for so long by the reader's clock: an older one may be replayed."""
_LAST_FLUSH_SECONDS = 2.0
_PRODUCER = {"linger.ms": "0", "acks": "1"}  # a lost announcement is soon followed by another
_CONSUMER = {
    "group.id": "soak-samples",  # never joined: the partition is assigned
    "enable.auto.commit": "false",
    "auto.offset.reset": "latest",
    "fetch.max.bytes": str(MAX_MESSAGE_BYTES),
    "queued.max.messages.kbytes": str(MAX_MESSAGE_BYTES // 1024),
    "isolation.level": "read_uncommitted",  # or an open transaction of another client could stop all reading
}
_KEY_ON_TOPIC = {"sent_wall_ns": "said_wall_ns"}
_OPTIONAL = ("phases", "detection")  # earlier programs do not send them


@dataclass(frozen=True, slots=True)
class Announcement:
    """The state of a run at one moment; runs are ordered by their start."""

    plan: str
    run_id: str
    start_wall_ns: int
    end_k: int | None  # None while it is not decided
    is_over: bool
    sent_wall_ns: int  # by the clock of the sender
    phases: tuple[tuple[int, str], ...] = ()  # first interval and name, ascending; the newest
    detection: str = ""  # that section of the plan, as `load_detection` reads it

    @property
    def order(self) -> tuple[int, str]:
        """Return the sort key of a run: larger for the newer one, and the same on every host."""
        return self.start_wall_ns, self.run_id

    def is_ongoing(self, now_wall_ns: int) -> bool:
        """True from a minute before the first interval to the last one, by the clock of the caller."""
        k = (now_wall_ns - self.start_wall_ns) // SECOND_NS
        is_before_end = self.end_k is None or k < self.end_k
        has_begun = now_wall_ns >= self.start_wall_ns - JOIN_AHEAD_NS
        return not self.is_over and is_before_end and has_begun

    def to_json(self) -> str:
        """Return the text that `parse_announcement` reads."""
        return json.dumps(
            {
                _KEY_ON_TOPIC.get(key, key): one
                for key, one in asdict(self).items()
                if one or key not in _OPTIONAL
            }
        )


def parse_announcement(text: bytes) -> Announcement:
    """Return the announcement in a message; keys of later versions are ignored.

    Raises:
        ValueError: it is none.
    """
    if len(text) > MAX_ANNOUNCEMENT_BYTES:
        raise ValueError(f"an announcement of {len(text):,} bytes")
    try:
        body = json_text.loads(text)
        fields = {
            key: body[_KEY_ON_TOPIC.get(key, key)]
            for key in Announcement.__slots__
            if key not in _OPTIONAL
        }
        phases = tuple((k, name) for k, name in body.get("phases", ()))
    except (TypeError, LookupError, ValueError, AttributeError) as error:
        raise ValueError(f"no announcement: {error}") from error
    found = Announcement(**fields, phases=phases, detection=body.get("detection", ""))
    numbers = (found.start_wall_ns, found.sent_wall_ns, 0 if found.end_k is None else found.end_k)
    is_typed = (
        all(isinstance(one, str) for one in (found.plan, found.run_id))
        and all(type(one) is int and 0 <= one <= MAX_TIME_NS for one in numbers)
        and len(found.plan) <= MAX_PLAN_CHARACTERS
        and isinstance(found.is_over, bool)
    )
    is_typed = is_typed and _has_typed_options(found)
    if not is_typed or not RUN_ID.fullmatch(found.run_id):
        raise ValueError(f"no announcement: {text[:200]!r}")
    return found


def admitted(
    raw: bytes, headers: Mapping[str, bytes | None], signer: Signer | None, now_wall_ns: int | None
) -> Announcement:
    """Return the announcement in a message if it may be believed: with a key, a signed one of these minutes.

    Without `now_wall_ns` it may be as old as it likes: a reader that catches up takes them in their order.

    Raises:
        ValueError: it is none, is not signed with the key, or is an old one that came again.
    """
    if signer is not None:
        wanted = signer.announcement(headers.get(ANNOUNCEMENT_HEADER) or b"", raw)
        if not is_same(headers.get(SIGNATURE_HEADER), wanted):
            raise ValueError("its signature does not hold")
    found = parse_announcement(raw)
    if signer is None or now_wall_ns is None:
        return found
    if abs(found.sent_wall_ns - now_wall_ns) > MAX_AGE_NS:
        seconds = (now_wall_ns - found.sent_wall_ns) / SECOND_NS
        raise ValueError(f"it was sent {seconds:.0f} s ago: check the clocks, or it was sent again")
    return found


def _has_typed_options(found: Announcement) -> bool:
    is_ascending = all(type(k) is int and abs(k) < 2**63 for k, _ in found.phases) and all(
        first <= second for (first, _), (second, _) in pairwise(found.phases)
    )
    return (
        len(found.phases) <= MAX_PHASES
        and is_ascending
        and all(name in get_args(Phase) for _, name in found.phases)
        and isinstance(found.detection, str)
        and len(found.detection) <= MAX_DETECTION_CHARACTERS
    )


def reason_to_refuse(raw: bytes, headers: Mapping[str, bytes | None], signer: Signer | None) -> str:
    """Return why an announcement, of whatever age, may not be believed; "" if it may."""
    try:
        admitted(raw, headers, signer, None)
    except ValueError as error:
        return str(error)
    return ""


class AnnouncementReader:
    """Reads the announcements that are sent from now on.

    Records lie between them, and what strangers write. A reader that cannot keep up goes on at the end: an
    announcement is repeated every few seconds, and an old one counts as none.
    """

    def __init__(self, ship: Ship, clock: Clock) -> None:
        self._ship = ship
        self._clients = SamplesClients(ship, "soakd-listens", clock)
        self._clock = clock
        self._client: Any = None
        self._signer: Signer | None = None
        self.refused = 0

    def open(self) -> None:
        """Start at the end of the partition, with a new client.

        Raises:
            BrokerError: the cluster does not answer.
        """
        self.close()
        self._signer = signer_of(self._ship)
        self._clients.ensure_topic()
        self._client = self._clients.create(confluent_kafka.Consumer, _CONSUMER)
        self._go_to_end()

    def poll(self, timeout_seconds: float) -> list[Announcement]:
        """Return the announcements since the last call; none while the cluster is unreachable."""
        found: list[Announcement] = []
        newest = -1
        for take in range(MAX_TAKES):
            messages = new_messages(self._client, MAX_MESSAGES, 0.0 if take else timeout_seconds)
            if not messages:
                break
            found += filter(None, map(self._announcement, messages))
            newest = max(newest, *(one.offset() or 0 for one in messages))
        if newest >= 0:
            self._keep_up(newest)
        return found

    def _keep_up(self, newest: int) -> None:
        place = TopicPartition(self._ship.topic, ANNOUNCEMENT_PARTITION)
        _, end = self._client.get_watermark_offsets(place, cached=True)  # as of the last answer
        if end - newest > MAX_BEHIND:
            LOG.warning("announcements_skipped topic=%s n=%d", self._ship.topic, end - newest)
            self._go_to_end()

    def _go_to_end(self) -> None:
        self._client.assign([TopicPartition(self._ship.topic, ANNOUNCEMENT_PARTITION, OFFSET_END)])

    def _announcement(self, message: Any) -> Announcement | None:  # noqa: ANN401  # a client's
        headers = dict(headers_of_message(message)) if message.error() is None else {}
        if ANNOUNCEMENT_HEADER not in headers:
            return None
        try:
            return admitted(message.value() or b"", headers, self._signer, self._clock.wall_ns())
        except ValueError as error:
            self._refuse(error)
            return None

    def _refuse(self, error: ValueError) -> None:
        self.refused += 1
        if self.refused & (self.refused - 1) == 0:  # the 1st, 2nd, 4th, 8th ...
            LOG.warning("announcement_refused n=%d error=%.200r", self.refused, str(error))

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class AnnouncementWriter:
    """Sends announcements without waiting; the next one replaces any that the cluster does not take."""

    def __init__(self, ship: Ship, clock: Clock) -> None:
        self._ship = ship
        self._clients = SamplesClients(ship, "soakd-announces", clock)
        self._client: Any = None
        self._signer: Signer | None = None
        self._failures = Once()

    def send(self, announcement: Announcement) -> None:
        """Send one announcement; the topic must exist."""
        try:
            if self._client is None:
                self._signer = signer_of(self._ship)
                timeout = {"message.timeout.ms": str(self._ship.timeout // 10**6)}
                settings = {**_PRODUCER, **timeout}
                self._client = self._clients.create(confluent_kafka.Producer, settings)
            raw, plan = announcement.to_json().encode(), announcement.plan.encode()
            headers = {ANNOUNCEMENT_HEADER: plan}
            if self._signer is not None:
                headers[SIGNATURE_HEADER] = self._signer.announcement(plan, raw)
            self._client.produce(
                self._ship.topic,
                raw,
                announcement.plan,
                partition=ANNOUNCEMENT_PARTITION,
                headers=headers,
                on_delivery=self._note_delivery,
            )
            self._client.poll(0)
        except (KafkaException, BufferError) as error:
            self._log_failure(error_text(error))
        except BrokerError as error:
            self._log_failure(str(error))

    def close(self) -> None:
        """Wait shortly for the last announcement, then drop it."""
        if self._client is not None:
            self._client.flush(min(_LAST_FLUSH_SECONDS, self._ship.timeout / SECOND_NS))
            self._client.purge()
            self._client.poll(0)
            self._client = None

    def _note_delivery(self, error: KafkaError | None, _message: object) -> None:
        if error is None:
            self._failures.clear()
        else:
            self._log_failure(self._clients.cause.or_else(error.str()))

    def _log_failure(self, reason: str) -> None:
        if self._failures.is_new(reason):
            LOG.warning("run_not_announced topic=%s error=%s", self._ship.topic, reason)
