"""Follows the ledgers of Pulsar partitions: new ones are created, old ones are trimmed.

Only the ledgers of the topic count. A cursor may stay on one that is deleted, until it moves; it says nothing
of what is held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from soak.core.errors import ProbeError
from soak.core.model import Event

Partition = tuple[str, int]

TRIMMED = "retention_deletion"
CREATED = "ledger_created"
MOVED_BACK = "log_start_moved_back"
"""Ledgers that start again with lower ids, as on another cluster: within a cluster ids only rise.

A topic that is created again looks like one whose ledgers were all trimmed while another broker took it
over, and is reported as such.
"""


@dataclass(frozen=True, slots=True)
class Ledger:
    id: int
    entries: int
    bytes: int
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class LedgerList:
    """The ledgers of a partition in order, and the entries added since its broker has owned it."""

    ledgers: tuple[Ledger, ...]
    added: int = 0


@dataclass(frozen=True, slots=True)
class Trim:
    """Ledgers deleted between two polls; bytes and entries are None if one was open at the last poll."""

    ledgers: int
    entries: int | None
    bytes: int | None
    event: Event


@dataclass(frozen=True, slots=True)
class LedgerChanges:
    """The changes of a partition between two polls."""

    trims: tuple[Trim, ...] = ()  # of the oldest ledgers one, and one of each gap between others
    events: tuple[Event, ...] = ()


def parse_internal_stats(stats: Any) -> LedgerList:  # noqa: ANN401  # whatever the cluster sends
    """Return the ledgers of a partition from `internalStats` of the admin interface.

    Raises:
        ProbeError: a part is missing, as while a broker is taking over the partition.
    """
    try:
        ledgers = [
            Ledger(int(one["ledgerId"]), int(one["entries"]), int(one["size"]))
            for one in stats["ledgers"]
        ]
        if ledgers and stats["state"] == "LedgerOpened":  # the list has 0 for an open ledger
            entries, size = int(stats["currentLedgerEntries"]), int(stats["currentLedgerSize"])
            ledgers[-1] = Ledger(ledgers[-1].id, entries, size, is_open=True)
        elif ledgers and not ledgers[-1].entries:  # it is being closed, and not counted yet
            ledgers[-1] = Ledger(ledgers[-1].id, 0, 0, is_open=True)
        added = int(stats["entriesAddedCounter"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ProbeError(f"the ledgers of a partition are incomplete: {error!r}") from error
    if any(min(one.id, one.entries, one.bytes) < 0 for one in ledgers):
        raise ProbeError("the ledgers of a partition have negative numbers")
    return LedgerList(tuple(ledgers), added)


class Ledgers:
    """Compares the ledgers of each partition with the last poll."""

    def __init__(self) -> None:
        self._known: dict[Partition, tuple[LedgerList, int]] = {}

    def update(
        self, partition: Partition, log: LedgerList, asked_ns: int, answered_ns: int
    ) -> LedgerChanges:
        """Return the changes since the partition's previous poll; its first poll has none.

        They lie between the previous request and this answer.
        """
        last, since_ns = self._known.get(partition, (LedgerList(()), 0))
        self._known[partition] = (log, asked_ns)
        before, ledgers = last.ledgers, log.ledgers
        if not before or not ledgers:
            return LedgerChanges()
        when = since_ns, answered_ns
        first, newest = ledgers[0].id, before[-1].id
        if first < before[0].id:
            fields = {"from_ledger": before[0].id, "to_ledger": first}
            return LedgerChanges((), (_event(MOVED_BACK, partition, fields, when),))
        created = tuple(
            _event(CREATED, partition, {"ledger": one.id}, when)
            for one in ledgers
            if one.id > newest
        )
        # An empty ledger leaves the list without a trim when another broker takes over the partition.
        is_same = log.added >= last.added
        gone = [one for one in before if one.id < first and (one.entries or is_same)]
        gaps = [(first, gone)] if gone else []
        gaps += _gaps(before, ledgers)
        trims = tuple(_trim(partition, deleted, upto, when) for upto, deleted in gaps)
        return LedgerChanges(trims, (*created, *(trim.event for trim in trims)))


def _gaps(before: Sequence[Ledger], now: Sequence[Ledger]) -> list[tuple[int, list[Ledger]]]:
    """Return the ledgers that were deleted between others, by the next one that is left.

    An empty one leaves the list by itself, after a ledger that nothing was written to.
    """
    ids = [one.id for one in now]
    found: dict[int, list[Ledger]] = {}
    for one in before:
        if one.entries and ids[0] < one.id < ids[-1] and one.id not in ids:
            found.setdefault(next(other for other in ids if other > one.id), []).append(one)
    return list(found.items())


def _trim(partition: Partition, gone: Sequence[Ledger], first: int, when: tuple[int, int]) -> Trim:
    is_known = not any(one.is_open for one in gone)
    entries = sum(one.entries for one in gone) if is_known else None
    size = sum(one.bytes for one in gone) if is_known else None
    fields = {"from_ledger": gone[0].id, "to_ledger": first, "ledgers": len(gone)}
    if entries is not None and size is not None:
        fields |= {"entries": entries, "bytes": size}
    return Trim(len(gone), entries, size, _event(TRIMMED, partition, fields, when))


def _event(
    kind: str, partition: Partition, fields: Mapping[str, int], when: tuple[int, int]
) -> Event:
    since_ns, at_ns = when
    where: dict[str, str | int | float] = {"topic": partition[0], "partition": partition[1]}
    return Event(kind, at_ns, since_ns, where | dict(fields))
