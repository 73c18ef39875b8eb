"""Where metrics come from: an exposition page, or the scraped points of a Prometheus server."""

from __future__ import annotations

import io
import math
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Protocol

from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from requests import PreparedRequest, RequestException, Response, Session
from requests.adapters import BaseAdapter

from probes.common.counters import Point, Points
from probes.common.exposition import MAX_SERIES, ExpositionParser
from soak.clients.http import HttpClient
from soak.core.errors import ProbeError
from soak.core.model import Labels
from soak.core.ports import Clock
from soak.core.units import SECOND_NS


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a source gave: points by the names that it has, and the names of which something was damaged."""

    points: Points
    damaged: AbstractSet[str] = frozenset()


class MetricsSource(Protocol):
    """Where numbers come from. `keep`: labels by which its series stay apart."""

    keep: tuple[str, ...]

    def fetch(self) -> Fetched:
        """Return what there is now.

        Raises:
            ProbeError: it did not answer, or with something else.
        """
        ...

    def until(self, end_ns: int, seconds: float) -> Fetched:
        """Return what it remembers of so many seconds before an instant of the wall clock; as `fetch`."""
        ...

    def close(self) -> None: ...


class MetricsPage:
    keep: tuple[str, ...] = ()

    def __init__(
        self,
        url: str,
        http: HttpClient,
        names: AbstractSet[str],
        clock: Clock,
        most_series: int = MAX_SERIES,
    ) -> None:
        self._url = url
        self._http = http
        self._exposition = ExpositionParser(names, most_series)
        self._clock = clock

    def fetch(self) -> Fetched:
        begin_ns = self._clock.mono_ns()
        text = self._http.get(self._url)
        at_ns = (begin_ns + self._clock.mono_ns()) // 2  # it was made between question and answer
        page = self._exposition.parse(text)
        points = {
            name: {labels: (Point(value, at_ns),) for labels, value in series.items()}
            for name, series in page.series.items()
        }
        return Fetched(points, page.damaged)

    def until(self, end_ns: int, seconds: float) -> Fetched:
        """A page knows only what is now."""
        del end_ns, seconds
        return Fetched({})

    def close(self) -> None:
        self._http.close()


# --- A Prometheus server: the scraped points themselves, so that no scrape between two questions is lost.
# A range *selector* in an instant query gives points with their own times; a range *query* would repeat each
# point at every step until the next scrape, and a rate of that is zero and then twice too large.

_START_SECONDS = 60.0  # asked for at first: a rate needs two scrapes
_OVERLAP_SECONDS = (
    10.0  # asked for again: a scrape has the time of its begin, and is there at its end
)
_MAX_SECONDS = 600.0


class MetricsServer:
    keep: tuple[str, ...] = ("instance",)

    def __init__(
        self,
        url: str,
        http: HttpClient,
        names: AbstractSet[str],
        clock: Clock,
        *,
        selector: str,
    ) -> None:
        self._http = http
        self._clock = clock
        self._newest_ns = 0
        matchers = [f'__name__=~"{"|".join(sorted(names))}"', *([selector] if selector else [])]
        self._query = f"{{{','.join(matchers)}}}"
        session = Session()
        session.trust_env = False  # no proxy and no password of another program
        self._server = PrometheusConnect(url, session=session, timeout=None)
        session.mount(url, _HttpAdapter(http))  # the client has mounted one that follows anywhere

    def fetch(self) -> Fetched:
        """Return all points since the newest one known, at first of a minute."""
        now_ns = self._clock.wall_ns()
        length = _START_SECONDS
        if self._newest_ns:
            since = (now_ns - self._newest_ns) / SECOND_NS + _OVERLAP_SECONDS
            length = min(max(since, _OVERLAP_SECONDS), _MAX_SECONDS)
        return self.until(now_ns, length)

    def until(self, end_ns: int, seconds: float) -> Fetched:
        """Return all points of so many seconds before an instant of the wall clock; raises as `fetch`."""
        query = f"{self._query}[{math.ceil(seconds * 1000)}ms]"
        try:
            found = self._server.custom_query(query, params={"time": f"{end_ns / SECOND_NS:.3f}"})
        except (PrometheusApiClientException, RequestException, ValueError, KeyError) as error:
            raise ProbeError(f"the Prometheus server refuses: {str(error)[:300]}") from error
        except (TypeError, RecursionError) as error:
            raise ProbeError("the Prometheus server does not answer as one") from error
        points = _points(found)
        ends = (seen[-1].at_ns for series in points.values() for seen in series.values() if seen)
        self._newest_ns = max(self._newest_ns, *ends, 0)
        return Fetched(points)

    def close(self) -> None:
        self._server.close()
        self._http.close()


class _HttpAdapter(BaseAdapter):
    """Lets the client's questions take our own road, with its limits."""

    def __init__(self, http: HttpClient) -> None:
        super().__init__()
        self._http = http

    def send(self, request: PreparedRequest, *_args: Any, **_settings: Any) -> Response:  # noqa: ANN401  # ours instead
        answer = Response()
        answer.raw = io.BytesIO(self._http.get(request.url or ""))
        answer.status_code = 200
        answer.encoding = "utf-8"  # else it would be guessed, at length
        answer.url = request.url or ""
        answer.request = request
        return answer

    def close(self) -> None:
        """The road is closed by who made it."""


def _points(found: Any) -> dict[str, dict[Labels, list[Point]]]:  # noqa: ANN401  # what a server said
    """Return the points of a matrix, of each series in order of time.

    Raises:
        ProbeError: it is none.
    """
    points: dict[str, dict[Labels, list[Point]]] = {}
    try:
        for series in found:
            labels = {str(key): str(value) for key, value in series["metric"].items()}
            name = labels.pop("__name__")
            seen = [_point(at, text) for at, text in series["values"]]
            seen.sort(key=lambda point: point.at_ns)
            points.setdefault(name, {})[tuple(sorted(labels.items()))] = seen
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ProbeError("the Prometheus server gives no points") from error
    return points


def _point(at: float, text: str) -> Point:
    return Point(float(text), round(float(at) * SECOND_NS))
