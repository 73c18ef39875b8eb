"""One run as a comparison needs it: latencies by second of the soak, load, cost and incidents.

A run is a run folder, or a result of the OpenMessaging Benchmark. What takes long is read once and kept in
the run folder, as `digests/latencies.npz`.
"""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from detectors import comparison
from detectors.comparison import Distribution, Estimate
from soak.core import json_text
from soak.core.errors import PlanError, RunFolderError
from soak.core.histogram import counts_of
from soak.core.model import Column, Record
from soak.core.plan.phases import Phases
from soak.core.plan.plan import Plan
from soak.core.units import SECOND_NS
from soak.omb.result import Result
from soak.omb.result_file import parse_json, parse_result, read_text
from soak.service.files import read_json, write_atomically
from soak.store.journal.merged import read_segment
from soak.store.journal.reader import SourceReader, segments, sources
from soak.store.run_folder import (
    Run,
    RunFolder,
    counting_verdict,
    read_acknowledged,
    read_phases,
    read_plan,
    read_run,
)
from spark.batch.soak_totals import ClientSecond, acked_messages, client_seconds

Ints = NDArray[np.int64]
LATENCIES = {"publish": "publish", "end_to_end": "end to end"}
SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
_COUNTED = {"acked_messages", "received_messages", "failed_messages", "missed_messages"}
_CPU = "host_cpu_ratio"
_FEW_FILES = 4
OTHER_LENGTH = 0.05
"""Soaks that differ by less are compared as a whole."""
_CACHE_VERSION = 2
_Wanted = TypeVar("_Wanted")
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Messages by second of the run and band of latency: `count[i]` in `band[i]` in second `k[i]`."""

    k: Ints
    band: Ints
    count: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """What the journals of a run have about its soak; `seconds` ascend, messages are by metric and second."""

    seconds: Ints
    cells: Mapping[str, Cells]
    messages: Mapping[str, Ints]
    cpu_ratio: Mapping[str, float] = field(default_factory=dict)  # by host, mean over the soak
    acked: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """Messages that were acknowledged from the start of the load up to the end of each second."""


@dataclass(frozen=True, slots=True)
class Incident:
    """An incident as `summary.json` has it; `note` is that of its acknowledgement, if there is one."""

    key: str
    what: str
    at: str
    cause: str
    kind: str
    counts: bool
    note: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ComparedRun:
    """A run, or a benchmark result (`result`), which has neither plan nor journals."""

    path: Path
    id: str
    name: str
    start_wall_ns: int
    recorded: Recorded
    summary: Mapping[str, Any]
    incidents: Sequence[Incident]
    plan: Plan | None = None
    phases: Phases = field(default_factory=Phases)
    versions: Mapping[str, str] = field(default_factory=dict)
    brokers: Sequence[
        str
    ] = ()  # addresses that the cluster listed at the start, if they were recorded
    durability: Mapping[str, Any] = field(default_factory=dict)
    result: Result | None = None
    left_out: Sequence[tuple[int, int]] = ()  # seconds of acknowledged incidents that are over
    begin: int = 0  # what is compared, as places in `recorded.seconds`; see `alignment`
    end: int | None = None

    @property
    def soak_seconds(self) -> int:
        """Return the recorded length of the soak."""
        if self.result is not None:
            return round(float(self.result.seconds[-1])) if self.result.seconds.size else 0
        return int(self.recorded.seconds.size)

    @property
    def is_whole(self) -> bool:
        """False for a run that was cut short or goes on."""
        return self.result is not None or self.phases.end_k is not None

    @property
    def is_partial(self) -> bool:
        """True where an incident is left out, or a part of the soak that matters is not compared."""
        compared = self.compared.size
        return (
            self.judged.size < compared
            or compared < (1.0 - OTHER_LENGTH) * self.recorded.seconds.size
        )

    @property
    def compared(self) -> Ints:
        """Return the recorded seconds of the soak from the first to the last that is compared."""
        return self.recorded.seconds[self.begin : self.end]

    @property
    def judged(self) -> Ints:
        """Return the seconds that are compared: without those of acknowledged incidents."""
        seconds = self.compared
        for begin, end in self.left_out:
            seconds = seconds[(seconds < begin) | (seconds >= end)]
        return seconds

    def distribution(
        self, latency: str, most: int = comparison.MOST_INTERVALS
    ) -> Distribution | None:
        """Return the counts of a latency by interval, at most `most` intervals; None: nothing was counted."""
        cells, seconds = self.recorded.cells.get(latency), self.judged
        if cells is None or not seconds.size:
            return None
        at = np.minimum(np.searchsorted(seconds, cells.k), seconds.size - 1)
        here = seconds[at] == cells.k
        if not here.any():
            return None
        length = -(-seconds.size // most)
        whole = seconds.size // length
        band, interval = cells.band[here], at[here] // length
        first = int(band.min())
        counts = np.zeros((max(whole, 1), int(band.max()) - first + 1))
        kept = interval < counts.shape[0]  # a last part of an interval is left out
        np.add.at(counts, (interval[kept], band[kept] - first), cells.count[here][kept])
        return Distribution(counts, first, length)

    def estimate(self, latency: str, quantile: str) -> Estimate | None:
        """Return a quantile of `SHARES`; None where it was not measured."""
        if self.result is not None:
            return _estimate_of_result(self.result, self.id, latency, quantile)
        found = self.distribution(latency)
        return None if found is None else comparison.estimate(self.id, found, SHARES[quantile])

    def value(self, latency: str, quantile: str) -> float:
        """Return a quantile of `SHARES` in seconds, of what is compared; NaN where it was not measured."""
        if self.result is not None:
            measured = _estimate_of_result(self.result, self.id, latency, quantile)
            return math.nan if measured is None else measured.value
        found = self.distribution(latency, most=1)
        return math.nan if found is None else found.quantile(SHARES[quantile])

    def counts(self, metric: str) -> Ints:
        """Return the messages of a metric in each second that is compared; empty where nothing is counted."""
        counts = self.recorded.messages.get(metric, np.empty(0, np.int64))
        return counts[self.begin : self.end]

    @property
    def first_deletion(self) -> float | None:
        """Return the second of the run in which retention first deleted; None where none was seen."""
        retention = self.summary.get("retention")
        happened = retention.get("happened") if isinstance(retention, Mapping) else None
        first = happened.get("first_deletion_seconds") if isinstance(happened, Mapping) else None
        return float(first) if isinstance(first, int | float) else None

    def per_second(self, metric: str) -> float | None:
        """Return the messages of a metric per compared second; None where they were not counted."""
        if self.result is not None:
            name = {"acked_messages": "publish", "received_messages": "consume"}.get(metric)
            rates = self.result.samples.get(f"{name}_rate_per_second", np.empty(0))
            return float(np.nanmean(rates)) if np.isfinite(rates).any() else None
        counts = self.counts(metric)
        return float(counts.mean()) if counts.size else None

    def audited(self, name: str) -> int | None:
        """Return a count of the audit, such as `lost`, of the whole run; None: not known."""
        found = dict(self.summary.get("audit") or {}).get(name)
        return found if isinstance(found, int) else None

    @property
    def counting(self) -> list[Incident]:
        """Return the incidents about the cluster that were not acknowledged."""
        return [one for one in self.incidents if one.counts and one.note is None]

    @property
    def verdict(self) -> str:
        """Return the verdict of the run's report; without its acknowledged incidents."""
        if not self.summary:
            return "not reported"
        notes = {one.key: one.note for one in self.incidents if one.note is not None}
        return counting_verdict(self.summary, notes)


