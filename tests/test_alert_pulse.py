"""When a daemon is missed, and when it is back: by the clock alone."""

from __future__ import annotations

import pytest

from soak.core.units import SECOND_NS
from soak.daemons.alert_pulse import LIMIT_NS, Pulse

STEP = 5


class Beats:
    """A daemon looked at every five seconds: it gives a sign in some of the stretches, and in others none."""

    def __init__(self, *, is_told: bool = False) -> None:
        self.second = 0
        self.pulse = Pulse(0, 0, 3 * SECOND_NS, is_told, silent_ns=LIMIT_NS if is_told else 0)

    def alive(self, seconds: int) -> Beats:
        return self._go_on(seconds, is_alive=True)

    def silent(self, seconds: int) -> Beats:
        return self._go_on(seconds, is_alive=False)

    def _go_on(self, seconds: int, *, is_alive: bool) -> Beats:
        for _ in range(0, seconds, STEP):
            self.second += STEP
            sign = self.second if is_alive else self.pulse.sign
            self.pulse.look(sign, self.second * SECOND_NS, STEP * SECOND_NS)
        return self


def test_it_is_missed_after_five_minutes_and_since_its_last_sign() -> None:
    early, late = Beats().alive(60).silent(295), Beats().alive(60).silent(300)

    assert (early.pulse.is_missed, late.pulse.is_missed) == (False, True)
    assert late.pulse.since_ns == 60 * SECOND_NS


@pytest.mark.parametrize(("dead", "up", "is_missed"), [(25, 10, True), (20, 40, False)])
def test_one_that_dies_again_and_again_is_missed_when_it_is_dead_for_longer(
    dead: int, up: int, *, is_missed: bool
) -> None:
    """For an hour; one that is up most of the time leaves gaps, and no more."""
    beats = Beats().alive(60)
    for _ in range(3600 // (dead + up)):
        beats.silent(dead)
        found = beats.pulse.is_missed
        beats.alive(up)

    assert found is is_missed


def test_a_start_has_ten_minutes_which_count_for_nothing_after_it() -> None:
    started = Beats().silent(590).alive(5)

    assert not started.pulse.is_missed
    assert not started.silent(295).pulse.is_missed
    assert started.silent(5).pulse.is_missed
    assert Beats().silent(600).pulse.is_missed


def test_one_that_people_were_told_of_is_back_after_five_minutes_of_signs() -> None:
    """A moment of life is none, and the time it takes to start changes nothing."""
    told = Beats(is_told=True).silent(1000).alive(100).silent(50).alive(245)

    assert told.pulse.silent_ns > 0
    assert told.alive(5).pulse.silent_ns == 0
    assert told.pulse.until_ns == 1150 * SECOND_NS
