"""A part of the bench: what it gets (sizes, processes, data), what it gives (measurements), their table."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from rich.table import Table

from tests.bench.detect import feed
from tests.bench.detect.feed import Constants

OURS = "ours"
"""The detectors of this project, as a method among the others."""
_SAME = 0.01  # relative change of a figure below which a constant has no effect on it
_DIGITS = 100

Job = TypeVar("Job")
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The amount that each part measures; rows are seconds."""

    hour_rows: int  # of each noise, at one false alarm an hour
    day_rows: int  # and at one a day
    series: int
    pieces: int  # of recorded noise, before those that are not quiet are left out
    stalls: int
    delays: int  # series with a step, for each size of it
    seeds: int  # series without a change, of each noise, offline
    quiet_rows: int  # of such a series
    peer_rows: int  # of a series offline that all methods search
    positions: int  # of a step in each recorded series
    steps: int  # whose onsets are compared with their intervals
    drains: int
    panels: int
    cost_rows: int
    rounds: int


FULL = Size(
    hour_rows=14_400,
    day_rows=129_600,
    series=200,
    pieces=2_000,
    stalls=400,
    delays=200,
    seeds=200,
    quiet_rows=129_600,
    peer_rows=6_480,
    positions=6,
    steps=2_000,
    drains=200,
    panels=20,
    cost_rows=129_600,
    rounds=3,
)
QUICK = Size(
    hour_rows=7_200,
    day_rows=28_800,
    series=100,
    pieces=400,
    stalls=100,
    delays=60,
    seeds=8,
    quiet_rows=43_200,
    peer_rows=2_000,
    positions=1,
    steps=280,
    drains=40,
    panels=4,
    cost_rows=129_600,
    rounds=1,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A number that one method gives; `at_least` and `at_most` are the goal, `note` names the worst case."""

    figure: str
    method: str
    value: float
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    @property
    def goal(self) -> str:
        bounds = ((">=", self.at_least), ("<=", self.at_most))
        return ", ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)

    @property
    def holds(self) -> bool | None:
        """Return whether the goal is met; None without a goal. NaN meets none."""
        if not self.goal:
            return None
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What every part gets. `references` is a folder of other detectors, None: without peers' programs."""

    size: Size
    shared: Path
    references: Path | None
    are_peers_shown: bool
    pool: ProcessPoolExecutor | None

    def map(self, function: Callable[[Job], Found], jobs: Iterable[Job]) -> Iterator[Found]:
        """Apply a function of a module to each job, in the processes that the user allows, in order."""
        if self.pool is None:
            return map(function, jobs)
        return self.pool.map(function, jobs)


Part = Callable[[Run], list[Measurement]]


@contextmanager
def processes(jobs: int, constants: Constants | None) -> Iterator[ProcessPoolExecutor | None]:
    """Give a pool of so many processes whose online detector has these constants; None for one process."""
    feed.use(constants)
    if jobs < 2:
        yield None
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), partial(feed.use, constants)) as pool:
        yield pool


def worst(
    values: Sequence[tuple[str, float]], key: Callable[[float], float] = float
) -> tuple[str, float]:
    """Return the name and the value for which `key` is greatest; NaN is worse than any number."""
    return max(values, key=lambda one: math.inf if math.isnan(one[1]) else key(one[1]))


def table(part: str, found: Sequence[Measurement]) -> Table:
    """Return one line a figure, one column a method; goals and notes are those of our detectors."""
    methods = list(dict.fromkeys(one.method for one in found if one.method != OURS))
    shown = Table(title=part, title_justify="left")
    shown.add_column("figure")
    for name in (OURS, "goal", "holds", *methods):
        shown.add_column(name, justify="right")
    shown.add_column("note")
    by_place = {(one.figure, one.method): one for one in found}
    words = {True: "yes", False: "NO", None: ""}
    for figure in dict.fromkeys(one.figure for one in found):
        ours = by_place.get((figure, OURS))
        cells = [text(by_place.get((figure, name))) for name in methods]
        goal, holds = ("", "") if ours is None else (ours.goal, words[ours.holds])
        note = "" if ours is None else ours.note
        shown.add_row(figure, text(ours), goal, holds, *cells, note)
    return shown


def text(one: Measurement | None) -> str:
    """Return three digits, and no fraction where there are more before the point."""
    if one is None or math.isnan(one.value):
        return ""
    return f"{one.value:,.0f}" if abs(one.value) >= _DIGITS else f"{one.value:.3g}"


def to_json(found: Sequence[Measurement]) -> list[dict[str, Any]]:
    """Return the measurements as JSON has them: no number where a value is NaN or infinite."""
    return [
        {
            "figure": one.figure,
            "method": one.method,
            "value": one.value if math.isfinite(one.value) else None,
            "goal": one.goal,
            "holds": one.holds,
            "note": one.note,
        }
        for one in found
    ]


def write(path: Path, body: object) -> None:
    """Write JSON, and the folder where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def sensitivity_table(
    constant: str,
    base: Sequence[Measurement],
    halved: Sequence[Measurement],
    doubled: Sequence[Measurement],
) -> Table:
    """Return the figures of our detectors that change when one constant is halved or doubled."""
    low, high = (
        {one.figure: one for one in some if one.method == OURS} for some in (halved, doubled)
    )
    ours = [one for one in base if one.method == OURS]
    changed = [
        one for one in ours if _differs(one, low[one.figure]) or _differs(one, high[one.figure])
    ]
    title = f"{constant}: {len(changed)} of {len(ours)} figures change"
    shown = Table(title=title, title_justify="left")
    for name in ("figure", "goal", "halved", "as it is", "doubled"):
        shown.add_column(name, justify="left" if name == "figure" else "right")
    for one in changed:
        cells = (text(some) for some in (low[one.figure], one, high[one.figure]))
        shown.add_row(one.figure, one.goal, *cells)
    return shown


def _differs(one: Measurement, other: Measurement) -> bool:
    if math.isnan(one.value) or math.isnan(other.value):
        return math.isnan(one.value) != math.isnan(other.value)
    return abs(other.value - one.value) > _SAME * abs(one.value)