def read_compared(path: Path, *, is_cached: bool = True) -> ComparedRun:
    """Read a run folder or a benchmark result; without `is_cached` nothing is kept in the run folder.

    Raises:
        RunFolderError: it is neither, or a file of it is damaged or of an older version; says what to do.
        PlanError: the file is no benchmark result.
    """
    if path.is_file():
        return _of_result(path)
    folder = RunFolder(path.resolve())
    run, plan = read_run(folder), read_plan(folder)
    phases = read_phases(folder.phases)
    summary = read_summary(folder)
    notes = read_acknowledged(folder)
    incidents = [_incident(one, notes) for one in summary["findings"]]
    return ComparedRun(
        path=path,
        id=run.id,
        name=plan.name,
        start_wall_ns=run.start_wall_ns,
        recorded=read_recorded(folder, phases, is_cached=is_cached),
        summary=summary,
        incidents=incidents,
        plan=plan,
        phases=phases,
        versions=run.versions,
        brokers=run.brokers,
        durability=dict(summary.get("durability") or {}),
        left_out=_left_out(folder, summary["findings"], run, notes),
    )


def read_summary(folder: RunFolder) -> Mapping[str, Any]:
    """Return `report/summary.json`.

    Raises:
        RunFolderError: there is none, or it was made by a version without the figures of the soak.
    """
    advice = f"make it with `soak report {folder.path}`"
    try:
        body = read_json(folder.summary)
    except FileNotFoundError as error:
        raise RunFolderError(f"{folder.path} has no report yet: {advice}") from error
    except OSError as error:
        raise RunFolderError(f"cannot read {folder.summary}: {error.strerror}") from error
    except ValueError as error:
        raise RunFolderError(f"{folder.summary} is damaged ({error}): {advice}") from error
    kinds = {"verdict": str, "findings": list, "audit": dict, "soak": dict}
    for key, kind in kinds.items():
        if not isinstance(body, dict) or key not in body:
            raise RunFolderError(
                f"{folder.summary} has no {key!r}: an older version of soakd made it; {advice}"
            )
        if not isinstance(body[key], kind):
            raise RunFolderError(f"{folder.summary}: {key} is damaged; {advice}")
    if not all(isinstance(one, dict) and "key" in one for one in body["findings"]):
        raise RunFolderError(f"{folder.summary}: findings are damaged; {advice}")
    return dict(body)


