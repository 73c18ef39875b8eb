"""What a benchmark says: medians of both sides, the ratio of each round, and whether the goal holds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import psutil
from rich.table import Table

Measures = Mapping[str, float]
"""One side of one round, by the name of the measure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Bounds on the ratio ours / peer, and on our own figure; None: no bound."""

    ratio_least: float | None = None
    ratio_most: float | None = None
    ours_most: float | None = None

    @property
    def text(self) -> str:
        bounds = (
            ("ratio >= ", self.ratio_least),
            ("ours <= ", self.ours_most),
            ("ratio <= ", self.ratio_most),
        )
        return " and ".join(f"{what}{bound:g}" for what, bound in bounds if bound is not None)

    def holds(self, ours: float, ratio: float) -> bool | None:
        """Return None where there is nothing to hold."""
        if not self.text:
            return None
        return (
            (self.ratio_least is None or ratio >= self.ratio_least)
            and (self.ratio_most is None or ratio <= self.ratio_most)
            and (self.ours_most is None or ours <= self.ours_most)
        )


@dataclass(frozen=True, slots=True)
class Spec:
    """One figure: the measure it is made of, what people call it, and what it is held to."""

    measure: str
    figure: str
    goal: Goal
    is_of_machine: bool = False  # the highest of all rounds counts, and no ratio


_STOLEN = "stolen_percent"
"""Added to what each side measured. Above some 0.5 % a p99 tells of the machine, and so do both sides."""


def stolen(what: str) -> Spec:
    """Return the figure that tells whether the others of a part may be believed."""
    figure = f"{what}: CPU time that a hypervisor kept in the worst round, %"
    return Spec(_STOLEN, figure, Goal(), is_of_machine=True)


@dataclass(frozen=True, slots=True)
class Figure:
    """A line of the result: medians over the rounds; `spread` is the lowest and highest ratio of a round.

    What is of the machine has its highest figures, and no ratio: NaN.
    """

    figure: str
    ours: float
    peer: float
    ratio: float
    spread: tuple[float, float]
    goal: str
    holds: bool | None


def side_by_side(
    rounds: int, ours: Callable[[int], Measures], peer: Callable[[int], Measures]
) -> list[tuple[Measures, Measures]]:
    """Measure both sides in turn; who begins alternates, so that neither profits from what drifts."""
    pairs = []
    for number in range(rounds):
        if number % 2:
            theirs = _measured(peer, number)
            pairs.append((_measured(ours, number), theirs))
        else:
            mine = _measured(ours, number)
            pairs.append((mine, _measured(peer, number)))
    return pairs


def _measured(side: Callable[[int], Measures], number: int) -> Measures:
    psutil.cpu_times_percent()  # the next call tells of the time since this one
    found = side(number)
    return {**found, _STOLEN: getattr(psutil.cpu_times_percent(), "steal", 0.0)}


def figures(specs: Sequence[Spec], pairs: Sequence[tuple[Measures, Measures]]) -> list[Figure]:
    """Return one figure a spec. The ratio is the median of the rounds' ratios, not of the medians."""
    found = []
    for spec in specs:
        mine = [ours[spec.measure] for ours, _ in pairs]
        theirs = [peer[spec.measure] for _, peer in pairs]
        if spec.is_of_machine:
            found.append(
                Figure(
                    spec.figure, max(mine), max(theirs), math.nan, (math.nan, math.nan), "", None
                )
            )
            continue
        ratios = [ratio_of(a, b) for a, b in zip(mine, theirs, strict=True)]
        middle, ratio = median(mine), median(ratios)
        found.append(
            Figure(
                spec.figure,
                middle,
                median(theirs),
                ratio,
                (min(ratios), max(ratios)),
                spec.goal.text,
                spec.goal.holds(middle, ratio),
            )
        )
    return found


def ratio_of(ours: float, peer: float) -> float:
    """Return ours / peer: 1 where neither has any, infinite where the peer alone has none."""
    return ours / peer if peer else math.inf if ours else 1.0


def table(title: str, found: Sequence[Figure]) -> Table:
    """Return what a person reads."""
    shown = Table(title=title, title_justify="left")
    shown.add_column("figure")
    for name in ("ours", "peer", "ratio", "lowest", "highest"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("goal", no_wrap=True)
    shown.add_column("holds", no_wrap=True)
    words = {True: "yes", False: "NO", None: ""}
    for one in found:
        numbers = (one.ours, one.peer, one.ratio, *one.spread)
        shown.add_row(one.figure, *map(_short, numbers), one.goal, words[one.holds])
    return shown


def _short(number: float) -> str:
    """Return three digits, and no fraction where there are more before the point."""
    if math.isnan(number):
        return ""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def write(path: Path, found: Sequence[Figure]) -> None:
    """Write the figures as JSON, which has neither NaN nor infinity: where there is no number it is null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    named = [
        {
            **asdict(one),
            **{name: _finite(getattr(one, name)) for name in ("ours", "peer", "ratio")},
            "spread": [_finite(ratio) for ratio in one.spread],
        }
        for one in found
    ]
    path.write_text(json.dumps(named, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
