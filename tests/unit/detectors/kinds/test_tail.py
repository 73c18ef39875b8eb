"""Tails of many sources: each is reported and ends for itself, whatever the others do."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from detectors import minimum_effect
from detectors.kinds.recent_rows import Recent
from detectors.kinds.tail import NearSteps, Tails
from soak.core.model import Change
from soak.core.series import series_name

SOURCES = [f"produce.{at}@h" for at in range(20)]
METRIC = "publish_latency_seconds"


def recent(before: float, after: float) -> Recent:
    """Return five minutes of a latency whose last 30 s may have another level."""
    kept = Recent()
    for k in range(300):
        kept.take(k, float(np.log10(before if k < 270 else after)))
    return kept


def change(series: str, before: float, after: float, raised_k: int = 280) -> Change:
    return Change(series, raised_k, 270, (269, 271), before, after, "confirmed", 0.99)


def gone(one: Change) -> Change:
    return replace(one, state="gone", resolved_k=900)


def odds(source: str, raised_k: int = 280) -> Change:
    return change(f'{source}|{METRIC}_above_odds{{quantile="0.99"}}', 0.005, 0.04, raised_k)


def slow(source: str) -> dict[str, Recent]:
    """Return what makes a tail of odds that step: p99 has moved, p50 has not."""
    return {
        f'{source}|{METRIC}{{quantile="0.5"}}': recent(0.004, 0.004),
        f'{source}|{METRIC}{{quantile="0.99"}}': recent(0.008, 0.02),
    }


def test_the_tails_of_all_sources_end() -> None:
    tails = Tails(minimum_effect.Config())
    recents = {name: kept for source in SOURCES for name, kept in slow(source).items()}
    changes = [tails._meant(odds(source), 280, recents, NearSteps()) for source in SOURCES]
    ended = [tails._meant(gone(odds(source)), 900, recents, NearSteps()) for source in SOURCES]

    assert [len(said) for said in changes] == [1] * 20
    assert ended == [[gone(one) for one in said] for said in changes]


def test_of_a_series_that_tells_many_each_ends() -> None:
    """One that never did would leave its incident open, and all later trouble would be a part of it."""
    tails, recents = Tails(minimum_effect.Config()), slow("s")
    for raised_k in range(280, 286):
        tails._meant(odds("s", raised_k), raised_k, recents, NearSteps())
    ended = [
        tails._meant(gone(odds("s", raised_k)), 900, recents, NearSteps())
        for raised_k in range(280, 286)
    ]

    assert [len(said) for said in ended] == [1] * 6


def test_a_step_of_p999_that_is_a_tail_ends_as_one() -> None:
    """Of more sources than were ever remembered, and nothing of it is kept."""
    tails = Tails(minimum_effect.Config())
    quiet = {
        f'{source}|{METRIC}{{quantile="{quantile}"}}': recent(level, level)
        for source in SOURCES
        for quantile, level in (("0.5", 0.004), ("0.99", 0.008))
    }
    steps = [change(f'{source}|{METRIC}{{quantile="0.999"}}', 0.01, 0.04) for source in SOURCES]
    kinds = [tails.renamed(step, quiet).kind for step in steps]
    ended = [tails.renamed(gone(step), quiet).kind for step in steps]

    assert (kinds, ended) == (["tail"] * 20, ["tail"] * 20)
    assert tails.to_state()["alone"] == []


P99 = f'produce.0@h|{METRIC}{{quantile="0.99"}}'


def beside(step: str) -> NearSteps:
    """Return the steps of p99: one that was raised at 278, and what became of it."""
    near, raised = NearSteps(), change(f's|{METRIC}{{quantile="0.99"}}', 0.008, 0.02, 278)
    near.note(replace(raised, state="warning"))
    if step == "confirmed":
        near.note(raised)
    elif step == "withdrawn":
        near.note(replace(raised, state="withdrawn"))
    return near


def resumed(tails: Tails) -> Tails:
    other = Tails(minimum_effect.Config())
    other.restore(json.loads(json.dumps(tails.to_state())))
    return other


def update(tails: Tails, k: int, recents: dict[str, Recent], near: NearSteps) -> list[Change]:
    """Say nothing of the odds."""
    return tails.update("s", k, [], lambda: recents, near)


def test_a_tail_beside_a_step_that_is_withdrawn_is_reported_then_and_ends() -> None:
    """Raised in the second of the step, so it is named after that in which it is reported."""
    tails, recents, waiting = Tails(minimum_effect.Config()), slow("s"), beside("waiting")
    said = tails._meant(replace(odds("s", 278), state="warning"), 278, recents, waiting)
    said += tails._meant(odds("s", 278), 288, recents, waiting)
    tails = resumed(tails)
    said += update(tails, 289, recents, waiting)
    said += update(tails, 290, recents, beside("withdrawn"))
    said += resumed(tails)._meant(gone(odds("s", 278)), 900, recents, beside("withdrawn"))

    assert [(one.kind, one.raised_k, one.state) for one in said] == [
        ("tail", 290, "confirmed"),
        ("tail", 290, "gone"),
    ]


def test_a_tail_beside_a_step_that_is_reported_is_the_steps() -> None:
    tails, recents = Tails(minimum_effect.Config()), slow("s")
    said = tails._meant(odds("s", 278), 288, recents, beside("waiting"))
    said += update(tails, 290, recents, beside("confirmed"))
    said += update(tails, 291, recents, beside("withdrawn"))

    assert said == []


def test_a_step_that_is_withdrawn_leaves_the_reported_one_before_it() -> None:
    near = beside("confirmed")
    later = change(f's|{METRIC}{{quantile="0.999"}}', 0.01, 0.04, 300)
    for state in ("warning", "withdrawn"):
        near.note(replace(later, state=state))

    assert near.of(series_name("s", METRIC), 320) == "reported"
    assert near.of(series_name("s", METRIC), 340) == "none"
