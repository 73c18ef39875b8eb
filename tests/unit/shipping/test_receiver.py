"""Receiving: when it ends, what it keeps of its place, and what a full disk costs."""

from __future__ import annotations

import threading
from pathlib import Path

from soak.core.units import SECOND_NS
from soak.service.systemd import notifier
from soak.shipping.ingest import Ingest
from soak.shipping.receiver import (
    KEEP_NS,
    SILENCE_NS,
    OffsetFile,
    receive_available,
    receive_until_stop,
)
from soak.store.samples_topic import ShippedLine
from tests.support.fakes import FakeClock
from tests.support.shipped_run import folder_of


class StandingTopic:
    """Has so many messages and then none, though its end lies further on; a look takes half a second."""

    def __init__(self, clock: FakeClock, messages: int, end: int) -> None:
        self._clock = clock
        self._messages = messages
        self._end = end
        self.offsets = {0: 0}
        self.opened_ns: list[int] = []

    def open(self) -> None:
        self.opened_ns.append(self._clock.mono_ns())

    def ends(self, partitions: object) -> dict[int, int]:
        del partitions
        return {0: self._end}

    def take(self, limit: int, timeout_seconds: float) -> list[ShippedLine]:
        del limit
        self._clock.advance(timeout_seconds)
        self.offsets[0] = min(self.offsets[0] + 1, self._messages)
        return []


def test_a_topic_whose_last_offset_is_no_message_is_taken_to_its_end(tmp_path: Path) -> None:
    """So it is where retention was faster: after `timeout` without a message that was all."""
    clock = FakeClock()
    topic = StandingTopic(clock, 23, 100)

    receive_available(
        topic, Ingest(folder_of(tmp_path), clock, "a"), threading.Event(), 10 * SECOND_NS, clock
    )

    assert topic.offsets == {0: 23}
    assert clock.mono_ns() == 23 * SECOND_NS // 2 + 10 * SECOND_NS


def test_a_topic_that_is_silent_is_opened_anew_every_minute(tmp_path: Path) -> None:
    """It may have been deleted and made again, of which the client says nothing."""
    clock = FakeClock()
    topic, intake = StandingTopic(clock, 23, 100), Ingest(folder_of(tmp_path), clock, "a")

    for _ in receive_until_stop(topic, intake, threading.Event(), notifier({}), clock):
        if len(topic.opened_ns) == 3:
            break

    first_ns = 23 * SECOND_NS // 2 + SILENCE_NS
    assert topic.opened_ns == [0, first_ns, first_ns + SILENCE_NS]


def test_offsets_are_kept_once_the_drive_has_their_lines(tmp_path: Path) -> None:
    """Those of five seconds ago: what came since is read again by the next process."""
    clock = FakeClock()
    offsets = OffsetFile(tmp_path / "receive.json", "t", clock)

    kept = []
    for at in range(3):
        clock.advance_ns(KEEP_NS)
        offsets.keep({0: at + 1})
        kept.append(offsets.kept())

    assert kept == [{}, {0: 1}, {0: 2}]


def test_a_disk_that_does_not_take_the_offsets_ends_nothing(tmp_path: Path) -> None:
    """They are only where to begin again."""
    (tmp_path / "full").write_text("")
    offsets = OffsetFile(tmp_path / "full" / "receive.json", "t", FakeClock())

    offsets.keep_now({0: 23})

    assert offsets.kept() == {}
