"""Where a channel is measured, which brokers and bookies there are, and which of them are covered.

Method:  a place is a host or a page. A broker is covered by the channels that its id, its address or the
         number of its host maps to it. Where these tell too little, one observer that watches as many hosts
         as there are brokers covers all, for it counts none twice; two observers may count the same host.
         A broker goes by the address at which it is asked, also where a page of it is suspected.
Assumes: drives and CPU that are watched are the brokers'. In a run without labels of leaders one broker
         leads all, for they are recorded from two on. Of the leaders beyond those with a name there is one,
         where the cluster does not say how many brokers it has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from detectors import affected_brokers
from detectors.affected_brokers import (
    PLACE_LABELS,
    host_part,
    host_seen,
    is_local,
    is_one_host,
    is_same,
)
from detectors.causes import pages
from detectors.causes.answers import ROUND_TRIPS
from detectors.nearby import Nearby
from soak.core.series import host_of, parse_series, source_of
from soak.core.wording import OTHERS_NAME

_OF_PULSAR = "pulsar_"
_LEDGERS = ("ledger_created", "ledger_roll", "ledger_deletion")
_COPIES_BEHIND = "cluster_under_replicated_partitions"
_LISTS = {
    _COPIES_BEHIND: "follower",
    "kminion_kafka_broker_log_dir_size_bytes": "broker_id",
}
"""Metrics with a channel for each broker of the cluster, and the label that names it."""
_COUNTS = frozenset({"redpanda_cluster_brokers", "kafka_brokers"})

_Addresses = dict[str, set[tuple[str, str]]]
"""By id or address of a broker: the addresses at which it is asked, each with who named it."""


class Place(NamedTuple):
    """A host or a page: what watches it, and the labels that distinguish it from others, in their order."""

    source: str
    labels: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the name that an operator looks for: of the labels the closest, else the host."""
        return self.labels[-1] if self.labels else host_of(self.source)

    @property
    def host(self) -> str:
        """Return the host as its name says; a local name is the host of the source."""
        return host_seen(self.name, self.source)

    def is_same_host(self, other: Place) -> bool:
        """True for places that are known to be of one host."""
        return self == other or is_one_host(self.host, other.host)


def place_of(series: str) -> Place:
    """Return where a channel is measured."""
    labels = dict(parse_series(series).labels)
    found = tuple(labels[key] for key in PLACE_LABELS if labels.get(key))
    return Place(parse_series(series).source, found)


# --- who must be watched


@dataclass(frozen=True, slots=True)
class Members:
    """The brokers, or bookies, of a cluster, by id or address, with the hosts on which each may be.

    `machine`: the host on which all listen at local addresses, or "". `is_whole`: their number is known.
    `unnamed`: so many more, at least, lead under one name that they share.
    """

    hosts: Mapping[str, AbstractSet[str]]
    noun: str = "brokers"
    machine: str = ""
    is_whole: bool = True
    unnamed: int = 0

    @property
    def count(self) -> int:
        return len(self.hosts) + self.unnamed


def cluster_size(nearby: Nearby) -> int:
    """Return how many brokers the cluster says it has; 0 where it is not asked, or its list is cut short."""
    listed: dict[tuple[str, str, str], set[str]] = {}  # by who asked, and what
    counts = [0]
    for name, series in nearby.series.items():
        one = parse_series(name)
        if one.metric in _LISTS:
            key = one.source, one.label("target"), one.metric
            listed.setdefault(key, set()).add(one.label(_LISTS[one.metric]))
        elif one.metric in _COUNTS and series.values.size:
            counts.append(int(series.values.max()))
    lists = [len(found) for found in listed.values() if OTHERS_NAME not in found]
    return max(lists + counts)


