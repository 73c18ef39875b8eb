"""What the run of a drill wrote down: who was told of which finding, its events, the order of its records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from soak.core.model import Record
from soak.core.units import SECOND_NS
from soak.store.findings import FindingsStore
from soak.store.journal_reader import read_source, sources
from soak.store.run_folder import RunFolder, read_run


@dataclass(frozen=True, slots=True)
class Told:
    """What people were told, by finding."""

    at_wall_ns: Mapping[str, int] = field(default_factory=dict)  # first
    cause: Mapping[str, str] = field(default_factory=dict)  # by that first message
    gone_wall_ns: Mapping[str, int] = field(default_factory=dict)  # when it was noticed, for good
    confirmed: frozenset[str] = frozenset()  # in the run, whoever was told


def told(folder: RunFolder) -> Told:
    """Return what people were told in a run.

    Nobody is told that something is gone that was not held against the cluster: then the second counts.
    """
    if not folder.findings.exists():  # the detector never ran; to look would make one
        return Told()
    run = read_run(folder)
    with FindingsStore(folder.findings) as store:
        outbox, findings = store.outbox(run.id), store.findings(run.id)
    sent = [row for row in outbox if row.kind == "confirmed" and row.state == "sent"]
    turns: dict[str, int] = {}
    for row in outbox:
        turns[row.key] = max(row.turn, turns.get(row.key, row.turn))
    gone = [row for row in outbox if row.kind == "gone" and row.turn == turns[row.key]]
    seconds = {
        one.key: run.start_wall_ns + one.gone_k * SECOND_NS
        for one in findings
        if one.gone_k is not None
    }
    at_wall_ns = _first([(row.key, row.done_wall_ns) for row in sent])
    return Told(
        at_wall_ns,
        {row.key: row.cause for row in sent if row.done_wall_ns == at_wall_ns.get(row.key)},
        seconds | _first([(row.key, row.created_wall_ns) for row in gone]),
        frozenset(one.key for one in findings if one.state != "warning"),
    )


def events(folder: RunFolder, kind: str) -> list[int]:
    """Return when the events of a kind began, at the earliest, in ns of the wall clock.

    That is by the run's own count of seconds, whatever became of the clock itself.
    """
    return [
        event.since_ns
        for records in _by_source(folder)
        for record in records
        for event in record.events
        if event.kind == kind
    ]


def disordered(folder: RunFolder) -> int:
    """Return how many records were written after one of the same second or a later one."""
    return sum(
        later.k <= record.k for records in _by_source(folder) for record, later in pairwise(records)
    )


def _by_source(folder: RunFolder) -> Iterator[Iterator[Record]]:
    for source in sources(folder.journal):
        yield (record for record, _ in read_source(folder.journal, source))


def _first(moments: Sequence[tuple[str, int | None]]) -> dict[str, int]:
    """Return the earliest moment of each key: one sink is enough."""
    found: dict[str, int] = {}
    for key, at_wall_ns in moments:
        if at_wall_ns is not None:
            found[key] = min(at_wall_ns, found.get(key, at_wall_ns))
    return found
