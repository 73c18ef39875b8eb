"""Partition leaders: which broker leads which partition, refreshed on a thread of its own."""

from __future__ import annotations

import logging
import threading

import numpy as np
from numpy.typing import NDArray

from soak.core.errors import BrokerError
from soak.core.ports import LeaderSource, Topics
from soak.core.retry import Once
from soak.core.wording import OTHERS_NAME

LOG = logging.getLogger(__name__)

PERIOD_SECONDS = 15.0
FORGET_AFTER_FAILURES = 20
"""After so many failed requests in a row, five minutes, the last known leaders may have changed."""
MAX_LEADERS = 16
"""Latency is recorded for so many leaders: each costs a histogram a second."""
OTHER_LEADERS = 2**31
"""Stands for all leaders beyond `MAX_LEADERS`: larger than any broker id."""


class Leaders:
    """The leader of each partition as the cluster answered last.

    `several` lists the leaders seen so far; it is empty while there is only one.
    """

    def __init__(
        self, broker: LeaderSource, topics: Topics, period_seconds: float = PERIOD_SECONDS
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._period_seconds = period_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._refresh_loop, name="leaders", daemon=True)
        self._leader = np.full(topics.total, -1, dtype=np.int64)
        self._errors = Once()
        self._failures = 0
        self._named: list[int] = []  # leaders with a histogram of their own
        self.several: tuple[int, ...] = ()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop refreshing, without waiting for a request that is under way."""
        self._stop.set()

    def of(self, partition: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the leader of each partition: a number, `OTHER_LEADERS`, or -1 where unknown."""
        return self._leader[partition]

    def name_of(self, leader: int) -> str:
        """Return the name under which a leader's latency is recorded."""
        return OTHERS_NAME if leader == OTHER_LEADERS else self._broker.leader_name(leader)

    def address_of(self, leader: int) -> str:
        """Return the leader's host and port; "" where its name contains them, or they are unknown."""
        return self._broker.leader_address(leader)

    def refresh(self) -> None:
        """Ask the cluster; keep its last answer for a while when it does not answer."""
        try:
            leader = self._broker.leaders(self._topics)
        except Exception as error:  # noqa: BLE001  # otherwise this thread would end unnoticed
            self._note_failure(error)
            return
        self._errors.clear()
        self._failures = 0
        self._add_names(leader)
        self._leader = np.where(np.isin(leader, [-1, *self._named]), leader, OTHER_LEADERS)
        # Leaders stay listed, so that a record keeps its columns.
        known = sorted({*self.several, *self._leader[self._leader >= 0].tolist()})
        self.several = tuple(known) if len(known) > 1 else ()

    def _add_names(self, leader: NDArray[np.int64]) -> None:
        """Name new leaders while there is room, those with most partitions first."""
        numbers, led = np.unique(leader[leader >= 0], return_counts=True)
        new = [
            (-count, self._broker.leader_name(number), number)
            for number, count in zip(numbers.tolist(), led.tolist(), strict=True)
            if number not in self._named
        ]
        room = MAX_LEADERS - len(self._named)
        self._named += [number for _, _, number in sorted(new)[:room]]
        if len(new) > room and OTHER_LEADERS not in self.several:
            names = " ".join(self._broker.leader_name(number) for number in sorted(self._named))
            LOG.warning("too_many_leaders grouped=%d named=%r", len(new) - room, names)

    def _note_failure(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        if self._errors.is_new(text):
            trace = None if isinstance(error, BrokerError) else error
            LOG.warning("leaders_not_read error=%s", text, exc_info=trace)
        self._failures += 1
        if self._failures == FORGET_AFTER_FAILURES:
            LOG.warning("leaders_unknown failed_requests=%d", self._failures)
            self._leader = np.full_like(self._leader, -1)

    def _refresh_loop(self) -> None:
        while True:
            self.refresh()
            if self._stop.wait(self._period_seconds):
                return