def brokers(nearby: Nearby) -> Members:
    """Return the brokers that lead, by id, or those that are asked short questions where these are more."""
    led, asked, _ = _named_brokers(nearby)
    has_others = led.pop(OTHERS_NAME, None) is not None
    is_led = len(led) + has_others >= len(asked)
    known = led if is_led else asked
    unnamed = max(1, cluster_size(nearby) - len(led)) if is_led and has_others else 0
    hosts = {one: {host_seen(*at) for at in seen} for one, seen in known.items()}
    every = {host for found in hosts.values() for host in found}
    is_local_to_one = len(every) == 1 and all(
        seen and all(is_local(address) for address, _ in seen) for seen in known.values()
    )
    return Members(hosts, machine=min(every) if is_local_to_one else "", unnamed=unnamed)


def _named_brokers(nearby: Nearby) -> tuple[_Addresses, _Addresses, _Addresses]:
    """Return the brokers that lead, those that are asked short questions, and those that a cluster lists."""
    led: _Addresses = {}
    asked: _Addresses = {}
    listed: _Addresses = {}
    for one in map(parse_series, nearby.series):
        leader, target = one.label("leader"), one.label("target")
        follower = one.label("follower") if one.metric == _COPIES_BEHIND else ""
        if leader:
            named = led.setdefault(leader, set())
            if address := one.label("address") or (leader if ":" in leader else ""):
                named.add((address, one.source))
        elif target and one.metric in ROUND_TRIPS:
            asked.setdefault(target, set()).add((target, one.source))
        elif ":" in follower:
            listed.setdefault(follower, set()).add((follower, one.source))
    return led, asked, listed


def storing(nearby: Nearby) -> Members:
    """Return whose drives keep the messages: bookies where there are some, else the brokers.

    Bookies are those whose storage is asked or, if these are more, those whose pages are read. Where brokers
    listen at local addresses alone, bookies are on the same machine.
    """
    found = brokers(nearby)
    names = [parse_series(name) for name in nearby.series]
    asked: dict[str, set[str]] = {}
    read: dict[str, set[str]] = {}
    for name, one in zip(nearby.series, names, strict=True):
        if pages.is_of_bookie(name):
            place = place_of(name)
            known = asked if one.label("bookie") else read
            known.setdefault(place.name, set()).add(place.host)
    bookies = asked if len(asked) >= len(read) else read
    is_pulsar = (
        bool(bookies)
        or any(one.metric.startswith(_OF_PULSAR) or ":" in one.label("leader") for one in names)
        or any(one.event.kind in _LEDGERS for one in nearby.events)
    )
    if found.machine or not is_pulsar:
        return found
    return Members(bookies, "bookies", is_whole=bool(bookies))


def every_member(nearby: Nearby) -> Members:
    """Return the brokers, with the bookies where there are some."""
    found, others = brokers(nearby), storing(nearby)
    hosts = {**found.hosts, **others.hosts}
    noun = found.noun if found.noun == others.noun else "brokers and bookies"
    return Members(hosts, noun, found.machine, others.is_whole, found.unnamed)


def unwatched(what: str, channels: Collection[str], members: Members, nearby: Nearby) -> str:
    """Return `what` of how many members none of these channels is of, "" where each has one.

    Where it is not known which of them a channel is of, the number is the least that there are.
    """
    if not members.is_whole:
        return f"{what} of the {members.noun}"
    known = members.count
    left = known - len(_covered(channels, members, nearby))
    most = max(_watched_by_each(channels), default=0)
    if left == 0 or most >= known:
        return ""
    least = "at least " if members.unnamed else ""
    return f"{what} of {min(left, known - most)} of {least}{known} {members.noun}"


def _covered(channels: Collection[str], members: Members, nearby: Nearby) -> AbstractSet[str]:
    """Return the members that one of these channels, at least, is known to be of."""
    mapped = affected_brokers.leaders_of(channels, members.hosts.keys(), nearby)
    places = {place_of(name) for name in channels}
    return {
        one
        for one, hosts in members.hosts.items()
        if one in mapped or any(is_one_host(place.host, host) for place in places for host in hosts)
    }


