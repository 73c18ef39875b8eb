"""Messages in flight: every report finds its message; memory is bounded by the number in flight."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from soak.core.ports import FAILED_OFFSET, Acks
from soak.load.producer.in_flight import InFlight, Settled


@dataclass(frozen=True, slots=True)
class Rows:
    stream: NDArray[np.int64]
    sequence: NDArray[np.int64]
    intended_ns: NDArray[np.int64]


@pytest.mark.long
@given(
    st.lists(
        st.tuples(
            st.integers(1, 9),
            st.integers(1, 9),
            st.integers(0, 9),
            st.integers(0, 40),
            st.randoms(),
        ),
        max_size=30,
    )
)
def test_every_report_finds_its_message(
    rounds: list[tuple[int, int, int, int, Random]],
) -> None:
    """Messages are added in chunks, partly removed, and settled in any order, however long one is open."""
    ring = InFlight(capacity=4)
    out: dict[int, int] = {}
    sent_ns: dict[int, int] = {}  # by sequence number
    number = 0
    for size, piece, back, settled, draw in rounds:
        sequence = np.arange(number, number + size)
        token = ring.next_token
        rows = Rows(np.full(size, 3), sequence, sequence * 10)
        for at in range(0, size, piece):  # as the ticks send them
            ring.add(rows, at, min(at + piece, size), 7 + number + at)
        sent_ns |= {number + at: 7 + number + at // piece * piece for at in range(size)}
        kept = max(0, size - back)
        ring.remove_newest(size - kept)
        out |= {token + at: number + at for at in range(kept)}
        number += size
        chosen = draw.sample(sorted(out), min(settled, len(out)))
        assert ring.settle(_acks(chosen)).sequence.tolist() == [out.pop(one) for one in chosen]
        assert ring.count == len(out)

    left = ring.fail_all(10**6)

    assert left.sequence.tolist() == [out[token] for token in sorted(out)]
    assert set(left.offset.tolist()) <= {FAILED_OFFSET}
    assert left.latency_ns.tolist() == [10**6 - 10 * one for one in left.sequence.tolist()]
    assert left.service_ns.tolist() == [10**6 - sent_ns[one] for one in left.sequence.tolist()]
    assert ring.count == 0


def test_one_message_that_stays_open_does_not_make_the_ring_grow() -> None:
    ring = InFlight(capacity=64)
    _round(ring, 0, 1)
    for first in range(1, 10_000, 32):
        ring.settle(_acks(list(_round(ring, first, 32))))

    assert (ring.capacity, ring.count) == (64, 1)
    assert ring.settle(_acks([0])).sequence.tolist() == [0]


def test_the_ring_grows_with_the_messages_in_flight() -> None:
    ring = InFlight(capacity=4)
    tokens = [token for first in range(0, 99, 3) for token in _round(ring, first, 3)]

    found: Settled = ring.settle(_acks(tokens))

    assert found.sequence.tolist() == list(range(99))
    assert 99 <= ring.capacity <= 256


def _round(ring: InFlight, first: int, size: int) -> range:
    token = ring.next_token
    sequence = np.arange(first, first + size)
    ring.add(Rows(np.zeros_like(sequence), sequence, sequence * 10), 0, size, 0)
    return range(token, token + size)


def _acks(tokens: list[int]) -> Acks:
    token = np.array(tokens, dtype=np.int64)
    return Acks(token, token + 100, np.full(token.size, 5, dtype=np.int64))
