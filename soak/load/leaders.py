"""Partition leaders: which broker leads which partition, refreshed on a thread of its own."""

from __future__ import annotations

import logging
import threading

import numpy as np
from numpy.typing import NDArray

from soak.core.errors import BrokerError
from soak.core.ports import LeaderSource, Topics
from soak.core.wording import OTHERS_NAME

LOG = logging.getLogger("soak.load.leaders")

PERIOD_SECONDS = 15.0
FORGET_AFTER_FAILURES = 20
"""So many questions in a row without an answer, five minutes and more: who led then may lead no more."""
MAX_LEADERS = 16
"""More are not told apart: a histogram a second and leader is what a record can hold."""
OTHER_LEADERS = 2**31
"""Stands for all leaders beyond these: above every number that a broker can have."""


class Leaders:
    """The newest answer; `of` says who led, and `several` whether that tells anything apart."""

    def __init__(
        self, broker: LeaderSource, topics: Topics, period_seconds: float = PERIOD_SECONDS
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._period_seconds = period_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="leaders", daemon=True)
        self._leader = np.full(topics.total, -1, dtype=np.int64)
        self._said = ""
        self._unanswered = 0
        self._apart: list[int] = []
        self.several: tuple[int, ...] = ()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ask no more; does not wait for an answer that is under way."""
        self._stop.set()

    def of(self, partition: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the leader of each partition, or `OTHERS`, or -1 where it is not known."""
        return self._leader[partition]

    def name_of(self, number: int) -> str:
        """Return the name under which a leader's latency is recorded."""
        return OTHERS_NAME if number == OTHER_LEADERS else self._broker.leader_name(number)

    def address_of(self, number: int) -> str:
        """Return the leader's host and port, "" where its name says it, or nobody knows it."""
        return self._broker.leader_address(number)

    def ask(self) -> None:
        """Take the cluster's answer; keep the last one for a while when it does not give any."""
        try:
            leader = self._broker.leaders(self._topics)
        except Exception as error:  # noqa: BLE001  # nobody would see that this thread has ended
            self._note_silence(error)
            return
        self._said, self._unanswered = "", 0
        self._tell_apart(leader)
        self._leader = np.where(np.isin(leader, [-1, *self._apart]), leader, OTHER_LEADERS)
        # Whoever has led stays listed: a record's columns should not come and go.
        known = sorted({*self.several, *self._leader[self._leader >= 0].tolist()})
        self.several = tuple(known) if len(known) > 1 else ()

    def _tell_apart(self, leader: NDArray[np.int64]) -> None:
        """Give names to those who are new while there is room, first to whoever leads most partitions."""
        numbers, led = np.unique(leader[leader >= 0], return_counts=True)
        new = [
            (-count, self._broker.leader_name(number), number)
            for number, count in zip(numbers.tolist(), led.tolist(), strict=True)
            if number not in self._apart
        ]
        room = MAX_LEADERS - len(self._apart)
        self._apart += [number for _, _, number in sorted(new)[:room]]
        if len(new) > room and OTHER_LEADERS not in self.several:
            names = " ".join(self._broker.leader_name(number) for number in sorted(self._apart))
            LOG.warning("leaders_not_told_apart others=%d apart=%r", len(new) - room, names)

    def _note_silence(self, error: Exception) -> None:
        words = str(error) or type(error).__name__
        if words != self._said:
            self._said = words
            trace = None if isinstance(error, BrokerError) else error
            LOG.warning("no_leaders error=%s", words, exc_info=trace)
        self._unanswered += 1
        if self._unanswered == FORGET_AFTER_FAILURES:
            LOG.warning("leaders_forgotten unanswered=%d", self._unanswered)
            self._leader = np.full_like(self._leader, -1)

    def _follow(self) -> None:
        while True:
            self.ask()
            if self._stop.wait(self._period_seconds):
                return
