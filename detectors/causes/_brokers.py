"""Which brokers a step is about: latency is kept by leader; channels of an untouched one explain nothing."""

from __future__ import annotations

import re

import numpy as np

from detectors.channels import column_of, source_of
from detectors.nearby import Nearby, between
from soak.core.model import Change

_LABELS = ("leader", "broker", "target", "instance", "node", "bookie")
_NUMBERED = re.compile(r"(?:broker|kafka|redpanda|pulsar|node|rp)[-_.]?(\d+)", re.IGNORECASE)
_OF_BROKERS = ("fsync_", "disk_", "node_disk_", "broker_log_", "retention_held_")
_SECONDS = 60
_LEAST = 5
_TOUCHED = 1.0 / 3.0  # of the whole step, on log10
_UNTOUCHED = 1.0 / 8.0


def untouched(change: Change, nearby: Nearby) -> frozenset[str]:
    """Return the leaders whose latency stayed while that of others stepped; none when all did."""
    rises = rises_by_leader(change, nearby)
    if not any(rise >= _TOUCHED for rise in rises.values()):
        return frozenset()
    return frozenset(leader for leader, rise in rises.items() if rise < _UNTOUCHED)


def rises_by_leader(change: Change, nearby: Nearby) -> dict[str, float]:
    """Return how much each leader's latency rose, on log10, as a share of the step."""
    column = column_of(change.series)
    quantile = dict(column.labels).get("quantile")
    low, high = change.interval
    step = np.log10(max(change.after, 1e-6) / max(change.before, 1e-6))
    found: dict[str, float] = {}
    for name, series in nearby.named(column.metric).items():
        labels = dict(column_of(name).labels)
        if "leader" not in labels or labels.get("quantile") != quantile or step <= 0.0:
            continue
        before = between(series, low - _SECONDS, low)
        after = between(series, high, min(high + _SECONDS, nearby.soak_end(change.onset_k)))
        if min(before.size, after.size) >= _LEAST:
            medians = (max(float(np.median(part)), 1e-6) for part in (before, after))
            was, became = medians
            rise = float(np.log10(became / was) / step)
            found[labels["leader"]] = max(found.get(labels["leader"], 0.0), rise)
    return found


def is_host_of_one(series: str, nearby: Nearby) -> bool:
    """True when a channel is of a metrics target, or of a host on which a broker's files are watched."""
    labels = dict(column_of(series).labels)
    source = source_of(series)
    return "target" in labels or any(
        source_of(name) == source and column_of(name).metric.startswith(_OF_BROKERS)
        for name in nearby.series
    )


def is_of(series: str, leaders: frozenset[str]) -> bool:
    """True when a channel names one of these brokers: by a label, by its host, or by its number."""
    if not leaders:
        return False
    names = set(names_of(series))
    return any(names & {leader, _host(leader), *_NUMBERED.findall(leader)} for leader in leaders)


def names_of(series: str) -> list[str]:
    """Return what a channel may call its broker: labels, their hosts and numbers, and its source's host."""
    labels = dict(column_of(series).labels)
    texts = [labels[key] for key in _LABELS if key in labels]
    texts.append(source_of(series).partition("@")[2])
    found = [*texts, *map(_host, texts)]
    found += [number for text in texts for number in _NUMBERED.findall(text)]
    return [name for name in found if name]


def _host(text: str) -> str:
    """Return `h` of `h:9092`."""
    return text.rpartition(":")[0] or text
