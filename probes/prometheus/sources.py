"""Where metrics come from: an exposition page, or the scraped points of a Prometheus server."""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlencode

from probes.common.counters import Point, Points
from probes.common.exposition import MAX_LABEL_BYTES, MAX_SERIES, ExpositionParser, one_of
from soak.clients.http import OK, HttpClient, HttpError
from soak.core import json_text
from soak.core.errors import ProbeError
from soak.core.ports import Clock
from soak.core.series import Labels
from soak.core.units import SECOND_NS

_START_SECONDS = 60.0  # asked for at first: a rate needs two scrapes
# Asked for again: a scrape has the time of its start, and is there once it has ended.
_OVERLAP_SECONDS = 10.0
# Asked for where a minute holds nothing: no query gives an older series (`--query.lookback-delta`).
_STALE_SECONDS = 300.0
_MAX_SECONDS = 600.0

SCRAPED = "up"
"""A server's own metric of each page: 1 where its last scrape succeeded."""

_SCRAPER_LABELS = frozenset({"job", "prometheus", "prometheus_replica", "replica", "__replica__"})
# Of all series of a page that Prometheus Operator finds: it may be behind several services.
_SERVICE_LABELS = frozenset({"service", "endpoint"})
_PAGE_LABELS: tuple[str, ...] = ("instance", "pod")
"""Labels that name the page of a series; on Kubernetes only the pod has the name of a broker."""

# VictoriaMetrics refuses a query of more than 16 KiB (`-search.maxQueryLen`).
_MAX_PATTERN = 14_000
_ADDRESS = re.compile(r"(?:\w+://)?(?:\[[^]]*\]|[^:]*):\d{1,5}", re.ASCII)  # fd00::17 has no port

_NATIVE = frozenset({"histogram", "histograms"})  # in an answer, in place of the values of a series

_STARTED = "process_start_time_seconds"
_SAME_START_SECONDS = 5.0  # some are counted from the boot, whose time moves with the clock
_MAX_PROCESSES = 64
_RETURNS = 3

_SCRAPER_GONE_NS = 120 * SECOND_NS
_RENEWALS = 3  # that a period is learnt from
_MOST_UNCHANGED = 60  # fetches between two of them
_WORD_END = re.compile(r"[_.:]")