# --- Acknowledged incidents.


def acknowledge(path: Path, incident: str, note: str) -> Incident:
    """Note an incident of a run as a known change; a second note replaces the first.

    `incident` is its key in the report, or the number at its end.

    Raises:
        RunFolderError: the run has no such incident, or its folder cannot be written.
    """
    folder = RunFolder(path.resolve())
    run = read_run(folder)
    findings = read_summary(folder)["findings"]
    keys = [str(one["key"]) for one in findings]
    found = [key for key in keys if incident in {key, key.removeprefix(f"{run.id}-")}]
    if not found:
        known = ", ".join(keys) or "none"
        raise RunFolderError(f"{path} has no incident {incident!r}; its incidents: {known}")
    if not note.strip():
        raise RunFolderError("--note must say why the incident is known")
    notes = read_acknowledged(folder) | {found[0]: note.strip()}
    body = [{"incident": key, "note": text} for key, text in sorted(notes.items())]
    target = folder.acknowledged
    try:
        write_atomically(target, json.dumps(body, indent=2) + "\n")
    except OSError as error:
        raise RunFolderError(f"cannot write {target}: {error.strerror}") from error
    return _incident(findings[keys.index(found[0])], notes)


def _incident(body: Mapping[str, Any], notes: Mapping[str, str]) -> Incident:
    key = str(body["key"])
    is_counted = body.get("is_counted", body.get("is_about_cluster"))
    counts = bool(is_counted) and body.get("state") != "warning"
    what, at, cause, kind = (str(body.get(name) or "") for name in ("what", "at", "cause", "kind"))
    return Incident(key, what, at, cause, kind, counts, notes.get(key))


def _left_out(
    folder: RunFolder, findings: Sequence[Mapping[str, Any]], run: Run, notes: Mapping[str, str]
) -> list[tuple[int, int]]:
    """Return the seconds of acknowledged incidents that are over; others have no end to go by."""
    found = []
    try:
        for one in findings:
            k = second_of(run.start_wall_ns, str(one.get("at")))
            if one["key"] in notes and one.get("is_over") and k is not None:
                earliest, _ = one["interval_seconds"]
                found.append((k + min(0, int(earliest)), k + int(one["seconds"])))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        advice = f"make it again with `soak report {folder.path}`"
        raise RunFolderError(f"{folder.summary}: findings are damaged; {advice}") from error
    return sorted(found)


def second_of(start_wall_ns: int, at: str) -> int | None:
    """Return the second of a run at a time in a report; None where that is no time."""
    try:
        return int(datetime.fromisoformat(at).timestamp()) - start_wall_ns // SECOND_NS
    except (ValueError, OverflowError):
        return None


# --- The journals.


