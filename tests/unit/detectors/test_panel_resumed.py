"""A panel that is stored and read at any second goes on as if it never was, whatever its source does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.client_seconds import identity
from detectors.level_shift import Config
from detectors.panel import Panel
from soak.core.model import Change, Column
from soak.core.units import SECOND_NS
from tests.support.examples import examples

pytestmark = pytest.mark.long

CONFIG = Config(baseline=25 * SECOND_NS, false_alarms=3600 * SECOND_NS, panel_size=5)
LATENCY, ABOVE = "publish_latency_seconds", "publish_latency_above_messages"
ODD = (0.0, -0.01, np.nan, np.inf, -np.inf)


@dataclass(frozen=True)
class Stretch:
    """Some seconds of a producer that are alike; `jump` leads to the first of them."""

    seconds: int
    jump: int
    level: float
    leaders: tuple[str, ...]
    phase: str
    is_valid: bool
    is_silent: bool
    odd: float | None


STRETCHES = st.lists(
    st.builds(
        Stretch,
        seconds=st.integers(1, 90),
        jump=st.sampled_from([1, 1, 1, 4, 60, 700, 0, -200]),
        level=st.sampled_from([0.004, 0.004, 0.04, 0.4]),
        leaders=st.sampled_from([("1", "2"), ("2", "1"), ("2",), ("2", "3"), ()]),
        phase=st.sampled_from(["soak", "soak", "soak", "soak", "catch-up"]),
        is_valid=st.sampled_from([True, True, True, False]),
        is_silent=st.sampled_from([False, False, False, True]),
        odd=st.sampled_from([None, None, None, *ODD]),
    ),
    min_size=4,
    max_size=10,
)


def columns(leaders: Sequence[str]) -> tuple[Column, ...]:
    counts = (f"{name}_messages" for name in ("sent", "acked", "failed", "in_flight"))
    return (
        *(Column(name, (), "messages") for name in counts),
        *(Column(ABOVE, (("threshold", at),), "messages") for at in ("0.001", "0.01", "1", "10")),
        *(Column(LATENCY, (("quantile", at),), "seconds") for at in ("0.5", "0.99", "0.999")),
        *(Column(LATENCY, (("leader", one), ("quantile", "0.99")), "seconds") for one in leaders),
    )


Row = tuple[int, int, tuple[Column, ...], np.ndarray[tuple[int], np.dtype[np.float64]], Stretch]


def rows(stretches: Sequence[Stretch]) -> Iterator[Row]:
    """Give epoch, second, columns and values; a clock that was set back begins an epoch."""
    rng, epoch, k = np.random.default_rng(3), 1, 300
    for one in stretches:
        k, epoch = max(0, k + one.jump - 1), epoch + (one.jump <= 0)
        found = columns(one.leaders)
        for _ in range(one.seconds):
            slow = one.level * np.array([0.3, 1.0, 2.0, *(1.0 for _ in one.leaders)])
            latency = slow * 10.0 ** rng.normal(0.0, 0.1, slow.size)
            if one.is_silent:
                latency[:] = np.nan
            elif one.odd is not None and rng.random() < 0.1:
                latency[rng.integers(slow.size)] = one.odd
            acked = 0.0 if one.is_silent else 900.0
            above = [round(900 * min(1.0, one.level * share)) for share in (25.0, 2.5, 0.1, 0.0)]
            yield epoch, k, found, np.array([1000.0, acked, 0.0, 100.0, *above, *latency]), one
            k += 1


def fed(stretches: Sequence[Stretch], cuts: frozenset[int]) -> tuple[list[Change], bytes]:
    """Return the changes and the last state; behind each of the `cuts` the panel is stored and read."""
    panel, found = Panel(CONFIG), []
    for at, (epoch, k, own, values, one) in enumerate(rows(stretches)):
        found += panel.update("produce.0@h", own, k, values, one.is_valid, one.phase, epoch=epoch)
        if at in cuts:
            panel = Panel.from_bytes(panel.to_bytes(), CONFIG)
    return found, panel.to_bytes()


@given(STRETCHES, st.frozensets(st.integers(0, 500), max_size=8))
@settings(max_examples=examples(30))
def test_a_panel_that_is_resumed_says_the_same_and_keeps_the_same(
    stretches: list[Stretch], cuts: frozenset[int]
) -> None:
    assert fed(stretches, cuts) == fed(stretches, frozenset())


@given(STRETCHES)
@settings(max_examples=examples(30))
def test_no_change_ends_twice_nor_before_it_began(stretches: list[Stretch]) -> None:
    """Where a clock is set back the same seconds come again, and a change may begin in one of them."""
    found, _ = fed(stretches, frozenset())
    is_again = any(one.jump < 0 for one in stretches)
    last: dict[tuple[str, int], Change] = {}
    for change in found:
        before = last.get(identity(change))
        assert is_again or before is None or before.state not in {"gone", "withdrawn"}
        assert change.resolved_k is None or change.resolved_k > change.onset_k
        assert np.isfinite([change.before, change.after]).all()
        last[identity(change)] = change
