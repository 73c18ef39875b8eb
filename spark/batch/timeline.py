"""A whole run as numbers, read from its journals, each file by itself."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from detectors.objectives import Minute, Minutes
from soak.core import json_text, wording
from soak.core.errors import JournalError
from soak.core.model import Column
from soak.core.plan.load import is_named_well
from soak.core.plan.phases import Phases, drain_k
from soak.core.plan.plan import Plan
from soak.core.ports import Each, Note, no_note
from soak.core.series import series_name, source_of
from soak.core.units import SECOND_NS
from soak.service.files import read_small
from soak.store.audit import audit_run, is_loss_known, part_reader
from soak.store.journal.reader import segments, sources
from soak.store.run_folder import Run, RunFolder, read_phases, read_plan, read_run, reporting_damage
from spark.batch.digest import Extremes, RoughSeconds, Scope, distinct, reduction
from spark.batch.digest_cache import Row, cached_row, digest_row, rows_of
from spark.batch.soak_totals import SoakTotals, added_up
from spark.sources.schema import columns_of

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
FULL_RATE_SECONDS = 2 * 3600
"""Up to this length every second is kept; longer runs are shown in buckets of ten seconds."""
COARSE_STEP = 10

LONGEST_DELAY_SECONDS = 31 * 24 * 3600
"""By so much a run may last longer than planned; a second after that was made up, and would cost memory."""
SILENT_SECONDS = 60
"""A run that calls itself running and wrote nothing for so long was killed."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Everything that a report shows. `step` seconds a value; series ids are "source|column name"."""

    folder: RunFolder
    run: Run
    plan: Plan
    phases: Phases
    step: int
    columns: Mapping[str, Column]
    series: Mapping[str, tuple[Ints, Floats]]  # k ascending, values finite
    extremes: Mapping[str, Extremes]  # by series, of minutes: both (n,); empty where `step` is 1
    seconds: Mapping[str, Ints]  # by source: every k that has a record
    invalid: Mapping[str, Mapping[int, str]]  # by source: k to reason
    silent: Mapping[str, Ints]  # by source: every k in which nothing was acknowledged, or received
    standing: Mapping[str, Ints]  # by source: every k in which messages were due, none acknowledged
    short: Mapping[str, Ints]  # by source: rows of k, messages missed, failed; where there were any
    rough: Mapping[str, Sequence[RoughSeconds]]  # by source: of each file, where it has some
    minutes: Sequence[Minutes]  # of each file: what the objectives of the plan count
    totals: SoakTotals
    event_seconds: Mapping[str, Ints]  # by kind, of all sources
    damage: tuple[tuple[str, int, str, str], ...]  # source, nearest k, place, reason
    restarts: tuple[tuple[str, str, int], ...]  # daemon, how it died, on the wall clock
    audit: Mapping[str, int | None]  # None: not known
    audit_by_subscription: Sequence[Mapping[str, int | None]]
    is_running: bool

    @property
    def not_audited(self) -> str:
        """Return why it is not known whether messages were lost; "" where the audit was made."""
        acked = self.totals.messages.get("acked_messages", 0)
        if not acked or self.audit.get("acked") is not None:
            return ""
        counted = wording.counted(acked, "acknowledged message")
        return f"the journals count {counted} of the soak, but do not say which they are"

    @property
    def recorded_k(self) -> int:
        """Return the first second that no source has a record of any more."""
        return max((int(k[-1]) for k in self.seconds.values() if k.size), default=-1) + 1

    @property
    def end_k(self) -> int:
        """Return the first second after the run; of a run cut short, after its last record."""
        decided = self.phases.end_k
        return self.recorded_k if decided is None else min(decided, max(self.recorded_k, 1))

    @property
    def due_k(self) -> int:
        """Return the first second that need not be on record: of a run that was killed, as planned."""
        if self.phases.end_k is not None:
            return self.phases.end_k
        if self.is_running:
            return self.recorded_k
        return max(self.recorded_k, drain_k(self.phases, self.plan.phases))

    @property
    def soak_spans(self) -> list[tuple[int, int]]:
        """Return first second and first after it of each stretch of soak; catch-ups lie between them."""
        return self.phases.spans("soak", self.end_k)

    @property
    def soak(self) -> tuple[int, int]:
        """Return first second of the soak and first after it, with what lies between its stretches."""
        spans = self.soak_spans
        return (spans[0][0], spans[-1][1]) if spans else (self.end_k, self.end_k)

    @property
    def soak_seconds(self) -> Ints:
        """Return every second that is judged, ascending."""
        return np.concatenate([np.arange(0), *(np.arange(*span) for span in self.soak_spans)])

    def is_soak(self, k: Ints, seconds: int = 0) -> NDArray[np.bool_]:
        """Return which of these buckets of `step` or so many seconds lie wholly in the soak, shape as `k`."""
        within = np.zeros(k.shape, dtype=np.bool_)
        for begin, end in self.soak_spans:
            within |= (k >= begin) & (k + (seconds or self.step) <= end)
        return within

    def wall_ns(self, k: float) -> int:
        return self.run.start_wall_ns + round(k * SECOND_NS)


