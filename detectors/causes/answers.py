"""Who answers: pages and short questions that get no answer, or get one late, and refused connections.

A broker goes by the host and port at which it is asked, a page by the name of its target.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from detectors import affected_brokers
from detectors.causes.acknowledgements import (
    ANSWERED,
    CUT_VALUES,
    FAIL_SECONDS,
    STOPPED_SECONDS,
    Acknowledgements,
    Silence,
    began_together,
    longest_silence,
)
from detectors.causes.channel import VALUES, end_of, near, spacing_of
from detectors.causes.pages import Pages, is_page, page_name
from detectors.nearby import Nearby, between
from soak.core.audit import RECEIVE_ERRORS_EVENT
from soak.core.model import Change, Series
from soak.core.series import host_of, parse_series, source_of

ROUND_TRIPS = ("broker_round_trip_seconds",)
"""Of questions that a broker answers by itself: a message through the cluster waits for drives, too."""
_REFUSED = re.compile(r"connection refused|ECONNREFUSED", re.IGNORECASE)
_OTHER_FAMILY = re.compile(r"ipv6#\[::1\]")
"""A client tries all addresses of `localhost`: this one refuses wherever brokers listen on IPv4 alone."""
_UNREACHABLE = re.compile(
    r"network is unreachable|no route to host|host not found|failed to resolve|not known",
    re.IGNORECASE,
)
_TIMED_OUT = re.compile(r"no complete answer|timed out|no answer in time", re.IGNORECASE)
_POLLED, _SCRAPED = "retention_poll_age_seconds", "scrape_duration_seconds"
_STALLS = "broker_stall_seconds"
_SLOWER = 1.5
_USUAL = 0.99
_OFTEN = 0.1  # of the seconds, so that one outlier is none
_LEAST_VALUES = 20
_LEAST_SHARE = 0.2
_EVERY = 8  # seconds from one standstill to the next, at most
_BACK_SECONDS = 60  # before the onset, since when a broker that was away may be back
_SOON_SECONDS = 10  # before or after it: one that starts copies before it answers everybody


@dataclass(frozen=True, slots=True)
class Late:
    """Answers beyond what was usual: how late they were, in which share of the seconds, from when on."""

    series: str
    usual: float
    late: float
    ratio: float
    from_k: int


@dataclass(frozen=True, slots=True)
class _Asked:
    """A broker that is asked short questions: the seconds that are recorded, and those with an answer."""

    what: str
    spacing: int
    recorded_k: NDArray[np.int64]
    answered_k: NDArray[np.int64]

    def answered_ratio(self, first: int, end: int) -> float:
        """Return the share of these seconds, of those that are recorded, in which it answered; 0 of none."""
        recorded, answered = (
            np.count_nonzero((ks >= first) & (ks < end))
            for ks in (self.recorded_k, self.answered_k)
        )
        return float(answered * self.spacing / recorded) if recorded else 0.0


class Answers:
    """What pages, questions and connections were answered around one onset."""

    def __init__(
        self,
        change: Change,
        nearby: Nearby,
        untouched: Collection[str],
        acknowledgements: Acknowledgements,
    ) -> None:
        self._change = change
        self._nearby = nearby
        self._untouched = untouched
        self._acknowledgements = acknowledgements
        self._pages = Pages(nearby)

    @cached_property
    def silent_pages(self) -> list[Silence]:
        """Return the pages of brokers that went from answering to not answering at the onset.

        Without those of brokers that are known to answer short questions meanwhile: the page alone is silent.
        """
        return [
            one
            for name, one in self._silences.items()
            if self._pages.may_be_of_broker(name) and not self._is_answering(name, one)
        ]

    def silent_beside(self, broker: str) -> list[Silence]:
        """Return the pages of a broker's host itself that went silent for seconds as well at the onset."""
        return [
            one
            for name, one in self._silences.items()
            if one.seconds >= STOPPED_SECONDS
            and self._pages.is_of_host(name)
            and broker in affected_brokers.leaders_of([name], [broker], self._nearby)
        ]

    @cached_property
    def _silences(self) -> dict[str, Silence]:
        """Return by channel the silence of each page, of whatever process, that answered before the onset."""
        low = near(self._change)[0]
        found: dict[str, Silence] = {}
        for name, series in self._of("up").items():
            before = between(series, low - 60 * spacing_of(series), low)
            if name in self._untouched or before.size == 0:
                continue
            if np.mean(before > 0.0) < ANSWERED:
                continue
            what = page_name(name)
            silence = longest_silence(
                what, series.k, series.values == 0.0, self._change, spacing_of(series)
            )
            if silence is not None:
                found[name] = silence
        return found

    def _is_answering(self, page: str, silence: Silence) -> bool:
        """True for a page that is known to be of brokers which answered short questions meanwhile.

        Never for a bookie's, which may be a process beside such a broker.
        """
        if self._pages.is_of_bookie(page):
            return False
        first, end = silence.from_k, silence.from_k + silence.seconds
        of = affected_brokers.leaders_of([page], {one.what for one in self._asked}, self._nearby)
        answered = [one.answered_ratio(first, end) for one in self._asked if one.what in of]
        return bool(answered) and min(answered) >= ANSWERED

    @cached_property
    def unanswered(self) -> list[Silence]:
        """Return the brokers, by host and port, whose short questions got no answer from the onset on.

        What is lost long before or after it says nothing of the step. Nor does it of a broker that all fall
        silent at once to those that ask, while all that was sent is acknowledged.
        """
        silent = self._without_answer
        is_all = len(silent) == len(self._asked) and began_together(silent)
        acked = self._acknowledgements
        is_ours = is_all and acked.unacknowledged is None and acked.came_during(silent)
        return [] if is_ours and not self.refused else silent

    @cached_property
    def _without_answer(self) -> list[Silence]:
        """Return the brokers that gave no answer in seconds that something which asks them recorded."""
        end, k1, found = min(self._nearby.k1, self._end_k), self._nearby.k1, []
        for one in self._asked:
            first, last = near(self._change, FAIL_SECONDS, one.spacing)
            is_looked_at = (one.answered_k >= first - VALUES * one.spacing) & (one.answered_k < k1)
            ks = one.answered_k[is_looked_at]
            if not ks.size or ks[0] >= first:
                continue
            until = np.append(ks[1:], k1)
            rows = one.recorded_k
            begin, stop = np.searchsorted(rows, ks, side="right"), np.searchsorted(rows, until)
            is_about_onset = (until > first) & (ks <= last)
            is_cut = is_about_onset & (stop - begin >= CUT_VALUES * one.spacing) & (ks < end)
            if np.any(is_cut):
                at = int(np.flatnonzero(is_cut)[0])
                seconds = int(rows[stop[at] - 1] - ks[at])
                found.append(Silence(one.what, int(ks[at]) + 1, seconds, at + 1 < ks.size))
        return found

    @cached_property
    def in_turn(self) -> list[Silence]:
        """Return the silences of several brokers of which each began when the one before it was over.

        One of them is about the onset, and each follows the one before it within a minute. Empty where two
        brokers were silent at once or one of them twice, which is no restart in order.
        """
        first, last = near(self._change)
        found: list[Silence] = []
        for one in sorted(self._silent_spells(first - _BACK_SECONDS), key=lambda one: one.from_k):
            if found and one.from_k > found[-1].from_k + found[-1].seconds + _BACK_SECONDS:
                break
            found.append(one)
        ends = [one.from_k + one.seconds for one in found]
        is_ordered = all(end <= after.from_k for end, after in zip(ends, found[1:], strict=False))
        is_about_onset = any(
            one.from_k <= last + FAIL_SECONDS and end >= first - _SOON_SECONDS
            for one, end in zip(found, ends, strict=True)
        )
        is_each_once = len({one.what for one in found}) == len(found) > 1
        return found if is_ordered and is_about_onset and is_each_once else []

    def _silent_spells(self, first: int) -> Iterator[Silence]:
        """Yield the silences since `first` that have an answer before and after them."""
        for one in self._asked:
            ks = one.answered_k[(one.answered_k >= first) & (one.answered_k < self._nearby.k1)]
            rows = np.searchsorted(one.recorded_k, ks)
            for at in np.flatnonzero(np.diff(rows) > CUT_VALUES * one.spacing).tolist():
                since, until = int(ks[at]), int(ks[at + 1])
                yield Silence(one.what, since + 1, until - since - 1, is_over=True)

    @cached_property
    def _asked(self) -> list[_Asked]:
        """Return who is asked short questions, each with all that ask it; each host has its own localhost."""
        groups: dict[tuple[str, str], list[Series]] = {}
        for name, series in self._round_trips.items():
            if series.k.size:
                groups.setdefault(_broker_asked(name), []).append(series)
        return [
            _Asked(
                what,
                min(map(spacing_of, asking)),
                self._recorded_k({source_of(one.name) for one in asking}),
                np.unique(np.concatenate([one.k for one in asking])),
            )
            for (what, _), asking in groups.items()
        ]

    def _recorded_k(self, sources: Collection[str]) -> NDArray[np.int64]:
        """Return the seconds in which any of these sources has recorded anything, ascending."""
        k0, k1 = self._nearby.k0, self._nearby.k1
        is_recorded = np.zeros(max(0, k1 - k0), np.bool_)
        for name, series in self._nearby.series.items():
            if source_of(name) in sources:
                is_recorded[series.k[(series.k >= k0) & (series.k < k1)] - k0] = True
        return np.flatnonzero(is_recorded).astype(np.int64) + k0

    @cached_property
    def returned(self) -> dict[str, int]:
        """Return the brokers that were silent and answer again about the onset, with the second.

        Those alone that had fallen silent before the onset: what stops at it and goes on soon copies nothing.
        """
        first, last = near(self._change)
        found: dict[str, int] = {}
        for one in self._asked:
            silent_k = np.setdiff1d(one.recorded_k, one.answered_k)
            before = np.append(-1, one.answered_k[:-1])
            for since, k in zip(before.tolist(), one.answered_k.tolist(), strict=True):
                is_near = first - _BACK_SECONDS <= k <= last + _SOON_SECONDS
                missed = np.count_nonzero((silent_k > since) & (silent_k < k))
                if since < first and is_near and missed >= CUT_VALUES * one.spacing:
                    found[one.what] = k
        return found

    @cached_property
    def returned_pages(self) -> dict[str, int]:
        """Return the pages of brokers, by channel, that were silent as long and answer again, and when."""
        first, last = near(self._change)
        found: dict[str, int] = {}
        for name, series in self._pages.of_brokers.items():
            answered = np.flatnonzero(series.values > 0.0)
            before = np.append(-1, answered[:-1])
            for since, at in zip(before.tolist(), answered.tolist(), strict=True):
                silent_k, k = series.k[since + 1 : at], int(series.k[at])
                is_near = first - _BACK_SECONDS <= k <= last + _SOON_SECONDS
                if is_near and silent_k.size >= CUT_VALUES and silent_k[0] < first:
                    found[name] = k
        return found

    @cached_property
    def answering(self) -> frozenset[str]:
        """Return the brokers whose short questions were answered at the onset and all along after it.

        None of those that had fallen silent before, or of which too little is known yet.
        """
        silent = {one.what for one in self._without_answer}
        first, stop = near(self._change)[0], min(self._nearby.k1, self._end_k)
        found = set()
        for one in self._asked:
            ks = one.answered_k[(one.answered_k >= first) & (one.answered_k < stop)]
            until = min(stop, int(one.recorded_k.max(initial=first)) + 1)
            gaps = np.diff(ks, prepend=first, append=until)
            is_later = bool(np.any(ks > self._change.onset_k))
            if is_later and gaps.max() <= CUT_VALUES * one.spacing and one.what not in silent:
                found.add(one.what)
        return frozenset(found)

    def answering_of(self, addresses: Iterable[str]) -> frozenset[str]:
        """Return which of the brokers that were answering have one of these addresses."""
        wanted = list(addresses)
        return frozenset(
            target
            for target in self.answering
            if any(affected_brokers.is_same(one, target) for one in wanted)
        )

    @cached_property
    def _end_k(self) -> int:
        return end_of(self._change, self._nearby)

    @cached_property
    def refused(self) -> dict[str, int]:
        """Return who refused connections from the onset on, with the first second: no process is there.

        Of pages only those that may be a broker's; where brokers give no answer, one of theirs.
        """
        brokers = self.refusing_brokers
        found = self._failed(_REFUSED)
        return {who: k for who, k in found.items() if who in brokers or self._may_be_silent(who)}

    def _may_be_silent(self, target: str) -> bool:
        """True unless a target is known not to be a broker, or to be one that answers while others do not."""
        own = [name for name in self._of("up") if is_page(name, target)]
        pages = filter(self._pages.may_be_of_broker, own)
        silent = [one.what for one in self._without_answer]
        return not own or any(
            not silent or any(affected_brokers.may_be_of(name, one, self._nearby) for one in silent)
            for name in pages
        )

    @cached_property
    def refusing_brokers(self) -> list[str]:
        """Return the brokers, by host and port, that refused the consumers' connections."""
        return sorted(self._failed(_REFUSED, kinds=(RECEIVE_ERRORS_EVENT,)))

    @cached_property
    def unreachable(self) -> dict[str, int]:
        """Return the brokers to which a consumer's host had no way, or no address, with the first second."""
        return self._failed(_UNREACHABLE, kinds=(RECEIVE_ERRORS_EVENT,))

    @property
    def stopped_together(self) -> Silence | None:
        """Return the silence of all of several leaders that stopped as one, or None.

        Also None where a connection was refused: that is one broker's end.
        """
        return None if self.refused else self._acknowledgements.silent_together

    @property
    def all_silent(self) -> list[Silence]:
        """Return the silences of all brokers where they began in one second and no connection was refused.

        Empty for a single broker, or where one of several went on answering, or anything was acknowledged.
        """
        silent = self.unanswered
        return silent if began_together(silent) and self._is_cut(silent) else []

    @property
    def is_only_one_silent(self) -> bool:
        """True where the only broker that is asked fell silent, refused nothing, and nothing else answered.

        Its process, its host and the way to it look alike from here.
        """
        silent = self.unanswered
        return len(silent) == 1 and self._is_cut(silent) and not self._has_page(silent[0])

    def _has_page(self, silent: Silence) -> bool:
        """True where a page of a broker, or of this broker's host, answered meanwhile."""
        return any(
            bool(np.any(between(series, *silent.midst) > 0.0))
            for name, series in self._of("up").items()
            if self._pages.may_be_of_broker(name)
            or affected_brokers.leaders_of([name], [silent.what], self._nearby)
        )

    def _is_cut(self, silent: list[Silence]) -> bool:
        """True where no other broker answered, no connection was refused, and nothing was acknowledged."""
        is_refused_or_answered = self.answering or self.refused
        return not is_refused_or_answered and not self._acknowledgements.came_during(silent)

    def has_way(self, client: Silence) -> bool:
        """True when short questions from the host of a client that is cut off were answered meanwhile."""
        first, end = client.midst
        return any(
            between(one, first, end).size > 0
            for name, one in self._round_trips.items()
            if host_of(source_of(name)) == host_of(client.what)
        )

    @cached_property
    def timed_out(self) -> dict[str, int]:
        """Return the pages whose connections were taken and not answered in time, with the first second.

        Only of a page: a client that finds no broker to ask gives up after the same time. So may an exporter,
        so only pages count that may be a broker's, as of those that refuse.
        """
        found = self._failed(_TIMED_OUT, only_pages=True)
        return {who: k for who, k in found.items() if self._may_be_silent(who)}

    def may_be_of_broker(self, series: str) -> bool:
        """True unless a channel is known to be of a page that is no broker's."""
        return self._pages.may_be_of_broker(series)

    def _failed(
        self, pattern: re.Pattern[str], *, only_pages: bool = False, kinds: Collection[str] = ()
    ) -> dict[str, int]:
        """Return whom events whose reason a pattern finds name, with the first second of each."""
        first, last = near(self._change)
        found: dict[str, int] = {}
        for one in self._nearby.events:
            fields = one.event.fields
            reason = str(fields.get("reason", ""))
            if (only_pages and "target" not in fields) or (kinds and one.event.kind not in kinds):
                continue
            if not first <= one.k <= last + FAIL_SECONDS:
                continue
            if pattern.search(reason) and not _OTHER_FAMILY.search(reason):
                names = (fields.get(name) for name in ("target", "broker", "probe"))
                found.setdefault(str(next(filter(None, names), "")), one.k)
        return found

    @cached_property
    def late(self) -> Late | None:
        """Return the question that needs no drive whose answers came late most often, or None.

        First the short questions to brokers that answer late to each host that asks them.
        """
        stalls = [
            one
            for of_broker in self._late_brokers.values()
            for one in of_broker
            if one.series not in self._untouched
        ]
        found = stalls or [
            one
            for name, series in self._of(_POLLED, _SCRAPED).items()
            if name not in self._untouched
            and self._pages.may_be_of_broker(name)
            and (one := self._late(series))
        ]
        return max(found, key=lambda one: one.ratio, default=None)

    @property
    def are_prompt(self) -> bool:
        """True when brokers that are asked answered all along, and none was silent or late."""
        return bool(self.answering) and not (self.unanswered or self.silent_pages or self.late)

    @property
    def late_broker(self) -> str:
        """Return the one broker that answers short questions late, by host and port; "" where none is alone.

        Another must be known to answer the same host as soon as before.
        """
        if self.late is None or len(self._late_brokers) != 1:
            return ""
        asking = {source_of(one.series) for found in self._late_brokers.values() for one in found}
        is_other_calm = any(
            late is None and source_of(name) in asking
            for of_broker in self._stalls.values()
            for name, late in of_broker.items()
        )
        asked = parse_series(self.late.series)
        return asked.label("target") if asked.metric == _STALLS and is_other_calm else ""

    @cached_property
    def _late_brokers(self) -> dict[tuple[str, str], list[Late]]:
        """Return the late answers of each broker that is late to every host that asks it."""
        found = {}
        for broker, of_broker in self._stalls.items():
            late = [one for one in of_broker.values() if one is not None]
            if len(late) == len(of_broker):
                found[broker] = late
        return found

    @cached_property
    def _stalls(self) -> dict[tuple[str, str], dict[str, Late | None]]:
        """Return by broker the late answers to short questions, by channel; None for one that is not late.

        Without channels of which too little is known, and without the hosts that all of several brokers
        answer late: that is what they share, such as the host itself or its way.
        """
        by_source: dict[str, dict[str, Late | None]] = {}
        for name, series in self._of(_STALLS).items():
            if self._is_known(series):
                by_source.setdefault(source_of(name), {})[name] = self._late(series)
        found: dict[tuple[str, str], dict[str, Late | None]] = {}
        for answers in by_source.values():
            if len(answers) > 1 and all(answers.values()):
                continue
            for name, late in answers.items():
                found.setdefault(_broker_asked(name), {})[name] = late
        return found

    def _of(self, *metrics: str) -> dict[str, Series]:
        by_metric = self._by_metric
        return {name: one for m in metrics for name, one in by_metric.get(m, {}).items()}

    @cached_property
    def _by_metric(self) -> dict[str, dict[str, Series]]:
        found: dict[str, dict[str, Series]] = {}
        for name, series in self._nearby.series.items():
            found.setdefault(parse_series(name).metric, {})[name] = series
        return found

    @cached_property
    def _round_trips(self) -> dict[str, Series]:
        return self._of(*ROUND_TRIPS)

    def _is_known(self, series: Series) -> bool:
        """True where there are answers enough on both sides of the onset to say whether they are late."""
        before, _, after = self._compared(series)
        return min(before.size, after.size) >= _LEAST_VALUES

    def _compared(
        self, series: Series
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
        """Return the values before the onset, and the seconds and values from then on."""
        first = near(self._change)[0]
        before = between(series, self._nearby.soak_start(self._change.onset_k), first)
        low, high = np.searchsorted(series.k, [first, end_of(self._change, self._nearby)])
        return before, series.k[low:high], series.values[low:high]

    def _late(self, series: Series) -> Late | None:
        last = near(self._change)[1]
        before, k, after = self._compared(series)
        if min(before.size, after.size) < _LEAST_VALUES:
            return None
        usual = float(np.quantile(before, _USUAL))
        is_late = after > _SLOWER * usual
        ratio = float(is_late.mean())
        if ratio < _OFTEN or k[is_late][0] > last + _EVERY:
            return None
        typical = float(np.median(after[is_late]))
        if typical - usual < _LEAST_SHARE * (self._change.after - self._change.before):
            return None
        return Late(series.name, usual, typical, ratio, int(k[is_late][0]))


def _broker_asked(series: str) -> tuple[str, str]:
    """Return which broker a short question is put to: its address and, of a local one, the host that asks."""
    what = parse_series(series).label("target") or series
    is_local = affected_brokers.host_part(what) == "localhost"
    return what, host_of(source_of(series)) if is_local else ""
