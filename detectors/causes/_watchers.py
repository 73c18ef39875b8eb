"""What a daemon of ours that only watches took of a host: one that is started again takes a core for a while.

Method:  the CPU seconds of such a daemon in the half minute from a second on in which it began to take more,
         in the interval of the onset or just after it. Where its host was measured and it was not, it was
         away. A step that is still there when the daemon is calm again is none of its making.
Assumes: a step, or a tail that grew: what comes again and again, or slowly, has another reason. Daemons that
         are clients of the cluster are left out: what those take follows what it does.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from detectors.causes._innocence import processors
from detectors.causes._moves import spacing_of
from detectors.channels import column_of, host_of, source_of
from detectors.nearby import Nearby, between
from soak.core import wording
from soak.core.model import Change, Evidence, Series

_WATCHING = frozenset({"alert", "detect-stream", "report"})
_KINDS = frozenset({"step", "tail"})
_SECONDS = 30
_LATE = (
    5  # after the interval of the onset: two for a new process to be seen, one for its first value
)
_LEAST_RATIO = 0.25  # of the host's processors, all those seconds
_LEAST_VALUES = 5
_SCORE = 0.5  # whatever else was measured comes first


def taken(change: Change, nearby: Nearby, hosts: Collection[str]) -> tuple[float, Evidence] | None:
    """Return what the busiest of them began to take of one of these hosts; None when it was little."""
    if change.kind not in _KINDS:
        return None
    counts = processors(nearby)
    known = {source_of(name): one.k for name, one in nearby.named("host_cpu_count").items()}
    found = [
        one
        for name, cores in nearby.named("host_daemon_cpu_cores").items()
        if (source := source_of(name)) in counts
        and host_of(source) in hosts
        and dict(column_of(name).labels).get("daemon") in _WATCHING
        and (one := _burst(_whole(cores, known[source]), counts[source], change, nearby))
        is not None
    ]
    worst = max(found, key=lambda one: one[0], default=None)
    return None if worst is None else (_SCORE, worst[1])


def _whole(cores: Series, k: NDArray[np.int64]) -> Series:
    """Return the cores in each second in which the host was measured, 0 where the daemon was away."""
    values = np.zeros(k.size)
    values[np.isin(k, cores.k)] = cores.values[np.isin(cores.k, k)]
    return Series(cores.name, k, values)


def _burst(
    cores: Series, count: float, change: Change, nearby: Nearby
) -> tuple[float, Evidence] | None:
    """Return the CPU seconds that it took beside what it took before, and the words for them."""
    low, high = change.interval
    before = between(cores, low - _SECONDS, low)
    if before.size < _LEAST_VALUES:
        return None
    was, end = float(before.mean()), nearby.soak_end(change.onset_k)
    least = was + _LEAST_RATIO * count
    starts = cores.k[(cores.k >= low) & (cores.k <= high + _LATE) & (cores.values >= least)]
    taken_after = [between(cores, int(k), min(int(k) + _SECONDS, end)) for k in starts]
    extra = [spacing_of(cores) * float((part - was).sum()) for part in taken_after]
    at = max(range(len(extra)), key=extra.__getitem__, default=-1)
    if at < 0 or extra[at] < _LEAST_RATIO * count * _SECONDS:
        return None
    start, part = int(starts[at]), taken_after[at]
    if _lasts(cores, start + _SECONDS, least, change, nearby):
        return None
    daemon = dict(column_of(cores.name).labels)["daemon"]
    off = start - change.onset_k
    became = float(part.mean())
    return extra[at], Evidence(
        f"{daemon} of soakd itself took {wording.amount(became, 'cores')} of the {count:g} processors "
        f"of {host_of(source_of(cores.name))} in {part.size * spacing_of(cores)} s from "
        f"{abs(off)} s {'before' if off < 0 else 'after'} the onset of the step on, and "
        f"{wording.amount(was, 'cores')} in the {_SECONDS} s before.",
        {"daemon": daemon, "before": was, "after": became, "cpu_seconds": extra[at]},
    )


def _lasts(cores: Series, since: int, least: float, change: Change, nearby: Nearby) -> bool:
    """True when latency is no better in the seconds after the burst in which the daemon was calm."""
    own = nearby.series.get(change.series)
    if own is None:
        return False
    is_after = (cores.k >= since) & (cores.k < since + _SECONDS) & (cores.values < least)
    values = own.values[np.isin(own.k, cores.k[is_after])]
    if values.size < _LEAST_VALUES:
        return False
    return bool(np.median(values) > (change.before + change.after) / 2.0)
