"""Service objectives: how many minutes or messages of a run were bad, and whether the budget is spent.

Method:  the messages of all producers (or consumers) are counted by minute of the run, those above the limit
         apart. A minute is bad when more of its messages than the quantile allows were above the limit,
         failed or were skipped, or when one client waited in vain in it, as many seconds in a row by then as
         make an outage.
         Of an objective in messages each such message is bad. The budget is the share of the soak's minutes,
         or messages, that may be bad; an objective is missed from the minute on that exceeds it. Of messages
         the whole soak is projected from those so far, by the profile of the plan, until it is over.
Assumes: only seconds of the soak count, and of these not those in which the client itself was at fault. A
         minute counts when at least half of its seconds do and messages were due. It is closed when every
         client has passed it. A client that is ten minutes behind the others, or was not heard of before, is
         not waited for: what it says of closed minutes is not counted any more.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any

from detectors.client_seconds import AWAY_SECONDS, BySource, Client, Second, client_of, value_at
from soak.core.model import Change, Column
from soak.core.plan.objectives import Objective
from soak.core.plan.plan import OUTAGE_DETECTOR, Plan
from soak.core.plan.rates import curve
from soak.core.series import SeriesId
from soak.core.units import SECOND_NS

MINUTE = 60
_AFTER_SOAK = frozenset({"drain", "end"})
"""Phases after which no soak comes."""
LEAST_SECONDS = 30
"""Seconds of a minute that must count; fewer say little about its quantiles."""
PATIENCE_SECONDS = 600
"""A client so far behind the others is not waited for."""
SOURCES = {"publish": "producers", "end-to-end": "consumers"}
"""The source of a breach, which is of all clients together, by the latency."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The objectives of a run, the length of its soak, and how long an outage lasts at least.

    `due`: (second of the soak, messages that are due up to it), as planned, up to its end; any unit. Empty
    for a constant rate. `is_over`: the soak has its length, and all minutes are known when they are judged.
    """

    objectives: tuple[Objective, ...] = ()
    soak_seconds: int = 0
    outage_seconds: int = 5
    due: tuple[tuple[int, Fraction], ...] = ()
    is_over: bool = False

    def due_by(self, second: int) -> Fraction:
        """Return how many messages are due in the seconds of the soak before one, in some unit."""
        if not self.due:
            return Fraction(second)
        at = bisect_right(self.due, second, key=lambda point: point[0])
        (first, before), (last, after) = self.due[at - 1], self.due[min(at, len(self.due) - 1)]
        if last == first:
            return after
        return before + (after - before) * Fraction(second - first, last - first)


def settings_of(plan: Plan, soak_seconds: int | None = None) -> Settings:
    """Return the settings of a plan; `soak_seconds`: the length of a soak that is over."""
    planned = plan.phases.soak // SECOND_NS
    seconds = planned if soak_seconds is None else soak_seconds
    outage = plan.detection.detectors[OUTAGE_DETECTOR].after // SECOND_NS
    due, is_over = _due(plan, seconds), soak_seconds is not None
    return Settings(plan.service_objectives, seconds, outage, due, is_over)


def _due(plan: Plan, seconds: int) -> tuple[tuple[int, Fraction], ...]:
    """Return the messages that the plan's profile has due by second; that of a file is not known here."""
    found, total = [], Fraction(0)
    points = [*curve(plan.load.profile, plan.load.rate).between(0, seconds), (seconds, Fraction(0))]
    for (first, rate), (last, _) in pairwise(points):
        found.append((first, total))
        total += rate * (last - first)
    return (*found, (seconds, total)) if len(found) > 1 else ()


@dataclass(slots=True)
class Minute:
    """The counts of one minute for one objective, of all clients; sums, so that no order matters."""

    seconds: int = 0  # a bit for each second that counts
    waited: dict[str, int] = field(default_factory=dict)
    """By client: a bit for each second in which it waited in vain."""

    bad: int = 0  # messages
    total: int = 0

    def waits(self, before: Mapping[str, int]) -> dict[str, list[int]]:
        """Return by client the lengths of its waits in vain, 0 where a second without one follows another.

        The first of them goes on from a wait of so many seconds before the minute, the last one to its end.
        """
        found = {}
        for source, bits in self.waited.items():
            lengths = [len(run) for run in f"{bits:0{MINUTE}b}"[::-1].split("0")]
            found[source] = [lengths[0] and lengths[0] + before.get(source, 0), *lengths[1:]]
        return found

    def add(self, other: Minute) -> None:
        self.seconds |= other.seconds
        for source, bits in other.waited.items():
            self.waited[source] = self.waited.get(source, 0) | bits
        self.bad += other.bad
        self.total += other.total


Minutes = dict[int, list[Minute]]
"""By the number of the minute in the run: the counts for each objective, in their order."""
_ClientPlaces = tuple[Client | None, list[int | None]]
"""The client of some columns, and the place of the messages above each objective's limit."""