def _watched_by_each(channels: Collection[str]) -> list[int]:
    """Return how many hosts each observer watches: our probes on hosts of their own, or a reader of pages.

    Pages of several kinds may be of one host, so those with one metric are counted.
    """
    seen: dict[tuple[str, str], set[str]] = {}
    for name in channels:
        place = place_of(name)
        observer = (place.source, parse_series(name).metric) if place.labels else ("", "")
        seen.setdefault(observer, set()).add(place.host)
    return [len(hosts) for hosts in seen.values()]


# --- the broker of a page


class Suspects:
    """What to call the brokers that are suspected: the addresses at which they are asked.

    The address is known of a page whose labels or number say which broker it is of, and of one on a host at
    which one broker alone is asked, unless more pages that show the same are there. A name that several hosts
    share, or that is the host of a probe or client, is no page of a broker. Nor is that of a bookie or an
    exporter.
    """

    def __init__(self, nearby: Nearby) -> None:
        self._nearby = nearby

    def address(self, page: str) -> str:
        """Return the host and port at which the broker of a page is asked; the page's name if not known."""
        channels = self._channels.get(page, [])
        hosts = {place_of(name).host for name in channels}
        if len(hosts) != 1 or page in self._sources or any(map(pages.is_of_bookie, channels)):
            return page
        shown = {parse_series(name).metric for name in channels} - pages.OF_EVERY_PAGE
        if shown and not any(map(pages.is_of_broker, shown)):
            return page
        (host,) = hosts
        led, asked, listed = self._named
        known = [
            (broker, address, source)
            for brokers_of in (asked, listed, led)
            for broker, seen in brokers_of.items()
            for address, source in sorted(seen)
        ]
        on_host = _distinct(
            address for _, address, source in known if is_one_host(host_seen(address, source), host)
        )
        named = affected_brokers.leaders_of(channels, [*asked, *listed], self._nearby)
        named = named or affected_brokers.leaders_of(channels, led, self._nearby)
        found = (
            _distinct(address for broker, address, _ in known if broker in named)
            if named
            else on_host
        )
        is_one_missed = 0 < len(on_host) < self._pages_alike(shown, host)
        return found[0] if len(found) == 1 and not is_one_missed else page

    @cached_property
    def _channels(self) -> dict[str, list[str]]:
        """Return the channels of each page or host, by what a cause may call it."""
        found: dict[str, list[str]] = {}
        for name in self._nearby.series:
            for page in _page_names(name):
                found.setdefault(page, []).append(name)
        return found

    @cached_property
    def _sources(self) -> frozenset[str]:
        return frozenset(host_of(source_of(name)) for name in self._nearby.series)

    @cached_property
    def _named(self) -> tuple[_Addresses, _Addresses, _Addresses]:
        return _named_brokers(self._nearby)

    @cached_property
    def _showing(self) -> dict[str, set[Place]]:
        """Return the pages that show each metric."""
        found: dict[str, set[Place]] = {}
        for name in self._nearby.series:
            place = place_of(name)
            if place.labels:
                found.setdefault(parse_series(name).metric, set()).add(place)
        return found

    def _pages_alike(self, metrics: Iterable[str], host: str) -> int:
        """Return how many pages on a host, at most, show one of these metrics."""
        seen = (
            {place.name for place in self._showing.get(metric, ()) if is_one_host(place.host, host)}
            for metric in metrics
        )
        return max(map(len, seen), default=0)


def _distinct(addresses: Iterable[str]) -> list[str]:
    """Return the addresses in their order, without a second name of the same one."""
    found: list[str] = []
    for address in addresses:
        if not any(is_same(address, other) for other in found):
            found.append(address)
    return found


def _page_names(series: str) -> AbstractSet[str]:
    """Return what a cause may call the page or host that a channel is of; none for its probe's own."""
    labels = dict(parse_series(series).labels)
    names = {labels.get(key, "") for key in PLACE_LABELS}
    return (names | {host_part(labels.get("instance", ""))}) - {""}
