"""A function on each of many things: in this process, or in the tasks of a Spark session.

What is given to a task and what it returns is pickled, so both must be importable and should be small.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from soak.core.ports import Each

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Given = TypeVar("Given")
Found = TypeVar("Found")
_ROOT = str(Path(__file__).resolve().parents[2])


def in_tasks(session: SparkSession) -> Each:
    """Return an `Each` that works in tasks of the session, one a thing; fewer than two are done here.

    An RDD is less work for Spark than a frame would be: no plan, no code made for it, no shuffle.
    """

    def each(function: Callable[[Given], Found], things: Sequence[Given]) -> list[Found]:
        if len(things) < 2:  # noqa: PLR2004  # a task costs more than it saves
            return [function(one) for one in things]
        bodies = [pickle.dumps((function, one), protocol=5) for one in things]
        found = session.sparkContext.parallelize(bodies, len(bodies)).map(_in_worker(_call))
        return list(found.collect())

    return each


def _call(body: bytes) -> object:
    function, thing = pickle.loads(body)  # noqa: S301  # what `in_tasks` wrote
    return function(thing)


def _in_worker(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls an importable one in a worker, which may not know our folder."""
    called = pickle.dumps(function)  # by its name: Spark's own pickle would send its module

    def work(thing: object) -> Any:  # noqa: ANN401  # what the function returns
        import sys  # noqa: PLC0415  # in a worker

        if _ROOT not in sys.path:
            sys.path.insert(0, _ROOT)
        return pickle.loads(called)(thing)  # noqa: S301  # our own function

    return work
