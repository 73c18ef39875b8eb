"""Throttling: how long brokers made the clients of this process wait because of a quota."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from soak.core.model import Column
from soak.runtime.recorder import Recorder

THROTTLED_EVENT = "throttled"
_AGAIN_SECONDS = 60
"""A broker that throttles again after so many seconds without begins anew."""


class Throttled(Protocol):
    def throttle_seconds(self) -> Mapping[str, float] | None: ...


class Throttling:
    """Makes the column of each second, and an event where a broker begins to throttle."""

    def __init__(self, clients: Sequence[Throttled], recorder: Recorder) -> None:
        self._clients = clients
        self._recorder = recorder
        self._last_k: dict[str, int] = {}

    def columns(self, k: int) -> list[tuple[Column, float]]:
        """Return the longest wait that is reported; no column where no client reports it."""
        reports = [one.throttle_seconds() for one in self._clients]
        known = [one for one in reports if one is not None]
        if not known:
            return []
        longest: dict[str, float] = {}
        for report in known:
            for broker, seconds in report.items():
                longest[broker] = max(seconds, longest.get(broker, 0.0))
        for broker, seconds in longest.items():
            if k - self._last_k.get(broker, -_AGAIN_SECONDS) >= _AGAIN_SECONDS:
                self._recorder.note_event(THROTTLED_EVENT, {"broker": broker, "seconds": seconds})
            self._last_k[broker] = k
        column = Column("throttle_seconds", (), "seconds")
        return [(column, max(longest.values(), default=0.0))]
