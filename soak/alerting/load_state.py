"""The load around a message: what is sent, acknowledged and received a second, what failed or waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soak.core import wording
from soak.store.journal.history import History, SourceSeconds
from soak.store.journal.reader import sources

RATE_SECONDS = 10
"""A rate is the mean of at most so many seconds."""
_SENT, _ACKNOWLEDGED = "sent_messages", "acked_messages"
_RECEIVED, _UNREAD = "received_messages", "lag_messages"
_BEHIND = 0.05  # of what is sent: more than acknowledgements lag by chance
MAX_FAILED_SECONDS = 900
"""Of a longer incident the failures of its last seconds are counted: reading more would delay messages."""


@dataclass(frozen=True, slots=True)
class LoadState:
    """Rates in messages a second, and the messages that failed in the `failed_seconds` before.

    `recorded`: of how many of the producers there are records. `is_behind`: acknowledgements fall behind.
    `received` and `unread`, what consumers received a second and what waits for them: None where not known.
    """

    sent: float
    acknowledged: float
    failed_messages: int
    failed_seconds: int
    is_since_onset: bool
    producers: int
    recorded: int
    is_behind: bool = False
    received: float | None = None
    unread: float | None = None

    def text(self) -> str:
        """Return `1,000/s sent, 990/s acknowledged; 23 messages failed since the onset`."""
        since = (
            "since the onset"
            if self.is_since_onset
            else f"in the last {wording.span(self.failed_seconds)}"
        )
        sent, acknowledged, behind = (
            wording.amount(one, "")
            for one in (self.sent, self.acknowledged, self.sent - self.acknowledged)
        )
        more = f", so {behind}/s {'wait or fail' if self.failed_messages else 'pile up'}"
        failed = wording.counted(self.failed_messages, "message")
        of = f"; {self.recorded} of {self.producers} producers are recorded"
        return (
            f"{sent}/s sent, {acknowledged}/s acknowledged{more * self.is_behind}{self._read_text()}; "
            f"{failed} failed {since}{of * (self.recorded < self.producers)}"
        )

    def _read_text(self) -> str:
        """Return what consumers received and what waits for them, "" where that is not known."""
        received = (
            "" if self.received is None else f", {wording.amount(self.received, '')}/s received"
        )
        unread = "" if self.unread is None else f", {self.unread:,.0f} wait unread"
        return f"{received}{unread}"


def lost_text(audit: Mapping[str, Any] | None) -> str:
    """Return what the audit of a run says, such as `0 messages, 3 duplicated`; None: it was not made yet."""
    if audit is None:
        return "not known before the end of the run"
    lost, duplicated = audit.get("lost"), audit.get("duplicated")
    if lost is None:
        return "not known"
    more = "" if duplicated is None else f", {duplicated:,} duplicated"
    return f"{wording.counted(lost, 'message')}{more}"


def read_load(
    history: History,
    onset_k: int,
    end_k: int,
    resolved_k: int | None = None,
    *,
    with_consumers: bool = False,
) -> LoadState | None:
    """Return the load before interval `end_k`; None where no producer has a record of it.

    Its rates are of the incident alone, or of the seconds from `resolved_k` on, in which nothing is behind.
    """
    producers = _daemons(history, "produce.")
    rate_k = max(0, onset_k if resolved_k is None else resolved_k, end_k - RATE_SECONDS)
    failed_k = max(0, onset_k, end_k - MAX_FAILED_SECONDS)
    last_k = max(0, end_k)
    window = history.window(min(rate_k, failed_k, last_k), last_k, of=producers)
    recorded = [one for one in window.sources.values() if np.any(one.k >= rate_k)]
    if not recorded:
        return None
    sent, acknowledged = (_rate(recorded, name, rate_k) for name in (_SENT, _ACKNOWLEDGED))
    every = window.sources.values()
    failed = sum(float(np.sum(_counts(one, "failed_messages", failed_k)[1])) for one in every)
    return LoadState(
        sent,
        acknowledged,
        round(failed),
        max(0, end_k - failed_k),
        failed_k == max(0, onset_k),
        len(producers),
        len(recorded),
        is_behind=(
            resolved_k is None
            and sent - acknowledged >= _BEHIND * sent > 0.0
            and _is_mostly_behind(recorded, rate_k)
        ),
        **(_read(history, rate_k, last_k) if with_consumers else {}),
    )


def _read(history: History, rate_k: int, end_k: int) -> dict[str, float]:
    """Return what consumers received a second, and what waited for them in their last second of these.

    What waits is not known where a consumer has no record of it: the most may wait for one that died.
    """
    consumers = _daemons(history, "consume.")
    found = list(history.window(min(rate_k, end_k), end_k, of=consumers).sources.values())
    waiting = [values for one in found if (values := _counts(one, _UNREAD, rate_k)[1]).size]
    rate = {"received": _rate(found, _RECEIVED, rate_k)} if found else {}
    is_known = 0 < len(waiting) == len(consumers)
    return rate | ({"unread": sum(float(one[-1]) for one in waiting)} if is_known else {})


def read_rate_before(history: History, onset_k: int) -> float:
    """Return the messages a second that were sent just before an onset; 0 where nothing is recorded."""
    first_k = max(0, onset_k - RATE_SECONDS)
    window = history.window(first_k, max(0, onset_k), of=_daemons(history, "produce."))
    return _rate(list(window.sources.values()), _SENT, first_k)


def _daemons(history: History, kind: str) -> list[str]:
    return [one for one in sources(history.journal) if one.startswith(kind)]


def _rate(recorded: Sequence[SourceSeconds], metric: str, from_k: int) -> float:
    """Return the sum of what each source counted a second, over the seconds that it recorded."""
    counts = (_counts(one, metric, from_k)[1] for one in recorded)
    return sum(float(np.mean(values)) for values in counts if values.size)


def _is_mostly_behind(recorded: Sequence[SourceSeconds], from_k: int) -> bool:
    """True where acknowledgements were missing in most seconds: one long stall is no backlog that grows."""
    sent, acknowledged = (_by_second(recorded, one, from_k) for one in (_SENT, _ACKNOWLEDGED))
    is_behind = [
        count - acknowledged.get(k, 0.0) >= _BEHIND * count for k, count in sent.items() if count
    ]
    return 2 * sum(is_behind) > len(is_behind)


def _by_second(recorded: Sequence[SourceSeconds], metric: str, from_k: int) -> dict[int, float]:
    found: dict[int, float] = {}
    for one in recorded:
        for k, value in zip(*_counts(one, metric, from_k), strict=True):
            found[int(k)] = found.get(int(k), 0.0) + float(value)
    return found


def _counts(
    seconds: SourceSeconds, metric: str, from_k: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the intervals from `from_k` on and what a source counted in them; empty where it does not."""
    at = [i for i, one in enumerate(seconds.columns) if one.metric == metric and not one.labels]
    k = seconds.k[seconds.k >= from_k]
    if not at:
        return k[:0], np.empty(0)
    values = seconds.values[seconds.k >= from_k, at[0]]
    is_known = np.isfinite(values)
    return k[is_known], values[is_known]
