"""Seconds before a daemon came, as a probe's source remembers them: recorded before the first of our own.

A daemon that starts late, or again after a while, has a gap in its journal. What a Prometheus server has
scraped meanwhile belongs there, in the same source and in order. Servers are asked on threads of their own:
one that hangs holds up the start no longer than `PATIENCE_NS`, and its probe alone after that.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Mapping
from itertools import groupby

from soak.core.journal_text import columns_line
from soak.core.model import Column, Record
from soak.core.ports import Clock, Probe
from soak.core.units import SECOND_NS
from soak.daemons.context import Journaling
from soak.daemons.recollection import Recollection

LOG = logging.getLogger("soak.daemons.earlier")
LEAST_SECONDS = 10  # a shorter gap is left: asking would make another
PATIENCE_NS = 10 * SECOND_NS  # what is not there by then stays a gap


def make_up(
    to: Journaling,
    probes: Mapping[str, Probe],
    begin_k: int,
    stop: threading.Event,
    clock: Clock,
    patience_ns: int = PATIENCE_NS,
) -> dict[str, Probe]:
    """Record what is remembered of second `begin_k` and those after it.

    Returns the probes to be read from now on: one that is still being asked fails until it is not.
    """
    grid = to.grid
    now_k = grid.k_at(clock.mono_ns())
    if now_k - begin_k < LEAST_SECONDS:
        return dict(probes)
    span = grid.wall_of(begin_k), grid.wall_of(now_k)
    asked = {
        name: Recollection(name, probe, earlier, span)
        for name, probe in probes.items()
        if (earlier := getattr(probe, "earlier", None)) is not None  # only a source with a memory
    }
    if not asked:
        return dict(probes)
    limit_ns = clock.mono_ns() + patience_ns
    rows = heapq.merge(
        *(one.rows(stop, patience_ns) for one in asked.values()), key=lambda row: row[0]
    )
    made_up = 0
    for k, group in groupby(rows, lambda row: (row[0] - grid.start_wall_ns) // SECOND_NS):
        if stop.is_set() or clock.mono_ns() > limit_ns:
            LOG.warning("earlier_seconds_left_out from_k=%d to_k=%d", k, now_k)
            break
        if begin_k <= k < now_k:
            values = {column: value for _, samples in group for column, value in samples}
            _append(to, k, values)
            made_up += 1
    LOG.info("earlier_seconds_recorded count=%d from_k=%d to_k=%d", made_up, begin_k, now_k)
    return {**probes, **{name: one.given_up() for name, one in asked.items()}}


def _append(to: Journaling, k: int, values: Mapping[Column, float]) -> None:
    columns = tuple(values)
    record = Record(
        k=k,
        inc=to.writer.inc,
        at_ns=to.grid.wall_of(k + 1),
        length_ns=SECOND_NS,
        columns_id=columns_line(columns).id,
        values=tuple(values.values()),
    )
    to.writer.append(record, columns)
