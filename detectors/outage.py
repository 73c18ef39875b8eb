"""Outages: the cluster acknowledges or delivers nothing to a client, or too few messages in time.

Method:  each second of a client is judged by its own counts. It is silent when nothing was acknowledged
         although messages were due, or nothing was received although messages waited unread. It falls short
         when less than `target_ratio` of the messages settled in it were acknowledged within `limit`, or
         when one has waited for that long. Else it is good, or it says nothing: no message was due, or the
         client itself was at fault. `after` silent seconds, or `after` seconds that fall short, without
         another kind between them begin an outage; `after` good ones in a row end it. Nothing is learnt, so
         the first second of a run counts like any other.
Assumes: counts of one second each, and latency columns of a partition leader that are empty in seconds in
         which it acknowledged nothing. A consumer that is cut off does not learn of new messages, so it
         shows an outage only while messages that it knows of wait.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as config_dataclass

from detectors.client_seconds import (
    DUE,
    END_TO_END_ABOVE,
    LONG_GAP_SECONDS,
    PUBLISH_ABOVE,
    WAITING,
    BySource,
    ChangeId,
    Client,
    Second,
    client_of,
    identity,
    value_at,
)
from soak.core import wording
from soak.core.model import Change, Column
from soak.core.plan.phases import LOAD_PHASES
from soak.core.series import Labels, column_name, series_name
from soak.core.units import SECOND_NS, Duration

_ACKNOWLEDGED_PHASES = LOAD_PHASES - {"ramp"}
"""A ramp raises the rate until the cluster cannot follow."""
_RECEIVED_PHASES = _ACKNOWLEDGED_PHASES - {"catch-up"}
"""In a catch-up consumers pause, so that a backlog grows."""


@config_dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Config:
    """When a cluster counts as unavailable."""

    after: Duration = 5 * SECOND_NS  # without an acknowledgement, or a message
    limit: Duration = 10 * SECOND_NS  # an acknowledgement after this long is too late
    target_ratio: float = 0.99  # share of messages acknowledged within the limit

    def __post_init__(self) -> None:
        if not 2 * SECOND_NS <= self.after <= 600 * SECOND_NS or self.after % SECOND_NS:
            raise ValueError("after must be whole seconds between 2s and 10min")
        if not SECOND_NS <= self.limit <= 100 * SECOND_NS or self.limit % SECOND_NS:
            raise ValueError("limit must be whole seconds between 1s and 100s")
        if not 0.0 < self.target_ratio <= 1.0:
            raise ValueError("target_ratio must be above 0 and at most 1")


Verdict = Literal["silent", "short", "good", "idle"]
"""Of one second of a client; an idle one says nothing."""
_Effect = Literal["bad", "partly", "good", "idle"]
"""Of one second on one series: one that is `partly` good ends a candidate, but no open outage."""
_EFFECTS: Mapping[Verdict, tuple[_Effect, _Effect]] = {
    "silent": ("bad", "idle"),
    "short": ("partly", "bad"),
    "good": ("good", "good"),
    "idle": ("idle", "idle"),
}
"""On outages, and on the series of too few messages in time."""


@dataclass(frozen=True, slots=True)
class _Counts:
    """Messages that failed, that came too late, and all that were due since the start of the run."""

    failed: int
    late: int
    due: int


@dataclass(slots=True)
class _Watch:
    """One series: its candidate, or its open outage."""

    bad: int = 0  # bad seconds
    good: int = 0  # in a row, since the last bad one
    onset_k: int = 0
    good_k: int = 0  # the first of the good ones in a row
    failed: int = 0
    late: int = 0
    raised_k: int | None = None  # None: a candidate
    reported: int = 0  # bad seconds when the open outage was last reported

    def take(
        self, series: str, k: int, effect: _Effect, counts: _Counts, after: int
    ) -> list[Change]:
        """Return the outage when it opens, each time that its length has doubled, and when it ends."""
        is_candidate = self.raised_k is None
        if effect in {"good", "partly"} and is_candidate:
            self.bad = 0
            return []
        if not self.bad:
            if effect == "idle":
                return []
            self.onset_k, self.failed, self.late = k, 0, 0
        self.failed += counts.failed
        self.late += counts.late
        if effect == "good":
            self.good_k = k if not self.good else self.good_k
            self.good += 1
            return self.end(series, counts.due, self.good_k) if self.good >= after else []
        if effect == "idle":
            return []
        self.good = 0
        self.bad += effect == "bad"
        if is_candidate and self.bad >= after:
            self.raised_k = k
        elif is_candidate or self.bad < 2 * self.reported:
            return []
        self.reported = self.bad
        return self.open(series, counts.due)

    def end(self, series: str, due: int, k: int) -> list[Change]:
        """Forget the candidate, or return the open outage as over since second `k`."""
        found = self.open(series, due, k)
        self.bad = self.good = self.reported = 0
        self.raised_k = None
        return found

    def open(self, series: str, due: int, resolved_k: int | None = None) -> list[Change]:
        """Return the open outage, if there is one; `resolved_k`: since when it is over."""
        if self.raised_k is None:
            return []
        change = Change(
            series=series,
            raised_k=self.raised_k,
            onset_k=self.onset_k,
            interval=(max(0, self.onset_k - 1), self.onset_k),
            before=0.0,
            after=float(self.bad),
            state="confirmed" if resolved_k is None else "gone",
            confidence=1.0,
            kind="outage",
            resolved_k=resolved_k,
            failed_messages=self.failed,
            late_messages=self.late,
            due_messages=due,
        )
        return [change]


@dataclass(slots=True)
class _Client:
    """What is known of one source."""

    epoch: int
    last_k: int
    due: int = 0  # messages, since the start of the run
    watches: dict[str, _Watch] = field(default_factory=dict)  # by series

    def watch(self, series: str) -> _Watch:
        return self.watches.setdefault(series, _Watch())

    def is_open(self, series: str) -> bool:
        watch = self.watches.get(series)
        return watch is not None and watch.raised_k is not None


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the records of a client have the columns that matter."""

    client: Client
    stopped: str  # the series of its outages
    short: str  # and of those in which too little came through; "" of a consumer
    late: int | None  # of the messages above the limit
    leaders: tuple[tuple[str, int], ...]  # series of its outages, and place of its median

    def late_count(self, second: Second) -> int:
        return round(value_at(second.values, self.late))


