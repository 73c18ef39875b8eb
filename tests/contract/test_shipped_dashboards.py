"""The Grafana board and the Prometheus rules that ship: what they ask for is on our pages."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from soak.core.histogram import Histogram
from soak.core.model import Column
from soak.service.metric_names import SHOWN
from soak.service.metrics import MetricsPage
from tests.support.dashboards import (
    ALERTS,
    BOARD,
    PROMTOOL,
    WITHOUT_PROMTOOL,
    alerts,
    board_queries,
    metrics_in,
    panels,
)
from tests.support.fakes import FakeClock

KNOWN = {shown.name for shown in SHOWN.values()} | {
    "soak_daemon_info",
    "soak_last_record_timestamp_seconds",
    "soak_publish_latency_by_leader_seconds",
    "soak_end_to_end_latency_by_leader_seconds",
    "process_cpu_seconds",
    "up",
}
needs_promtool = pytest.mark.skipif(not PROMTOOL, reason=WITHOUT_PROMTOOL)


def promtool(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [str(PROMTOOL), *arguments]
    return subprocess.run(command, input=given, capture_output=True, timeout=60, check=False)


def test_each_query_of_the_board_is_about_metrics_that_we_have() -> None:
    asked = {name for _, query in board_queries() for name in metrics_in(query)}

    assert asked
    assert asked <= KNOWN


def test_each_alert_is_about_metrics_that_we_have_and_says_what_it_means() -> None:
    for alert in alerts():
        assert metrics_in(alert["expr"]) <= KNOWN
        assert set(alert["annotations"]) == {"summary", "description"}
        assert alert["labels"]["severity"] in {"warning", "critical"}


def test_panels_have_numbers_units_and_descriptions_and_do_not_overlap() -> None:
    found = panels()

    numbers = [one["id"] for one in json.loads(BOARD.read_text())["panels"]]
    assert len(set(numbers)) == len(numbers)
    assert all(one["description"] and one["fieldConfig"]["defaults"]["unit"] for one in found)
    for one, other in combinations([one["gridPos"] for one in found], 2):
        is_apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert is_apart, (one, other)


def test_the_board_takes_its_data_source_from_the_user() -> None:
    """A board that names somebody else's data source shows nothing."""
    sources = {target["datasource"]["uid"] for one in panels() for target in one["targets"]}

    assert sources == {"${datasource}"}


@needs_promtool
def test_promtool_accepts_the_rules() -> None:
    done = promtool("check", "rules", str(ALERTS))

    assert done.returncode == 0, done.stderr.decode()


PLAN = 'plan="p",run="r"'
FIRE = [
    ("SoakdIncident", f'soak_incidents{{state="open",{PLAN}}}', "1x30", "1m"),
    ("SoakdNothingAcknowledged", f"soak_publish_waiting_seconds{{{PLAN}}}", "0+15x30", "1m"),
    ("SoakdDaemonDown", f'up{{job="soakd",{PLAN}}}', "0x30", "3m"),
    ("SoakdProbeFailing", f'soak_probe_success{{probe="fsync",{PLAN}}}', "0x60", "12m"),
    ("SoakdNotificationsPending", f"soak_pending_notifications{{{PLAN}}}", "2x90", "17m"),
    ("SoakdRecordsMissing", f"soak_last_record_timestamp_seconds{{{PLAN}}}", "1x30", "3m"),
    ("SoakdDetectorBehind", f"soak_detect_lag_seconds{{{PLAN}}}", "90x60", "6m"),
    ("SoakdBrokerDriveFilling", f"soak_broker_drive_free_bytes{{{PLAN}}}", "9000-50x90", "16m"),
    ("SoakdRunFolderFilling", f"soak_run_folder_free_bytes{{{PLAN}}}", "99000-150x180", "42m"),
]
QUIET = [
    (f'soak_incidents{{state="open",{PLAN}}}', "0x180"),
    (f"soak_publish_waiting_seconds{{{PLAN}}}", "0x180"),
    (f'up{{job="soakd",{PLAN}}}', "1x180"),
    (f"soak_sent_messages_total{{{PLAN}}}", "0+1000x180"),
    (f"soak_received_messages_total{{{PLAN}}}", "0+1000x180"),
    (f"soak_failed_messages_total{{{PLAN}}}", "0x180"),
    (f"soak_skipped_messages_total{{{PLAN}}}", "0x180"),
    (f"soak_consumer_lag_messages{{{PLAN}}}", "23x180"),
    (f'soak_publish_latency_seconds_bucket{{le="0.01",{PLAN}}}', "0+1000x180"),
    (f'soak_publish_latency_seconds_bucket{{le="+Inf",{PLAN}}}', "0+1001x180"),
    (f"soak_run_folder_free_bytes{{{PLAN}}}", "1000000-1x180"),
]
RATES = [
    ("SoakdMessagesFailed", {"sent": "0+1000x60", "failed": "0+5x60"}),
    ("SoakdLoadNotReached", {"sent": "0+1000x60", "skipped": "0+23x60"}),
]


