"""Service objectives of a plan: a limit, and the share of minutes or messages of the soak that must keep it.

Such as `p99 publish <= 50ms for 99% of minutes` or `99.9% of messages acknowledged within 1s`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import AfterValidator

from soak.core.units import SECOND_NS, duration_ns, format_duration

Latency = Literal["publish", "end-to-end"]
Unit = Literal["minutes", "messages"]

MIN_LIMIT_NS = 100_000
MAX_LIMIT_NS = 100 * SECOND_NS
"""The limits between which the journals count messages."""
MINUTE_NS = 60 * SECOND_NS

_PERCENT = r"(\d{1,3}(?:\.\d{1,6})?)"
_OF_MINUTES = re.compile(
    rf"p{_PERCENT} (publish|end[ -]to[ -]end) ?<= ?(.+?) for {_PERCENT} ?% of minutes"
)
_OF_MESSAGES = re.compile(rf"{_PERCENT} ?% of messages acknowledged within (.+)")
_EXAMPLES = (
    "p99 publish <= 50ms for 99% of minutes, "
    "p99.9 end-to-end <= 500ms for 99.5% of minutes "
    "or 99.9% of messages acknowledged within 1s"
)


@dataclass(frozen=True, slots=True)
class Objective:
    """One objective; `quantile` is the share of a minute's messages that must keep the limit.

    An objective in messages has no quantile: it counts the messages of the whole soak.
    """

    unit: Unit
    latency: Latency
    limit_ns: int
    target: Fraction  # share of good minutes or messages, above 0 and below 1
    quantile: Fraction | None = None

    def __str__(self) -> str:
        limit, target = format_duration(self.limit_ns), _percent(self.target)
        if self.quantile is None:
            return f"{target}% of messages acknowledged within {limit}"
        return f"p{_percent(self.quantile)} {self.latency} <= {limit} for {target}% of minutes"

    @property
    def limit_seconds(self) -> float:
        return self.limit_ns / SECOND_NS

    def budget(self, total: float) -> float:
        """Return how many of so many minutes, or messages, may be bad."""
        return float((1 - self.target) * Fraction(total))


def parse_objective(text: str) -> Objective:
    """Return the objective that a text states.

    Raises:
        ValueError: the text states none, or one with a limit or share out of bounds.
    """
    plain = " ".join(text.split())
    if found := _OF_MINUTES.fullmatch(plain):
        percentile, latency, limit, target = found.groups()
        return Objective(
            "minutes",
            "publish" if latency == "publish" else "end-to-end",
            _limit_ns(limit),
            _share(target, "the share of minutes", least=Fraction(0)),
            _share(percentile, "the percentile", least=Fraction(1, 2)),
        )
    if found := _OF_MESSAGES.fullmatch(plain):
        target, limit = found.groups()
        share = _share(target, "the share of messages", least=Fraction(0))
        return Objective("messages", "publish", _limit_ns(limit), share)
    raise ValueError(f"{text[:80]!r} is not an objective; write it like {_EXAMPLES}")


def recorded_limits(texts: tuple[str, ...], latency: Latency) -> tuple[float, ...]:
    """Return the limits, in seconds, of the objectives about a latency: the journals count what is above."""
    found = {one.limit_seconds for one in map(parse_objective, texts) if one.latency == latency}
    return tuple(sorted(found))


def budget_text(objective: Objective, soak_ns: int) -> str:
    """Return an objective with its budget in a soak of this length."""
    allowed = _percent(1 - objective.target)
    if objective.unit == "messages":
        return f"{objective}: {allowed}% of the soak's messages may be late, fail or be skipped"
    minutes = soak_ns // MINUTE_NS
    return f"{objective}: {objective.budget(minutes):,.4g} of {minutes:,} minutes may be bad"


def is_budget_below_one(objective: Objective, soak_ns: int) -> bool:
    """True when the first bad minute already breaks an objective."""
    return objective.unit == "minutes" and objective.budget(soak_ns // MINUTE_NS) < 1


def _limit_ns(text: str) -> int:
    limit_ns = duration_ns(text)
    if not MIN_LIMIT_NS <= limit_ns <= MAX_LIMIT_NS:
        low, high = format_duration(MIN_LIMIT_NS), format_duration(MAX_LIMIT_NS)
        raise ValueError(f"the limit {text} must lie between {low} and {high}")
    return limit_ns


def _share(percent: str, what: str, least: Fraction) -> Fraction:
    share = Fraction(percent) / 100
    if not least <= share < 1 or not share:
        low = "above 0" if not least else f"at least {_percent(least)}"
        raise ValueError(f"{what} must be {low} and below 100, not {percent}")
    return share


def _percent(share: Fraction) -> str:
    percent = share * 100
    return f"{(Decimal(percent.numerator) / percent.denominator).normalize():f}"


def _canonical(text: str) -> str:
    return str(parse_objective(text))


ObjectiveText = Annotated[str, AfterValidator(_canonical)]
"""An objective in the plan, in its shortest form."""
