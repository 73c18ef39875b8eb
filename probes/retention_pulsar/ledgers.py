"""Follows the ledgers of Pulsar partitions: new ones are created, old ones are trimmed."""

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
"""Ledgers that begin again with lower numbers, as on another cluster: within one they only rise.

So a topic that is made anew looks as one whose ledgers are all trimmed while another broker takes it
over, and is told as that.
"""


@dataclass(frozen=True, slots=True)
class Ledger:
    id: int
    entries: int
    bytes: int
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class LedgerList:
    """A partition's ledgers in order, and the entries added since its broker has it."""

    ledgers: tuple[Ledger, ...]
    added: int = 0


@dataclass(frozen=True, slots=True)
class Trim:
    """Ledgers that went between two polls; bytes and entries are None where one was open when last seen."""

    ledgers: int
    entries: int | None
    bytes: int | None
    event: Event


@dataclass(frozen=True, slots=True)
class LedgerChanges:
    """What one poll of a partition showed against the one before."""

    trim: Trim | None = None
    events: tuple[Event, ...] = ()


def parse_internal_stats(stats: Any) -> LedgerList:  # noqa: ANN401  # what the cluster says
    """Return what the admin interface's `internalStats` says of a partition.

    Raises:
        ProbeError: something is missing from it, as where a broker is about to take the partition.
    """
    try:
        ledgers = [
            Ledger(int(one["ledgerId"]), int(one["entries"]), int(one["size"]))
            for one in stats["ledgers"]
        ]
        if ledgers and stats["state"] == "LedgerOpened":  # of an open ledger the list says 0
            entries, size = int(stats["currentLedgerEntries"]), int(stats["currentLedgerSize"])
            ledgers[-1] = Ledger(ledgers[-1].id, entries, size, is_open=True)
        elif (
            ledgers and not ledgers[-1].entries
        ):  # it is about to be closed, and is not counted yet
            ledgers[-1] = Ledger(ledgers[-1].id, 0, 0, is_open=True)
        added = int(stats["entriesAddedCounter"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ProbeError(f"a partition's ledgers are not told in whole: {error!r}") from error
    if any(min(one.id, one.entries, one.bytes) < 0 for one in ledgers):
        raise ProbeError("a partition's ledgers are told with numbers below 0")
    return LedgerList(tuple(ledgers), added)


class Ledgers:
    """Holds the last poll of each partition."""

    def __init__(self) -> None:
        self._known: dict[Partition, tuple[LedgerList, int]] = {}

    def update(
        self, partition: Partition, log: LedgerList, asked_ns: int, answered_ns: int
    ) -> LedgerChanges:
        """Return what moved since the partition's previous poll; its first poll only starts it.

        It lies after the previous question and before this answer.
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
            return LedgerChanges(None, (_event(MOVED_BACK, partition, fields, when),))
        created = tuple(
            _event(CREATED, partition, {"ledger": one.id}, when)
            for one in ledgers
            if one.id > newest
        )
        # one that is empty when another broker takes the partition leaves the list without a trim
        is_same = log.added >= last.added
        gone = [one for one in before if one.id < first and (one.entries or is_same)]
        if not gone:
            return LedgerChanges(None, created)
        trim = _trim(partition, gone, first, when)
        return LedgerChanges(trim, (*created, trim.event))


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
