"""Hosts of the load that had hardly any CPU left, and the missed objectives that this may explain."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from detectors.affected_brokers import is_local, is_on
from detectors.attribution import UNKNOWN
from detectors.objectives import LEAST_SECONDS, MINUTE, Minute
from soak.core.model import Finding
from soak.core.plan.objectives import Objective
from soak.core.plan.plan import OUTAGE_DETECTOR
from soak.core.series import host_of, parse_series, source_of
from soak.core.units import SECOND_NS
from spark.batch.coverage import LOADING
from spark.batch.timeline import Ints, Timeline, leader_addresses

_BUSY = 0.9
"""Share of a host's CPU in use above which its clients may wait for it: of 2 cores a fifth of one is left."""
_SENDING = ("produce.",)


def busy_hosts(timeline: Timeline) -> dict[str, float]:
    """Return the hosts of the load with hardly any CPU left: by name the median of what was in use.

    A client that has to wait for the CPU measures its own host, and what is short all the time has no onset
    by which a cause could be found.
    """
    return _busy_in(timeline, LOADING, timeline.soak_seconds)


def busy_hosts_of(timeline: Timeline, found: Finding) -> dict[str, float]:
    """Return the hosts whose CPU may be why an objective was missed: by name the median in its slow minutes.

    Only where the cause is unknown, and the objective is about latency and was missed by slow minutes: lack
    of CPU at a client explains no failed message and no outage. A host with a broker is left out, as the
    cluster's own work may be what uses its CPU.
    """
    if found.kind != "objective" or found.state == "warning" or found.cause != UNKNOWN:
        return {}
    label = parse_series(found.series).label("objective")
    for at, objective in enumerate(timeline.plan.service_objectives):
        if str(objective) == label and objective.quantile is not None:
            slow = list(_slow_minutes(timeline, at, objective))
            other_minutes = found.after - len(slow)
            if not slow or other_minutes > found.before:
                return {}
            soak = timeline.soak_seconds
            seconds = soak[np.isin(soak // MINUTE, slow)]
            roles = _SENDING if objective.latency == "publish" else LOADING
            busy = _busy_in(timeline, roles, seconds)
            return {host: used for host, used in busy.items() if not _has_broker(timeline, host)}
    return {}


def _busy_in(timeline: Timeline, roles: tuple[str, ...], seconds: Ints) -> dict[str, float]:
    """Return the hosts of clients in these roles with hardly any CPU left in half of these seconds."""
    hosts = {host_of(source) for source in timeline.seconds if source.startswith(roles)}
    found = {}
    for name, (k, values) in timeline.series.items():
        source = source_of(name)
        if name != f"{source}|host_cpu_ratio" or host_of(source) not in hosts:
            continue
        used = values[np.isin(k // timeline.step, seconds // timeline.step)]
        if used.size and float(np.median(used)) >= _BUSY:
            found[host_of(source)] = round(float(np.median(used)), 3)
    return found


def _slow_minutes(timeline: Timeline, at: int, objective: Objective) -> Iterator[int]:
    """Give the numbers of the minutes that slow messages made bad, of the plan's objective at this place.

    Those with an outage, or in which failed and missed messages alone are too many, are left out.
    """
    joined: dict[int, Minute] = {}
    for part in timeline.minutes:
        for number, counts in part.items():
            joined.setdefault(number, Minute()).add(counts[at])
    failed = _failed_by_minute(timeline) if objective.latency == "publish" else {}
    outage = timeline.plan.detection.detectors[OUTAGE_DETECTOR].after // SECOND_NS
    for number, minute in joined.items():
        allowed = (1 - (objective.quantile or 0)) * minute.total
        waits = [max(lengths) for lengths in minute.waits({}).values()]
        if (
            minute.seconds.bit_count() >= LEAST_SECONDS
            and minute.bad > allowed >= failed.get(number, 0)
            and max(waits, default=0) < outage
        ):
            yield number


def _failed_by_minute(timeline: Timeline) -> dict[int, int]:
    """Return the messages of all producers that failed or were missed, by the number of the minute."""
    found: dict[int, int] = {}
    for rows in timeline.short.values():
        for k, missed, failed in rows[np.isin(rows[:, 0], timeline.soak_seconds)].tolist():
            found[k // MINUTE] = found.get(k // MINUTE, 0) + missed + failed
    return found


def _has_broker(timeline: Timeline, host: str) -> bool:
    """Return whether a broker runs on a host: by its own addresses at the start, and by those of brokers."""
    if host == timeline.run.host and timeline.run.own_brokers:
        return True
    seen = [one for one in leader_addresses(timeline).values() if one]
    planned = ",".join(timeline.plan.broker_config.addresses.values()).split(",")
    addresses = [one.strip().rpartition("//")[2].strip("/") for one in seen or planned]
    return any(is_local(one) or is_on(one, host) for one in addresses)
