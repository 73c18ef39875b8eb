"""The probe `prometheus` against a real Prometheus server that scrapes a real node_exporter."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from probes.prometheus import probe as prometheus
from probes.prometheus.probe import Config, MetricsTarget, Prometheus, Target
from soak.core.clock import SystemClock
from soak.core.errors import ProbeError
from soak.core.model import Column
from soak.core.units import SECOND_NS
from soak.runtime.grid import host_name
from soak.service import children
from soak.store.journal.reader import last_record, read_source
from tests.support.probes.node_exporter import (
    NODE_EXPORTER,
    PATIENCE_SECONDS,
    PROMETHEUS,
    WITHOUT,
    node_exporter,
    prometheus_server,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (PROMETHEUS and NODE_EXPORTER), reason=WITHOUT),
]

SCRAPES = "count_over_time(node_load1[1m]) >= 4"


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The exporter's page, and a server that has scraped it some times."""
    folder = tmp_path_factory.mktemp("prometheus")
    with node_exporter(folder) as (page, _), prometheus_server(folder, page) as server:
        limit = time.monotonic() + PATIENCE_SECONDS
        while not asked(server, SCRAPES):
            assert time.monotonic() < limit, (folder / "prometheus.log").read_text()
            time.sleep(0.1)
        yield page, server


def asked(server: str, query: str) -> list[dict[str, object]]:
    """Ask the server without our client."""
    parameters = urllib.parse.urlencode({"query": query})
    with urllib.request.urlopen(f"{server}/api/v1/query?{parameters}", timeout=10.0) as answer:
        found: list[dict[str, object]] = json.load(answer)["data"]["result"]
    return found


def target_of(**settings: object) -> MetricsTarget:
    target = Target(**{"maps": ("node_exporter",), **settings})  # type: ignore[arg-type]  # as in plans
    probe = Prometheus(Config(targets={"n": target}), SystemClock())
    probe.open()
    return probe.targets[0]


def names(samples: list[tuple[Column, float]]) -> set[str]:
    """Return the columns without what only a server adds."""
    found = {
        Column(column.metric, tuple(pair for pair in column.labels if pair[0] != "instance")).name
        for column, _ in samples
    }
    return found - {'scrape_duration_seconds{target="n"}'}


def test_a_page_and_a_server_have_the_same_columns(urls: tuple[str, str]) -> None:
    """At the second reading of the page, because a rate needs two; no expected metric is missing."""
    page, server = target_of(url=urls[0]), target_of(url=urls[1], kind="server")
    page.fetch()
    page.fetch()
    server.fetch()

    of_page, said, _ = page.take()
    of_server, also_said, _ = server.take()

    assert names(of_server) == names(of_page)
    assert len(of_page) > 40
    assert said == also_said == []


def test_a_late_start_has_the_rates_of_the_server_at_once(urls: tuple[str, str]) -> None:
    """From the points of the last minute."""
    target = target_of(url=urls[1], kind="server", selector='job="node"')
    target.fetch()
    samples, _, _ = target.take()
    points = asked(urls[1], 'node_cpu_seconds_total{mode="user"}[1m]')

    rate = next(
        value
        for column, value in samples
        if column.metric == "node_cpu_seconds" and ("mode", "user") in column.labels
    )

    bounds = []
    for series in points:
        pairs: Any = series["values"]
        values = [(float(at), float(text)) for at, text in pairs]
        bounds.append([(late[1] - values[0][1]) / (late[0] - values[0][0]) for late in values[2:]])
    assert any(rate == pytest.approx(sum(rates), rel=1e-6) for rates in zip(*bounds, strict=True))


def test_scrapes_before_a_late_start_are_backfilled(
    urls: tuple[str, str],
) -> None:
    """In order, each at its own time, with rates from the second one on."""
    clock = SystemClock()
    config = Config(targets={"n": Target(url=urls[1], kind="server", maps=("node_exporter",))})
    probe = prometheus.build(config, clock)
    now_ns = clock.wall_ns()

    rows = list(probe.backfill(now_ns - 100 * SECOND_NS, now_ns))

    times = [at_ns for at_ns, _ in rows]
    assert len(rows) >= 3
    assert times == sorted(set(times))
    assert now_ns - 100 * SECOND_NS <= times[0] <= times[-1] <= now_ns
    has_rates = [any(column.metric == "node_cpu_seconds" for column, _ in row) for _, row in rows]
    assert has_rates == [False] + [True] * (len(rows) - 1)


