"""Latency histograms of fixed size: 3 digits from 1 us to 1 h, recorded from numpy batches.

Nothing is clamped: values above the range are counted as overflow, negative ones as clock skew, and the
largest value is kept exactly. Text form is HdrHistogram V2 (base64), so that its own tools read it.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache

import numpy as np
import pyhdrh
from hdrh.histogram import HdrHistogram
from numpy.typing import NDArray

from soak.core.model import THRESHOLDS_SECONDS, Distribution

LOWEST_US = 1
HIGHEST_US = 3_600_000_000
DIGITS = 3

_HALF_BITS = 10  # 2^11 sub-buckets give three significant digits
_HALF = 1 << _HALF_BITS
_SUB = _HALF * 2


def _index(values_us: NDArray[np.int64]) -> NDArray[np.int64]:
    # frexp gives the bit length exactly for values below 2^53
    bits = np.frexp(np.maximum(values_us, _SUB - 1).astype(np.float64))[1].astype(np.int64)
    bucket = bits - (_HALF_BITS + 1)
    return (bucket << _HALF_BITS) + (values_us >> bucket)


_SIZE = int(_index(np.array([HIGHEST_US]))[0]) + 1
_CELL = np.arange(_SIZE, dtype=np.int64)
_CELL_BUCKET = np.maximum((_CELL >> _HALF_BITS) - 1, 0)
_CELL_LOW = (_CELL - (_CELL_BUCKET << _HALF_BITS)) << _CELL_BUCKET
_CELL_HIGH = _CELL_LOW + (1 << _CELL_BUCKET) - 1
_CELL_MIDDLE = (_CELL_LOW + _CELL_HIGH + 1) / 2e6
_FIRST_CELLS = np.searchsorted(
    _CELL_LOW, [0, *(np.array(THRESHOLDS_SECONDS) * 1e6).round(3)], side="left"
)


class Histogram:
    """Counts of latencies, one histogram per source, subscription and leader."""

    __slots__ = ("_counts", "max_ns", "negative", "overflow", "total")

    def __init__(self) -> None:
        self._counts = np.zeros(_SIZE, dtype=np.int64)  # pages without counts use no memory
        self.total = 0
        self.overflow = 0
        self.negative = 0
        self.max_ns = 0

    def record_ns(self, latencies_ns: NDArray[np.int64]) -> None:
        """Count a batch of latencies, shape (n,), in ns."""
        if latencies_ns.size == 0:
            return
        self.max_ns = max(self.max_ns, int(latencies_ns.max()))
        negative = int(np.count_nonzero(latencies_ns < 0))
        if negative:
            latencies_ns = latencies_ns[latencies_ns >= 0]
        values_us = latencies_ns // 1000
        above = int(np.count_nonzero(values_us > HIGHEST_US))
        if above:
            values_us = values_us[values_us <= HIGHEST_US]
        self.negative += negative
        self.overflow += above
        self.total += latencies_ns.size
        np.add.at(self._counts, _index(values_us), 1)

    def quantiles_seconds(self, quantiles: tuple[float, ...]) -> list[float]:
        """Return the quantiles in seconds; NaN when nothing was counted.

        A rank in the overflow returns the exact maximum. As in HdrHistogram, the result is the highest value
        of the cell that holds the true one (at most 0.1 % above it), and at most the maximum.
        """
        if self.total == 0:
            return [float("nan")] * len(quantiles)
        cumulated = np.cumsum(self._counts)
        answers = []
        for quantile in quantiles:
            rank = max(1, int(np.ceil(quantile * self.total - 1e-9)))
            cell = int(np.searchsorted(cumulated, rank))
            exact = self.max_ns / 1e9
            high = exact if cell >= _SIZE else (int(_CELL_HIGH[cell]) + 1) / 1e6
            answers.append(min(high, exact))
        return answers

    def above(self, thresholds_seconds: Sequence[float] = THRESHOLDS_SECONDS) -> list[int]:
        """Return the number of values at or above each threshold, overflow included."""
        tail = np.concatenate([np.cumsum(self._counts[::-1])[::-1], [0]])
        thresholds_us = np.array(thresholds_seconds) * 1e6
        cells = np.searchsorted(_CELL_LOW, thresholds_us.round(3), side="left")
        return [int(count) + self.overflow for count in tail[cells]]

    def distribution(self) -> Distribution:
        """Return the counts by the fixed thresholds, and the sum to 0.1 %.

        Negative values are left out of both; an overflow counts as the maximum.
        """
        counts: list[int] = np.add.reduceat(self._counts, _FIRST_CELLS).tolist()
        counts[-1] += self.overflow
        seconds = float(self._counts @ _CELL_MIDDLE) + self.overflow * self.max_ns / 1e9
        return Distribution(counts, seconds)

    def encode(self) -> str:
        """Return HdrHistogram V2 in base64, values in us, without the overflow, which is a separate count."""
        library = _library_histogram()
        cells = np.flatnonzero(self._counts)
        slots = np.maximum(cells, LOWEST_US)  # a cell below it is counted in the lowest
        counts = np.frombuffer(library.counts, dtype=np.int64)
        counts[:] = 0
        np.add.at(counts, slots, self._counts[cells])
        library.total_count, library.max_value = 0, 0  # encoding reads only these and the counts
        if cells.size:
            total = int(self._counts.sum())
            library.set_internal_tacking_values(int(slots[0]), int(slots[-1]), total)
        return str(library.encode().decode("ascii"))


@cache
def _library_histogram() -> HdrHistogram:
    """Return the library's histogram with the same cells; one is enough, as each `encode` fills it again."""
    return HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)


