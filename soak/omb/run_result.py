"""The journals of one of our own runs to a `Result`: samples of 10 s, histograms added up exactly.

Publish latency counts from the actual send, as the benchmark counts it; how late that was is a delay of
its own. End-to-end latency counts from the intended time: what it is from the send is not recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction

import numpy as np

from soak.core.errors import RunFolderError
from soak.core.plan import Plan
from soak.core.units import SECOND_NS
from soak.omb.journal_amounts import Amounts, Told
from soak.omb.merged import Cells
from soak.omb.profile import NOMINAL_STEP_MILLIS
from soak.omb.result import Result
from soak.omb.run_facts import facts
from soak.omb.run_latencies import RunLatencies
from soak.omb.run_sample import RunSample

STEP = NOMINAL_STEP_MILLIS // 1_000

Second = tuple[int, Sequence[Told]]
"""Second k and what all sources recorded of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a run folder says of a run beside its journals; the seconds begin_k <= k < end_k count."""

    plan: Plan
    rate: Fraction  # of the soak, before any profile
    name: str
    start_wall_ns: int
    begin_k: int
    end_k: int


def collect(source: Source, seconds: Iterable[Second]) -> Result:
    """Return the result of the measured seconds, which come in ascending order of k.

    A record of a second that is over was written after a clock was set back: left out, and told.

    Raises:
        RunFolderError: there is none of these seconds.
    """
    cells, amounts = Cells(), Amounts()
    sample = RunSample(source.plan.consumers, cells, amounts)
    whole = RunLatencies(cells, amounts)
    rows: list[dict[str, float]] = []
    late, last_k = 0, source.begin_k - 1
    for k, told in seconds:
        if k < source.begin_k or k >= source.end_k:
            continue
        if k < last_k:
            late += len(told)
            continue
        while (k - source.begin_k) // STEP > len(rows):
            rows.append(sample.values())
            whole.absorb(sample.latencies)
            sample.clear()
        last_k = k
        sample.add(k, told)
    if last_k < source.begin_k:
        raise RunFolderError(f"the run {source.name} has no record of its soak yet")
    rows.append(sample.values())
    whole.absorb(sample.latencies)
    return _result(source, rows, whole, last_k, late)


def _result(
    source: Source, rows: list[dict[str, float]], whole: RunLatencies, last_k: int, late: int
) -> Result:
    remarks = []
    if late:
        remarks.append(
            f"{late} records of seconds that were over are left out: a clock was set back"
        )
    return Result(
        dialect="",
        workload=source.name,
        driver=source.plan.broker_kind.capitalize(),
        facts={
            **facts(source.plan, source.rate),
            "beginTime": _moment(source.start_wall_ns),
            "endTime": _moment(source.start_wall_ns + (last_k + 1) * SECOND_NS),
        },
        step_seconds=float(STEP),
        seconds=STEP * np.arange(1.0, len(rows) + 1),
        samples={name: np.array([row[name] for row in rows]) for name in rows[0]},
        totals=whole.statistics(),
        distributions=whole.distributions(),
        remarks=tuple(remarks),
    )


def _moment(wall_ns: int) -> str:
    return datetime.fromtimestamp(wall_ns // SECOND_NS, UTC).strftime("%Y-%m-%d-%H-%M-%S")
