"""Windows of the journals, compared with reading everything and filtering."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soak.core.journal_format import columns_line, encode
from soak.core.model import Column, Event, Record
from soak.store.journal.history import MAX_WINDOW_SECONDS, History, SourceSeconds, Window
from soak.store.journal.reader import read_source
from soak.store.journal.writer import JournalWriter
from tests.support.examples import examples
from tests.support.fakes import FakeClock

COLUMNS = (
    Column("publish_latency_seconds", (("quantile", "0.99"),), "seconds"),
    Column("publish_latency_above_messages", (("threshold", "0.001"),), "messages"),
)
P99 = 'produce.0@h|publish_latency_seconds{quantile="0.99"}'


def record(k: int, epoch: int = 1, value: float = 0.0, **other: object) -> Record:
    values = (value or float(k), 7.0)
    fields = {"validity": {}, **other}
    return Record(k, epoch, k * 10**9, 10**9, columns_line(COLUMNS).id, values, **fields)  # type: ignore[arg-type]  # fields of a record


def write(journal: Path, ks: list[int], epoch: int = 1, segment: int = 0) -> Path:
    folder = journal / "produce.0@h"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [encode(columns_line(COLUMNS)), *(encode(record(k, epoch)) for k in ks)]
    path = folder / f"{segment:06d}.jsonl"
    path.write_bytes(b"".join(lines))
    return path


def test_a_window_holds_the_measured_intervals_of_detector_series(tmp_path: Path) -> None:
    """Without histogram counts and NaN values, with validity and events."""
    event = Event("retention_deletion", 3, 2, {"topic": "t"})
    with_validity = {"validity": {"reason": "cpu"}, "events": (event,)}
    writer = JournalWriter(tmp_path / "produce.0@h", FakeClock()).open()
    for one in (
        record(1),
        record(2, value=math.nan),
        record(3, 1, 0.0, **with_validity),
        record(4),
    ):
        writer.append(one, COLUMNS)
    writer.close(is_end=True)
    window = History(tmp_path).window(1, 4)
    series = window.series(P99)

    assert list(window.columns) == [P99]
    assert (series.k.tolist(), series.values.tolist()) == ([1, 3], [1.0, 3.0])
    assert window.sources["produce.0@h"].valid.tolist() == [True, True, False]
    assert window.events == ((3, "produce.0@h", event),)


def test_an_unknown_series_is_empty(tmp_path: Path) -> None:
    """A channel of a cause that this cluster lacks is no error."""
    write(tmp_path, [1, 2])
    window = History(tmp_path).window(0, 10)

    assert window.series("probe@h|fsync_latency_seconds").k.size == 0
    assert window.series("produce.0@h|fsync_latency_seconds").k.size == 0


def test_each_series_name_is_formatted_a_few_times() -> None:
    """A thousand topics have thousands of series: searching all of them for each took seconds."""
    made = []

    class Metric(str):
        __slots__ = ()

        def __format__(self, spec: str) -> str:
            made.append(self)
            return super().__format__(spec)

    columns = tuple(Column(Metric("m"), (("i", f"{i}"),)) for i in range(100))
    values = np.arange(100.0)[np.newaxis]
    seconds = SourceSeconds(columns, np.zeros(1, np.int64), values, np.ones(1, np.bool_))
    window = Window(0, 1, {"probe@h": seconds}, ())
    found = [float(window.series(name).values[0]) for name in window.columns]

    assert found == list(range(100))
    assert len(made) <= 200


@settings(deadline=None, max_examples=examples(40))
@given(
    gaps=st.lists(st.integers(1, 9), min_size=1, max_size=120),
    cuts=st.sets(st.integers(1, 119), max_size=4),
    k0=st.integers(0, 400),
    length=st.integers(0, 300),
)
def test_any_window_is_that_of_reading_everything(
    tmp_path_factory: pytest.TempPathFactory,
    gaps: list[int],
    cuts: set[int],
    k0: int,
    length: int,
) -> None:
    """Bisection over files and bytes."""
    journal = tmp_path_factory.mktemp("journal")
    ks = np.cumsum(gaps).tolist()
    edges = [0, *sorted(cut for cut in cuts if cut < len(ks)), len(ks)]
    for segment, (begin, end) in enumerate(pairwise(edges)):
        write(journal, ks[begin:end], segment + 1, segment)
    few_lines = 400  # so that it has to bisect
    found = History(journal, few_lines).window(k0, k0 + length).series(P99).k.tolist()
    plain = [r.k for r, _ in read_source(journal, "produce.0@h") if k0 <= r.k < k0 + length]

    assert found == plain


def test_an_interval_of_two_epochs_is_that_of_the_newer(tmp_path: Path) -> None:
    """A daemon was restarted within the interval in which it was killed."""
    write(tmp_path, [1, 2, 3], epoch=1, segment=0)
    write(tmp_path, [3, 4], epoch=2, segment=1)

    assert History(tmp_path).window(0, 9).series(P99).k.tolist() == [1, 2, 3, 4]


def test_the_last_interval_follows_a_growing_file(tmp_path: Path) -> None:
    """A torn line does not count."""
    reader = History(tmp_path)
    before = reader.latest_k("produce.0@h")
    path = write(tmp_path, [5, 6])
    path.write_bytes(path.read_bytes() + encode(record(7))[:-3])

    assert (before, reader.latest_k("produce.0@h")) == (None, 6)
    assert reader.window(0, 9).series(P99).k.tolist() == [5, 6]


def test_a_window_of_days_is_refused(tmp_path: Path) -> None:
    """Memory is bounded."""
    with pytest.raises(ValueError, match="at most 7200"):
        History(tmp_path).window(0, MAX_WINDOW_SECONDS + 1)