def decode(text: str) -> HdrHistogram:
    """Return the library's histogram, values in us.

    Raises:
        ValueError: the text is not a V2 histogram, or one of more digits, a wider range or more values than
            any that `Histogram` encodes.
    """
    try:
        _check_size(base64.b64decode(text.encode("ascii"), validate=True))
        found = HdrHistogram.decode(text.encode("ascii"))
    except Exception as error:  # the library raises bare and zlib errors alike
        raise ValueError("not an HdrHistogram in V2 base64") from error
    if np.frombuffer(found.counts, dtype=np.int64).max(initial=0) > _MAX_COUNT:
        raise ValueError("a cell of the histogram has more values than an interval")
    return found


_OUTER, _INNER = struct.Struct(">ii"), struct.Struct(">iiiiqqd")  # headers of the V2 format
_MAX_COUNT = 10**12
_MAX_PAYLOAD_BYTES = _INNER.size + 9 * _SIZE


def _check_size(raw: bytes) -> None:
    """Raise `ValueError` for what would unpack to more than a histogram of ours; the library has no bound."""
    unpacked = _unpacked(raw)
    _, _, _, digits, lowest, highest, _ = _INNER.unpack_from(unpacked)
    if not (0 < digits <= DIGITS and 0 < lowest < highest <= HIGHEST_US):
        raise ValueError(f"{digits} digits from {lowest} to {highest} us")


def _unpacked(raw: bytes) -> bytes:
    unpacked = zlib.decompressobj().decompress(raw[_OUTER.size :], _MAX_PAYLOAD_BYTES + 1)
    if len(unpacked) > _MAX_PAYLOAD_BYTES:
        raise ValueError("unpacks to more than a histogram")
    return unpacked


def add_all(into: HdrHistogram, texts: Iterable[str]) -> None:
    """Add histograms in V2 base64 to one with the cells of `Histogram`; what `decode` refuses is left out.

    The objects of the library take some 0.2 ms for each, a tenth of it for the counts; a run of 36 hours has
    a hundred thousand of each client.
    """
    counts = np.frombuffer(into.counts, dtype=np.int64)
    one = np.zeros_like(counts)
    for text in texts:
        try:
            found = pyhdrh.decode(_own(text), _INNER.size, one.ctypes.data, one.size, one.itemsize)
        except Exception:  # noqa: BLE001  # as in `decode`, and other cells
            one[:] = 0
            with suppress(ValueError):
                into.add(decode(text))
            continue
        used = slice(0, found["max_nonzero_index"] + 1)
        if one[used].max(initial=0) <= _MAX_COUNT:
            counts[used] += one[used]
        one[used] = 0
    cells = np.flatnonzero(counts)
    if cells.size:
        into.set_internal_tacking_values(int(cells[0]), int(cells[-1]), int(counts.sum()))


def _own(text: str) -> bytes:
    """Return a histogram of `Histogram` with the inner header only.

    Raises:
        Exception: of several kinds, it is none or has other cells.
    """
    raw = base64.b64decode(text, validate=True)
    unpacked = _unpacked(raw)
    outer, size = _OUTER.unpack_from(raw)
    inner, length, _, digits, lowest, highest, _ = _INNER.unpack_from(unpacked)
    is_whole = (size, length) == (len(raw) - _OUTER.size, len(unpacked) - _INNER.size)
    if not (is_whole and (outer, inner, digits, lowest, highest) == _OWN):
        raise ValueError("not a histogram with these cells")
    return unpacked


_OWN = 0x1C849314, 0x1C849313, DIGITS, LOWEST_US, HIGHEST_US  # after the cookies of V2


def counts_of(text: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the values of a V2 histogram in seconds, ascending, and how often each was counted.

    A value is the middle of its cell.

    Raises:
        ValueError: the text is not a V2 histogram, or one of another size.
    """
    counts = np.frombuffer(decode(text).counts, dtype=np.int64)
    cells = np.flatnonzero(counts)
    if cells.size and cells[-1] >= _SIZE:
        raise ValueError("the histogram has more than 3 digits from 1 us to 1 h")
    return _CELL_MIDDLE[cells], counts[cells]