@dataclass(slots=True)
class _Counts:
    bands: dict[tuple[str, int], Ints] = field(default_factory=dict)  # by latency and second
    messages: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    cpu: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    acked: dict[int, int] = field(default_factory=dict)  # in all phases


def read_recorded(folder: RunFolder, phases: Phases, *, is_cached: bool = True) -> Recorded:
    """Return what the journals have about the soak, from the run folder if it is kept there.

    Raises:
        JournalError: a journal was written by a newer version.
    """
    paths = journal_files(folder)
    sizes = [(str(path.relative_to(folder.path)), path.stat().st_size) for path in paths]
    key = json.dumps([_CACHE_VERSION, sizes, [repr(one) for one in phases.decisions]])
    kept = folder.path / "digests" / "latencies.npz"
    found = _kept(kept, key)
    if found is None:
        found = _joined(each_file(_counted, [(path, phases) for path in paths]))
        if is_cached:
            _keep(kept, key, found)
    return found


def journal_files(folder: RunFolder) -> list[Path]:
    """Return the files of all journals of a run."""
    return [
        path for source in sources(folder.journal) for path in segments(folder.journal / source)
    ]


def each_file(read: Callable[[_Wanted], _Found], wanted: Sequence[_Wanted]) -> list[_Found]:
    """Return what `read` makes of each file; of many in several processes."""
    if len(wanted) <= _FEW_FILES:
        return [read(one) for one in wanted]
    with ProcessPoolExecutor(min(len(os.sched_getaffinity(0)), len(wanted))) as pool:
        return list(pool.map(read, wanted))


def _counted(wanted: tuple[Path, Phases]) -> _Counts:
    path, phases = wanted
    found = _Counts()
    bands: dict[tuple[str, int], dict[int, int]] = {}
    records = [(one.record, one.columns) for one in read_segment(path, SourceReader(path.parent))]
    seconds = client_seconds(path.parent.name, records, phases)
    for second in (one for one in seconds if one.is_soak):
        for metric in second.messages.keys() & _COUNTED:
            by_second = found.messages[metric]
            by_second[second.k] = by_second.get(second.k, 0) + second.messages[metric]
        here = bands.setdefault((second.name, second.k), {})
        for band, count in _bands(second):
            here[band] = here.get(band, 0) + count
    found.bands = {
        key: np.array(sorted(counts.items()), dtype=np.int64).reshape(-1, 2)
        for key, counts in bands.items()
    }
    found.cpu[path.parent.name.partition("@")[2]] += _cpu_ratios(records, phases)
    for k, count in acked_messages(path.parent.name, records):
        found.acked[k] = found.acked.get(k, 0) + count
    return found


def _cpu_ratios(
    records: Sequence[tuple[Record, tuple[Column, ...]]], phases: Phases
) -> Iterator[float]:
    """Give how busy the host's processors were, by second of the soak; of a source without it nothing."""
    known: tuple[Column, ...] = ()
    at: int | None = None
    for record, columns in records:
        if columns is not known:
            places = (i for i, one in enumerate(columns) if one.metric == _CPU and not one.labels)
            known, at = columns, next(places, None)
        if at is not None and phases.at(record.k) == "soak":
            yield record.values[at]


def _bands(second: ClientSecond) -> Iterator[tuple[int, int]]:
    """Give bands of latency with the messages in them; of a damaged histogram nothing."""
    if second.histogram is None:
        return
    with suppress(ValueError):
        seconds, counts = counts_of(second.histogram)
        yield from zip(comparison.band_of(seconds).tolist(), counts.tolist(), strict=True)
    if second.overflow:
        yield comparison.BANDS - 1, second.overflow


