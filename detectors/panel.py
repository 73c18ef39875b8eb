"""All kinds of changes of one run and shard behind one `update`, their states in one blob.

The changes of a source follow from its own records alone, so the sources of a run may be dealt out to any
number of panels. Objectives count the clients of a run together; they are in `detectors.objectives`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors import minimum_effect, outage
from detectors.client_seconds import (
    LONG_GAP_SECONDS,
    BySource,
    Second,
    Waiting,
    is_headline,
    latency_of,
)
from detectors.kinds import drift, spikes, stalls, tail
from detectors.kinds.recent_rows import MINUTE, Recent
from detectors.kinds.tail import NearSteps
from detectors.level_shift import Config
from detectors.minimum_effect import ended
from detectors.online import panel as online_panel
from detectors.online import state as online_state
from detectors.online.panel import Moment
from detectors.online.step import Following, unknown
from soak.core.model import Change, Column
from soak.core.series import parse_series, series_name
from soak.core.units import SECOND_NS

# Steps are looked for in every series, the other kinds in the latencies that make findings. In one second a
# series raises one change: a step first, then spikes, stalls, a drift, then a tail. So series and second
# identify a change; spikes and drifts that had to wait are raised again later.

VERSION = 145
"""Version of the state of all kinds; the state of steps in it has a version of its own."""
LAYOUT = f"{VERSION}.{online_state.VERSION}"
"""Of the whole state: what differs in it cannot be read."""
_MAGIC = b"SKPN"
_Place = tuple[int, str, minimum_effect.Config]
"""Place, name and scale of a series in which all kinds are looked for."""


@dataclass(slots=True)
class Watched:
    """One series of which all kinds are looked for."""

    recent: Recent
    drift: drift.Watch
    spikes: spikes.Watch
    stalls: stalls.Watch | None  # of series in which stalls are looked for
    last_k: int = 0  # in which it had a value

    def to_state(self) -> dict[str, Any]:
        """Return the state for JSON."""
        parts = {name: getattr(self, name).to_state() for name in ("recent", "drift", "spikes")}
        return {**parts, "stalls": self.stalls and self.stalls.to_state(), "last_k": self.last_k}

    def has_gone_on(self, other: Watched) -> bool:
        """True when all of the last minute came after another series ended."""
        return bool(self.recent.last) and self.recent.last[0][0] > other.last_k

    def end(self, k: int) -> list[Change]:
        """Return the open drift, spikes and stalls as resolved in second `k`."""
        found = [ended(one.standing, k) for one in (self.drift, self.spikes) if one.standing]
        self.drift.standing = self.spikes.standing = None
        self.spikes.start_anew()
        return found + ([] if self.stalls is None else self.stalls.end(k))

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Watched:
        return cls(
            Recent.of(state["recent"]),
            drift.Watch.of(state["drift"]),
            spikes.Watch.of(state["spikes"]),
            state["stalls"] and stalls.Watch.of(state["stalls"]),
            state["last_k"],
        )


class Panel:
    """The state of all series of one run and shard."""

    def __init__(
        self,
        config: Config,
        watched: Callable[[Column], bool] = is_headline,
        effect: minimum_effect.Config | None = None,
        outages: outage.Config | None = None,
    ) -> None:
        """`effect`: what kinds other than steps must clear; by default what `config` says."""
        self._outages = outage.Outages(outages)
        self._is_watched = watched
        self._baseline = config.baseline // SECOND_NS
        self._effect = effect or config.minimum_effect
        self._steps = online_panel.Panel(config, tail.smallest_steps(config))
        self._tails = tail.Tails(self._effect)
        self._sources: dict[str, dict[str, Watched]] = {}  # series by name with the source
        self._near = NearSteps()
        self._places: BySource[list[_Place]] = BySource()
        self._waiting: BySource[Waiting] = BySource()
        self._newest: dict[str, list[float]] = {}  # of each latency that a wait bounds

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
        """Take the next second of one source; return all changes, outages first, then steps.

        `following` may give the values of records that probably come next, with the same columns.
        """
        second = Second(k, values, valid, phase, epoch)
        outages = self._outages.update(source, columns, second)
        if outages:
            _leave_to_other_kinds(self._sources.get(source, {}).values(), k)
        moment = self._steps.gate(source).take(k, epoch, phase, is_valid=valid)
        if not moment.is_new:
            return outages
        waiting = self._waiting.get(source, columns, Waiting.of)
        if waiting.waiting_at is not None:
            second, following = self._with_waiting(source, waiting, second, moment, following)
        every, values, following = self._tails.with_odds(
            source, columns, second.values, following, counts=moment.counts
        )
        found = self._steps.take(source, every, k, values, moment, following)
        return [*outages, *self._with_other_kinds(source, columns, second, moment, found)]

    def _with_waiting(
        self,
        source: str,
        waiting: Waiting,
        second: Second,
        moment: Moment,
        following: Following,
    ) -> tuple[Second, Following]:
        """Return the second, and the following ones, with what is known of latencies without a value."""
        before = () if moment.is_apart else self._newest.get(source, ())
        newest = waiting.newest(second.values, before) if moment.counts else [*before]
        self._newest[source] = newest

        def filled() -> list[NDArray[np.float64]]:
            rows, known = [], newest
            for values in following():
                rows.append(waiting.as_latencies(values, known))
                known = waiting.newest(values, known)
            return rows

        values = waiting.as_latencies(second.values, before)
        return dataclasses.replace(second, values=values), filled

    def _with_other_kinds(
        self,
        source: str,
        columns: Sequence[Column],
        second: Second,
        moment: Moment,
        found: list[Change],
    ) -> list[Change]:
        """Return the steps, and the drifts, spikes and tails of the same second."""
        k = second.k
        steps, odds = tail.parted(found) if found else ([], [])
        known = self._sources.setdefault(source, {})
        changes = [self._tails.renamed(change, _recents(known)) for change in steps]
        if moment.is_apart:
            self._start_anew(source, k, moment.last_k)
        busy = {change.series for change in changes if change.raised_k == k}
        for change in changes:
            self._near.note(change)
            if change.state in {"confirmed", "gone"}:
                _note_step(known, change, k)
        slow: list[Change] = []
        if moment.counts:
            for at, name, config in self._places.get(source, columns, self._watched):
                slow += self._seen(known, name, k, float(second.values[at]), config)
        raised = in_turn(known, slow, k, busy)
        tails = self._tails.update(source, k, odds, partial(_recents, known), self._near)
        if moment.counts and k % MINUTE == 0:
            raised += self._end_of_leaders(source, k)
        return [*changes, *raised, *(one for one in tails if not is_name_taken(known, one))]

    def _end_of_leaders(self, source: str, k: int) -> list[Change]:
        """Return the open changes of leaders that had no message for long, while others had.

        It is resolved: they lead no partition any more, and no client waits for them.
        """
        known, found = self._sources[source], []
        for name, one in known.items():
            if k - one.last_k <= LONG_GAP_SECONDS or not parse_series(name).label("leader"):
                continue
            latency = _without_leader(name)
            if any(
                other.has_gone_on(one) and _without_leader(like) == latency != like
                for like, other in known.items()
            ):
                column = name.removeprefix(series_name(source, ""))
                found += self._steps.end(source, column, one.last_k + 1) + one.end(one.last_k + 1)
        return found

    def _start_anew(self, source: str, k: int, last_k: int) -> None:
        """Forget what a second does not follow: it comes after a long gap, or again."""
        is_back = k <= last_k
        if is_back:
            self._near.forget(source)
        for one in self._sources[source].values():
            one.recent = Recent()
            one.last_k = min(one.last_k, k)
            if is_back:
                one.spikes.go_back(k + self._baseline)
                if one.stalls is not None:
                    one.stalls.go_back(k + self._baseline)
            else:
                one.spikes.start_anew()
        _leave_to_other_kinds(self._sources[source].values(), k - 1)

    def to_bytes(self) -> bytes:
        """Return the whole state; the same later records give the same changes bit for bit."""
        steps = self._steps.to_bytes()
        rest = {
            "tails": self._tails.to_state(),
            "near": dataclasses.asdict(self._near),
            "newest": self._newest,
            "outages": self._outages.to_state(),
            "sources": {
                source: {name: one.to_state() for name, one in series.items()}
                for source, series in self._sources.items()
            },
        }
        text = json.dumps(rest, separators=(",", ":")).encode()
        return online_state.pack_header(_MAGIC, VERSION, len(steps), len(text)) + steps + text

    @classmethod
    def from_bytes(
        cls,
        blob: bytes,
        config: Config,
        watched: Callable[[Column], bool] = is_headline,
        outages: outage.Config | None = None,
    ) -> Panel:
        """Return the panel that `to_bytes` described.

        Raises:
            ValueError: the bytes are damaged or of another version.
        """
        at, (steps, text) = online_state.unpack_header(blob, _MAGIC, VERSION, 2)
        panel = cls(config, watched, outages=outages)
        smallest = tail.smallest_steps(config)
        panel._steps = online_panel.Panel.from_bytes(blob[at : at + steps], config, smallest)
        at += steps
        rest = json.loads(blob[at : at + text])
        panel._tails.restore(rest["tails"])
        panel._outages.restore(rest["outages"])
        panel._near = NearSteps(**rest["near"])
        panel._newest = rest["newest"]
        panel._sources = {
            source: {name: Watched.of(one) for name, one in series.items()}
            for source, series in rest["sources"].items()
        }
        return panel

    def _seen(
        self,
        known: dict[str, Watched],
        name: str,
        k: int,
        value: float,
        config: minimum_effect.Config,
    ) -> list[Change]:
        """Return the changes of drift, spikes and stalls that one value brings."""
        y = config.scaled_one(value)
        if not np.isfinite(y):
            return []
        one = known.get(name)
        if one is None:
            known_k = k + self._baseline
            watch = stalls.Watch(known_k) if stalls.is_watched(name) else None
            one = Watched(Recent(), drift.Watch(), spikes.Watch(known_k), watch)
            known[name] = one
        one.last_k = k
        changes = one.spikes.take(name, k, y, one.recent, config)
        if one.stalls is not None:
            changes += one.stalls.take(name, k, y, one.recent, config)
        if one.recent.take(k, y):
            changes += one.drift.minute_ended(name, k, one.recent, config)
        return changes

    def _watched(self, source: str, columns: Sequence[Column]) -> list[_Place]:
        linear = dataclasses.replace(self._effect, scale="linear", smallest_step_seconds=0.0)
        return [
            (i, series_name(source, one.name), self._effect if one.unit == "seconds" else linear)
            for i, one in enumerate(columns)
            if self._is_watched(one)
        ]


def _recents(known: Mapping[str, Watched]) -> Mapping[str, Recent]:
    return {name: one.recent for name, one in known.items()}


def _without_leader(series: str) -> str:
    found = parse_series(series)
    labels = tuple(pair for pair in found.labels if pair[0] != "leader")
    return str(dataclasses.replace(found, labels=labels))


def in_turn(
    known: Mapping[str, Watched], slow: Sequence[Change], k: int, busy: set[str]
) -> list[Change]:
    """Return spikes, stalls and drifts, but only one change of a series for those raised in second `k`.

    The others are taken back, and seen again. `busy` has the series with a change in this second, and grows.
    """
    kept = []
    for change in slow:
        if change.raised_k != k:
            kept.append(change)
        elif change.series not in busy:
            busy.add(change.series)
            kept.append(change)
        else:
            _take_back(known[change.series], change)
    return kept


def is_name_taken(known: Mapping[str, Watched], tail: Change) -> bool:
    """True when spikes, stalls or a drift of the series were raised in the second in which a tail was."""
    one = known[tail.series]
    standing = [one.spikes.standing, one.drift.standing]
    standing += [] if one.stalls is None else [one.stalls.standing]
    return any(other is not None and other.raised_k == tail.raised_k for other in standing)


def _take_back(one: Watched, change: Change) -> None:
    if change.kind == "drift":
        one.drift.standing = None
    elif change.kind == "spikes":
        one.spikes.standing = None
    elif one.stalls is not None:
        one.stalls.take_back()


def _note_step(known: Mapping[str, Watched], step: Change, k: int) -> None:
    """Leave the pulse trains that came with a step to it, and the stalls before it and in it."""
    same = [one for name, one in known.items() if latency_of(name) == latency_of(step.series)]
    if step.state == "confirmed":
        for one in same:
            one.spikes.note_step(step.onset_k)
    _leave_to_other_kinds(same, k)


def _leave_to_other_kinds(many: Iterable[Watched], k: int) -> None:
    """Leave the seconds up to this one that stall to another change."""
    for one in many:
        if one.stalls is not None:
            one.stalls.leave_out(k)
