from __future__ import annotations

from soak.core.clock import SuspendLog
from soak.core.units import SECOND_NS
from tests.support.fakes import FakeClock


def test_what_a_host_slept_counts_for_what_lay_around_it() -> None:
    """Ten seconds, an hour asleep, ten more: nothing is added to what begins after it or ends before it."""
    clock = FakeClock()
    sleeps = SuspendLog(clock)
    sleeps.look()
    clock.advance(10)
    sleeps.look()
    clock.suspend(3600)
    clock.advance(1)
    sleeps.look()
    clock.step_wall(500)
    clock.advance(9)
    sleeps.look()

    seconds = [
        sleeps.between(begin * SECOND_NS, end * SECOND_NS) / SECOND_NS
        for begin, end in [(0, 20), (0, 10), (11, 20)]
    ]

    assert seconds == [3620, 10, 9]