def silence(series: Sequence[tuple[str, str]], at: str) -> dict[str, object]:
    """Return a test of promtool in which no alert may fire, for series with a value each 15 s."""
    return {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series],
        "alert_rule_test": [{"eval_time": at, "alertname": one["alert"]} for one in alerts()],
    }


def run_tests(folder: Path, *tests: dict[str, object]) -> str:
    path = folder / "tests.yaml"
    path.write_text(
        yaml.safe_dump(
            {"rule_files": [str(ALERTS)], "evaluation_interval": "15s", "tests": list(tests)}
        )
    )
    done = promtool("test", "rules", str(path))
    return "" if done.returncode == 0 else (done.stdout + done.stderr).decode()


@pytest.mark.long
@needs_promtool
def test_no_alert_fires_in_a_quiet_run(tmp_path: Path) -> None:
    assert run_tests(tmp_path, silence(QUIET, "40m")) == ""


@needs_promtool
@pytest.mark.parametrize(
    ("alert", "series", "at"),
    [
        *((alert, [(name, values)], at) for alert, name, values, at in FIRE),
        *(
            (
                alert,
                [
                    (f"soak_{name}_messages_total{{{PLAN}}}", values)
                    for name, values in rows.items()
                ],
                "8m",
            )
            for alert, rows in RATES
        ),
        (
            "SoakdConsumerBehind",
            [
                (f"soak_consumer_lag_messages{{{PLAN}}}", "9000x60"),
                (f"soak_received_messages_total{{{PLAN}}}", "0+15x60"),
            ],
            "13m",
        ),
        (
            "SoakdPublishLatencyHigh",
            [
                (f'soak_publish_latency_seconds_bucket{{le="{le}",{PLAN}}}', f"0+{count}x60")
                for le, count in (("1", 900), ("10", 1000), ("+Inf", 1000))
            ],
            "8m",
        ),
    ],
)
def test_each_alert_fires_when_it_should(
    tmp_path: Path, alert: str, series: list[tuple[str, str]], at: str
) -> None:
    failed = run_tests(tmp_path, silence(series, at))

    fired = {
        line.split(",")[0].split(":")[1].strip()
        for line in failed.splitlines()
        if "alertname:" in line
    }
    assert fired == {alert}, failed


@needs_promtool
def test_promtool_finds_no_fault_in_a_page_with_every_metric() -> None:
    """Help texts, base units, `_total`, types: what it lints."""
    page = MetricsPage(FakeClock(), {"run": "r", "plan": "p", "daemon": "d"})
    nothing = Histogram().distribution()
    samples = [
        (Column(metric, (("quantile", "max"),) if shown.kind == "summary" else ()), 1.0)
        for metric, shown in SHOWN.items()
        if shown.kind != "histogram"
    ]
    latencies = [metric for metric, shown in SHOWN.items() if shown.kind == "histogram"]
    leader = Column("publish_latency_seconds", (("leader", "1"),)).name
    page.show(samples, dict.fromkeys([*latencies, leader], nothing))
    registry = CollectorRegistry()
    registry.register(page)

    done = promtool("check", "metrics", given=generate_latest(registry))

    assert (done.returncode, done.stdout.decode(), done.stderr.decode()) == (0, "", "")
