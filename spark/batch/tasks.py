"""A function on each of many things: in this process, or in tasks of Spark.

What is given to a task and what it returns is pickled, so both must be importable and should be small.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from soak.core.ports import Each

if TYPE_CHECKING:
    from pyspark import SparkContext

Given = TypeVar("Given")
Found = TypeVar("Found")
_ROOT = str(Path(__file__).resolve().parents[2])
_TASKS_A_CORE = 16
"""At most, for each costs the JVM 20 ms: so many that all cores end at about the same time."""


def in_tasks(context: SparkContext) -> Each:
    """Return an `Each` that works in tasks of Spark; fewer than two things are done here.

    An RDD is less work for Spark than a frame would be: no plan, no code made for it, no shuffle.
    """

    def each(function: Callable[[Given], Found], things: Sequence[Given]) -> list[Found]:
        if len(things) < 2:  # noqa: PLR2004  # a task costs more than it saves
            return [function(one) for one in things]
        bodies = [pickle.dumps((function, one), protocol=5) for one in things]
        tasks = min(len(bodies), _TASKS_A_CORE * context.defaultParallelism)
        found = context.parallelize(bodies, tasks).map(_in_worker(_call))
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