class MinuteCounter:
    """Counts messages by minute, from records in any order."""

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self._objectives = objectives
        self._places: BySource[_ClientPlaces] = BySource()
        self.minutes: Minutes = {}

    def is_client(self, source: str, columns: Sequence[Column]) -> bool:
        return self._places.get(source, columns, self._found)[0] is not None

    def add(self, source: str, columns: Sequence[Column], second: Second) -> None:
        """Count a record of a client; records of other sources count nothing."""
        client, above = self._places.get(source, columns, self._found)
        if client is None or second.phase != "soak":
            return
        counts = self.minutes.setdefault(second.k // MINUTE, [Minute() for _ in self._objectives])
        for objective, place, minute in zip(self._objectives, above, counts, strict=True):
            if client.is_producer == (objective.latency == "publish"):
                minute.add(_counted(source, client, second, objective, place))

    def _found(self, _source: str, columns: Sequence[Column]) -> _ClientPlaces:
        client = client_of(columns)
        if client is None:
            return None, []
        return client, [client.above(one.limit_seconds) for one in self._objectives]


def _counted(
    source: str, client: Client, second: Second, objective: Objective, place: int | None
) -> Minute:
    bit = 1 << second.k % MINUTE
    has_waited = client.has_waited(second)
    waited = {source: bit} if has_waited else {}
    above = round(value_at(second.values, place))
    if not client.is_producer:
        if not second.is_valid:
            return Minute()
        again = client.count(second, "duplicated_messages") + client.count(
            second, "reread_messages"
        )
        total = max(above, client.count(second, "received_messages") - again)
        return Minute(bit, waited, above, total)
    failed = client.count(second, "failed_messages")
    # A pause of the client explains latencies up to its length, and none that is longer.
    is_longer = objective.limit_seconds >= AWAY_SECONDS and client.waits_for_cluster(second)
    if not (second.is_valid or has_waited or is_longer):
        # What failed counts as failed, even where others were late; where nothing else came back, the second
        # counts for that.
        has_nothing = failed > 0 and client.count(second, "acked_messages") == 0
        return Minute(bit * has_nothing, {source: bit} if has_nothing else {}, failed, failed)
    never = failed + client.count(second, "missed_messages")
    return Minute(bit, waited, above + never, client.count(second, "acked_messages") + never)


@dataclass(slots=True)
class _Account:
    """One objective since the start of the run; `bad` and `judged` are minutes or messages."""

    bad: int = 0
    judged: int = 0
    seconds: int = 0  # that counted
    raised_k: int | None = None  # None: not missed
    onset_k: int = 0  # start of the minute that exceeded the budget
    reported: int = 0  # bad ones in the last change that was returned
    whole: int = 0  # messages of the whole soak, once it is over; 0: to be projected
    waits: dict[str, int] = field(default_factory=dict)  # seconds, by client, up to the next minute
    next_number: int = 0  # of that minute


@dataclass(frozen=True, slots=True)
class Standing:
    """How an objective stands: `bad` of `judged` minutes or messages, of `whole` in the whole soak."""

    objective: Objective
    bad: int
    judged: int
    whole: int
    missed_k: int | None  # start of the minute that exceeded the budget

    @property
    def budget(self) -> float:
        return self.objective.budget(self.whole)

    @property
    def left(self) -> float:
        """Return what is left of the budget, below 0 when more than all of it was spent."""
        return self.budget - self.bad


@dataclass(frozen=True, slots=True)
class _Place:
    """How far a client has come: its last second, and whether the soak is over for it."""

    epoch: int
    k: int
    is_over: bool


class Objectives:
    """The objectives of one run: counts of each minute, and accounts of the minutes that are closed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._counter = MinuteCounter(settings.objectives)
        self._accounts = [_Account() for _ in settings.objectives]
        self._sources: dict[str, _Place] = {}  # by client
        self._closed = 0  # minutes below this number are closed

    def update(self, source: str, columns: Sequence[Column], second: Second) -> None:
        """Take the next second of one source, which counts once."""
        if not self._accounts or not self._counter.is_client(source, columns):
            return
        last = self._sources.get(source)
        if last is not None and (second.epoch, second.k) <= (last.epoch, last.k):
            return
        self._sources[source] = _Place(second.epoch, second.k, second.phase in _AFTER_SOAK)
        if second.k // MINUTE >= self._closed:
            self._counter.add(source, columns, second)

    def merge(self, minutes: Mapping[int, Sequence[Minute]]) -> None:
        """Add minutes that a `MinuteCounter` has counted."""
        for number, counts in minutes.items():
            own = self._counter.minutes.setdefault(number, [Minute() for _ in self._accounts])
            for mine, other in zip(own, counts, strict=True):
                mine.add(other)

    def settle(self) -> list[Change]:
        """Close the minutes that every client has passed; return the breaches that each made or had grow.

        The last minute is closed when the soak is over. Call it when the records of all sources up to one
        instant were taken, not between two of them.
        """
        if not self._sources:
            return []
        newest_k = max(one.k for one in self._sources.values())
        awaited, dropped = list[int](), list[int]()
        for one in self._sources.values():
            if not one.is_over:
                (awaited if newest_k - one.k <= PATIENCE_SECONDS else dropped).append(one.k)
        if not awaited:
            return self.conclude()
        return self._close((min(awaited) + 1) // MINUTE, dropped)

    def conclude(self) -> list[Change]:
        """Close all minutes; return the breaches that each made or had grow."""
        if self._settings.is_over:
            for at, account in enumerate(self._accounts):
                remaining = sum(counts[at].total for counts in self._counter.minutes.values())
                account.whole = account.judged + remaining
        return self._close(max(self._counter.minutes, default=-1) + 1)

    def standings(self) -> list[Standing]:
        """Return how each objective stands after the minutes that are closed."""
        return [
            Standing(
                objective,
                account.bad,
                account.judged,
                self._whole(objective, account),
                None if account.raised_k is None else account.onset_k,
            )
            for objective, account in zip(self._settings.objectives, self._accounts, strict=True)
        ]

    def to_state(self) -> dict[str, Any]:
        """Return the state for JSON; the same later records give the same changes."""
        return {
            "accounts": [dataclasses.asdict(one) for one in self._accounts],
            "sources": {name: dataclasses.astuple(one) for name, one in self._sources.items()},
            "closed": self._closed,
            "minutes": {
                number: [dataclasses.astuple(one) for one in counts]
                for number, counts in self._counter.minutes.items()
            },
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over the state that `to_state` returned."""
        self._accounts = [_Account(**one) for one in state["accounts"]]
        self._sources = {name: _Place(*one) for name, one in state["sources"].items()}
        self._closed = state["closed"]
        self._counter.minutes = {
            int(number): [Minute(*one) for one in counts]
            for number, counts in state["minutes"].items()
        }

    def _close(self, end: int, dropped: Sequence[int] = ()) -> list[Change]:
        """Close the minutes below a number, and return the breaches after each of them.

        `dropped` are the last intervals of sources that are not waited for any more: a minute that one of
        them did not see to its end could be closed only when patience with it was over.
        """
        changes: list[Change] = []
        for number in sorted(one for one in self._counter.minutes if one < end):
            counts = self._counter.minutes.pop(number)
            for objective, account, minute in zip(
                self._settings.objectives, self._accounts, counts, strict=True
            ):
                self._judge(objective, account, number, minute)
                budget = objective.budget(self._whole(objective, account))
                if account.raised_k is None and account.bad > budget:
                    account.onset_k = number * MINUTE
                    account.raised_k = account.onset_k + MINUTE
            end_k = (number + 1) * MINUTE
            late = [k + PATIENCE_SECONDS + 1 for k in dropped if k + 1 < end_k]
            changes += self._breaches(max([end_k, *late]))
        self._closed = max(self._closed, end)
        return changes

    def _judge(self, objective: Objective, account: _Account, number: int, minute: Minute) -> None:
        seconds = minute.seconds.bit_count()
        waits = minute.waits(account.waits if number == account.next_number else {})
        account.waits = {source: lengths[-1] for source, lengths in waits.items()}
        account.next_number = number + 1
        if objective.quantile is None:
            account.seconds += seconds
            account.bad += minute.bad
            account.judged += minute.total
        elif seconds >= LEAST_SECONDS and (minute.total or minute.waited):
            longest = max((max(lengths) for lengths in waits.values()), default=0)
            is_outage = longest >= self._settings.outage_seconds
            is_slow = minute.bad > (1 - objective.quantile) * minute.total
            account.seconds += seconds
            account.bad += is_outage or is_slow
            account.judged += 1

    def _whole(self, objective: Objective, account: _Account) -> int:
        """Return the minutes, or messages, of the whole soak."""
        soak_seconds = self._settings.soak_seconds
        if objective.unit == "minutes":
            return max(soak_seconds // MINUTE, account.judged)
        if account.whole or soak_seconds <= account.seconds:
            return max(account.whole, account.judged)
        passed = self._settings.due_by(account.seconds)
        if passed <= 0:
            return account.judged
        return int(account.judged * self._settings.due_by(soak_seconds) / passed)

    def _breaches(self, k: int) -> Iterable[Change]:
        """Return the breaches that are new or have grown with the minute before interval `k`."""
        for objective, account in zip(self._settings.objectives, self._accounts, strict=True):
            if account.raised_k is None or account.bad == account.reported:
                continue
            account.reported = account.bad
            yield Change(
                series=breach_series(objective),
                raised_k=account.raised_k,
                onset_k=account.onset_k,
                interval=(account.onset_k, account.raised_k - 1),
                before=objective.budget(self._whole(objective, account)),
                after=float(account.bad),
                state="confirmed",
                confidence=1.0,
                kind="objective",
                discovered_k=k,
            )


def breach_series(objective: Objective) -> str:
    """Return the series of an objective's breach; no journal has it."""
    labels = (("objective", str(objective)),)
    return str(SeriesId(SOURCES[objective.latency], f"objective_bad_{objective.unit}", labels))
