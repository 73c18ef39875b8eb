"""A real Prometheus scrapes a real run: the board's queries have data, rules load, the pages are clean."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from soak.core.plan.text import load
from soak.service import children
from tests.support.dashboards import ALERTS, PROMTOOL, WITHOUT_PROMTOOL, alerts, board_queries
from tests.support.paths import DATA, ROOT
from tests.support.probes.node_exporter import PROMETHEUS, prometheus_with

LIMIT_SECONDS = 300.0
NOT_IN_A_LAB = "soak_broker_drive_free_bytes"  # the drives of a lab may be filled
DAEMONS = ["alert", "conduct", "consume.0", "detect-stream", "probe", "produce.0", "produce.1"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2 * LIMIT_SECONDS),
    pytest.mark.skipif(not (PROMETHEUS and PROMTOOL), reason=WITHOUT_PROMTOOL),
]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run on two brokers, with all probes that need no drive of their own."""
    folder = tmp_path_factory.mktemp("scraped")
    body = yaml.safe_load((DATA / "plans" / "short.yaml").read_text())
    body["lab"]["nodes"] = 2
    body["topic"]["partitions"] = 4
    body["phases"]["soak"] = "30min"
    body["load"]["producers"] = 2
    body["probes"]["round_trip"] = {}
    body["metrics"] = {}
    plan = folder / "plan.yaml"
    plan.write_text(yaml.safe_dump(body))
    assert load(plan.read_text(), str(plan)).plan.metrics is not None
    command = [sys.executable, "-m", "soak.cli.main", "run", str(plan)]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            children.with_death_signal([*command, "--run-dir", str(folder / "run")]),
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        limit = time.monotonic() + LIMIT_SECONDS
        while not all((folder / "run/metrics" / f"{one}.json").exists() for one in DAEMONS):
            assert process.poll() is None, (folder / "output").read_text()
            assert time.monotonic() < limit, sorted((folder / "run/metrics").iterdir())
            time.sleep(0.2)
        yield folder / "run"
    finally:
        process.kill()  # nothing outlives it, and nobody reads its report
        process.wait(30)


@pytest.fixture(scope="module")
def server(run_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that finds the daemons as docs/how-to/grafana.md says, with the rules that ship."""
    config = {
        "global": {"scrape_interval": "2s", "evaluation_interval": "2s"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [
            {"job_name": "soakd", "file_sd_configs": [{"files": [f"{run_dir}/metrics/*.json"]}]}
        ],
    }
    with prometheus_with(tmp_path_factory.mktemp("server"), yaml.safe_dump(config)) as url:
        yield url


def asked(server: str, path: str, **parameters: str) -> Any:
    query = urllib.parse.urlencode(parameters)
    with urllib.request.urlopen(f"{server}/api/v1/{path}?{query}", timeout=10.0) as answer:
        return json.load(answer)["data"]


def test_each_query_of_the_board_has_data(server: str) -> None:
    """Of each panel; those of a detector once it has taken in its first batch."""
    waiting = {one: None for one in board_queries() if NOT_IN_A_LAB not in one[1]}
    limit = time.monotonic() + LIMIT_SECONDS
    while waiting:
        for panel, query in list(waiting):
            values = [
                float(one["value"][1]) for one in asked(server, "query", query=query)["result"]
            ]
            if any(value == value for value in values):  # noqa: PLR0124  # not NaN
                del waiting[panel, query]
        assert time.monotonic() < limit, list(waiting)
        time.sleep(0.5)


def test_latencies_of_producers_are_merged(server: str) -> None:
    """The p99 of both together lies between those of each."""
    limit = time.monotonic() + LIMIT_SECONDS
    rates = "rate(soak_publish_latency_seconds_bucket[1m])"
    each: list[float] = []
    while len(each) < 2:
        assert time.monotonic() < limit
        query = f"histogram_quantile(0.99, sum by (le, daemon) ({rates}))"
        at = f"{time.time():.3f}"
        each = [
            float(one["value"][1]) for one in asked(server, "query", query=query, time=at)["result"]
        ]
    query = f"histogram_quantile(0.99, sum by (le) ({rates}))"
    (both,) = asked(server, "query", query=query, time=at)["result"]

    slack = 1e-9 * max(each)
    assert min(each) - slack <= float(both["value"][1]) <= max(each) + slack


def test_counters_have_every_message(server: str) -> None:
    """More than a scrape sees in one second: the plan sends 1,000 a second.

    A busy host may delay the load for a while, so that the rate is right only once it goes on.
    """
    limit = time.monotonic() + LIMIT_SECONDS
    rate = 0.0
    while rate != pytest.approx(1000, rel=0.1):
        assert time.monotonic() < limit, rate
        query = "sum(rate(soak_acknowledged_messages_total[20s]))"
        found = asked(server, "query", query=query)["result"]
        rate = float(found[0]["value"][1]) if found else 0.0
        time.sleep(0.2)


def test_the_rules_are_evaluated_without_errors(server: str) -> None:
    limit = time.monotonic() + LIMIT_SECONDS
    while True:
        (group,) = asked(server, "rules")["groups"]
        healths = {one["name"]: (one["health"], one.get("lastError")) for one in group["rules"]}
        if all(health != "unknown" for health, _ in healths.values()):
            break
        assert time.monotonic() < limit
        time.sleep(0.2)

    assert healths == {one["alert"]: ("ok", None) for one in alerts()}


@pytest.mark.parametrize("daemon", DAEMONS)
def test_promtool_finds_no_fault_in_the_page_of_a_daemon(run_dir: Path, daemon: str) -> None:
    (found,) = json.loads((run_dir / "metrics" / f"{daemon}.json").read_text())
    with urllib.request.urlopen(f"http://{found['targets'][0]}/metrics", timeout=30) as answer:
        page = answer.read()

    done = subprocess.run(
        [str(PROMTOOL), "check", "metrics"],
        input=page,
        capture_output=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout.decode(), done.stderr.decode()) == (0, "", "")
