"""Receiving: when it ends, which offsets it stores, and what a full disk costs."""

from __future__ import annotations

import threading
from pathlib import Path

from soak.core.units import SECOND_NS
from soak.service.systemd import notifier
from soak.shipping.ingest import Ingest
from soak.shipping.receiver import (
    REOPEN_NS,
    STORE_PERIOD_NS,
    OffsetFile,
    receive_available,
    receive_until_stop,
)
from soak.store.samples_topic import ShippedLine
from tests.support.fakes import FakeClock
from tests.support.shipping.shipped_run import folder_of


class SilentTopic:
    """Has some messages and then none, although its end lies further on; a poll takes half a second."""

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

    def poll(self, limit: int, timeout_seconds: float) -> list[ShippedLine]:
        del limit
        self._clock.advance(timeout_seconds)
        self.offsets[0] = min(self.offsets[0] + 1, self._messages)
        return []


def test_receiving_ends_where_the_last_offset_is_no_message(tmp_path: Path) -> None:
    """Retention may have been faster: after `timeout` without a message it gives up."""
    clock = FakeClock()
    topic = SilentTopic(clock, 23, 100)

    receive_available(
        topic, Ingest(folder_of(tmp_path), clock, "a"), threading.Event(), 10 * SECOND_NS, clock
    )

    assert topic.offsets == {0: 23}
    assert clock.mono_ns() == 23 * SECOND_NS // 2 + 10 * SECOND_NS


def test_a_silent_topic_is_opened_again_every_minute(tmp_path: Path) -> None:
    """It may have been deleted and created again, which the client does not report."""
    clock = FakeClock()
    topic, ingest = SilentTopic(clock, 23, 100), Ingest(folder_of(tmp_path), clock, "a")

    for _ in receive_until_stop(topic, ingest, threading.Event(), notifier({}), clock):
        if len(topic.opened_ns) == 3:
            break

    first_ns = 23 * SECOND_NS // 2 + REOPEN_NS
    assert topic.opened_ns == [0, first_ns, first_ns + REOPEN_NS]


def test_offsets_are_stored_once_the_drive_has_their_lines(tmp_path: Path) -> None:
    """Those of five seconds ago; the next process reads the newer lines again."""
    clock = FakeClock()
    offsets = OffsetFile(tmp_path / "receive.json", "t", clock)

    stored = []
    for at in range(3):
        clock.advance_ns(STORE_PERIOD_NS)
        offsets.update({0: at + 1})
        stored.append(offsets.read())

    assert stored == [{}, {0: 1}, {0: 2}]


def test_offsets_that_cannot_be_stored_end_nothing(tmp_path: Path) -> None:
    """They only save work after a restart."""
    (tmp_path / "full").write_text("")
    offsets = OffsetFile(tmp_path / "full" / "receive.json", "t", FakeClock())

    offsets.write({0: 23})

    assert offsets.read() == {}