def _joined(parts: Iterable[_Counts]) -> Recorded:
    rows: dict[str, list[Ints]] = defaultdict(list)
    messages: dict[str, dict[int, int]] = defaultdict(dict)
    cpu: dict[str, list[float]] = defaultdict(list)
    acked: dict[int, int] = defaultdict(int)
    for part in parts:
        for (name, k), counts in part.bands.items():
            rows[name].append(np.column_stack([np.full(len(counts), k), counts]))
        for metric, by_second in part.messages.items():
            for k, count in by_second.items():
                messages[metric][k] = messages[metric].get(k, 0) + count
        for host, values in part.cpu.items():
            cpu[host] += values
        for k, count in part.acked.items():
            acked[k] += count
    seconds = np.array(sorted({k for found in messages.values() for k in found}), dtype=np.int64)
    loaded = np.array(sorted(acked), dtype=np.int64)
    sums = np.cumsum([0, *(acked[k] for k in loaded.tolist())])
    tables = {name: np.concatenate(found).astype(np.int64) for name, found in rows.items()}
    return Recorded(
        seconds,
        {name: Cells(table[:, 0], table[:, 1], table[:, 2]) for name, table in tables.items()},
        {
            metric: np.array([found.get(k, 0) for k in seconds.tolist()], dtype=np.int64)
            for metric, found in messages.items()
        },
        {
            host: float(np.nanmean(values))
            for host, values in cpu.items()
            if np.isfinite(values).any()
        },
        sums[np.searchsorted(loaded, seconds, side="right")],
    )


def _kept(path: Path, key: str) -> Recorded | None:
    try:
        with np.load(path, allow_pickle=False) as file:
            if str(file["key"]) != key:
                return None
            names = [name.partition("/")[2] for name in file.files if name.startswith("k/")]
            cells = {
                name: Cells(file[f"k/{name}"], file[f"band/{name}"], file[f"count/{name}"])
                for name in names
            }
            metrics = [
                name.partition("/")[2] for name in file.files if name.startswith("messages/")
            ]
            messages = {name: file[f"messages/{name}"] for name in metrics}
            cpu = {str(name): float(x) for name, x in json_text.loads(str(file["cpu"])).items()}
            return Recorded(file["seconds"], cells, messages, cpu, file["acked"])
    except (OSError, ValueError, KeyError, EOFError):
        return None  # not kept yet, or damaged
    except Exception as error:  # zipfile and zlib raise errors of their own
        if type(error).__module__ in {"zipfile", "zlib"}:
            return None
        raise


def _keep(path: Path, key: str, found: Recorded) -> None:
    arrays: dict[str, Any] = {
        "key": np.array(key),
        "seconds": found.seconds,
        "acked": found.acked,
        "cpu": np.array(json.dumps(dict(found.cpu_ratio))),
    }
    for name, cells in found.cells.items():
        arrays |= {f"k/{name}": cells.k, f"band/{name}": cells.band, f"count/{name}": cells.count}
    arrays |= {f"messages/{name}": counts for name, counts in found.messages.items()}
    draft = path.with_name(f".{path.stem}.{os.getpid()}.npz")
    with suppress(OSError):  # a folder that cannot be written is read again each time
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(draft, **arrays)
        draft.replace(path)


# --- Results of the OpenMessaging Benchmark.


_MAX_MILLIS = 4_102_444_800_000  # the year 2100


def _of_result(path: Path) -> ComparedRun:
    result = parse_result(parse_json(read_text(path), str(path)), str(path))
    none = np.empty(0, np.int64)
    begin = result.facts.get("beginTime", 0)
    millis = begin if isinstance(begin, int | float) else 0  # some write a text without a time zone
    if not 0 <= millis < _MAX_MILLIS:
        raise PlanError(f"{path}: beginTime: {begin} are no milliseconds since 1970")
    start_ns = int(float(millis) * 1e6)
    name = result.workload or path.stem
    return ComparedRun(
        path, str(path), name, start_ns, Recorded(none, {}, {}), {}, (), result=result
    )


def _estimate_of_result(result: Result, run: str, latency: str, quantile: str) -> Estimate | None:
    name = f"{latency}_latency_{quantile}_seconds"
    samples = result.samples.get(name, np.empty(0))
    samples = samples[np.isfinite(samples) & (samples > 0)]
    value = result.totals.get(name, math.nan)
    if not (math.isfinite(value) and value > 0):
        if not samples.size:
            return None
        value = float(np.exp(np.log(samples).mean()))
    return comparison.estimate_of_samples(run, value, samples, result.step_seconds)


def started(run: ComparedRun) -> str:
    """Return when a run started, as text."""
    if not run.start_wall_ns:
        return "-"
    return datetime.fromtimestamp(run.start_wall_ns / SECOND_NS, UTC).strftime("%Y-%m-%d %H:%M")