class Outages:
    """The outages of all clients of one run and shard, from their records in order."""

    def __init__(self, config: Config | None = None) -> None:
        self._config = config or Config()
        self._after = self._config.after // SECOND_NS
        self._limit_seconds = self._config.limit / SECOND_NS
        self._target = Fraction(str(self._config.target_ratio))  # 0.9 is no float
        self._clients: dict[str, _Client] = {}
        self._places: BySource[_Places | None] = BySource()

    def update(self, source: str, columns: Sequence[Column], second: Second) -> list[Change]:
        """Take the next second of one source, which counts once; return the outages that have changed."""
        places = self._places.get(source, columns, self._found)
        if places is None:
            return []
        client = self._clients.get(source)
        if client is None:
            client = self._clients[source] = _Client(second.epoch, second.k - 1)
        elif (second.epoch, second.k) <= (client.epoch, client.last_k):
            return []
        found = self._interrupted(client, second.k)
        client.epoch, client.last_k = second.epoch, second.k
        judged = self._produced if places.short else self._consumed
        return [*found, *judged(client, places, second)]

    def standing(self) -> list[Change]:
        """Return the open outages with all that they have cost by now."""
        return [
            change
            for client in self._clients.values()
            for series, watch in client.watches.items()
            for change in watch.open(series, client.due)
        ]

    def to_state(self) -> dict[str, Any]:
        """Return the state for JSON; the same later records give the same changes."""
        return {name: dataclasses.asdict(client) for name, client in self._clients.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over the state that `to_state` returned."""
        self._clients = {
            name: _Client(
                **{
                    **one,
                    "watches": {
                        series: _Watch(**watch) for series, watch in one["watches"].items()
                    },
                }
            )
            for name, one in state.items()
        }

    def _interrupted(self, client: _Client, k: int) -> list[Change]:
        """Forget candidates behind a gap; behind a long one, or a clock set back, end open outages too."""
        apart = k - client.last_k
        if 0 < apart <= self._after:
            return []
        return [
            change
            for series, watch in client.watches.items()
            if watch.raised_k is None or not 0 < apart <= LONG_GAP_SECONDS
            for change in watch.end(series, client.due, client.last_k + 1)
        ]

    def _produced(self, client: _Client, places: _Places, second: Second) -> Iterator[Change]:
        verdict, failed, late = self._produced_verdict(client, places, second)
        client.due += sum(
            places.client.count(second, f"{one}_messages") for one in ("sent", "missed")
        )
        counts = _Counts(failed, late, client.due)
        on_stopped, on_short = _EFFECTS[verdict]
        found = client.watch(places.stopped).take(
            places.stopped, second.k, on_stopped, counts, self._after
        )
        short = client.watch(places.short)
        if client.is_open(places.stopped) or found:
            # what fell short before, or does so as a backlog is settled, is a part of it
            yield from short.end(places.short, client.due, second.k)
        else:
            effect = on_short if _is_loaded(second) or verdict != "short" else "partly"
            yield from short.take(places.short, second.k, effect, counts, self._after)
        yield from found
        yield from self._leaders(client, places, second, verdict, counts)

    def _produced_verdict(
        self, client: _Client, places: _Places, second: Second
    ) -> tuple[Verdict, int, int]:
        """Return the verdict on a second of a producer, and the messages that failed and came late."""
        acked, failed, skipped = (
            places.client.count(second, f"{one}_messages") for one in ("acked", "failed", "missed")
        )
        is_ours = not second.is_valid and not places.client.waits_for_cluster(second)
        late = places.late_count(second) + skipped
        if is_ours and not any(map(client.is_open, client.watches)):
            late = 0  # but after an outage, a client that catches up is late because of it
        if acked == 0:
            has_failed = failed > 0 or places.client.has_waited(second)
            is_silent = _is_loaded(second) and has_failed
            return "silent" if is_silent else "idle", failed, late
        settled = acked + failed + skipped
        has_waited = places.client.value(second, WAITING) >= self._limit_seconds and not is_ours
        is_short = settled - failed - late < self._target * settled
        return "short" if is_short or has_waited else "good", failed, late

    def _leaders(
        self,
        client: _Client,
        places: _Places,
        second: Second,
        verdict: Verdict,
        counts: _Counts,
    ) -> Iterator[Change]:
        """Give the outages of single partition leaders, while others acknowledge.

        Its messages are not counted apart, so a silent leader matters only while a message waits.
        """
        waiting = places.client.value(second, WAITING)
        for series, at in places.leaders:
            is_silent = math.isnan(second.values[at])
            effect: _Effect = "bad" if is_silent and waiting >= 1.0 else "good"
            if verdict in {"silent", "idle"} or (effect == "bad" and not _is_loaded(second)):
                effect = "idle"
            watch = client.watch(series)
            if watch.raised_k is None and watch.bad + 1 >= self._after > waiting:
                effect = "idle" if effect == "bad" else effect
            yield from watch.take(series, second.k, effect, counts, self._after)
        # those of leaders that the client no longer knows end when all goes well
        known = {places.stopped, places.short, *(series for series, _ in places.leaders)}
        for series in [one for one in client.watches if one not in known]:
            watch, effect = client.watches[series], "good" if verdict == "good" else "idle"
            yield from watch.take(series, second.k, effect, counts, self._after)
            if watch.raised_k is None:
                del client.watches[series]

    def _consumed(self, client: _Client, places: _Places, second: Second) -> Iterator[Change]:
        received = places.client.count(second, "received_messages")
        client.due += received
        is_silent = second.phase in _RECEIVED_PHASES and places.client.has_waited(second)
        effect: _Effect = "good" if received else "bad" if is_silent else "idle"
        counts = _Counts(0, places.late_count(second), client.due)
        watch = client.watch(places.stopped)
        yield from watch.take(places.stopped, second.k, effect, counts, self._after)

    def _found(self, source: str, columns: Sequence[Column]) -> _Places | None:
        """Return the places of a producer or a consumer, None of any other source."""
        client = client_of(columns)
        if client is None:
            return None
        late = client.above(self._limit_seconds)
        if not client.is_producer:
            return _Places(client, _series(source, wording.DELIVERY_STOPPED), "", late, ())
        stopped = _series(source, wording.ACKNOWLEDGEMENTS_STOPPED)
        short = _series(source, wording.ACKNOWLEDGEMENTS_SHORT)
        return _Places(client, stopped, short, late, tuple(_leader_places(source, columns)))


def detect(
    source: str,
    rows: Iterable[tuple[Sequence[Column], Second]],
    config: Config | None = None,
) -> list[Change]:
    """Return the outages of one source as they are after its last row, in the order of their raises."""
    outages = Outages(config)
    found: dict[ChangeId, Change] = {}
    for columns, second in rows:
        found |= {identity(change): change for change in outages.update(source, columns, second)}
    found |= {identity(change): change for change in outages.standing()}
    return sorted(found.values(), key=lambda change: (change.raised_k, change.series))


def troubled(columns: Sequence[Column], values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which seconds may be anything but good, shape (n,); `values` has shape (columns, n).

    Of a run, all others may be left out but the `after` seconds behind one of these.
    """
    at = {column.metric: i for i, column in enumerate(columns) if not column.labels}
    came = at.get("acked_messages", at.get("received_messages"))
    if came is None:
        return np.zeros(values.shape[1], np.bool_)
    found: NDArray[np.bool_] = ~(values[came] > 0)
    signs = [at[name] for name in (*_TROUBLES, WAITING) if name in at]
    signs += [i for i, column in enumerate(columns) if _is_late(column)]
    for i in signs:
        found |= values[i] > 0
    return found


def is_used(column: Column) -> bool:
    """True for the columns that outages are made of."""
    is_of_leader = column.metric == "publish_latency_seconds" and "leader" in dict(column.labels)
    return column.metric in _USED or _is_late(column) or is_of_leader


def _is_late(column: Column) -> bool:
    """True for a count of messages above one of the limits that a plan may set."""
    threshold = dict(column.labels).get("threshold")
    return column.metric in _ABOVE and threshold is not None and float(threshold) >= 1.0


_ABOVE = (PUBLISH_ABOVE, END_TO_END_ABOVE)
_TROUBLES = ("failed_messages", "missed_messages")
_USED = frozenset(
    {
        *(*DUE, "acked_messages", "received_messages", "lag_messages", WAITING),
        *("sender_busy_ratio", "callback_delay_seconds", "process_cpu_waiting_ratio"),
    }
)


def _is_loaded(second: Second) -> bool:
    return second.phase in _ACKNOWLEDGED_PHASES


def _leader_places(source: str, columns: Sequence[Column]) -> Iterator[tuple[str, int]]:
    for i, column in enumerate(columns):
        labels = dict(column.labels)
        is_median = column.metric == "publish_latency_seconds" and labels.get("quantile") == "0.5"
        if is_median and "leader" in labels:
            own = (("leader", labels["leader"]),)
            yield _series(source, wording.ACKNOWLEDGEMENTS_STOPPED, own), i


def _series(source: str, metric: str, labels: Labels = ()) -> str:
    return series_name(source, column_name(metric, labels))
