"""Metrics pages: what each shows, and so whose it is.

A page goes by its target and, where a server scrapes it, by its pod and instance there. One that shows only
what exporters do is no broker's. One that shows nothing, or a JVM alone, may be one.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

from detectors.affected_brokers import host_part
from detectors.nearby import Nearby
from soak.core.model import Series
from soak.core.series import parse_series

OF_EVERY_PAGE = frozenset({"up", "scrape_duration_seconds"})
"""Metrics of a page itself, whatever it shows."""
_OF_HOSTS = ("node_",)
_OF_EXPORTERS = (*_OF_HOSTS, "kminion_", "kafka_brokers", "kafka_consumergroup_")
"""Metrics of node_exporter, KMinion and kafka_exporter: other processes than a broker."""
_OF_BROKERS = ("kafka_", "redpanda_", "vectorized_", "pulsar_")
_OF_BOOKIES = ("bookie_", "bookkeeper_server_")

_Key = tuple[str, str, str]


class Pages:
    """The pages around one onset."""

    def __init__(self, nearby: Nearby) -> None:
        self._nearby = nearby

    @cached_property
    def of_brokers(self) -> dict[str, Series]:
        """Return the channels `up` of pages that may be of brokers."""
        return {name: one for name, one in self._up.items() if self.may_be_of_broker(name)}

    def may_be_of_broker(self, series: str) -> bool:
        """True unless a channel's page is an exporter's, or is a server that scrapes others."""
        target, *scraped = _key(series)
        shown = self._shown.get(_key(series), set())
        is_server = target in self._servers and not any(scraped)
        return not is_server and not _is_all(shown, _OF_EXPORTERS)

    def is_of_host(self, series: str) -> bool:
        """True where a channel's page is that of a host itself: another process than a broker there."""
        return _is_all(self._shown.get(_key(series), set()), _OF_HOSTS)

    def is_of_bookie(self, series: str) -> bool:
        """True where a channel's page shows what a bookie does, maybe beside a broker."""
        return any(one.startswith(_OF_BOOKIES) for one in self._shown.get(_key(series), ()))

    @cached_property
    def _up(self) -> dict[str, Series]:
        return self._nearby.named("up")

    @cached_property
    def _servers(self) -> frozenset[str]:
        """Return the targets that are servers, of which pages are known that they scrape."""
        return frozenset(target for target, *scraped in map(_key, self._up) if any(scraped))

    @cached_property
    def _shown(self) -> dict[_Key, set[str]]:
        """Return the metrics that each page shows besides those of every page."""
        found: dict[_Key, set[str]] = {}
        for name in self._nearby.series:
            one = parse_series(name)
            if one.label("target") and one.metric not in OF_EVERY_PAGE:
                for key in {_key(name), (one.label("target"), "", "")}:  # a collector has several
                    found.setdefault(key, set()).add(one.metric)
        return found


def is_of_bookie(series: str) -> bool:
    """True for a channel of a bookie."""
    one = parse_series(series)
    return one.label("bookie") != "" or one.metric.startswith(_OF_BOOKIES)


def is_of_broker(metric: str) -> bool:
    """True for what a broker's own page shows of it."""
    return metric.startswith(_OF_BROKERS) and not metric.startswith(_OF_EXPORTERS)


def is_of_host(metric: str) -> bool:
    """True for what a page shows of a host itself."""
    return metric.startswith(_OF_HOSTS)


def page_name(series: str) -> str:
    """Return what to call the page of a channel: its target; if a server scrapes it, its pod or host."""
    one = parse_series(series)
    scraped = host_part(one.label("instance"))
    return one.label("pod") or scraped or one.label("target") or series


def is_page(series: str, target: str) -> bool:
    """True for a channel of the page of this target itself, and not of one that it scrapes."""
    return _key(series) == (target, "", "")


def _key(series: str) -> _Key:
    one = parse_series(series)
    return one.label("target"), one.label("pod"), one.label("instance")


def _is_all(metrics: Collection[str], prefixes: tuple[str, ...]) -> bool:
    return bool(metrics) and all(one.startswith(prefixes) for one in metrics)
