"""Traffic of a machine: the growth of each interface's counters, then the sum.

Containers come and go with interfaces of their own. A difference of sums would take one that goes for traffic
that was never sent, and one that comes for all that it ever had.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from probes._deltas import Deltas, Growth

Counters = Mapping[str, Mapping[str, float]]
"""Counters by interface and name; every interface has the same names."""


class Interfaces:
    """Remembers the previous counters; an interface counts from its second look on."""

    def __init__(self) -> None:
        self._deltas: Deltas[tuple[str, str]] = Deltas()
        self._known: Collection[str] = ()

    def take(self, counters: Counters, at_ns: int) -> Growth[str]:
        """Return by how much each name grew over the interfaces that were there before.

        A name of which one of them fell (a wrap, a reset) is missing: a sum without it would be wrong.
        """
        flat = {(nic, key): value for nic, by in counters.items() for key, value in by.items()}
        grown = self._deltas.take(flat, at_ns)
        stayed = [nic for nic in counters if nic in self._known]
        self._known = tuple(counters)
        keys = {key for nic in stayed for key in counters[nic]}
        if not grown.seconds:
            return Growth()
        sums = {
            key: sum(grown.by[nic, key] for nic in stayed)
            for key in keys
            if all((nic, key) in grown.by for nic in stayed)
        }
        return Growth(grown.seconds, sums)
