"""Which Pulsar broker serves which partition, looked up some at a time, as it is one question each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from soak.brokers._pulsar_log import partition_name
from soak.clients.pulsar_admin import Admin, path_of
from soak.core.errors import BrokerError
from soak.core.ports import Topics

LOOKUPS_A_CALL = 200
_ADDRESSES = ("httpUrl", "httpUrlTls", "brokerUrl", "brokerUrlTls")
"""Of these a broker has some: those that its listeners serve."""


class Lookups:
    """Numbers for brokers, good in this process alone, and the names that are good in all."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}  # in the order in which they were seen
        self._leaders: dict[str, int] = {}  # by partition name
        self._next = 0

    def leaders(self, admin: Admin, topics: Topics) -> NDArray[np.int64]:
        """Return a number for the broker that serves each partition, shape (total,), -1 where not known yet.

        A cluster of one is not asked further. Of many partitions, some are looked up a call, in turn.

        Raises:
            BrokerError: the cluster did not answer in time, or refuses to tell (its brokers are told
                to superusers alone).
        """
        brokers = admin.get("/admin/v2/brokers")  # of the cluster that answers, not of its siblings
        if isinstance(brokers, list) and len(brokers) == 1:
            return np.full(topics.total, self._number_of(str(brokers[0])), dtype=np.int64)
        names = [partition_name(topics, at) for at in range(topics.total)]
        turn = range(self._next, self._next + min(LOOKUPS_A_CALL, topics.total))
        asked = [names[at % topics.total] for at in turn]
        for name, answer in zip(asked, admin.get_each(map(_lookup, asked)), strict=True):
            self._leaders[name] = self._number_of(_address(name, answer))
        self._next += LOOKUPS_A_CALL
        return np.array([self._leaders.get(name, -1) for name in names], dtype=np.int64)

    def name(self, number: int) -> str:
        """Return the host and port of the broker that got this number."""
        return list(self._numbers)[number]

    def _number_of(self, broker: str) -> int:
        return self._numbers.setdefault(broker, len(self._numbers))


def _lookup(partition: str) -> str:
    """Return the path of the question; a partition is given to a broker if none has it."""
    return path_of(partition).replace("/admin/v2/", "/lookup/v2/topic/", 1)


def _address(partition: str, answer: Any) -> str:  # noqa: ANN401  # what the cluster says
    """Return host and port of the broker that serves a partition."""
    told = [answer.get(name) for name in _ADDRESSES] if isinstance(answer, dict) else []
    address = next((str(one) for one in told if one), "")
    if not address:
        raise BrokerError(f"the cluster does not say which broker serves {partition}")
    return address.partition("://")[2].rstrip("/")
