"""A hypothesis: one cause, the signs for and against it, and the broker, drive, host or topic it suspects.

A sign is worth the logarithm of how much likelier it is where the cause is at work than where it is not. Four
strengths are enough: such odds are not known better than within a factor of three or four.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log

from soak.core import wording
from soak.core.model import Evidence

SLIGHT = 0.5  # fits, and is common without the cause as well
FAIR = 1.5  # four to one: confirms, or excludes what looks alike
CLEAR = 3.0  # twenty to one: at the onset, and hardly of anything else
DECISIVE = 4.5  # ninety to one: at the onset, and of nothing else
PRIOR = -2.5  # log odds of one among the known causes, before anything is seen
BARELY = 0.1 - PRIOR  # named, after whatever else was measured
_OF_SHARE = 0.4  # of the odds in favour, that a cause loses which accounts for nothing of the step


@dataclass(frozen=True, slots=True)
class Sign:
    """One piece of evidence and its log likelihood ratio; below 0 it speaks against the cause."""

    strength: float
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A command that confirms a cause: where to run it, and the sign in its output, with a threshold.

    `{device}` stands for a name and `{step_seconds*1000}` for a number, times a factor. A mail fills in those
    that its incident tells, the runbook shows them in capitals; a name of several words stays as it is.
    `{admin}` follows the server of a tool of Kafka: the option with an administrator's login, or nothing.
    `measured` is the sign in numbers, for a mail that knows all of them. `is_lasting`: it is there as well
    when the incident is over, in a log or a setting.
    """

    where: str
    command: str
    sign: str
    measured: str = ""
    is_lasting: bool = False

    def filled(self, known: Mapping[str, str | float]) -> Confirmation:
        """Return the texts without placeholders; `known` has names and numbers, in base units."""
        names = {found[1] for found in _PLACEHOLDER.finditer(self.measured)}
        sign = self.measured if self.measured and names <= known.keys() else self.sign
        where, command, sign = (_filled(text, known) for text in (self.where, self.command, sign))
        return Confirmation(where, command, sign, is_lasting=self.is_lasting)


_PLACEHOLDER = re.compile(r"\{([^{}*]+)(?:\*([\d.]+))?\}")


def _filled(text: str, known: Mapping[str, str | float]) -> str:
    def value(found: re.Match[str]) -> str:
        name = found[1]
        one = known.get(name, name if " " in name else name.upper())
        return one if isinstance(one, str) else wording.amount(one * float(found[2] or 1), "")

    return _PLACEHOLDER.sub(value, text)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One cause, with the signs for and against it.

    `share`: of the step, that it accounts for. `ruled_out`: a sign that it cannot do without was measured and
    is absent; that sign is among `signs`. `missing`: what would have to be measured to tell.
    `is_provisional`: seconds that may take it back have not come yet. `explains`: causes that are its effects
    in this incident, with all their signs; with `explains_on` only what is suspected on that host.
    """

    cause: str
    signs: tuple[Sign, ...] = ()
    suspect: str = ""
    share: float = 1.0
    ruled_out: bool = False
    missing: tuple[str, ...] = ()
    is_provisional: bool = False
    explains: frozenset[str] = frozenset()
    explains_on: str = ""

    def has_as_effect(self, other: Hypothesis) -> bool:
        """True when another cause is an effect of this one in this incident."""
        is_there = not self.explains_on or other.suspect.endswith(f" on {self.explains_on}")
        return other.cause in self.explains and is_there

    @property
    def log_odds(self) -> float:
        if self.is_provisional:
            return 0.0
        odds = PRIOR + sum(sign.strength for sign in self.signs)
        if odds <= 0.0:
            return odds
        return odds * (1.0 - _OF_SHARE * (1.0 - max(0.0, min(1.0, self.share))))

    @property
    def probability(self) -> float:
        return 0.0 if self.ruled_out else 1.0 / (1.0 + exp(-self.log_odds))

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Return what speaks for it."""
        return tuple(sign.evidence for sign in self.signs if sign.strength >= 0.0)

    @property
    def against(self) -> tuple[Evidence, ...]:
        return tuple(sign.evidence for sign in self.signs if sign.strength < 0.0)


def strength_of_share(share: float) -> float:
    """Return the strength of a delay that is itself a part of the latency: odds as its share of the step."""
    kept = min(0.98, max(0.02, share))
    return log(kept / (1.0 - kept)) - PRIOR


def ruled_out(cause: str, text: str, **numbers: float | str) -> Hypothesis:
    """Return a hypothesis whose necessary sign is absent, with the sentence that says so."""
    return Hypothesis(cause, (Sign(-DECISIVE, Evidence(text, dict(numbers))),), ruled_out=True)


def absent(cause: str, text: str, missing: str, **numbers: float | str) -> Hypothesis:
    """Return a hypothesis whose necessary sign is absent where it was measured.

    It is ruled out, unless `missing` says where that sign is still to be measured.
    """
    if not missing:
        return ruled_out(cause, text, **numbers)
    signs = (Sign(-FAIR, Evidence(text, dict(numbers))),)
    return Hypothesis(cause, signs, missing=(missing,))


def unmeasured(cause: str, *what: str) -> Hypothesis:
    """Return a hypothesis of which nothing is known, with what would have to be measured."""
    return Hypothesis(cause, missing=what)
