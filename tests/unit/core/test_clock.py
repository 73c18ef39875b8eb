from __future__ import annotations

from soak.core.clock import SuspendLog
from soak.core.units import SECOND_NS
from tests.support.fakes import FakeClock


def test_what_a_host_slept_counts_for_what_lay_around_it() -> None:
    """Ten seconds, an hour asleep, ten more: nothing is added to what begins after it or ends before it."""
    clock = FakeClock()
    suspends = SuspendLog(clock)
    suspends.update()
    clock.advance(10)
    suspends.update()
    clock.suspend(3600)
    clock.advance(1)
    suspends.update()
    clock.step_wall(500)
    clock.advance(9)
    suspends.update()

    seconds = [
        suspends.between(begin * SECOND_NS, end * SECOND_NS) / SECOND_NS
        for begin, end in [(0, 20), (0, 10), (11, 20)]
    ]

    assert seconds == [3620, 10, 9]
