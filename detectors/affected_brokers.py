"""Which brokers a step is about: latency is kept by leader; channels of an untouched one explain nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from detectors.nearby import Nearby, TimedEvent, between
from soak.core.model import Change
from soak.core.series import host_of, parse_series, source_of

_INFO = "leader_info"
PLACE_LABELS = ("broker", "target", "pod", "instance", "node", "bookie")
"""Labels that say which of several hosts or pages a channel is of; a later one says it more closely."""
_LABELS = ("leader", *PLACE_LABELS)
_NUMBERED = re.compile(r"(.*(?<![a-z])(?:broker|kafka|redpanda|pulsar|node|rp)[-_]?)(\d+)")
_PORT = re.compile(r":\d+$")
_LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})
_PROBE = "probe"  # the host of a load says nothing of a broker
_OF_BROKERS = ("fsync_", "disk_", "node_disk_", "broker_log_", "retention_held_")
_OF_CLUSTER = "cluster_"  # about the whole cluster, whichever host asked it
_OF_FILES = ("gc_", "segment_")  # events of logs and folders; others are of the whole cluster
_SECONDS = 60
_LEAST = 5
_TOUCHED = 1.0 / 3.0  # of the whole step, on log10
_UNTOUCHED = 1.0 / 8.0


def untouched(names: Iterable[str], change: Change, nearby: Nearby) -> frozenset[str]:
    """Return which of these channels are of leaders whose latency stayed while that of others stepped."""
    rises = rises_by_leader(change, nearby)
    stayed = {leader for leader, rise in rises.items() if rise < _UNTOUCHED}
    if not stayed or not any(rise >= _TOUCHED for rise in rises.values()):
        return frozenset()
    known = _known(rises, nearby)
    of = {name: _leaders_of(name, known) for name in names}
    return frozenset(name for name, leaders in of.items() if leaders and leaders <= stayed)


def events_of_touched(change: Change, nearby: Nearby) -> tuple[TimedEvent, ...]:
    """Return the events but for those from the files of an untouched broker's host."""
    local = {one.source for one in nearby.events if one.event.kind.startswith(_OF_FILES)}
    silent = untouched((f"{source}|" for source in local), change, nearby)
    return tuple(
        one
        for one in nearby.events
        if not (one.event.kind.startswith(_OF_FILES) and f"{one.source}|" in silent)
    )


def may_be_of(series: str, broker: str, nearby: Nearby) -> bool:
    """True unless a channel is known to be of other brokers than the one of this address or page."""
    known = _known((), nearby)
    of, named = _leaders_of(series, known), _named((broker,), known)
    return not of or not named or not of.isdisjoint(named)


def leaders_of(names: Iterable[str], leaders: Iterable[str], nearby: Nearby) -> frozenset[str]:
    """Return which of these leaders, by id or address, one of these channels at least is known to be of."""
    known = _known(leaders, nearby)
    return frozenset[str]().union(*(_leaders_of(name, known) for name in names))


def rises_by_leader(change: Change, nearby: Nearby) -> dict[str, float]:
    """Return how much each leader's latency rose, on log10, as a share of the step."""
    column = parse_series(change.series)
    quantile = dict(column.labels).get("quantile")
    low, high = change.interval
    step = np.log10(max(change.after, 1e-6) / max(change.before, 1e-6))
    found: dict[str, float] = {}
    for name, series in nearby.named(column.metric).items():
        labels = dict(parse_series(name).labels)
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


def hosts(nearby: Nearby) -> set[str]:
    """Return the hosts on which a broker's own files are watched."""
    return {
        host_of(source_of(name))
        for name in nearby.series
        if parse_series(name).metric.startswith(_OF_BROKERS)
        and "target" not in dict(parse_series(name).labels)
    }


@dataclass(frozen=True, slots=True)
class _Known:
    """Where leaders are, the stems of hosts whose numbers are theirs, and labels that several hosts give."""

    addresses: Mapping[str, AbstractSet[str]]  # by leader: one that moved has had two
    stems: frozenset[str]
    shared: frozenset[str]


