"""Requests to a Prometheus server and its answers, without a server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs

import pytest

from probes.common.counters import Point, SeriesTracker, Step, Steps
from probes.prometheus.aggregation import Aggregator
from probes.prometheus.name_map import Entry
from probes.prometheus.probe import Config, Target, entries_of, open_source
from probes.prometheus.sources import MetricsServer
from soak.core.errors import ProbeError
from soak.core.units import SECOND_NS
from tests.support.fakes import FakeClock
from tests.support.pages import serving

URL = "http://127.0.0.1:9090"


class Answers:
    """Returns one answer after another, and keeps the requests."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, str]] = []

    def post_form(self, _url: str, fields: Mapping[str, str]) -> bytes:
        self.asked.append(dict(fields))
        answer = self.answers.pop(0)
        return answer if isinstance(answer, bytes) else json.dumps(answer).encode()

    def close(self) -> None:
        """Nothing is held."""


def server(http: Answers, clock: FakeClock) -> MetricsServer:
    return MetricsServer(
        URL,
        http,  # type: ignore[arg-type]  # stands in
        {"b_total", "a"},
        clock,
        selector='job="kafka"',
    )


def matrix(*series: tuple[dict[str, str], list[list[Any]]]) -> dict[str, Any]:
    found = [{"metric": labels, "values": values} for labels, values in series]
    return {"status": "success", "data": {"resultType": "matrix", "result": found}}


def test_the_scraped_points_are_asked_for_since_the_newest_one() -> None:
    """First of a minute, then ten seconds more than have passed: a scrape has the time of its start."""
    clock = FakeClock(wall_ns=1000 * SECOND_NS)
    http = Answers(matrix(({"__name__": "a"}, [[990.5, "1"], [995.5, "2"]])), matrix())

    asker = server(http, clock)
    asker.fetch()
    clock.advance(5.0)
    asker.fetch()

    assert http.asked == [
        {"query": '{__name__=~"a|b_total",job="kafka"}[60000ms]', "time": "1000.000"},
        {"query": '{__name__=~"a|b_total",job="kafka"}[19500ms]', "time": "1005.000"},
    ]


def test_a_server_that_scrapes_rarely_is_asked_for_more_at_first() -> None:
    """With a scrape every two minutes, all of its metrics would be taken for missing."""
    clock = FakeClock(wall_ns=1000 * SECOND_NS)
    http = Answers(matrix(), matrix(({"__name__": "a"}, [[900, "1"]])), matrix())

    asker = server(http, clock)
    found = asker.fetch().points
    asker.fetch()

    lengths = [asked["query"].rpartition("[")[2] for asked in http.asked]
    assert list(found) == ["a"]
    assert lengths == ["60000ms]", "300000ms]", "110000ms]"]


