"""A fake samples topic on which runs are announced, second by second of a fake clock."""

from __future__ import annotations

from collections.abc import Callable

from soak.core.errors import BrokerError
from soak.core.units import SECOND_NS
from soak.store.run_announcements import Announcement
from tests.support.fakes import FakeClock

START_NS = 1_790_000_000 * SECOND_NS
"""The initial wall clock of a `FakeClock`: a run with this start is in interval 0."""


def announcement(
    run_id: str = "r1",
    *,
    start_k: int = 0,
    end_k: int | None = None,
    is_over: bool = False,
    plan: str = "x",
    sent_k: int = 0,
    phases: tuple[tuple[int, str], ...] = (),
    detection: str = "",
) -> Announcement:
    start_ns, sent_ns = START_NS + start_k * SECOND_NS, START_NS + sent_k * SECOND_NS
    return Announcement(plan, run_id, start_ns, end_k, is_over, sent_ns, phases, detection)


class FakeAnnouncements:
    """`sent` returns the announcements of a second; while `is_away` the cluster does not answer."""

    def __init__(self, clock: FakeClock, sent: Callable[[int], list[Announcement]]) -> None:
        self._clock = clock
        self._sent = sent
        self._read_s = 0
        self.is_away = False
        self.opened_s: list[int] = []

    def open(self) -> None:
        if self.is_away:
            raise BrokerError("no broker answered at h:9")
        self._read_s = self._now_s()
        self.opened_s.append(self._read_s)

    def poll(self, timeout_seconds: float) -> list[Announcement]:
        self._clock.advance(timeout_seconds)
        if self.is_away:
            return []
        begin_s, self._read_s = self._read_s, self._now_s()
        return [one for second in range(begin_s, self._read_s) for one in self._sent(second)]

    def close(self) -> None:
        pass

    def _now_s(self) -> int:
        return self._clock.mono_ns() // SECOND_NS