# Forbidden, not allowed, not implemented: some proxies take a POST for writing
# (https://github.com/prometheus/client_golang/issues/1619).
_POST_REFUSED = frozenset({403, 405, 501})


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of a fetch: points by name, and the names with damaged lines.

    `copied`: names on a page whose series are not new.
    """

    points: Points
    damaged: AbstractSet[str] = frozenset()
    copied: AbstractSet[str] = frozenset()


class MetricsSource(Protocol):
    """Where metrics come from."""

    @staticmethod
    def kept(labels: Mapping[str, str]) -> tuple[str, ...]:
        """Return which labels of a series are never aggregated over."""
        ...

    def fetch(self) -> Fetched:
        """Return the newest points.

        Raises:
            ProbeError: there is no answer, or one that is not of this kind of source.
        """
        ...

    def until(self, end_ns: int, seconds: float) -> Fetched:
        """Return the points of so many seconds before an instant of the wall clock; as `fetch`."""
        ...

    def close(self) -> None: ...


class RenewedMetrics:
    """Tells metrics that an exporter makes anew every few seconds from those made when they are requested.

    The copies in between hold no new points. Counters would stand still in them, and grow by all that came
    together in one second. Metrics are known to be of that kind once their last three changes came after two
    unchanged fetches or more each; idle ones are, after twice the longest pause, read as they are.
    """

    def __init__(self) -> None:
        self._series: Mapping[str, Mapping[Labels, float]] = {}
        self._unchanged = 0
        self._pauses: deque[int] = deque(maxlen=_RENEWALS)  # in fetches

    def is_copy(self, series: Mapping[str, Mapping[Labels, float]]) -> bool:
        """Return whether these are the series of the fetch before, of metrics that are made anew at times."""
        if series != self._series:
            if self._series:
                self._pauses.append(min(self._unchanged, _MOST_UNCHANGED))
            self._series, self._unchanged = series, 0
            return False
        self._unchanged += 1
        is_known = len(self._pauses) == _RENEWALS and min(self._pauses) > 1
        return is_known and self._unchanged <= 2 * max(self._pauses)


class OneProcess:
    """Tells by their starts whether several processes answer in turn, as brokers behind a proxy do.

    The counters of one would seem to leap to those of the next. One that restarts has a new start; processes
    share an address once those that had answered before answered again three times.
    """

    def __init__(self) -> None:
        self._starts: deque[float] = deque(maxlen=_MAX_PROCESSES)  # the newest answer's last
        self._returns = 0

    def is_shared(self, starts: Sequence[float]) -> bool:
        """Return whether several processes answer, the last with these starts; more than one say nothing."""
        if len(starts) == 1 and math.isfinite(starts[0]):
            known = [one for one in self._starts if abs(one - starts[0]) <= _SAME_START_SECONDS]
            if not known:
                self._starts.append(starts[0])
            elif self._starts[-1] not in known:
                self._returns += 1
                self._starts.remove(known[0])
                self._starts.append(known[0])
        return self._returns >= _RETURNS


class MetricsPage:
    """A page in Prometheus' text format.

    The metrics of one program begin with the same word, and are made together. An exporter that makes those
    of a broker anew at times may show its own as they are.
    """

    def __init__(
        self,
        url: str,
        http: HttpClient,
        names: AbstractSet[str],
        clock: Clock,
        max_series: int = MAX_SERIES,
    ) -> None:
        self._url = url
        self._http = http
        self._names = names
        self._exposition = ExpositionParser({*names, _STARTED}, max_series)
        self._process = OneProcess()
        self._renewed: dict[str, RenewedMetrics] = {}  # by program
        self._clock = clock

    @staticmethod
    def kept(labels: Mapping[str, str]) -> tuple[str, ...]:
        """Return the labels that name a page: a collector has those of several brokers on its own."""
        return _labels_of_page(labels) if "instance" in labels else _PAGE_LABELS

    def fetch(self) -> Fetched:
        begin_ns = self._clock.mono_ns()
        text = _page(self._http, self._url)
        at_ns = (
            begin_ns + self._clock.mono_ns()
        ) // 2  # the page was made between request and answer
        page = self._exposition.parse(text)
        if self._process.is_shared([*page.series.get(_STARTED, {}).values()]):
            raise ProbeError(
                f"{self._url} is answered by several processes in turn: name the page of each broker"
            )
        wanted = {name: found for name, found in page.series.items() if name in self._names}
        copied = self._copied(wanted)
        points = {
            name: {labels: (Point(value, at_ns),) for labels, value in series.items()}
            for name, series in wanted.items()
            if name not in copied
        }
        return Fetched(points, page.damaged & self._names, copied)

    def _copied(self, series: Mapping[str, Mapping[Labels, float]]) -> set[str]:
        """Return the names of the programs whose metrics are copies, if they are half of the page.

        A few metrics that change together now and then are on any page.
        """
        programs: dict[str, dict[str, Mapping[Labels, float]]] = {}
        for name, found in series.items():
            programs.setdefault(_WORD_END.split(name, maxsplit=1)[0], {})[name] = found
        copied = {
            name
            for program, found in programs.items()
            if self._renewed.setdefault(program, RenewedMetrics()).is_copy(found)
            for name in found
        }
        return copied if 2 * len(copied) >= len(series) else set()

    def until(self, end_ns: int, seconds: float) -> Fetched:
        """Return nothing: a page has no history."""
        del end_ns, seconds
        return Fetched({})

    def close(self) -> None:
        self._http.close()


class MetricsServer:
    """A Prometheus server: the scraped points themselves, so that no scrape between two requests is missed.

    A range *selector* in an instant query returns points with their own times. A range *query* would repeat
    each point at every step until the next scrape, and its rate would be zero and then twice too large.
    """

    def __init__(
        self,
        url: str,
        http: HttpClient,
        names: AbstractSet[str],
        clock: Clock,
        *,
        selector: str,
    ) -> None:
        from prometheus_api_client import (  # noqa: PLC0415  # some 20 MB, only when used
            PrometheusConnect,
        )

        self._http = http
        self._clock = clock
        self._names = names
        self._scrapers = ScraperChoice()
        self._pages: set[tuple[str, str]] = set()  # that have given anything
        self._newest_ns = 0
        pattern = "|".join(re.escape(name) for name in sorted(names))
        if len(pattern) > _MAX_PATTERN:
            pattern = one_of(sorted(names))
        wanted = json.dumps(pattern, ensure_ascii=False)
        matchers = [f"__name__=~{wanted}", *([selector] if selector else [])]
        self._query = f"{{{','.join(matchers)}}}"
        self._server = PrometheusConnect(url, session=_Session(http), timeout=None)

    @staticmethod
    def kept(labels: Mapping[str, str]) -> tuple[str, ...]:
        """Return the labels that name the page of a series."""
        return _labels_of_page(labels)

    def fetch(self) -> Fetched:
        """Return all points since the newest one known; at first those of a minute, or else of five."""
        now_ns = self._clock.wall_ns()
        if self._newest_ns:
            since = (now_ns - self._newest_ns) / SECOND_NS + _OVERLAP_SECONDS
            return self.until(now_ns, min(max(since, _OVERLAP_SECONDS), _MAX_SECONDS))
        found = self.until(now_ns, _START_SECONDS)
        if found.points or found.damaged:
            return found
        return self.until(now_ns, _STALE_SECONDS)  # it may scrape less than once a minute

    def until(self, end_ns: int, seconds: float) -> Fetched:
        """Return all points of so many seconds before an instant of the wall clock; raises as `fetch`."""
        query = f"{self._query}[{math.ceil(seconds * 1000)}ms]"
        try:
            found = self._server.custom_query(query, params={"time": f"{end_ns / SECOND_NS:.3f}"})
        except HttpError as error:
            raise ProbeError(str(error)) from error
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise ProbeError(f"not an answer of a Prometheus server: {str(error)[:300]}") from error
        points, damaged = _points(found)
        ends = (seen[-1].at_ns for series in points.values() for seen in series.values() if seen)
        self._newest_ns = max(self._newest_ns, *ends, 0)
        ours = self._of_our_pages(self._scrapers.one_each(points))
        return Fetched(ours, self._names & damaged)

    def _of_our_pages(self, points: Points) -> Points:
        """Return the points, without whether pages could be scraped that never had a wanted metric."""
        if SCRAPED not in points:
            return points
        others = {name: series for name, series in points.items() if name != SCRAPED}
        if len(self._pages) > MAX_SERIES:  # instances that come and go
            self._pages.clear()
        self._pages |= {_page_of(labels) for series in others.values() for labels in series}
        scraped = points[SCRAPED].items()
        ours = {labels: seen for labels, seen in scraped if _page_of(labels) in self._pages}
        return {**others, SCRAPED: ours} if ours else others

    def close(self) -> None:
        self._http.close()


class ScraperChoice:
    """Keeps what one scraper has of an instance that several jobs, services or replicas of a server scraped.

    The label `instance` with a port is one page, by any server: of each metric the series of a job are
    kept. Without a port it may be a host with several programs: only replicas are distinguished there. A
    scraper is replaced once it has had no point for two minutes longer than another.
    """

    def __init__(self) -> None:
        self._chosen: dict[tuple[str, str, str], tuple[Labels, int]] = {}

    def one_each(self, points: Points) -> Points:
        """Return the points without those of other scrapers."""
        kept: dict[str, dict[Labels, Sequence[Point]]] = {}
        unserved = {
            _scrape(labels)
            for series in points.values()
            for labels in series
            if not dict(labels).keys() >= _SERVICE_LABELS
        }
        for name, series in points.items():
            groups: dict[tuple[str, str, str], dict[Labels, list[Labels]]] = {}
            for labels, seen in series.items():
                if seen:
                    key = (name, *_page_of(labels))
                    is_served = _scrape(labels) not in unserved
                    own = _SCRAPER_LABELS | _SERVICE_LABELS if is_served else _SCRAPER_LABELS
                    scraper = tuple(pair for pair in labels if pair[0] in own)
                    groups.setdefault(key, {}).setdefault(scraper, []).append(labels)
            for key, scrapers in groups.items():
                chosen = self._scraper_of(key, scrapers, series)
                for labels in scrapers.get(chosen, ()):
                    kept.setdefault(name, {})[labels] = series[labels]
        return kept

    def _scraper_of(
        self,
        key: tuple[str, str, str],
        scrapers: Mapping[Labels, Sequence[Labels]],
        series: Mapping[Labels, Sequence[Point]],
    ) -> Labels:
        newest = {
            scraper: max(series[labels][-1].at_ns for labels in every)
            for scraper, every in scrapers.items()
        }
        best = max(
            sorted(scrapers), key=lambda scraper: sum(len(series[one]) for one in scrapers[scraper])
        )
        chosen, at_ns = self._chosen.get(key, (best, newest[best]))
        at_ns = max(at_ns, newest.get(chosen, 0))
        if max(newest.values()) - at_ns > _SCRAPER_GONE_NS:
            chosen, at_ns = best, newest[best]
        if len(self._chosen) > MAX_SERIES:  # instances that come and go
            self._chosen.clear()
        self._chosen[key] = chosen, at_ns
        return chosen


@dataclass(frozen=True, slots=True)
class _Response:
    content: bytes
    status_code: int = OK

    def json(self) -> Any:  # noqa: ANN401  # whatever the server sends
        return json_text.loads(self.content)


class _Session:
    """What prometheus-api-client uses of a `requests.Session`, on our HTTP client with its limits."""

    verify, cert = True, None  # the HTTP client has the TLS settings of the plan

    def __init__(self, http: HttpClient) -> None:
        self._http = http
        self._is_posting = True

    def mount(self, _url: str, _adapter: object) -> None:
        """Do not take the adapter of prometheus-api-client: it retries, and follows any redirect."""

    def request(self, *, url: str, params: Mapping[str, str], **_: object) -> _Response:
        """Post the query, which may be too long for an address; ask with GET where that is refused."""
        if self._is_posting:
            try:
                return _Response(self._http.post_form(url, params))
            except HttpError as error:
                if error.status not in _POST_REFUSED:
                    raise
        content = self._http.get(f"{url}?{urlencode(params)}")
        self._is_posting = False
        return _Response(content)


def _points(
    found: Any,  # noqa: ANN401  # whatever the server sends
) -> tuple[dict[str, dict[Labels, list[Point]]], set[str]]:
    """Return the points of a matrix, those of each series in order of time, and the names of damaged metrics.

    As on a page, one with too wide labels is damaged: the rest of it would be taken for the whole. So is a
    native histogram, which has no number (https://prometheus.io/docs/prometheus/latest/querying/api/).

    Raises:
        ProbeError: it is not a matrix.
    """
    points: dict[str, dict[Labels, list[Point]]] = {}
    damaged: set[str] = set()
    try:
        for series in found:
            labels = {str(key): str(value) for key, value in series["metric"].items()}
            name = labels.pop("__name__")
            is_native = "values" not in series and not _NATIVE.isdisjoint(series)
            if is_native or sum(map(len, (*labels, *labels.values()))) > MAX_LABEL_BYTES:
                damaged.add(name)
                continue
            seen = [
                Point(float(text), round(float(at) * SECOND_NS)) for at, text in series["values"]
            ]
            seen.sort(key=lambda point: point.at_ns)
            points.setdefault(name, {})[tuple(sorted(labels.items()))] = seen
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ProbeError("the answer of the Prometheus server holds no points") from error
    return points, damaged


def _scrape(labels: Labels) -> Labels:
    """Return the labels that all series of one page have from its scraper, apart from services."""
    return tuple(pair for pair in labels if pair[0] in _SCRAPER_LABELS or pair[0] == "instance")


def _labels_of_page(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the labels that name the page of a series; without a port the job says which program it is."""
    is_address = _ADDRESS.fullmatch(labels.get("instance", ""))
    return _PAGE_LABELS if is_address else (*_PAGE_LABELS, "job")


def _page_of(labels: Labels) -> tuple[str, str]:
    """Return the instance of a series, and the job where there is no port that says which program it is."""
    pairs = dict(labels)
    instance = pairs.get("instance", "")
    return instance, "" if _ADDRESS.fullmatch(instance) else pairs.get("job", "")


def _page(http: HttpClient, url: str) -> bytes:
    """Return a page; if nothing of it is missing, with the line feed that its last line may lack."""
    try:
        answer = http.get_answer(url)
    except HttpError as error:
        raise ProbeError(str(error)) from error
    page = answer.body
    is_open = answer.is_whole and page != b"" and not page.endswith(b"\n")
    return page + b"\n" if is_open else page
