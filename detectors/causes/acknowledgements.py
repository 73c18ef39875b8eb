"""Which acknowledgements are missing around an onset: whose, how many and for how long.

Method:  a leader, or a client, has none in seconds in which a message of its clients waits. All together have
         too few where less than three quarters are acknowledged of what is sent, at most of the usual number.
         The longest such silence that begins at the onset, or ends there, counts; where few messages are
         sent, the outage itself.
Assumes: there were some in nine of ten seconds of the minute before. Clients ask every 15 s which broker
         leads what, and a cluster goes on without a broker within half a minute.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np
from numpy.typing import NDArray

from detectors.causes.channel import VALUES, near
from detectors.client_seconds import LEAST_WAIT, WAITING
from detectors.nearby import Nearby, between
from soak.core import wording
from soak.core.model import Change, Series
from soak.core.series import parse_series, source_of

STOPPED_SECONDS = 3  # an orderly end takes less
ANSWERED = 0.9  # of the minute before
CUT_VALUES = 5  # in a row without an answer
FAIL_SECONDS = 30  # after the onset: a question, or a send, takes its time to fail
_AT_ONCE_SECONDS = 1
_FEW = 0.75  # of the usual acknowledgements: with fewer, some partitions get none
_LEAST_USUAL = 10.0
_FAILED_OVER_SECONDS = 30
"""Until a cluster goes on without a broker at the latest: `replica.lag.time.max.ms` of Kafka."""
_RENAMED_SECONDS = 16
"""Clients ask every 15 s which broker leads what, and count under the name of the old leader until then."""
_FAILURES = ("failed_messages", "missed_messages")


@dataclass(frozen=True, slots=True)
class Silence:
    """Seconds in a row, from `from_k` on, in which something gave no answer, or less than it was to.

    `is_over`: it gave one again; `missing_ratio`: of the answers, 1 when there was none at all.
    """

    what: str
    from_k: int
    seconds: int
    is_over: bool
    missing_ratio: float = 1.0

    @property
    def midst(self) -> tuple[int, int]:
        """Return the bounds of its seconds without the first and the last one; the end is excluded."""
        return self.from_k + _AT_ONCE_SECONDS, self.from_k + self.seconds - 1


class Acknowledgements:
    """What the leaders of partitions acknowledged to clients around one onset."""

    def __init__(self, change: Change, nearby: Nearby, outage: Change | None = None) -> None:
        self._change = change
        self._nearby = nearby
        self._outage = outage

    @cached_property
    def unacknowledged(self) -> Silence | None:
        """Return the longest lack of acknowledgements around the onset of what was sent, or None.

        Of some leaders, whose part may be small, or of all messages together; else, where few are sent, the
        outage.
        """
        found = [] if self._missing is None else [self._missing]
        silent = self.silent_leaders
        if silent and len(silent) < max(2, len(self._leaders)):
            names = f"leader{'s' * (len(silent) > 1)} {', '.join(silent)}"
            longest = max(silent.values(), key=lambda one: one.seconds)
            found.insert(0, replace(longest, what=f"acknowledgements of {names}"))
        best = max(found, key=lambda one: one.seconds, default=None)
        is_known = best is not None and best.seconds >= STOPPED_SECONDS
        return best if is_known else self._stopped_by_outage or best

    @cached_property
    def silent_leaders(self) -> dict[str, Silence]:
        """Return the partition leaders, by name, that acknowledged nothing from the onset on.

        Only seconds count in which a message of their clients waited: one that leads nothing any more, or to
        which nothing is sent, is not silent.
        """
        found = {one: self._stop_of(one, self._acknowledged_ks[one]) for one in self._leaders}
        return {leader: one for leader, one in found.items() if one is not None}

    @property
    def stopped_leaders(self) -> list[str]:
        """Return the leaders, by name, that acknowledged nothing while others did; none where not known.

        Where all wait for the copies of one that ended, it is the one that stays away when the others go on.
        """
        silent, count = list(self.silent_leaders), max(2, len(self._leaders))
        if len(silent) == count:
            silent = [one for one in silent if not self._is_back(one)]
        if silent:
            return silent if len(silent) < count else []
        of_outage = parse_series(self._outage.series).label("leader") if self._outage else ""
        return [of_outage] if of_outage else []

    @property
    def silent_together(self) -> Silence | None:
        """Return the silence of all of several leaders that began in one second, or None.

        Also None where it may be one broker's end: all may wait for its copies, but not for long, and then it
        stays away.
        """
        silent = self.silent_leaders
        if len(silent) < len(self._leaders) or not began_together(silent.values()):
            return None
        shortest = min(silent.values(), key=lambda one: one.seconds)
        if shortest.seconds < _FAILED_OVER_SECONDS and not all(map(self._is_back, silent)):
            return None
        return replace(shortest, what=f"all {len(silent)} leaders")

    def _is_back(self, leader: str) -> bool:
        """True when a leader acknowledged again after all clients had asked again for the leaders."""
        end = max(one.from_k + one.seconds for one in self.silent_leaders.values())
        return any(
            bool(np.any(ks >= end + _RENAMED_SECONDS))
            for ks in self._acknowledged_ks[leader].values()
        )

    @cached_property
    def cut_clients(self) -> list[Silence]:
        """Return the producers to which no leader acknowledged anything, while each did so to others."""
        found = []
        for client in sorted(
            {one for clients in self._acknowledged_ks.values() for one in clients}
        ):
            of = [self._acknowledged_ks[one] for one in self._leaders]
            own = [clients for clients in of if client in clients]
            acked_ks = np.concatenate([np.empty(0, np.int64), *(ks[client] for ks in own)])
            stop = self._stop_of(client, {client: acked_ks})
            if stop is None or stop.seconds < CUT_VALUES:
                continue
            first, end = stop.midst
            if all(
                any(np.any((k >= first) & (k < end)) for other, k in ks.items() if other != client)
                for ks in own
            ):
                found.append(stop)
        return found

    @cached_property
    def addresses(self) -> dict[str, frozenset[str]]:
        """Return the addresses of each partition leader, by its name; of Pulsar's leaders the name is one."""
        found = {one: frozenset({one} if ":" in one else ()) for one in self._leaders}
        for info in map(parse_series, self._nearby.named("leader_info")):
            leader = info.label("leader")
            found[leader] = found.get(leader, frozenset()) | {info.label("address")} - {""}
        return found

    @cached_property
    def _leaders(self) -> list[str]:
        low = near(self._change)[0]
        return [
            leader
            for leader, clients in sorted(self._acknowledged_ks.items())
            if any(np.any((ks >= low - VALUES) & (ks < low)) for ks in clients.values())
        ]

    @cached_property
    def _acknowledged_ks(self) -> dict[str, dict[str, NDArray[np.int64]]]:
        """Return the seconds with an acknowledgement, by the leader and the client that got it."""
        found: dict[str, dict[str, NDArray[np.int64]]] = {}
        for name, series in self._nearby.named("publish_latency_seconds").items():
            one = parse_series(name)
            if one.label("leader") and one.label("quantile") == "0.5":
                found.setdefault(one.label("leader"), {})[one.source] = series.k
        return found

    @cached_property
    def _acked(self) -> dict[str, Series]:
        return self._nearby.named("acked_messages")

    @cached_property
    def _waiting(self) -> dict[str, Series]:
        return self._nearby.named(WAITING)

    def _stop_of(
        self, what: str, acknowledged_ks: Mapping[str, NDArray[np.int64]]
    ) -> Silence | None:
        """Return the seconds from the onset on in which none of these clients got what was due to it.

        `acknowledged_ks`: by client the seconds with an acknowledgement. None where these were rare before.
        """
        rows = [one.k for name, one in self._acked.items() if source_of(name) in acknowledged_ks]
        waits = [
            one.k[one.values >= LEAST_WAIT]
            for name, one in self._waiting.items()
            if source_of(name) in acknowledged_ks
        ]
        if not rows or not waits:
            return None
        k = reduce(np.intersect1d, rows)
        is_empty = ~np.isin(k, np.concatenate(list(acknowledged_ks.values())))
        low = near(self._change)[0]
        before = is_empty[(k >= low - VALUES) & (k < low)]
        if before.size == 0 or before.mean() > 1.0 - ANSWERED:
            return None
        late = np.concatenate(waits)  # in whole seconds: the first of a wait has none yet
        is_silent = is_empty & np.isin(k, np.concatenate([late - 1, late]))
        found = longest_silence(what, k, is_silent, self._change)
        return found if found is not None and found.seconds >= STOPPED_SECONDS else None

    @property
    def _stopped_by_outage(self) -> Silence | None:
        """Return an outage of acknowledgements: it is judged by single seconds, however little is sent."""
        outage = self._outage
        if outage is None:
            return None
        name = parse_series(outage.series)
        if name.metric != wording.ACKNOWLEDGEMENTS_STOPPED:
            return None
        leader, end = name.label("leader"), outage.resolved_k
        what = f"acknowledgements of leader {leader}" if leader else "acknowledgements"
        seconds = round(outage.after) if end is None else end - outage.onset_k
        return Silence(what, outage.onset_k, seconds, end is not None)

    @cached_property
    def _missing(self) -> Silence | None:
        """Return the longest lack of all acknowledgements together, or None."""
        acked, sent = self._total("acked_messages"), self._total("sent_messages")
        held = self._total("held_back_messages")  # by a full queue: the cluster takes no more
        low = near(self._change)[0]
        before = [count for k, count in acked.items() if low - 60 <= k < low]
        usual = float(np.median(before)) if before else 0.0
        if usual < _LEAST_USUAL:
            return None
        due = {
            k: usual if held.get(k) and count else min(usual, count)
            for k, count in sent.items()
            if k in acked
        }
        k = np.array(sorted(due), np.int64)
        is_quiet = np.array([acked[at] < _FEW * due[at] for at in k.tolist()], np.bool_)
        found = longest_silence("acknowledgements", k, is_quiet, self._change)
        if found is None:
            return None
        ks = [at for at in due if found.from_k <= at < found.from_k + found.seconds]
        missing = 1.0 - sum(acked[at] for at in ks) / sum(due[at] for at in ks)
        return replace(found, missing_ratio=missing)

    @cached_property
    def failed_messages(self) -> float:
        """Return the messages that failed or were skipped from the onset on; 0 if some did before."""
        first, last = near(self._change)
        total = 0.0
        for metric in _FAILURES:
            for series in self._nearby.named(metric).values():
                after = between(series, first, last + FAIL_SECONDS + 1)
                if not np.any(series.values[series.k < first] > 0.0):
                    total += float(after.sum())
        return total

    def came_during(self, silent: Collection[Silence]) -> bool:
        """True when a producer got an acknowledgement in the midst of these silences."""
        first = max((one.from_k for one in silent), default=0) + 2 * _AT_ONCE_SECONDS
        stop = min((one.from_k + one.seconds for one in silent), default=0) - _AT_ONCE_SECONDS
        return any(bool(np.any(between(one, first, stop) > 0.0)) for one in self._acked.values())

    def _total(self, metric: str) -> dict[int, float]:
        """Return the sum over producers by second, of the seconds that all of them have."""
        known = [
            dict(zip(s.k.tolist(), s.values.tolist(), strict=True))
            for s in self._nearby.named(metric).values()
        ]
        shared = set.intersection(*map(set, known)) if known else set()
        return {k: sum(one[k] for one in known) for k in shared}


