"""The steps of all series of one run and shard: which seconds count, and the life of a change.

A change is raised as a warning, then confirmed or withdrawn; a confirmed one is open until its series is back
within the minimum effect of the level before, and then resolved.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log

import numpy as np
from numpy.typing import NDArray

from detectors.client_seconds import LONG_GAP_SECONDS
from detectors.level_shift import Config
from detectors.minimum_effect import confidence_of, ended, is_back
from detectors.online import state as stored
from detectors.online.onset import Onset
from detectors.online.state import ROWS, Candidate, SeriesArrays, SourceState
from detectors.online.step import Following, Smallest, Steps, unknown
from soak.core.model import Change, Column
from soak.core.series import series_name

EDGE_SECONDS = 5
"""After a phase begins its first seconds teach nothing."""
_MOST_ABSENT = 256  # series kept without a column
_MOST_LEFT = 64  # forgotten series whose open changes are kept
_MOST_OPEN = 12  # changes of one series
_GONE_ROWS = 30  # whose median is the level now
_GONE_EVERY = 5
_DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class Moment:
    """How a second of a source relates to the one before it, `last_k`."""

    last_k: int
    is_new: bool = True  # not, where the second was taken before
    is_apart: bool = False  # no continuation: after a long gap, or by a clock that was set back
    counts: bool = False


@dataclass(slots=True)
class Gate:
    """Decides which seconds of a source count: in order, in the soak and not at its edges, and valid."""

    last_k: int = -(2**62)
    epoch: int = 0
    edge_k: int = -(2**62)
    phase: str = ""

    def take(self, k: int, epoch: int, phase: str, *, is_valid: bool) -> Moment:
        """Take the next second; one that is not after the last one of its epoch changes nothing."""
        last_k = self.last_k
        if (epoch, k) <= (self.epoch, last_k):
            return Moment(last_k, is_new=False)
        is_apart = not 0 < k - last_k <= LONG_GAP_SECONDS
        if is_apart:
            self.edge_k = min(self.edge_k, k)  # the edge was in the seconds before
        self.last_k, self.epoch = k, epoch
        if phase != self.phase:
            if self.phase:
                self.edge_k = k + EDGE_SECONDS
            self.phase = phase
        counts = phase == "soak" and k >= self.edge_k and is_valid
        return Moment(last_k, is_apart=is_apart, counts=counts)


@dataclass(slots=True)
class _Source:
    """A source as it runs: `state` is what is stored, the rest follows from it."""

    state: SourceState
    steps: Steps
    columns: Sequence[Column]  # of the last record, as given


class Panel:
    """The state of all series of one run and shard."""

    def __init__(self, config: Config, smallest: Smallest | None = None) -> None:
        """`smallest`: the smallest step of each series; by default that of `config`."""
        self._config = config
        self._smallest = smallest
        self._states: dict[str, SourceState] = {}
        self._sources: dict[str, _Source] = {}
        self._gates: dict[str, Gate] = {}

    def gate(self, source: str) -> Gate:
        """Return the gate of a source, which takes each of its seconds once."""
        return self._gates.setdefault(source, Gate())

    def update(
        self,
        source: str,
        columns: Sequence[Column],
        k: int,
        values: NDArray[np.float64],
        valid: bool,  # noqa: FBT001 - a fact about the record
        phase: str,
        *,
        epoch: int = 0,
        following: Following = unknown,
    ) -> list[Change]:
        """Take the next second of one source; return what it raised, confirmed, withdrew or ended.

        A second that is not after the last one of its source and epoch changes nothing. In a new epoch the
        clock may have been set back: then the levels are learnt again.
        """
        moment = self.gate(source).take(k, epoch, phase, is_valid=valid)
        return self.take(source, columns, k, values, moment, following)

    def take(
        self,
        source: str,
        columns: Sequence[Column],
        k: int,
        values: NDArray[np.float64],
        moment: Moment,
        following: Following = unknown,
    ) -> list[Change]:
        """Do what `update` does with a second that a gate has taken; see `Steps.push` for `following`."""
        if not moment.is_new:
            return []
        one, changes = self._adopted(source, columns, k, moment.last_k)
        if moment.is_apart:
            changes += _learn_anew(source, one, k)
        if not moment.counts:
            return changes
        one.steps.push(k, np.asarray(values, dtype=np.float64), following)
        changes += self._raise(source, one, k)
        changes += self._settle(source, one, k)
        if one.state.opened and one.state.rows % _GONE_EVERY == 0:
            changes += _close(one)
        return changes

    def end(self, source: str, name: str, k: int) -> list[Change]:
        """Return the open changes of a series as resolved in second `k`, and forget its level."""
        one = self._sources[source]
        opened = [*one.state.opened.pop(name, []), *one.state.left.pop(name, [])]
        if opened and name in one.steps.places:
            one.steps.learn_anew(np.array([one.steps.places[name]]))
        return [ended(change, k) for change in opened]

    def to_bytes(self) -> bytes:
        """Return the whole state; the same later records give the same changes bit for bit."""
        for name, one in self._states.items():
            one.gate = dataclasses.asdict(self.gate(name))
        return stored.encode(self._states)

    @classmethod
    def from_bytes(cls, blob: bytes, config: Config, smallest: Smallest | None = None) -> Panel:
        """Return the panel that `to_bytes` described.

        Raises:
            ValueError: the bytes are not of this version.
        """
        panel = cls(config, smallest)
        panel._states = stored.decode(blob)
        panel._gates = {name: Gate(**one.gate) for name, one in panel._states.items()}
        return panel

    def _adopted(
        self, source: str, columns: Sequence[Column], k: int, last_k: int
    ) -> tuple[_Source, list[Change]]:
        """Return the source with these columns, and the candidates of series that were given up."""
        known, since_k = self._sources.get(source), k - LONG_GAP_SECONDS
        if known is not None and (known.columns is columns or known.columns == columns):
            absent = known.state.absent
            if not absent or min(absent.values()) >= since_k:
                return known, []
        watched = np.array([i for i, one in enumerate(columns) if _is_watched(one)], np.int64)
        chosen = tuple(columns[i] for i in watched)
        old = self._states.get(source) or SourceState.empty(chosen)
        new = _with_columns(old, chosen, last_k, since_k)
        found = _Source(new, Steps(new, self._config, watched, self._smallest), columns)
        self._states[source], self._sources[source] = new, found
        lost = [
            _withdrawn(source, name, one)
            for name, one in old.candidates.items()
            if name not in found.steps.places
        ]
        return found, lost

    def _raise(self, source: str, one: _Source, k: int) -> list[Change]:
        changes = []
        for i in one.steps.exceeding().tolist():
            name = one.steps.names[i]
            found = None if name in one.state.candidates else one.steps.locate(i)
            if found is None:
                continue
            if one.steps.is_step(i, found.before, found.after):
                one.state.candidates[name] = Candidate(
                    k, one.state.rows, found.k, found.before, found.after
                )
                changes.append(self._change(source, name, k, found))
            elif one.steps.is_small(found):
                one.steps.restart(i, found)
        return changes

    def _settle(self, source: str, one: _Source, k: int) -> list[Change]:
        """Confirm each candidate whose level has lasted; withdraw it once it had its time."""
        changes = []
        for name, candidate in list(one.state.candidates.items()):
            i = one.steps.places[name]
            rows = one.state.rows - candidate.raised_row
            found = one.steps.locate(i) if one.steps.is_above(i) else None
            if (
                found is not None
                and one.steps.has_lasted(i, found)
                and one.steps.is_step(i, found.before, found.after)
            ):
                change = self._change(source, name, candidate.raised_k, found)
                change = replace(change, state="confirmed")
                # of a stair the first step is the last to end
                opened = one.state.opened.get(name, [])
                kept, dropped = opened[: _MOST_OPEN - 1], opened[_MOST_OPEN - 1 :]
                changes += [ended(other, k) for other in dropped]
                one.state.opened[name] = [*kept, change]
                one.steps.restart(i, found)
            elif rows >= ROWS or (rows >= one.steps.confirm and not one.steps.is_above(i)):
                change = _withdrawn(source, name, candidate)
                one.state.arrays.is_muted[i] = 1
            else:
                continue
            del one.state.candidates[name]
            changes.append(change)
        return changes

    def _change(self, source: str, name: str, raised_k: int, found: Onset) -> Change:
        # the odds beforehand: one change a day over the panel
        surprise = found.ratio - log(_DAY_SECONDS * self._config.panel_size)
        return Change(
            series=series_name(source, name),
            raised_k=raised_k,
            onset_k=found.k,
            interval=found.interval,
            before=found.before,
            after=found.after,
            state="warning",
            confidence=confidence_of(surprise),
        )


def _is_watched(column: Column) -> bool:
    """True for series that are followed.

    Counts above thresholds belong to the histogram, and one message decides a maximum.
    """
    return (
        not column.metric.endswith("_above_messages") and ("quantile", "max") not in column.labels
    )


def _learn_anew(source: str, one: _Source, k: int) -> list[Change]:
    """Forget the levels of a source, and withdraw its candidates."""
    state = one.state
    changes = [_withdrawn(source, name, found) for name, found in state.candidates.items()]
    state.candidates = {}
    state.absent = {name: min(last_k, k) for name, last_k in state.absent.items()}
    one.steps.learn_anew()
    return changes


def _close(one: _Source) -> list[Change]:
    """Return the open changes that are resolved, since the newer half of the rows whose median is back."""
    changes = []
    since_k = one.steps.second_of(_GONE_ROWS // 2 - 1)
    names = [name for name in one.state.opened if name not in one.state.candidates]
    places = [one.steps.places[name] for name in names]
    for name, i, level in zip(names, places, one.steps.levels(places, _GONE_ROWS), strict=True):
        if level is None:
            continue
        opened = one.state.opened[name]
        is_step = partial(one.steps.is_step, i)
        resolved = [change for change in opened if is_back(change, level, is_step)]
        if not resolved:
            continue
        changes += [ended(change, since_k) for change in resolved]
        one.state.opened[name] = [change for change in opened if change not in resolved]
        if not one.state.opened[name]:
            del one.state.opened[name]
    return changes


def _with_columns(
    old: SourceState, columns: tuple[Column, ...], last_k: int, since_k: int
) -> SourceState:
    """Return the state for these columns: known series keep theirs, others start empty.

    A series without a column follows them, absent, if it was there at `since_k` or later: a probe that has
    just started may not know all of its columns. Of a series that is forgotten the open changes are kept,
    for when it comes back.
    """
    present = {column.name for column in columns}
    seen = {column.name: old.absent.get(column.name, last_k) for column in old.columns}
    away = [
        column
        for column in old.columns
        if column.name not in present and seen[column.name] >= since_k
    ]
    kept = sorted(away, key=lambda column: seen[column.name])[-_MOST_ABSENT:]
    columns = (*columns, *kept)
    names = [column.name for column in columns]
    place = {column.name: i for i, column in enumerate(old.columns)}
    own = {name: i for i, name in enumerate(names)}
    common = [(to, place[name]) for name, to in own.items() if name in place]
    arrays = SeriesArrays.empty(len(columns))
    to, at = np.array(common, np.int64).reshape(-1, 2).T
    arrays.put(to, old.arrays, at)
    every = old.left | old.opened
    opened = {name: many for name, many in every.items() if name in names}
    left = {name: many for name, many in every.items() if name not in names}
    return replace(
        old,
        columns=columns,
        arrays=arrays,
        candidates={name: one for name, one in old.candidates.items() if name in names},
        opened=opened,
        absent={column.name: seen[column.name] for column in kept},
        left=dict(list(left.items())[-_MOST_LEFT:]),
    )


def _withdrawn(source: str, name: str, candidate: Candidate) -> Change:
    """Return the last state of a warning that was not confirmed."""
    return Change(
        series=series_name(source, name),
        raised_k=candidate.raised_k,
        onset_k=candidate.onset_k,
        interval=(candidate.onset_k, candidate.onset_k),
        before=candidate.before,
        after=candidate.after,
        state="withdrawn",
        confidence=0.0,
    )