@contextmanager
def proxied(post_status: int) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Serve behind a proxy with this answer to a POST, and 8 KiB for an address.

    Yields the address and the requests: each one's method, and the query that was posted.
    """
    heard: list[tuple[str, str]] = []
    found = json.dumps(matrix(({"__name__": "process_cpu_seconds_total"}, [[1, "23"]]))).encode()

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            heard.append(("GET", ""))
            self._answer(200 if len(self.requestline) < 8192 else 414)

        def do_POST(self) -> None:
            fields = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            assert self.headers["Content-Type"] == "application/x-www-form-urlencoded"
            heard.append(("POST", fields["query"][0]))
            self._answer(post_status)

        def _answer(self, status: int) -> None:
            body = found if status == 200 else b""
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's
            """Say nothing."""

    with serving(Proxy) as url:
        yield url, heard


def test_a_query_of_many_metrics_passes_a_proxy_that_limits_addresses() -> None:
    """As nginx and Apache do, at 8 KiB."""
    with proxied(post_status=200) as (url, heard):
        target = Target(url=url, kind="server", selector='job="kafka"', maps=("kafka_jmx", "jvm"))
        source = open_source(target, entries_of(target), Config(), FakeClock())
        with closing(source):
            found = source.fetch().points

    ((method, query),) = heard
    assert list(found) == ["process_cpu_seconds_total"]
    assert method == "POST"
    assert query.startswith('{__name__=~"')
    assert query.endswith('",job="kafka"}[60000ms]')


@pytest.mark.parametrize("status", [403, 405, 501])
def test_a_server_that_refuses_post_is_asked_with_get(status: int) -> None:
    """A proxy may take a POST for writing; later queries do not try it again."""
    with proxied(post_status=status) as (url, heard):
        target = Target(url=url, kind="server", maps=("jvm",))
        source = open_source(target, entries_of(target), Config(), FakeClock())
        with closing(source):
            found = [list(source.fetch().points) for _ in range(2)]

    assert found == [["process_cpu_seconds_total"]] * 2
    assert [method for method, _ in heard] == ["POST", "GET", "GET"]


def test_a_server_that_is_not_well_is_asked_once() -> None:
    """Its answer says nothing about POST."""
    with proxied(post_status=503) as (url, heard):
        target = Target(url=url, kind="server", maps=("jvm",))
        source = open_source(target, entries_of(target), Config(), FakeClock())
        with closing(source), pytest.raises(ProbeError, match="answers 503"):
            source.fetch()

    assert [method for method, _ in heard] == ["POST"]


def test_points_keep_their_own_times_and_labels() -> None:
    """In order of time."""
    http = Answers(
        matrix(({"__name__": "a", "job": "x", "instance": "h:1"}, [[2.5, "NaN"], [1.5, "23"]]))
    )

    found = server(http, FakeClock()).fetch()

    (points,) = found.points["a"].values()
    assert list(found.points["a"]) == [(("instance", "h:1"), ("job", "x"))]
    assert points[0] == Point(23.0, 1_500_000_000)
    assert points[1].at_ns == 2_500_000_000


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"<html>",
        b"[]",
        b"null",
        b"\xff",
        {"status": "error"},
        {"data": None},
        {"data": {"result": 23}},
        {"data": {"result": [23]}},
        matrix(({}, [])),
        matrix(({"__name__": "a"}, [["x", "1"]])),
        matrix(({"__name__": "a"}, [[1.0, "x"]])),
        matrix(({"__name__": "a"}, [[1.0]])),
        {"data": {"result": [{"metric": {"__name__": "a"}, "value": [1, "2"]}]}},
        b'{"data": {"result": [{"metric": {"__name__": "a"}, "values": [[1e999, "1"]]}]}}',
        b"[" * 100_000,
    ],
)
def test_any_other_answer_is_an_error(answer: object) -> None:
    """Whatever listens on that port."""
    with pytest.raises(ProbeError):
        server(Answers(answer), FakeClock()).fetch()


NATIVE = {"count": "60", "sum": "33", "buckets": [[1, "0.5", "1", "60"]]}


@pytest.mark.parametrize(
    "native", [{"histograms": [[1.5, NATIVE], [2.5, NATIVE]]}, {"histogram": [1.5, NATIVE]}]
)
def test_a_native_histogram_costs_no_other_metric_its_values(native: dict[str, Any]) -> None:
    """It has no number; it is reported as unreadable, and its other series are no whole metric."""
    series = [
        {"metric": {"__name__": "a", "instance": "h:1"}, **native},
        {"metric": {"__name__": "a", "instance": "h:2"}, "values": [[1.5, "5"]]},
        {"metric": {"__name__": "b_total", "instance": "h:1"}, "values": [[1.5, "23"]]},
    ]
    for answers in (series, series[::-1]):
        found = server(Answers(answer(*answers)), FakeClock()).fetch()

        ((point,),) = found.points["b_total"].values()
        assert point.value == 23.0
        assert found.damaged == {"a"}


def test_a_series_that_became_a_native_histogram_keeps_the_values_of_before() -> None:
    """A server gives both where the kind changed in the time that is asked for."""
    both = {"metric": {"__name__": "a"}, "values": [[1.5, "5"]], "histograms": [[2.5, NATIVE]]}

    found = server(Answers(answer(both)), FakeClock()).fetch()

    assert list(found.points["a"].values()) == [[Point(5.0, 1_500_000_000)]]
    assert found.damaged == set()


def page_of(scraper: dict[str, str], *points: tuple[float, float]) -> dict[str, Any]:
    labels = {"__name__": "a", "instance": "b1:9100", "device": "sda", **scraper}
    return {"metric": labels, "values": [[at, str(value)] for at, value in points]}


def answer(*series: dict[str, Any]) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": "matrix", "result": list(series)}}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"job": "node-exporter", "service": "x"}, {"job": "exporter-node", "service": "y"}),
        ({"job": "n", "prometheus_replica": "a"}, {"job": "n", "prometheus_replica": "b"}),
        ({"job": "n", "prometheus": "east"}, {"job": "m", "prometheus": "west"}),
        ({"job": "n", "replica": "a"}, {"job": "n", "replica": "b"}),
        ({"endpoint": "m", "service": "kafka"}, {"endpoint": "m", "service": "kafka-headless"}),
    ],
)
def test_a_page_that_is_scraped_twice_counts_once(
    one: dict[str, str], other: dict[str, str]
) -> None:
    """By jobs, by replicas of the server, or behind two services; later answers have the same one."""
    clock = FakeClock(wall_ns=1000 * SECOND_NS)
    http = Answers(
        answer(page_of(one, (980, 1), (995, 2)), page_of(other, (981, 1), (996, 2))),
        answer(page_of(other, (1011, 3))),
        answer(page_of(one, (1010, 3)), page_of(other, (1011, 3))),
    )
    asker = server(http, clock)

    found = [list(asker.fetch().points.get("a", {})) for _ in range(3)]

    assert [len(series) for series in found] in ([1, 0, 1], [1, 1, 1])
    assert len({labels for series in found for labels in series}) == 1


def test_a_scraper_that_has_gone_is_replaced() -> None:
    """Two minutes after its last point."""
    old, new = {"job": "a"}, {"job": "b"}
    http = Answers(
        answer(page_of(old, (10, 1), (25, 1)), page_of(new, (26, 1))),
        answer(page_of(new, (140, 1))),
        answer(page_of(new, (155, 1))),
    )
    asker = server(http, FakeClock())

    jobs = [[dict(one)["job"] for one in asker.fetch().points.get("a", {})] for _ in range(3)]

    assert jobs == [["a"], [], ["b"]]


def test_different_metrics_of_one_page_may_have_different_jobs() -> None:
    """Redpanda has two paths behind one port."""
    public = {**page_of({"job": "public"}, (10, 1))}
    public["metric"] = {**public["metric"], "__name__": "b_total"}
    http = Answers(answer(page_of({"job": "internal"}, (10, 1)), public))

    assert server(http, FakeClock()).fetch().points.keys() == {"a", "b_total"}


def test_programs_of_one_host_are_kept_apart() -> None:
    """An instance without a port is a host: its jobs may be a broker and a controller."""
    broker, controller = (
        page_of({"job": job, "instance": "b1"}, (10, 1)) for job in ("broker", "controller")
    )

    found = server(Answers(answer(broker, controller)), FakeClock()).fetch().points

    assert len(found["a"]) == 2


CPU = "process_cpu_seconds_total"


def cpu_by_labels(*pages: dict[str, str]) -> dict[tuple[str, ...], float]:
    """Return the CPU of the programs of these pages by labels: the first uses one core, the next two."""
    http = Answers(
        matrix(
            *(
                ({"__name__": CPU, **labels}, [[10, "5"], [11, f"{5 + cores}"]])
                for cores, labels in enumerate(pages, 1)
            )
        )
    )
    entry = Entry(name="process_cpu_seconds", spellings=[CPU], kind="counter", unit="cores")
    asker = MetricsServer(
        URL,
        http,  # type: ignore[arg-type]  # stands in
        {CPU},
        FakeClock(),
        selector="",
    )
    steps = SeriesTracker().take(asker.fetch().points)
    found = Aggregator([entry], (), MetricsServer.kept).samples(steps, frozenset())
    return {tuple(value for _, value in column.labels): value for column, value in found}


@pytest.mark.parametrize("instance", ["node7", "10.0.0.7", "kafka-7.example.org", "fd00::17", ""])
def test_jobs_that_scrape_a_host_without_a_port_are_not_added_up(instance: str) -> None:
    """A relabelled instance is a host: what its exporter uses is no part of what its broker uses."""
    named = {"instance": instance} if instance else {}

    found = cpu_by_labels({**named, "job": "node"}, {**named, "job": "kafka"})

    host = (instance,) if instance else ()
    assert found == {(*host, "node"): 1.0, (*host, "kafka"): 2.0}


@pytest.mark.parametrize("instance", ["node7:9404", "10.0.0.7:9404", "[fe80::7]:9404"])
def test_jobs_that_scrape_one_port_count_once_and_name_no_job(instance: str) -> None:
    """The port says which program it is; either job gives the same column."""
    found = cpu_by_labels(
        {"instance": instance, "job": "kafka"}, {"instance": instance, "job": "kafka-again"}
    )

    assert found in ({(instance,): 1.0}, {(instance,): 2.0})


def test_an_instance_keeps_its_job_where_only_one_scrapes_it() -> None:
    """A job that is added later renames no column."""
    assert cpu_by_labels({"instance": "node7", "job": "kafka"}) == {("node7", "kafka"): 1.0}


@pytest.mark.parametrize("target", [{"job": "r"}, {"job": "r", "endpoint": "admin"}])
def test_services_of_the_page_itself_are_kept(target: dict[str, str]) -> None:
    """Redpanda counts by its own ones; Kubernetes has one for all series of a page, beside an endpoint."""
    pages = [page_of({**target, "service": one}, (10, 1)) for one in ("raftgen", "controller")]
    other = page_of(target, (10, 1))
    other["metric"]["__name__"] = "b_total"

    found = server(Answers(answer(*pages, other)), FakeClock()).fetch().points

    assert len(found["a"]) == 2


def test_a_query_of_very_many_metrics_is_short() -> None:
    """VictoriaMetrics refuses more than 16 KiB."""
    names = {f"kafka_server_brokertopicmetrics_{number:03}_total" for number in range(500)}
    http = Answers(matrix(({"__name__": min(names)}, [[990.0, "1"]])))
    asker = MetricsServer(
        URL,
        http,  # type: ignore[arg-type]  # stands in
        names,
        FakeClock(wall_ns=1000 * SECOND_NS),
        selector="",
    )

    asker.fetch()

    (query,) = (asked["query"] for asked in http.asked)
    pattern = query.removeprefix('{__name__=~"').partition('"')[0]
    assert len(query) < 2**14
    assert all(re.fullmatch(pattern, name) for name in names)
    assert not re.fullmatch(pattern, "kafka_server_brokertopicmetrics_500_total")


def test_pods_and_instances_are_kept_apart() -> None:
    """On Kubernetes the pod has the name of the broker, and the instance an unknown address."""
    entry = Entry(name="a", spellings=["a"], kind="gauge", unit="partitions")
    pods = [(("instance", f"10.244.0.{n}:9404"), ("pod", f"kafka-{n}")) for n in range(2)]
    steps: Steps = {"a": {(*labels, ("topic", "t")): Step(1.0, None, 0.0) for labels in pods}}

    found = Aggregator([entry], (), MetricsServer.kept).samples(steps, frozenset())

    assert [column.labels for column, _ in found] == pods


def test_a_server_says_which_of_the_brokers_pages_it_could_not_scrape() -> None:
    """Its selector finds the pages of other programs, too: they have none of the metrics."""

    def scraped(name: str, instance: str, *values: tuple[float, float]) -> dict[str, Any]:
        labels = {"__name__": name, "instance": instance, "job": "kafka"}
        return {"metric": labels, "values": [[at, str(value)] for at, value in values]}

    leaders = "kafka_server_replicamanager_leadercount"
    http = Answers(
        answer(
            *(scraped(leaders, one, (10, 5)) for one in ("b1:9404", "b2:9404")),
            *(scraped("up", one, (10, 1)) for one in ("b1:9404", "b2:9404", "operator:8080")),
        ),
        answer(
            scraped(leaders, "b1:9404", (25, 5)),
            *(scraped("up", one, (25, at)) for one, at in (("b1:9404", 1), ("b2:9404", 0))),
            scraped("up", "operator:8080", (25, 0)),
        ),
    )
    target = Target(url=URL, kind="server", selector='job="kafka"', maps=("kafka_jmx",))
    entries = entries_of(target)
    names = {name for entry in entries for name in entry.names()}
    asker = MetricsServer(
        URL,
        http,  # type: ignore[arg-type]  # stands in
        names,
        FakeClock(),
        selector=target.selector,
    )
    folds, tracker = Aggregator(entries, (), MetricsServer.kept), SeriesTracker()

    found = [folds.samples(tracker.take(asker.fetch().points), frozenset()) for _ in range(2)]

    ups = [
        {dict(column.labels)["instance"]: value for column, value in one if column.metric == "up"}
        for one in found
    ]
    assert ups == [{"b1:9404": 1.0, "b2:9404": 1.0}, {"b1:9404": 1.0, "b2:9404": 0.0}]


def test_a_job_whose_metrics_nobody_wants_does_not_make_a_host_look_down() -> None:
    """The page of the broker is there; the exporter of the same host, which the map does not read, is not."""

    def scraped(name: str, job: str, value: int) -> dict[str, Any]:
        labels = {"__name__": name, "instance": "node7", "job": job}
        return {"metric": labels, "values": [[10, str(value)]]}

    http = Answers(
        answer(scraped("a", "kafka", 5), scraped("up", "kafka", 1), scraped("up", "node", 0))
    )
    asker = MetricsServer(
        URL,
        http,  # type: ignore[arg-type]  # stands in
        {"a", "up"},
        FakeClock(),
        selector='instance="node7"',
    )

    found = asker.fetch().points["up"]

    assert {dict(labels)["job"]: seen[-1].value for labels, seen in found.items()} == {"kafka": 1.0}