def read_timeline(each: Each, folder: RunFolder, note: Note = no_note) -> Timeline:
    """Read a run's journals, each file by itself.

    Raises:
        RunFolderError: this is no run folder.
        JournalError: a journal was written by a newer version.
    """

    def read(paths: Sequence[Path], step: int, scope: Scope) -> list[Row]:
        return _rows(each(partial(cached_row, step=step, scope=scope), paths))

    return assemble(folder, read, note)


def summed(parts: Sequence[tuple[Ints, Floats]]) -> tuple[Ints, Floats]:
    """Return the seconds of several series, ascending, and the sum of their values in each."""
    if not parts:
        return np.zeros(0, np.int64), np.zeros(0)
    k, place = np.unique(np.concatenate([one for one, _ in parts]), return_inverse=True)
    values = np.concatenate([values for _, values in parts])
    return k, np.bincount(place, values, k.size).astype(np.float64)


def per_second(timeline: Timeline, name: str) -> tuple[Ints, Floats]:
    """Return a series of counts as rates: of each bucket its sum over the seconds that were recorded."""
    k, values = timeline.series[name]
    if timeline.step == 1:
        return k, values
    seconds = timeline.seconds[source_of(name)]
    recorded = np.bincount(seconds[seconds >= 0] // timeline.step)
    at = np.minimum(k // timeline.step, recorded.size - 1) if recorded.size else np.zeros_like(k)
    counts = recorded[at] if recorded.size else np.ones(k.size)
    return k, values / np.maximum(counts, 1)


def leader_addresses(timeline: Timeline) -> dict[str, str]:
    """Return the address of each broker by its number, as clients saw it."""
    found = {}
    for column in timeline.columns.values():
        if column.metric == "leader_info":
            labels = dict(column.labels)
            found[labels.get("leader", "")] = labels.get("address", "")
    return found


def assemble(
    folder: RunFolder,
    read: Callable[[Sequence[Path], int, Scope], Sequence[Row]],
    note: Note = no_note,
) -> Timeline:
    """Join the rows that `read` makes of the journal files; damaged or missing parts are gaps.

    Raises:
        RunFolderError: this is no run folder.
        JournalError: a journal was written by a newer version.
    """
    run = read_run(folder)
    plan, phases = read_plan(folder), read_phases(folder.phases)
    names = [name for name in sources(folder.journal) if is_named_well(name)]
    paths = [path for source in names for path in segments(folder.journal / source)]
    step = 1 if drain_k(Phases(), plan.phases) <= FULL_RATE_SECONDS else COARSE_STEP
    is_running = run.state == "running" and _is_fresh(paths)
    max_k = drain_k(Phases(), plan.phases) + LONGEST_DELAY_SECONDS
    note("reading the journals")
    rows = read(paths, step, Scope(plan.service_objectives, phases, max_k))
    for row in rows:
        if row["error"]:
            raise JournalError(row["error"])
    rows = sorted(rows, key=lambda row: (row["source"], row["file"]))  # tasks end in any order
    note("auditing the messages")
    return _timeline(folder, run, plan, phases, step, rows, is_running=is_running)


def _is_fresh(paths: Sequence[Path]) -> bool:
    """True when a journal was written a moment ago; a killed run still calls itself running."""
    newest = max((path.stat().st_mtime for path in paths), default=0.0)
    return time.time() - newest < SILENT_SECONDS


def digest_rows(paths: Sequence[Path], step: int, scope: Scope) -> list[Row]:
    """Return one row a journal file, read in this process."""
    return _rows([digest_row(path, step, scope) for path in paths])


def _rows(batches: Sequence[pa.RecordBatch]) -> list[Row]:
    return [row for batch in batches for row in rows_of(pa.Table.from_batches([batch]))]


def _timeline(
    folder: RunFolder,
    run: Run,
    plan: Plan,
    phases: Phases,
    step: int,
    rows: Sequence[Mapping[str, Any]],
    *,
    is_running: bool,
) -> Timeline:
    columns: dict[str, Column] = {}
    parts: dict[str, list[tuple[Ints, Floats]]] = defaultdict(list)
    extremes: dict[str, list[Extremes]] = defaultdict(list)
    seconds: dict[str, list[Ints]] = defaultdict(list)
    invalid: dict[str, dict[int, str]] = defaultdict(dict)
    silent: dict[str, list[int]] = defaultdict(list)
    standing: dict[str, list[int]] = defaultdict(list)
    short: dict[str, list[Sequence[int]]] = defaultdict(list)
    rough: dict[str, list[RoughSeconds]] = defaultdict(list)
    events: dict[str, list[int]] = defaultdict(list)
    damage: list[tuple[str, int, str, str]] = []
    of_audit = {
        folder.journal / row["source"] / row["file"]: row["audit"] for row in rows if row["audit"]
    }
    audit = audit_run(folder, run, plan, part_reader(of_audit))
    totals = added_up(row["totals"] for row in rows)
    is_known = is_loss_known(plan)
    whole = audit.verdict(is_loss_known=is_known)
    by_subscription = audit.by_subscription(is_loss_known=is_known)
    if totals.messages.get("acked_messages") and not whole["acked"]:
        whole = _without_numbers(whole)
        by_subscription = tuple(map(_without_numbers, by_subscription))
    for row in rows:
        source = row["source"]
        seconds[source].append(np.array(row["seconds"], dtype=np.int64))
        invalid[source].update({int(k): str(why) for k, why in json_text.loads(row["untrusted"])})
        silent[source] += row["silent"]
        standing[source] += row["standing"]
        short[source] += row["short"]
        if row["rough_k"]:
            rough[source].append(_rough(row))
        for kind, found in json_text.loads(row["events"]).items():
            events[kind] += found
        damage += [(source, int(k), place, why) for k, place, why in json_text.loads(row["damage"])]
        k = np.array(row["k"], dtype=np.int64)
        found_columns = columns_of(row["columns"])
        for column, values in zip(found_columns, row["values"], strict=True):
            name = series_name(source, column.name)
            columns[name] = column
            parts[name].append((k, np.array(values, dtype=np.float64)))
        for name, one in _extremes(row, found_columns):
            extremes[name].append(one)
    return Timeline(
        folder=folder,
        run=run,
        plan=plan,
        phases=phases,
        step=step,
        columns=columns,
        series=_every_joined(parts, columns),
        extremes={name: _joined_extremes(several) for name, several in extremes.items()},
        seconds={name: distinct(np.concatenate(several)) for name, several in seconds.items()},
        invalid=invalid,
        silent=_distinct(silent),
        standing=_distinct(standing),
        short={
            name: np.array(sorted(map(tuple, found)), dtype=np.int64).reshape(-1, 3)
            for name, found in short.items()
        },
        rough=rough,
        minutes=[_minutes(row) for row in rows],
        totals=totals,
        event_seconds=_distinct(events),
        damage=(*damage, *_strangers(folder)),
        restarts=tuple(_restarts(folder)),
        audit=whole,
        audit_by_subscription=by_subscription,
        is_running=is_running,
    )


_OF_NUMBERS = ("acked", "received", "lost", "expired", "unknown", "received_unacked")
"""The counts of an audit that come from sequence numbers; records have the others."""


def _without_numbers(audit: Mapping[str, int | None]) -> dict[str, int | None]:
    """Return the counts of an audit that had no sequence numbers of what was acknowledged."""
    return {key: None if key in _OF_NUMBERS else count for key, count in audit.items()}


def _strangers(folder: RunFolder) -> Iterator[tuple[str, int, str, str]]:
    """Name the sources that are left out: no daemon of a plan is called so."""
    for name in sources(folder.journal):
        if not is_named_well(name):
            yield name, 0, "its journal", "no producer or consumer has this name"


def _rough(row: Row) -> RoughSeconds:
    columns = columns_of(row["rough_columns"])
    values = np.frombuffer(row["rough"], dtype=np.float64).reshape(-1, len(columns))
    return RoughSeconds(columns, np.array(row["rough_k"], dtype=np.int64), values)


def _extremes(row: Row, columns: Sequence[Column]) -> Iterator[tuple[str, Extremes]]:
    k = np.array(row["extremes_k"], dtype=np.int64)
    if not k.size:
        return
    both = np.frombuffer(row["extremes"], dtype=np.float32).reshape(2, len(columns), k.size)
    for at, column in enumerate(columns):
        yield series_name(row["source"], column.name), Extremes(k, both[0, at], both[1, at])


def _joined_extremes(parts: Sequence[Extremes]) -> Extremes:
    """Return the parts of one series by k; two files may share a minute."""
    k = np.concatenate([one.k for one in parts])
    once, place = np.unique(k, return_inverse=True)
    low, high = (np.full(once.size, np.nan, np.float32) for _ in range(2))
    np.fmin.at(low, place, np.concatenate([one.low for one in parts]))
    np.fmax.at(high, place, np.concatenate([one.high for one in parts]))
    return Extremes(once, low, high)


def _minutes(row: Row) -> Minutes:
    found = json_text.loads(row["minutes"]).items()
    return {int(number): [Minute(*one) for one in counts] for number, counts in found}


def _distinct(seconds: Mapping[str, Sequence[int]]) -> dict[str, Ints]:
    return {name: distinct(np.array(k, dtype=np.int64)) for name, k in seconds.items()}


def _every_joined(
    parts: Mapping[str, Sequence[tuple[Ints, Floats]]], columns: Mapping[str, Column]
) -> dict[str, tuple[Ints, Floats]]:
    """Return each series of `parts`, joined; neighbours with the same seconds share one array of them."""
    found: dict[str, tuple[Ints, Floats]] = {}
    last_k = np.empty(0, np.int64)
    for name, several in parts.items():
        k, values = _joined(several, columns[name])
        if not np.array_equal(k, last_k):
            k.flags.writeable = False
            last_k = k
        found[name] = last_k, values
    return found


def _joined(parts: Sequence[tuple[Ints, Floats]], column: Column) -> tuple[Ints, Floats]:
    """Return the parts of one series by k, each once, without what was not measured.

    A file may end within a bucket of several seconds, whose rest is in the next one.
    """
    k = np.concatenate([part for part, _ in parts])
    values = np.concatenate([part for _, part in parts])
    order = np.argsort(k, kind="stable")
    order = order[~np.isnan(values[order])]
    once, starts, counts = np.unique(k[order], return_index=True, return_counts=True)
    ordered, reduce_ = values[order], reduction(column)
    joined = ordered[starts]
    for at in np.flatnonzero(counts > 1):
        joined[at] = reduce_(ordered[starts[at] : starts[at] + counts[at]])
    return once, joined


def _restarts(folder: RunFolder) -> Iterator[tuple[str, str, int]]:
    """Give the daemon, how it died, and the wall clock; torn lines are left out.

    The supervisor may have been killed while it wrote.
    """
    path = folder.path / "restarts.jsonl"
    if not path.exists():
        return
    with reporting_damage(path):
        text = read_small(path).decode(errors="replace")
    for line in text.splitlines():
        try:
            body = json_text.loads(line)
            yield str(body["daemon"]), str(body["how"]), int(body["at_ns"])
        except (ValueError, KeyError, TypeError):
            continue
