"""Weigh the hypotheses: what passes is named, what another cause explains follows it, else it is unknown.

Method:  log odds add up (`hypothesis`). A cause that is named strongly accounts for signs that it always
         brings about, so the hypotheses that rest on these lose most of their weight and come after it; one
         that is nothing but its effect in this incident loses all. Of two that bring each other about the
         surer explains the other; of two that are equally sure, the one that comes first in `EXPLAINS`.
         A cluster elects other leaders where one is not heard, so whatever may keep it from being heard
         explains moves as soon as it passes. CPU that runs short and answers that wait may come of moves as
         well: where brokers are asked, and answer in time, they explain moves only if named strongly. A cause
         that was named before stays until a sign against it, or a better cause, is there.
Assumes: the signs of one hypothesis are independent enough for their strengths to add.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from detectors.causes.facts import Facts
from detectors.causes.hypothesis import DECISIVE, Hypothesis, Sign
from detectors.client_seconds import is_of_finding
from detectors.nearby import when
from soak.core import wording
from soak.core.model import PROVISIONAL_SCORE, Change, Evidence, Explanation
from soak.core.series import source_of

UNKNOWN = "unknown"
BAR = PROVISIONAL_SCORE
NEXT_UNKNOWN = "see in the report which series changed; ask what was done then"

EXPLAINS: dict[str, frozenset[str]] = {
    "broker_down": frozenset(
        {"leader_move", "under_replicated", "broker_pause", "network", "metadata_storm"}
    ),
    "broker_pause": frozenset({"leader_move", "under_replicated", "metadata_storm"}),
    "metadata_storm": frozenset(
        {
            *("gc_pause", "broker_cpu", "leader_move", "segment_roll", "noisy_neighbour"),
            *("slow_fsync", "drive_gc", "slow_drive", "broker_pause", "network", "foreign_load"),
        }
    ),
    "foreign_load": frozenset(
        {"broker_cpu", "noisy_neighbour", "gc_pause", "drive_gc", "slow_drive", "segment_roll"}
    ),
    "catch_up_read": frozenset({"foreign_load", "noisy_neighbour"}),
    "compaction": frozenset({"noisy_neighbour"}),
    "gc_pause": frozenset({"broker_cpu", "leader_move"}),
    "segment_roll": frozenset({"broker_cpu"}),
    "under_replicated": frozenset({"noisy_neighbour", "foreign_load"}),
    "drive_throttled": frozenset({"drive_gc", "slow_drive", "leader_move"}),
    "drive_gc": frozenset({"leader_move"}),
    "slow_drive": frozenset({"leader_move"}),
    "slow_fsync": frozenset({"leader_move"}),
    "network": frozenset({"leader_move"}),
    "broker_cpu": frozenset({"leader_move"}),
    "client": frozenset({"network"}),
}
"""What each cause brings about by itself; what it does so at times is in `Hypothesis.explains`."""
_ORDER = {cause: at for at, cause in enumerate(EXPLAINS)}
_COUNTING_MOVES = frozenset({"broker_down", "metadata_storm"})
"""Causes with elections among their signs: they explain moves only if named strongly."""
_OF_MORE_LEADERS = frozenset({"broker_cpu", "network"})
"""Causes that leaders may bring with them which move to a broker: it has more to do, and answers later."""
_EXPLAINS_FROM = 0.75  # probability from which on a cause accounts for the signs of others
_EXPLAINED = -2.0
_LEAST_LEFT = 0.02  # log odds: what passed by itself is still listed, after its reason
_SECONDS = 10
_MOST = 3
_MOST_RULED_OUT = 6


def weigh(
    hypotheses: Iterable[Hypothesis],
    facts: Facts,
    *,
    is_last: bool,
    named: Sequence[Explanation] = (),
) -> list[Explanation]:
    """Return the causes that pass, best first; `unknown` alone when there is none.

    `named`: the judgement before. The last judgement takes no cause that waits for seconds to come.
    """
    known = [one for one in hypotheses if not (one.is_provisional and is_last)]
    best = {one.cause: one for one in sorted(known, key=lambda one: one.probability)}
    weighed = [_explained_away(one, best.values(), facts) for one in best.values()]
    passing = [one for one in weighed if one.is_provisional or one.probability > BAR]
    if passing:
        ordered = sorted(passing, key=lambda one: (-one.log_odds, one.cause))
        return [_explanation(one) for one in ordered]
    unknown = _unknown(facts, list(best.values()))
    return _kept(named, best) or [unknown]


def _explained_away(one: Hypothesis, others: Iterable[Hypothesis], facts: Facts) -> Hypothesis:
    """Return a hypothesis without the weight of signs that a stronger cause brings about by itself."""
    causes = [
        other
        for other in others
        if _brings_about(other, one)
        and _is_sure(other, one, facts)
        and not _is_stronger_reason(one, other)
    ]
    if not causes or one.ruled_out or one.is_provisional:
        return one
    reason = max(causes, key=lambda other: (other.has_as_effect(one), other.probability))
    strength = _EXPLAINED
    if one.log_odds > 0.0:
        least_left = min(0.0, _LEAST_LEFT - one.log_odds)
        is_whole = reason.has_as_effect(one)
        strength = least_left if is_whole else max(strength, least_left)
    text = f"{_capital(reason.cause)} brings this about by itself."
    sign = Sign(strength, Evidence(text, {"by": reason.cause}))
    return replace(one, signs=(*one.signs, sign), share=1.0)


def _brings_about(reason: Hypothesis, effect: Hypothesis) -> bool:
    return reason.has_as_effect(effect) or effect.cause in EXPLAINS.get(reason.cause, frozenset())


def _is_sure(reason: Hypothesis, effect: Hypothesis, facts: Facts) -> bool:
    """True for a cause that is sure enough to explain another; of moved leaders, for one that passes."""
    if reason.probability >= _EXPLAINS_FROM:
        return True
    if effect.cause != "leader_move" or reason.cause in _COUNTING_MOVES:
        return False
    may_follow = reason.cause in _OF_MORE_LEADERS and facts.answers.are_prompt
    return reason.probability > BAR and not may_follow


def _is_stronger_reason(one: Hypothesis, other: Hypothesis) -> bool:
    """True where a cause explains its own reason in turn, and is surer, or as sure and before it."""
    return _brings_about(one, other) and _precedence(one) > _precedence(other)


def _precedence(one: Hypothesis) -> tuple[float, int]:
    """Return which of two causes explains the other where each brings the other about: the larger."""
    return one.log_odds, -_ORDER.get(one.cause, len(_ORDER))


def _kept(named: Sequence[Explanation], best: Mapping[str, Hypothesis]) -> list[Explanation]:
    """Return the causes named before that nothing speaks against, as they were named."""
    nothing = Hypothesis(UNKNOWN)
    return [one for one in named if one.score > BAR and not best.get(one.cause, nothing).against]


def _explanation(one: Hypothesis) -> Explanation:
    score = BAR if one.is_provisional else one.probability
    return Explanation(one.cause, round(score, 4), one.evidence, one.against, one.suspect)


# --- nothing passes


def _unknown(facts: Facts, known: Sequence[Hypothesis]) -> Explanation:
    """Return, with score 0, what else changed, what is ruled out, and what would have to be measured."""
    changed, nearly = _changed(facts.change, facts.nearby.changes), _nearly(known)
    if not changed and not nearly:
        text = f"None of the other series watched changed within {_SECONDS} s of the onset."
        changed = [Evidence(text)]
    evidence = [*changed, *_missing(known), *nearly] if changed else [*nearly, *_missing(known)]
    return Explanation(UNKNOWN, 0.0, tuple(evidence), tuple(_ruled_out(known)))


def _changed(change: Change, changes: Iterable[Change]) -> list[Evidence]:
    at_onset = sorted(
        (
            other
            for other in changes
            if other.state in {"confirmed", "gone"}
            and not is_of_finding(other)
            and abs(other.onset_k - change.onset_k) <= _SECONDS
        ),
        key=lambda other: (abs(other.onset_k - change.onset_k), other.series),
    )
    return [
        Evidence(
            f"{wording.title(other.series)} of {source_of(other.series)} went from "
            f"{wording.amount_of(other.series, other.before)} to "
            f"{wording.amount_of(other.series, other.after)}, "
            f"{when(other.onset_k - change.onset_k)}.",
            {
                "series": other.series,
                "onset_k": other.onset_k,
                "before": other.before,
                "after": other.after,
            },
        )
        for other in at_onset[:_MOST]
    ]


def _nearly(known: Sequence[Hypothesis]) -> list[Evidence]:
    """Return the likeliest cause that did not pass, with what speaks for it and against it."""
    likely = [
        one for one in known if not one.ruled_out and one.log_odds > -DECISIVE and one.evidence
    ]
    likely = [one for one in likely if any(sign.strength > 0.0 for sign in one.signs)]
    best = max(likely, key=lambda one: one.log_odds, default=None)
    if best is None:
        return []
    reasons = " ".join(one.text for one in (*best.evidence[:1], *best.against[:1]))
    return [
        Evidence(
            f"Not enough for {wording.cause_text(best.cause)} ({best.probability:.0%}): {reasons}"
        )
    ]


def _missing(known: Sequence[Hypothesis]) -> list[Evidence]:
    what = list(dict.fromkeys(text for one in known for text in one.missing))
    if not what:
        return []
    return [Evidence(f"To tell, these would have to be measured: {'; '.join(what)}.")]


def _ruled_out(known: Sequence[Hypothesis]) -> list[Evidence]:
    excluded = sorted((one for one in known if one.ruled_out), key=lambda one: one.cause)
    return [
        Evidence(f"{_capital(one.cause)} is ruled out: {one.against[0].text}", {"cause": one.cause})
        for one in excluded[:_MOST_RULED_OUT]
    ]


def _capital(cause: str) -> str:
    """Return a cause in words as a sentence begins: `Drive GC`."""
    text = wording.cause_text(cause)
    return f"{text[:1].upper()}{text[1:]}"