def longest_silence(
    what: str, k: NDArray[np.int64], is_silent: NDArray[np.bool_], change: Change, spacing: int = 1
) -> Silence | None:
    """Return the longest run of silent rows that begins at the onset of a change, or ends there."""
    low, high = near(change, spacing=spacing)
    padded = np.concatenate([[False], is_silent, [False]]).astype(np.int8)
    edges = np.flatnonzero(np.diff(padded))
    runs = [
        Silence(what, int(k[first]), int(k[stop - 1] - k[first]) + spacing, stop < k.size)
        for first, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
        if low <= k[first] <= high or low <= k[stop - 1] + 1 <= high
    ]
    return max(runs, key=lambda run: run.seconds, default=None)


def missing_text(one: Silence) -> str:
    """Return how many acknowledgements were missing, as a sentence begins; they stopped if there was none."""
    if one.missing_ratio == 1.0:
        return f"{one.what[:1].upper()}{one.what[1:]} stopped"
    return f"{min(0.99, one.missing_ratio):.0%} of the usual acknowledgements were missing"


def began_together(silent: Collection[Silence]) -> bool:
    """True for several silences that began in one second."""
    begins = [one.from_k for one in silent]
    return len(begins) > 1 and max(begins) - min(begins) <= _AT_ONCE_SECONDS
