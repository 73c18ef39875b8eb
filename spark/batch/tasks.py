"""A function on each of many things: in this process, or in the tasks of a Spark session.

What is given to a task and what it returns is pickled, so both must be importable and should be small.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from soak.core.ports import Each

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Given = TypeVar("Given")
Found = TypeVar("Found")
_SCHEMA = "place int, body binary"
_ROOT = str(Path(__file__).resolve().parents[2])


def in_tasks(session: SparkSession) -> Each:
    """Return an `Each` that works in tasks of the session, one a thing; fewer than two are done here."""

    def each(function: Callable[[Given], Found], things: Sequence[Given]) -> list[Found]:
        if len(things) < 2:  # noqa: PLR2004  # a task costs more than it saves
            return [function(one) for one in things]
        bodies = [pickle.dumps(one, protocol=5) for one in things]
        table = pa.table({"place": pa.array(range(len(bodies)), pa.int32()), "body": bodies})
        tasks = session.createDataFrame(table).repartitionByRange(len(bodies), "place")
        found = tasks.mapInArrow(by_batch(partial(_done, function)), _SCHEMA).toArrow()
        rows = zip(found.column("place").to_pylist(), found.column("body").to_pylist(), strict=True)
        return [pickle.loads(body) for _, body in sorted(rows)]  # noqa: S301  # what our own task wrote

    return each


def by_batch(
    function: Callable[[pa.RecordBatch], Iterable[pa.RecordBatch]],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return for `mapInArrow` what calls an importable function, or a `partial` of one, with each batch."""
    called = pickle.dumps(function)  # by its name: Spark's own pickle would send its module

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys  # noqa: PLC0415  # runs in a worker, which may not know our folder

        if _ROOT not in sys.path:
            sys.path.insert(0, _ROOT)
        wanted = pickle.loads(called)  # noqa: S301  # our own function
        for batch in batches:
            yield from wanted(batch)

    return work


def _done(function: Callable[[Given], Found], batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    done = [
        pickle.dumps(function(pickle.loads(body)), protocol=5)  # noqa: S301  # what `in_tasks` wrote
        for body in batch.column("body").to_pylist()
    ]
    arrays = [batch.column("place"), pa.array(done, pa.binary())]
    yield pa.RecordBatch.from_arrays(arrays, ["place", "body"])