def _known(leaders: Iterable[str], nearby: Nearby) -> _Known:
    ids = frozenset(leaders)
    addresses = {leader: set() if leader.isdigit() else {leader.lower()} for leader in ids}
    for name in nearby.named(_INFO):  # also of those without a latency
        info = dict(parse_series(name).labels)
        address = info.get("address", "").lower()
        if "leader" in info and address:
            addresses.setdefault(info["leader"], set()).add(address)
    hosts: dict[str, set[str]] = {}  # by label
    for name in nearby.series:
        labels, host = _texts(name)
        for text in (*labels, host):
            hosts.setdefault(text, set()).add(host)
    numbers: dict[str, dict[str, set[str]]] = {}  # by stem and number the domains
    for stem, number, domain in _numbered(hosts):
        numbers.setdefault(stem, {}).setdefault(number, set()).add(domain)
    is_contradicted = any(  # by the names that hosts have in the cluster
        number != leader for leader, ones in addresses.items() for _, number, _ in _numbered(ones)
    )
    return _Known(
        addresses,
        frozenset(
            stem
            for stem, found in numbers.items()
            if not is_contradicted and _are_ids(found, addresses.keys())
        ),
        frozenset(text for text, found in hosts.items() if len(found - {""}) > 1),
    )


def _are_ids(numbers: Mapping[str, set[str]], leaders: AbstractSet[str]) -> bool:
    """True when each leader's id is the number of one host, and no number is left.

    With a host more, or one fewer, ids from 0 on may lie on hosts from 1 on.
    """
    return numbers.keys() == leaders and all(
        len(domains - {""}) <= 1 for domains in numbers.values()
    )


def _leaders_of(series: str, known: _Known) -> frozenset[str]:
    """Return the leaders that a channel may be of, none where that is not known: by its labels.

    By its probe's host where no label names a host, or one that is as good on every host. An address of
    a host itself that several hosts ask is of each its own, whatever the load finds there.
    """
    if parse_series(series).metric.startswith(_OF_CLUSTER):
        return frozenset()
    labels, host = _texts(series)
    found = _named((one for one in labels if not (is_local(one) and one in known.shared)), known)
    if found or any(not is_local(text) and text not in known.shared for text in labels):
        return found
    return _named((host,), known)


def _named(texts: Iterable[str], known: _Known) -> frozenset[str]:
    """Return the leaders of these very names, or those on these hosts, or with their numbers."""
    wanted = {text.lower() for text in texts}
    exact = frozenset(
        leader for leader, ones in known.addresses.items() if {leader.lower(), *ones} & wanted
    )
    if exact:
        return exact
    there = {
        leader
        for leader, ones in known.addresses.items()
        if any(_is_one_host(_host(one), _host(text)) for one in ones for text in wanted)
    }
    numbers = {number for stem, number, _ in _numbered(wanted) if stem in known.stems}
    return frozenset(there or known.addresses.keys() & numbers)


@lru_cache(maxsize=8192)
def _texts(series: str) -> tuple[tuple[str, ...], str]:
    """Return the labels that may name a broker, and the host of the probe, "" of any other source."""
    labels = dict(parse_series(series).labels)
    role, _, host = source_of(series).partition("@")
    return tuple(labels[key] for key in _LABELS if key in labels), host if role == _PROBE else ""


def _numbered(texts: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Give stem, number and domain of such as `kafka2` or `broker-2.example.com`."""
    for text in texts:
        first, _, domain = _host(text).partition(".")
        found = _NUMBERED.match(first)
        if found is not None:
            yield found[1], str(int(found[2])), domain


def _host(text: str) -> str:
    """Return `h` of `H:9092`."""
    return _PORT.sub("", text).lower()


def host_part(address: str) -> str:
    """Return the host of an address; the names of the local one are one."""
    return "localhost" if is_local(address) else _host(address)


def host_seen(address: str, source: str) -> str:
    """Return the host of an address; of a local one that of the source that gave it."""
    return _host(host_of(source) if is_local(address) else address)


def is_one_host(one: str, other: str) -> bool:
    """True for two names of one host, as `host_seen` returns them."""
    return bool(one) and (one == other or _is_one_host(one, other))


def _is_one_host(one: str, other: str) -> bool:
    """True for `h` and `h`, or `h.example.com`."""
    return (
        bool(one and other)
        and not (one in _LOCAL or other in _LOCAL)
        and (one == other or one.startswith(f"{other}.") or other.startswith(f"{one}."))
    )


def is_same(address: str, other: str) -> bool:
    """True when two addresses are one: the same, or one port of a host that one names with its domain."""
    one, two = address.lower(), other.lower()
    is_port_same = (
        _PORT.search(one) is not None and one.rpartition(":")[2] == two.rpartition(":")[2]
    )
    return one == two or (is_port_same and _is_one_host(_host(one), _host(two)))


def is_on(address: str, host: str) -> bool:
    """True when an address is one of this host, by its name."""
    return _is_one_host(_host(address), _host(host))


def is_local(text: str) -> bool:
    """True for an address by which each host reaches itself."""
    return _host(text) in _LOCAL
