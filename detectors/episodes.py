"""A rise and its return are one story: changes of level that undo an earlier one end it.

A level that comes back in stairs, or one series before the other, is one return. What moves between the two
levels of an episode belongs to it, and so does a step that comes with a return and is no larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log

from soak.core.model import Change


@dataclass(slots=True)
class _Open:
    """An episode under way: which series are away, and from which level each came."""

    changes: tuple[Change, ...]
    away: dict[str, Change]
    resolved_k: int | None = None


@dataclass(frozen=True, slots=True)
class Bounds:
    """What counts as the same: time between changes, and the smallest step, larger level over smaller."""

    together: int  # in the unit of k
    smallest_step_ratio: float


def joined(steps: Sequence[tuple[Change, ...]], bounds: Bounds) -> list[tuple[Change, ...]]:
    """Return the steps that begin something, in order; those that ended are `gone`, with when.

    `steps` are in order of time, the changes of each clearest first, levels positive.
    """
    episodes: list[_Open] = []
    by_series: dict[str, _Open] = {}
    for changes in _merged(steps, bounds.together):
        news, returned = [], 0.0
        for change in changes:
            episode = by_series.get(change.series)
            if episode is None:
                news.append(change)
                continue
            first = episode.away[change.series]
            if _is_same(change.after, first.before, bounds):
                returned = max(returned, _size(change))
                _settle(by_series, change.series, change.onset_k)
            elif not _is_between(change.after, first, bounds):
                _settle(by_series, change.series, change.onset_k)
                is_across = (change.after > first.before) != (first.after > first.before)
                news.append(replace(change, before=first.before) if is_across else change)
        news = [change for change in news if _size(change) > returned]
        if news:
            episode = _Open(tuple(news), {change.series: change for change in news})
            episodes.append(episode)
            by_series |= dict.fromkeys(episode.away, episode)
    return [_reported(episode) for episode in episodes]


def _merged(steps: Sequence[tuple[Change, ...]], together: int) -> list[tuple[Change, ...]]:
    """Return the steps, those of one direction that follow each other closely as one."""
    found: list[tuple[Change, ...]] = []
    for changes in steps:
        last = found[-1] if found else ()
        if last and _is_near(last[0], changes[0], together):
            later = {change.series: change for change in changes}
            known = tuple(
                replace(one, after=later.pop(one.series).after) if one.series in later else one
                for one in last
            )
            found[-1] = (*known, *later.values())
        else:
            found.append(changes)
    return found


def _is_near(first: Change, second: Change, together: int) -> bool:
    """True when two changes of one direction may be one: close, or with intervals that overlap."""
    apart = min(second.onset_k - first.onset_k, second.interval[0] - first.interval[1])
    return first.direction == second.direction and apart <= together


def _settle(by_series: dict[str, _Open], series: str, k: int) -> None:
    """Note that a series came back, or left for another level; with the last, its episode is over."""
    episode = by_series.pop(series)
    del episode.away[series]
    if not episode.away:
        episode.resolved_k = k


def _size(change: Change) -> float:
    return abs(log(change.after / change.before))


def _is_same(level: float, other: float, bounds: Bounds) -> bool:
    low, high = sorted((level, other))
    return high < bounds.smallest_step_ratio * low


def _is_between(level: float, first: Change, bounds: Bounds) -> bool:
    """True when a level lies within those of an episode, or hardly beyond the one that it went to."""
    low, high = sorted((first.before, first.after))
    return low <= level <= high or _is_same(level, first.after, bounds)


def _reported(episode: _Open) -> tuple[Change, ...]:
    if episode.resolved_k is None:
        return episode.changes
    return tuple(
        replace(change, state="gone", resolved_k=episode.resolved_k) for change in episode.changes
    )
