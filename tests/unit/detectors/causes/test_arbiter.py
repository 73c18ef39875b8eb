"""The arbiter: what adds up, what a better cause explains, what is ruled out, and what was named before."""

from __future__ import annotations

import pytest

from detectors.attribution import BAR
from detectors.causes.arbiter import weigh
from detectors.causes.facts import Facts
from detectors.causes.hypothesis import (
    CLEAR,
    DECISIVE,
    FAIR,
    Hypothesis,
    Sign,
    ruled_out,
    unmeasured,
)
from detectors.nearby import Nearby
from soak.core.model import Evidence, Explanation
from tests.support.detection.cause_panels import END, STEP

FACTS = Facts(STEP, Nearby(0, END))


def sign(strength: float, text: str = "It was seen.") -> Sign:
    return Sign(strength, Evidence(text))


def weighed(*hypotheses: Hypothesis, named: tuple[str, ...] = ()) -> list[Explanation]:
    before = [Explanation(cause, 0.7, (Evidence("It was seen."),)) for cause in named]
    return weigh(hypotheses, FACTS, is_last=True, named=before)


def test_signs_for_a_cause_add_up_and_signs_against_it_take_away() -> None:
    one, two, less = (
        weighed(Hypothesis("network", tuple(map(sign, strengths))))[0]
        for strengths in ((CLEAR,), (CLEAR, FAIR), (CLEAR, FAIR, -FAIR))
    )

    assert BAR < one.score < two.score
    assert less.score == one.score
    assert [text.text for text in less.against] == ["It was seen."]


def test_what_accounts_for_more_of_the_step_comes_first() -> None:
    little = Hypothesis("gc_pause", (sign(CLEAR + FAIR),), share=0.2)
    much = Hypothesis("network", (sign(CLEAR + FAIR),), share=1.0)

    assert [one.cause for one in weighed(little, much)] == ["network", "gc_pause"]


def test_what_a_better_cause_brings_about_comes_after_it_and_says_so() -> None:
    """Leaders that moved are surer by themselves than the broker's end that moved them."""
    down = Hypothesis("broker_down", (sign(DECISIVE),), "b3:9092")
    moved = Hypothesis("leader_move", (sign(DECISIVE + FAIR),))
    first, second = weighed(moved, down)

    assert (first.cause, first.suspect) == ("broker_down", "b3:9092")
    assert second.cause == "leader_move"
    assert second.against[-1].text == "Broker down brings this about by itself."


def test_a_cause_that_is_not_sure_itself_explains_no_other() -> None:
    down = Hypothesis("broker_down", (sign(CLEAR),))
    moved = Hypothesis("leader_move", (sign(DECISIVE),))

    assert weighed(moved, down)[0].cause == "leader_move"


@pytest.mark.parametrize(
    "reason",
    [
        *("broker_cpu", "drive_gc", "drive_throttled", "gc_pause"),
        *("network", "slow_drive", "slow_fsync"),
    ],
)
def test_leaders_that_moved_come_after_whatever_passes_and_may_have_moved_them(reason: str) -> None:
    """By itself the move is surer."""
    moved = Hypothesis("leader_move", (sign(CLEAR + FAIR),))
    found = weighed(moved, Hypothesis(reason, (sign(CLEAR),)))

    assert [one.cause for one in found] == [reason, "leader_move"]


@pytest.mark.parametrize(
    ("strength", "order"),
    [
        (DECISIVE, ["broker_pause", "metadata_storm"]),
        (DECISIVE + FAIR, ["metadata_storm", "broker_pause"]),
    ],
    ids=["as sure", "surer"],
)
def test_of_two_causes_that_bring_each_other_about_one_explains_the_other(
    strength: float, order: list[str]
) -> None:
    paused = Hypothesis("broker_pause", (sign(CLEAR), sign(FAIR)))
    first, second = weighed(Hypothesis("metadata_storm", (sign(strength),)), paused)

    assert [first.cause, second.cause] == order
    assert not first.against


def test_unknown_says_what_is_ruled_out_and_what_would_have_to_be_measured() -> None:
    (found,) = weighed(
        ruled_out("drive_gc", "Writes did not become slower."),
        unmeasured("network", "round trips"),
        Hypothesis("gc_pause", (sign(FAIR, "A pause came then."),)),
    )
    texts = [text.text for text in found.evidence]

    assert (found.cause, found.score) == ("unknown", 0.0)
    assert "To tell, these would have to be measured: round trips." in texts
    assert "Not enough for GC pause (27%): A pause came then." in texts
    assert [text.text for text in found.against] == [
        "Drive GC is ruled out: Writes did not become slower."
    ]


def test_a_cause_that_was_named_stays_while_nothing_speaks_against_it() -> None:
    """Its signs have become weaker, or are not seen any more, as more of the channel was seen."""
    weak = Hypothesis("network", (sign(FAIR),))

    assert weighed(weak)[0].cause == "unknown"
    assert [one.cause for one in weighed(weak, named=("network",))] == ["network"]
    assert [one.cause for one in weighed(named=("network",))] == ["network"]


def test_a_cause_that_was_named_goes_with_what_speaks_against_it_or_a_better_one() -> None:
    against = Hypothesis("network", (sign(FAIR), sign(-FAIR)))
    better = Hypothesis("gc_pause", (sign(DECISIVE),))

    assert weighed(against, named=("network",))[0].cause == "unknown"
    assert weighed(ruled_out("network", "It is calm."), named=("network",))[0].cause == "unknown"
    assert weighed(better, named=("network",))[0].cause == "gc_pause"
