"""What a reader of a topic gives up as lost: only what the log cannot hold any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from soak.core.errors import BrokerError
from soak.core.plan.plan import Ship
from soak.core.units import SECOND_NS
from spark.sources.topic_log import KafkaTopicLog, Lost, TopicRecord
from tests.support.fakes import FakeClock

END = KafkaError._PARTITION_EOF
OUT_OF_RANGE = KafkaError._AUTO_OFFSET_RESET
LAGS = KafkaError.OFFSET_NOT_AVAILABLE


@dataclass(frozen=True)
class Message:
    """What a consumer gives: a record, or an error at an offset."""

    at: int
    code: int | None = None

    def error(self) -> KafkaError | None:
        return None if self.code is None else KafkaError(self.code)

    def offset(self) -> int:
        return self.at

    def partition(self) -> int:
        return 0

    def key(self) -> bytes:
        return b"probe@b"

    def value(self) -> bytes:
        return b"x"

    def headers(self) -> list[tuple[str, bytes]]:
        return []


@dataclass
class Consumer:
    """Gives its messages, then nothing; `bounds` is what the leader says, or why it does not."""

    messages: list[Message]
    bounds: tuple[int, int] | int
    clock: FakeClock = field(default_factory=FakeClock)

    def __call__(self, _settings: object, **_more: object) -> Consumer:
        return self

    def assign(self, _places: Sequence[object]) -> None:
        pass

    def poll(self, seconds: float) -> Message | None:
        if self.messages:
            return self.messages.pop(0)
        self.clock.advance(seconds)
        return None

    def consume(self, _count: int, _seconds: float) -> list[Message]:
        return []

    def get_watermark_offsets(self, _place: object, **_more: Any) -> tuple[int, int]:
        if isinstance(self.bounds, int):
            raise KafkaException(KafkaError(self.bounds))
        return self.bounds

    def close(self) -> None:
        pass


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what comes of offsets 80 to 99: those of the records, and what is lost."""

    def found(consumer: Consumer) -> list[int | Lost]:
        monkeypatch.setattr(confluent_kafka, "Consumer", consumer)
        ship = Ship(bootstrap_servers="h:9", topic="t", timeout=10 * SECOND_NS)
        log = KafkaTopicLog(ship, consumer.clock)
        parts = log.read(0, 80, 100)
        return [one.offset if isinstance(one, TopicRecord) else one for one in parts]

    return found


def test_a_log_that_ends_early_is_given_up_when_its_leader_says_so(read: Any) -> None:
    """An unclean election has cut it. Offsets 82 to 84 had no record."""
    consumer = Consumer([Message(80), Message(81), Message(85, END)], (0, 85))

    assert read(consumer) == [80, 81, Lost(0, 85, 100, "the log ends at 85")]


@pytest.mark.parametrize("bounds", [KafkaError._TRANSPORT, LAGS, (0, 100), (0, 90)])
def test_the_end_of_a_log_whose_leader_has_not_caught_up_is_waited_for(
    read: Any, bounds: tuple[int, int] | int
) -> None:
    """The batch is read again: what followers have is not lost."""
    with pytest.raises(BrokerError, match="cannot read t, partition 0"):
        read(Consumer([Message(80), Message(81), Message(82, END)], bounds))


def test_records_behind_an_early_end_are_read(read: Any) -> None:
    """The high watermark of the new leader has caught up."""
    late = [Message(82, END), *(Message(at) for at in range(82, 100))]

    assert read(Consumer([Message(80), Message(81), *late], LAGS)) == list(range(80, 100))


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [((85, 120), "deleted before they were read"), ((0, 70), "the log became shorter")],
)
def test_offsets_out_of_range_are_lost(read: Any, bounds: tuple[int, int], reason: str) -> None:
    later = [Message(at) for at in range(85, 100)] if bounds[0] else []
    first, *others = read(Consumer([Message(80, OUT_OF_RANGE), *later], bounds))

    assert first == Lost(0, 80, bounds[0] or 100, reason)
    assert others == [one.at for one in later]


def test_an_offset_that_is_in_range_again_is_not_given_up(read: Any) -> None:
    """A log that was cut has grown since: the batch is read again."""
    with pytest.raises(BrokerError, match="offset 80 was out of range, and is not any more"):
        read(Consumer([Message(80, OUT_OF_RANGE)], (0, 120)))
