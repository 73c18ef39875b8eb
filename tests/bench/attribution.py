"""How often the cause named is the right one: generated panels with known causes, and a confusion matrix.

Three noises: the one that the rules were made with, and two that took no part. Each cause is tried
plain, with its decisive channels missing, with others missing, and in pairs.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from detectors.attribution import attribute
from soak.core.model import Explanation
from tests.support.detection.cause_faults import FAULTS, OPTIONAL, PAIRS
from tests.support.detection.cause_world import Noise, finished, quiet_world

SIZES = (3.0, 30.0)
MISSING = 1.0 / 3.0
TABLE_WIDTH = 220


@dataclass(frozen=True, slots=True)
class Variant:
    """A noise and the range of steps, as factors of latency."""

    noise: Noise
    sizes: tuple[float, float] = SIZES


VARIANTS = {
    "made with": Variant(Noise()),
    "held out: rough": Variant(
        Noise(
            memory=0.7, latency=0.1, channels=0.22, spikes=0.06, lost=0.05, chance_steps=6, onset=4
        ),
        (2.5, 20.0),
    ),
    "held out: small steps": Variant(
        Noise(memory=0.2, latency=0.04, channels=0.15, chance_steps=8, onset=3), (1.7, 4.0)
    ),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was injected, what was named (best first), and what may be said instead of the truth."""

    causes: tuple[str, ...]
    named: tuple[str, ...]
    instead: tuple[str, ...] = ()

    @property
    def others(self) -> set[str]:
        """Return what was named and is not true."""
        beside = {name for cause in self.causes for name in FAULTS[cause].beside}
        return set(self.named) - {*self.causes, *self.instead, *beside, "unknown"}

    @property
    def is_right(self) -> bool:
        return self.named[0] in self.causes

    @property
    def is_wrong(self) -> bool:
        return self.named[0] not in (*self.causes, *self.instead, "unknown")


def named(
    causes: tuple[str, ...], variant: Variant, seed: int, *, without: tuple[str, ...] = ()
) -> list[Explanation]:
    """Inject causes at one instant into a quiet cluster and return what is made of it."""
    rng = np.random.default_rng([seed, *map(ord, "".join(causes))])
    world = quiet_world(rng, variant.noise)
    low, high = np.log(variant.sizes)
    size = rng.uniform(low, high)
    for cause in causes:  # several of about one size, so that each is felt
        FAULTS[cause].inject(world, float(np.exp(size * rng.uniform(0.8, 1.0))))
    if len(causes) > 1:
        world.kind = "step"
    if without:
        world.drop(*without)
    return attribute(*finished(world))


def plain(variant: Variant, seeds: int) -> Iterator[Outcome]:
    for cause in FAULTS:
        for seed in range(seeds):
            found = named((cause,), variant, seed)
            yield Outcome((cause,), tuple(one.cause for one in found))


def blinded(variant: Variant, seeds: int) -> Iterator[Outcome]:
    """Give what is named when the decisive channels of each cause are missing."""
    for cause, fault in FAULTS.items():
        for seed in range(seeds) if fault.decisive else ():
            found = named((cause,), variant, seed, without=fault.decisive)
            yield Outcome((cause,), tuple(one.cause for one in found), fault.instead)


def sparse(variant: Variant, seeds: int) -> Iterator[Outcome]:
    """Give what is named when a third of all groups of channels is missing, as on a cluster half watched."""
    for cause, fault in FAULTS.items():
        for seed in range(seeds):
            rng = np.random.default_rng([seed, 3])
            missing = [group for group in OPTIONAL if rng.random() < MISSING]
            without = tuple(name for group in missing for name in group)
            found = named((cause,), variant, seed, without=without)
            yield Outcome((cause,), tuple(one.cause for one in found), fault.instead)


def paired(variant: Variant, seeds: int) -> Iterator[Outcome]:
    for pair in PAIRS:
        for seed in range(seeds):
            found = named(pair, variant, seed)
            yield Outcome(pair, tuple(one.cause for one in found))


RUNS = (
    ("one cause", plain),
    ("decisive channels missing", blinded),
    ("a third of the channels missing", sparse),
    ("two causes", paired),
)


def matrix(title: str, found: list[Outcome]) -> Table:
    """Return how often which cause was named first for which was injected."""
    counts: dict[str, Counter[str]] = {}
    beside: dict[str, Counter[str]] = {}
    for one in found:
        true = " + ".join(one.causes)
        counts.setdefault(true, Counter())[one.named[0]] += 1
        beside.setdefault(true, Counter()).update(one.others)
    columns = sorted({name for row in counts.values() for name in row})
    shown = Table(title=title, title_justify="left")
    shown.add_column("injected")
    for name in columns:
        shown.add_column(name, justify="right")
    shown.add_column("others named", justify="right")
    for true, row in counts.items():
        shown.add_row(true, *(str(row[name] or "") for name in columns), _said(beside[true]))
    return shown


def _said(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


@dataclass(frozen=True, slots=True)
class Rates:
    """Shares of the panels: first cause right, wrong; all causes named; others than the true ones named."""

    right: float
    wrong: float
    all_named: float
    others: float


def rates(found: list[Outcome]) -> Rates:
    known = [one for one in found if one.causes != ("unknown",)]
    return Rates(
        float(np.mean([one.is_right for one in known])),
        float(np.mean([one.is_wrong for one in found])),
        float(np.mean([set(one.causes) <= set(one.named) for one in known])),
        float(np.mean([bool(one.others) for one in found])),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=50, help="panels a cause and variant")
    seeds = parser.parse_args().seeds
    console = Console(width=TABLE_WIDTH)
    summary = Table(title="Attribution", title_justify="left")
    for name in (
        "variant",
        "panels",
        "first right",
        "first wrong",
        "all named",
        "others named too",
    ):
        summary.add_column(name, justify="right")
    for name, variant in VARIANTS.items():
        for what, run in RUNS:
            found = list(run(variant, seeds))
            console.print(matrix(f"{name}: {what}", found))
            one = rates(found)
            shares = (one.right, one.wrong, one.all_named, one.others)
            summary.add_row(
                f"{name}: {what}", str(len(found)), *(f"{share:.1%}" for share in shares)
            )
    console.print(summary)


if __name__ == "__main__":
    main()
