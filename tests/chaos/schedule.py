"""What a storm does and to whom, drawn from its seed alone before it begins: the same seed, the same storm.

Nothing of how a run fares goes into it, so a storm that found something can be had again. When each thing is
done is the run's: a daemon that is still away is waited for.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

BROKER = "broker"
SHORTEST, LONGEST = 1.0, 5.0  # seconds between two kills
WINDOW_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Kill:
    after_seconds: float  # since the kill before it was made
    victim: str


def kills(seed: int, count: int, daemons: Sequence[str], most_in_a_minute: int) -> list[Kill]:
    """Return so many kills of daemons or the broker, of a daemon never more in a minute than given."""
    rng = random.Random(f"{seed} kills")
    drawn: list[Kill] = []
    at: list[tuple[float, str]] = []
    now = 0.0
    for _ in range(count):
        pause = rng.uniform(SHORTEST, LONGEST)
        now += pause
        lately = [victim for moment, victim in at if now - moment < WINDOW_SECONDS]
        free = [name for name in sorted(daemons) if lately.count(name) < most_in_a_minute]
        victim = rng.choice([*free, BROKER])
        at.append((now, victim))
        drawn.append(Kill(pause, victim))
    return drawn


def order(seed: int, troubles: Sequence[str]) -> list[str]:
    """Return the troubles in the order in which they come; leaving some out moves no other."""
    return sorted(troubles, key=lambda name: random.Random(f"{seed} {name}").random())


def choices(seed: int, trouble: str) -> random.Random:
    """Return what a trouble picks its victims with: the same whatever came before it."""
    return random.Random(f"{seed} victims of {trouble}")
