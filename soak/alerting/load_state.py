"""The load around a message: what is sent and acknowledged a second, what failed, and what the audit says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soak.core import wording
from soak.store.journal.history import History, SourceSeconds
from soak.store.journal.reader import sources

RATE_SECONDS = 10
"""A rate is the mean of so many seconds."""
_BEHIND = 0.05  # of what is sent: more than acknowledgements lag by chance
MAX_FAILED_SECONDS = 900
"""Of a longer incident the failures of its last seconds are counted: reading more would delay messages."""


@dataclass(frozen=True, slots=True)
class LoadState:
    """Rates in messages a second, and the messages that failed in the `failed_seconds` before.

    `recorded`: of how many of the producers there are records.
    """

    sent: float
    acknowledged: float
    failed_messages: int
    failed_seconds: int
    is_since_onset: bool
    producers: int
    recorded: int

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
        is_behind = self.sent - self.acknowledged >= _BEHIND * self.sent > 0.0
        more = f", so {behind}/s {'wait or fail' if self.failed_messages else 'pile up'}"
        failed = wording.counted(self.failed_messages, "message")
        of = f"; {self.recorded} of {self.producers} producers are recorded"
        return (
            f"{sent}/s sent, {acknowledged}/s acknowledged{more * is_behind}; {failed} failed {since}"
            f"{of * (self.recorded < self.producers)}"
        )


def lost_text(audit: Mapping[str, Any] | None) -> str:
    """Return what the audit of a run says, such as `0 messages, 3 duplicated`; None: it was not made yet."""
    if audit is None:
        return "not known before the end of the run"
    lost, duplicated = audit.get("lost"), audit.get("duplicated")
    if lost is None:
        return "not known"
    more = "" if duplicated is None else f", {duplicated:,} duplicated"
    return f"{wording.counted(lost, 'message')}{more}"


def read_load(history: History, onset_k: int, end_k: int) -> LoadState | None:
    """Return the load before interval `end_k`; None where no producer has a record of it."""
    producers = [one for one in sources(history.journal) if one.startswith("produce.")]
    rate_k = max(0, end_k - RATE_SECONDS)
    failed_k = max(0, onset_k, end_k - MAX_FAILED_SECONDS)
    window = history.window(min(rate_k, failed_k), max(0, end_k), of=producers)
    recorded = [one for one in window.sources.values() if np.any(one.k >= rate_k)]
    if not recorded:
        return None
    sent, acknowledged = (
        sum(
            float(np.mean(values))
            for one in recorded
            if (values := _values(one, name, rate_k)).size
        )
        for name in ("sent_messages", "acked_messages")
    )
    every = window.sources.values()
    failed = sum(float(np.sum(_values(one, "failed_messages", failed_k))) for one in every)
    return LoadState(
        sent,
        acknowledged,
        round(failed),
        max(0, end_k - failed_k),
        failed_k == max(0, onset_k),
        len(producers),
        len(recorded),
    )


def _values(seconds: SourceSeconds, metric: str, from_k: int) -> NDArray[np.float64]:
    """Return what a source counted in the intervals from `from_k` on; empty where it does not count it."""
    at = [i for i, one in enumerate(seconds.columns) if one.metric == metric and not one.labels]
    values = seconds.values[seconds.k >= from_k][:, at[:1]].ravel()
    return values[np.isfinite(values)]
