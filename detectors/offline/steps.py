"""Steps of complete series, at a set rate of false ones; what is one event in several series is one step.

Method:  Rows become blocks of ten seconds. Cuts are proposed and tested in each series (`segmentation`)
         against its own noise (`noise`), then dated to a row. Cuts of several series at
         one time are one step, to which a series without a cut belongs if it changed then.
Assumes: a slow drift comes out as stairs. Rows follow each other: a missing one is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

import numpy as np
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as config_dataclass

from detectors.minimum_effect import MAX_CONFIDENCE
from detectors.offline.segmentation import Cut, Track, track_of
from soak.core.model import Change, Series
from soak.core.ports import Each, each_here


@config_dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Config:
    """Which steps of a series are reported."""

    scale: Literal["log", "linear"] = "log"  # log: linear where a value is not above zero
    smallest_step_ratio: float = 1.5
    smallest_step_seconds: float = 0.001  # in the series' own unit when that is not seconds
    false_step_rate: float = 0.05  # probability of any step in series without one, all together
    unit_seconds: float = 1.0  # of `Series.k`

    def __post_init__(self) -> None:
        if not 1.0 < self.smallest_step_ratio < inf:
            raise ValueError("smallest_step_ratio must be above 1 and finite")
        if not 0.0 <= self.smallest_step_seconds < inf:
            raise ValueError("smallest_step_seconds must be finite and not negative")
        if not 0.0 < self.false_step_rate < 1.0:
            raise ValueError("false_step_rate must be between 0 and 1")
        if not 0.0 < self.unit_seconds < inf:
            raise ValueError("unit_seconds must be above 0 and finite")


def detect(series: Series, config: Config) -> list[Change]:
    """Return the steps of one series in order of time, all of them confirmed."""
    return [change for changes in detect_together([series], config) for change in changes]


def detect_together(
    many: Sequence[Series], config: Config, each: Each = each_here
) -> list[tuple[Change, ...]]:
    """Return the steps in order of time, each as the changes of the series that took it, clearest first.

    All changes of a step have one onset and one interval; `raised_k` is where each series shows it.
    The order of `many` does not matter.
    """
    return detect_mixed([(series, config) for series in many], each)


def detect_mixed(
    many: Sequence[tuple[Series, Config]], each: Each = each_here
) -> list[tuple[Change, ...]]:
    """Return the same for series that are each judged by a config of their own."""
    rate = max((config.false_step_rate for _, config in many), default=0.0)
    ordered = sorted(many, key=lambda one: one[0].name)
    wanted = [(series, config, config.false_step_rate / len(many)) for series, config in ordered]
    found = each(_searched, wanted)
    return _joined([one for one in found if one is not None], rate)


def _searched(wanted: tuple[Series, Config, float]) -> _Searched | None:
    """Return a series and its cuts, of which noise has one with this probability; None: too short."""
    series, config, rate = wanted
    track = track_of(
        series,
        is_log=config.scale == "log",
        unit_seconds=config.unit_seconds,
        ratio=config.smallest_step_ratio,
        least_change=config.smallest_step_seconds,
    )
    return None if track is None else (track, track.cuts(rate))


# --- cuts of several series: those of one direction whose times do not differ are one step


_Searched = tuple[Track, list[Cut]]
"""A series and its cuts."""


@dataclass(frozen=True, slots=True)
class _Member:
    """The cut of one series in a step, in the unit of its k; `chance` is that of one like it in noise."""

    of: Track
    cut: Cut
    onset_k: int
    first_k: int
    last_k: int
    chance: float

    @property
    def name(self) -> str:
        return self.of.series.name


def _joined(many: Sequence[_Searched], rate: float) -> list[tuple[Change, ...]]:
    """Return the steps in order of onset, each as the changes of its series, clearest first.

    Onsets at most a block apart are one step. The cut with the narrowest interval dates it for all. A series
    without a cut belongs to it too when it changed then; noise does in any of them with probability `rate`.
    """
    own = [_member(one, cut, one.means.size * len(many)) for one, cuts in many for cut in cuts]
    slack = max((one.rows * one.spacing for one, _ in many), default=0)
    groups: list[list[_Member]] = []
    for member in sorted(own, key=_clearest):
        near = [group for group in groups if _may_join(member, group, slack)]
        if near:
            min(near, key=lambda group: abs(group[0].onset_k - member.onset_k)).append(member)
        else:
            groups.append([member])
    steps = [_changes(group, [*_others(many, group, rate)]) for group in groups]
    return sorted(steps, key=lambda changes: (changes[0].onset_k, changes[0].series))


def _member(of: Track, cut: Cut, places: int) -> _Member:
    k = of.series.k
    # behind a gap the onset may lie in it
    first_k = int(min(k[cut.first], k[cut.first - 1] + of.spacing))
    return _Member(of, cut, int(k[cut.at]), first_k, int(k[cut.last]), cut.chance(places))


def _clearest(one: _Member) -> tuple[float, int, str]:
    return -one.cut.strength, one.onset_k, one.name


def _may_join(one: _Member, group: Sequence[_Member], slack: int) -> bool:
    lead = group[0]
    apart = max(one.first_k - lead.last_k, lead.first_k - one.last_k)
    is_other = all(member.of is not one.of for member in group)
    return apart <= slack and one.cut.is_up == lead.cut.is_up and is_other


def _date(group: Sequence[_Member]) -> _Member:
    return min(group, key=lambda one: (one.last_k - one.first_k, _clearest(one)))


def _others(many: Sequence[_Searched], group: Sequence[_Member], rate: float) -> Iterator[_Member]:
    """Give what the series without a cut in the group show at its onset, if they changed in its direction."""
    date = _date(group)
    for one, cuts in many:
        if any(member.of is one for member in group):
            continue
        row = int(np.searchsorted(one.series.k, date.onset_k))
        cut = one.cut_at(row, cuts, rate / len(many))
        if cut is not None and cut.is_up == date.cut.is_up:
            yield _member(one, cut, len(many))


def _changes(group: Sequence[_Member], others: Sequence[_Member]) -> tuple[Change, ...]:
    date = _date(group)
    return tuple(
        Change(
            series=one.name,
            raised_k=one.onset_k,
            onset_k=date.onset_k,
            interval=(date.first_k, date.last_k),
            before=one.cut.before,
            after=one.cut.after,
            state="confirmed",
            confidence=min(MAX_CONFIDENCE, max(0.0, 1.0 - one.chance)),
        )
        for one in (*group, *sorted(others, key=_clearest))
    )