def test_a_daemon_that_starts_late_records_the_seconds_before(
    urls: tuple[str, str], tmp_path: Path
) -> None:
    """Its journal starts with them, in order, and goes on with its own."""
    targets = {"n": {"url": urls[1], "kind": "server", "maps": ["node_exporter"]}}
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"name": "late", "probes": {"prometheus": {"targets": targets}}}))
    start = datetime.fromtimestamp(time.time() - 60, UTC).isoformat(timespec="seconds")
    folder = tmp_path / "run"
    options = ["--run-dir", str(folder), "--run-id", "late", "--start", start]
    command = [sys.executable, "-m", "soak.cli.main", "probe", str(plan), *options]
    process = subprocess.Popen(children.with_death_signal(command))
    begun_k, journal, source = 60, folder / "journal", f"probe@{host_name()}"
    limit = time.monotonic() + PATIENCE_SECONDS
    while (found := last_record(journal, source)) is None or found[0].k < begun_k + 5:
        assert time.monotonic() < limit
        time.sleep(0.2)
    process.terminate()
    assert process.wait(10) == 0

    seconds = [
        record.k
        for record, columns in read_source(journal, source)
        if any(
            column.metric == "node_load1" and value == value  # noqa: PLR0124  # not NaN
            for column, value in zip(columns, record.values, strict=True)
        )
    ]
    assert seconds == sorted(set(seconds))
    assert len([k for k in seconds if k < begun_k]) >= 3
    assert seconds[-1] >= begun_k


def test_each_scrape_is_recorded_once(urls: tuple[str, str]) -> None:
    """A server that is asked more often than it scrapes has nothing new."""
    target = target_of(url=urls[1], kind="server")
    seen: list[float] = []
    limit = time.monotonic() + PATIENCE_SECONDS
    counts = {True: 0, False: 0}
    while min(counts.values()) < 2:
        assert time.monotonic() < limit
        target.fetch()
        samples, _, _ = target.take()
        counts[any(column.metric == "node_load1" for column, _ in samples)] += 1
        modes = [value for column, value in samples if column.metric == "node_cpu_seconds"]
        if modes:  # a processor's time passes in one mode or another
            seen.append(sum(modes))

    assert seen
    assert all(value > 0.0 for value in seen)


def test_a_server_that_refuses_the_query_is_an_error(urls: tuple[str, str]) -> None:
    """With the status of its answer."""
    with pytest.raises(ProbeError, match="answers 400"):
        target_of(url=urls[1], kind="server", selector="no matcher").fetch()


def test_a_page_that_is_no_server_is_an_error(urls: tuple[str, str]) -> None:
    """The exporter has no such interface."""
    with pytest.raises(ProbeError, match=r"answers 404|not an answer of a Prometheus server"):
        target_of(url=urls[0].removesuffix("/metrics"), kind="server").fetch()


def test_preflight_names_missing_metrics_and_silent_targets(urls: tuple[str, str]) -> None:
    """The map of a bookie against the page of a node_exporter."""
    wrong = Target(url=urls[0], maps=("bookkeeper",))
    right = Target(url=urls[0], maps=("node_exporter",))
    absent = Target(url="http://127.0.0.1:1/metrics", maps=("jvm",))

    said = prometheus.preflight(
        Config(targets={"w": wrong, "r": right, "a": absent}), SystemClock()
    )

    assert len(said) == 2
    assert "bookie_journal_JOURNAL_SYNC_seconds" in said[0]
    assert "a: http://127.0.0.1:1/metrics does not answer" in said[1]


def test_the_probe_reads_on_a_thread_of_its_own(urls: tuple[str, str], tmp_path: Path) -> None:
    """The end of one target is visible as `up` 0."""
    with node_exporter(tmp_path) as (page, _):
        config = Config(
            targets={
                "stays": Target(url=urls[0], maps=("node_exporter",)),
                "goes": Target(url=page, maps=("node_exporter",)),
            }
        )
        probe = prometheus.build(config, SystemClock())
        assert awaited(probe) == {"stays": 1.0, "goes": 1.0}

    found = awaited(probe, {"stays": 1.0, "goes": 0.0})
    probe.close()

    assert found == {"stays": 1.0, "goes": 0.0}


def awaited(probe: Prometheus, wanted: dict[str, float] | None = None) -> dict[str, float]:
    """Read ten times a second until both targets are heard of, and are as they are wanted."""
    limit = time.monotonic() + PATIENCE_SECONDS
    up: dict[str, float] = {}
    while len(up) < 2 or (wanted is not None and up != wanted):
        assert time.monotonic() < limit
        samples = probe.read().samples
        up |= {
            dict(column.labels)["target"]: value
            for column, value in samples
            if column.metric == "up"
        }
        time.sleep(0.1)
    return up
