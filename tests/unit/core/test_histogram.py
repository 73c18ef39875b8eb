from __future__ import annotations

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given
from hypothesis import strategies as st

from soak.core.histogram import DIGITS, HIGHEST_US, LOWEST_US, Histogram, add_all, decode
from soak.core.model import THRESHOLDS_SECONDS


def _of(values_us: list[int]) -> Histogram:
    histogram = Histogram()
    histogram.record_ns(np.array(values_us, dtype=np.int64) * 1000)
    return histogram


@given(st.lists(st.integers(0, 5 * 10**9), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_a_quantile_is_the_sorted_value_within_three_digits(values: list[int], q: float) -> None:
    """The slow twin sorts; ranks in the overflow give the maximum."""
    rank = max(1, int(np.ceil(q * len(values) - 1e-9)))
    exact = sorted(values)[rank - 1] / 1e6

    (found,) = _of(values).quantiles_seconds((q,))

    if exact * 1e6 > HIGHEST_US:
        assert found == max(values) / 1e6
    else:
        assert exact <= found <= exact * 1.001 + 1.1e-6


@pytest.mark.long
@given(st.lists(st.integers(1, HIGHEST_US), min_size=1, max_size=50))
def test_the_text_is_read_by_hdrhistogram_itself(values: list[int]) -> None:
    twin = decode(_of(values).encode())

    assert twin.get_total_count() == len(values)
    assert abs(twin.get_max_value() - max(values)) <= max(values) * 0.001 + 1


@given(st.lists(st.integers(0, 2 * 10**8), max_size=100))
def test_counts_above_thresholds_agree_with_counting(values: list[int]) -> None:
    above = _of(values).above()

    for threshold, count in zip(THRESHOLDS_SECONDS, above, strict=True):
        sure = sum(value >= threshold * 1e6 * 1.001 + 1 for value in values)
        maybe = sum(value >= threshold * 1e6 * 0.999 - 1 for value in values)
        assert sure <= count <= maybe


def test_nothing_is_clamped_or_dropped() -> None:
    """A negative latency is clock skew, one beyond an hour is overflow; both count."""
    histogram = _of([-5, 10, HIGHEST_US * 2])

    assert (histogram.total, histogram.negative, histogram.overflow) == (2, 1, 1)
    assert histogram.max_ns == HIGHEST_US * 2 * 1000
    assert histogram.above()[0] == 1


def test_no_message_is_no_latency() -> None:
    assert np.isnan(Histogram().quantiles_seconds((0.5,))[0])


def test_messages_are_counted_above_any_limit() -> None:
    histogram = _of([1_099, 1_100, 1_101, 60_000])

    assert histogram.above([0.0011, 0.05, 0.07]) == [3, 1, 0]


_LATENCIES = st.lists(st.integers(0, HIGHEST_US), max_size=30)
_FEWER_DIGITS = st.lists(st.integers(1, 10**6), max_size=5)


@pytest.mark.long
@given(st.lists(_LATENCIES, max_size=5), st.lists(_FEWER_DIGITS, max_size=2), st.data())
def test_many_are_added_as_the_library_adds_one_after_the_other(
    ours: list[list[int]], others: list[list[int]], data: st.DataObject
) -> None:
    """Those with other cells too; one that is damaged is left out and changes nothing."""
    texts = [_of(values).encode() for values in ours]
    for values in others:
        other = HdrHistogram(1, 10**6, 2)
        for value in values:
            other.record_value(value)
        texts.append(other.encode().decode())
    damaged = [text[: len(text) // 2] for text in texts]
    mixed = data.draw(st.permutations([*texts, *damaged, "", "none"]))
    whole = HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)
    whole.record_value(7)
    added = HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)
    added.record_value(7)

    for text in texts:
        whole.add(decode(text))
    add_all(added, mixed)

    assert list(added.counts) == list(whole.counts)
    assert added.get_total_count() == whole.get_total_count()
    assert added.encode() == whole.encode()
