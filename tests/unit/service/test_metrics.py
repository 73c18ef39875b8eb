"""The Prometheus page of a daemon: its values, its address, and its server."""

from __future__ import annotations

import json
import math
import socket
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from soak.core.histogram import Histogram
from soak.core.model import Column, Distribution
from soak.core.plan.plan import Metrics
from soak.core.series import column_name
from soak.service.metrics import MAX_SERIES, MetricsPage, publish
from soak.service.metrics_server import serve
from tests.support.fakes import FakeClock

LABELS = {"run": "r1", "plan": "x", "daemon": "probe"}
P50 = Column("fsync_latency_seconds", (("quantile", "0.5"),), "seconds")
P99 = Column("fsync_latency_seconds", (("quantile", "0.99"),), "seconds")
LINES = Column("ship_sent_lines_total", (), "lines")


SENT = Column("sent_messages", (), "messages")


def page_of(*samples: tuple[Column, float]) -> MetricsPage:
    page = MetricsPage(FakeClock(wall_ns=1_790_000_000 * 10**9), LABELS)
    page.show(samples)
    return page


def distribution_of(*seconds: float) -> Distribution:
    found = Histogram()
    found.record_ns(np.array([round(one * 1e9) for one in seconds], dtype=np.int64))
    return found.distribution()


def values_of(page: MetricsPage) -> dict[str, float]:
    """Return all values by their names, as Prometheus reads them."""
    return {
        column_name(sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text_of(page))
        for sample in family.samples
    }


def text_of(page: MetricsPage) -> str:
    registry = CollectorRegistry()
    registry.register(page)
    return generate_latest(registry).decode()


def test_the_newest_values_are_on_the_page_by_name_and_labels() -> None:
    """One family a metric, also when its columns are not adjacent; unmeasured values have no line."""
    page = page_of((P50, 0.0023), (LINES, 23.0), (P99, 0.5), (Column("gone"), math.nan))

    families = {family.name: family for family in text_string_to_metric_families(text_of(page))}

    latency = families["soak_fsync_latency_seconds"]
    assert latency.type == "summary"
    assert {sample.labels["quantile"]: sample.value for sample in latency.samples} == {
        "0.5": 0.0023,
        "0.99": 0.5,
    }
    assert families["soak_ship_sent_lines"].type == "counter"
    assert families["soak_ship_sent_lines"].samples[0].name == "soak_ship_sent_lines_total"
    assert families["soak_daemon_info"].samples[0].labels == LABELS
    newest = families["soak_last_record_timestamp_seconds"].samples[0].value
    assert newest == 1_790_000_000.0
    assert "soak_gone" not in families


def test_before_the_first_record_the_page_has_only_its_labels() -> None:
    """And no time of a record."""
    text = text_of(MetricsPage(FakeClock(), LABELS))

    assert 'soak_daemon_info{daemon="probe",plan="x",run="r1"} 1.0' in text
    assert "soak_last_record" not in text


def test_a_page_is_served_and_found_by_its_file(tmp_path: Path) -> None:
    """At a free port, written in the format of file_sd_configs."""
    publish(page_of((P50, 0.0023)), tmp_path, Metrics(), ("conduct", "probe"), "probe")

    (found,) = json.loads((tmp_path / "metrics" / "probe.json").read_text())
    with urllib.request.urlopen(f"http://{found['targets'][0]}/metrics", timeout=30) as answer:
        text = answer.read().decode()

    assert found["labels"] == LABELS
    assert 'soak_fsync_latency_seconds{quantile="0.5"} 0.0023' in text
    assert "process_resident_memory_bytes" in text


def test_a_client_that_sends_no_request_is_disconnected(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Over weeks each one would hold a thread and a descriptor."""
    port, end = serve(page_of(), "127.0.0.1", 0, client_timeout_seconds=0.05)

    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        assert client.recv(1) == b""

    end()
    assert capsys.readouterr().err == ""


def test_a_port_in_use_costs_only_the_page(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The i-th daemon has the i-th port; the daemon goes on without a page."""
    publish(page_of(), tmp_path, Metrics(), ("a",), "a")
    (found,) = json.loads((tmp_path / "metrics" / "a.json").read_text())
    port = int(found["targets"][0].rpartition(":")[2])

    publish(page_of(), tmp_path, Metrics(port=port - 1), ("first", "b"), "b")

    assert f"metrics_not_served address=127.0.0.1 port={port}" in caplog.text
    assert not (tmp_path / "metrics" / "b.json").exists()


def test_without_metrics_in_the_plan_nothing_is_served(tmp_path: Path) -> None:
    """No port, no thread, no file."""
    publish(page_of(), tmp_path, None, ("a",), "a")

    assert list(tmp_path.iterdir()) == []


def test_the_port_is_free_once_serving_ends(tmp_path: Path) -> None:
    """A daemon that starts again in its process serves its new page."""
    end = publish(page_of((P50, 0.5)), tmp_path, Metrics(), ("a",), "a")
    (found,) = json.loads((tmp_path / "metrics" / "a.json").read_text())
    address = found["targets"][0]
    end()

    end = publish(
        page_of((P50, 0.0023)), tmp_path, Metrics(port=int(address.rpartition(":")[2])), ("a",), "a"
    )
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    end()

    assert 'quantile="0.5"} 0.0023' in text


def test_no_name_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver that is down must not delay a start."""

    def dead_resolver(*_: object) -> str:
        raise AssertionError("the DNS was asked")

    monkeypatch.setattr(socket, "getfqdn", dead_resolver)
    monkeypatch.setattr(socket, "gethostbyaddr", dead_resolver)

    publish(page_of(), tmp_path, Metrics(address="0.0.0.0"), ("a",), "a")()  # as a user may

    assert (tmp_path / "metrics" / "a.json").exists()


def test_what_counts_one_second_grows_on_the_page() -> None:
    """A scrape sees one second in fifteen: the others must not be lost. An unknown amount adds nothing."""
    page = page_of()
    for sent in (1000.0, 23.0, math.nan, 7.0):
        page.show([(SENT, sent)])

    assert values_of(page)["soak_sent_messages_total"] == 1030.0
    assert "# TYPE soak_sent_messages_total counter" in text_of(page)


def test_latencies_are_a_histogram_of_all_seconds() -> None:
    """Without those that are negative, which clocks cause; the quantiles of the last second are left out."""
    page = page_of()
    p99 = Column("publish_latency_seconds", (("quantile", "0.99"),), "seconds")
    for latencies in ((0.002, 0.5), (0.0005, 4000.0, -1.0)):
        page.show([(p99, 1.0)], {"publish_latency_seconds": distribution_of(*latencies)})

    values = values_of(page)
    assert values['soak_publish_latency_seconds_bucket{le="0.001"}'] == 1
    assert values['soak_publish_latency_seconds_bucket{le="1"}'] == 3
    assert values['soak_publish_latency_seconds_bucket{le="100"}'] == 3
    assert values['soak_publish_latency_seconds_bucket{le="+Inf"}'] == 4
    assert values["soak_publish_latency_seconds_count"] == 4
    assert values["soak_publish_latency_seconds_sum"] == pytest.approx(4000.5025, rel=1e-3)
    assert not [name for name in values if "quantile" in name]


def test_a_leaders_latencies_have_a_name_of_their_own() -> None:
    """A sum over one name would count each message twice."""
    page = page_of()
    name = Column("publish_latency_seconds", (("leader", "2"),)).name
    page.show([], {name: distribution_of(0.01)})

    values = values_of(page)
    assert values['soak_publish_latency_by_leader_seconds_count{leader="2"}'] == 1
    assert "soak_publish_latency_seconds_count" not in values


def test_a_limit_is_a_counter_where_it_is_no_end_of_a_bucket() -> None:
    page = page_of(
        *(
            (Column("publish_latency_above_messages", (("threshold", limit),), "messages"), 23.0)
            for limit in ("0.1", "0.12")
        )
    )

    limits = {name for name in values_of(page) if "_above_" in name}
    assert limits == {'soak_publish_latency_above_messages_total{threshold="0.12"}'}


def test_counters_of_node_exporter_have_its_names() -> None:
    """Seconds a second add up to seconds."""
    clock = FakeClock()
    page = MetricsPage(clock, LABELS)
    names = [f"node_pressure_{name}_seconds" for name in ("io_waiting", "irq_stalled")]
    for ratio in (0.25, 0.5):
        page.show([(Column(name, (), "ratio"), ratio) for name in names])
        clock.advance(1)

    assert [values_of(page)[f"{name}_total"] for name in names] == [0.75, 0.75]


def test_an_amount_a_second_counts_for_the_time_since_the_last_one() -> None:
    """A drive that could not be read for ten seconds has lost nothing of what was written meanwhile."""
    clock = FakeClock()
    page = MetricsPage(clock, LABELS)
    written = Column("node_disk_written_bytes", (("device", "vda"),), "bytes")
    for value in (100.0, 100.0, *[math.nan] * 9, 100.0, 100.0):
        clock.advance(1)
        page.show([(written, value)])

    assert values_of(page)['node_disk_written_bytes_total{device="vda"}'] == 1300.0


def test_a_value_that_is_measured_once_a_minute_is_on_each_page() -> None:
    """But not for ever; a column that is gone goes at once."""
    clock = FakeClock()
    page = MetricsPage(clock, LABELS)
    wear, phase = Column("smart_wear_ratio"), Column("run_phase", (("phase", "soak"),), "one")
    page.show([(wear, 0.2), (phase, 1.0)])
    clock.advance(60)
    page.show([(wear, math.nan)])
    after_a_minute = values_of(page)
    clock.advance(600)
    page.show([(wear, math.nan)])

    assert after_a_minute["soak_smart_wear_ratio"] == 0.2
    assert not [name for name in after_a_minute if "phase" in name]
    assert "soak_smart_wear_ratio" not in values_of(page)


@pytest.mark.long
def test_many_series_that_stay_go_on_growing() -> None:
    page = page_of()
    columns = [
        Column("retention_deletions", (("topic", str(at)),), "deletions")
        for at in range(MAX_SERIES + 1)
    ]
    for _ in range(3):
        page.show([(column, 1.0) for column in columns])

    assert values_of(page)['soak_retention_deletions_total{topic="0"}'] == 3.0


def test_a_fetched_metric_keeps_its_name_and_is_not_added_up() -> None:
    """A page that is fetched every 15 s has no value in the other seconds."""
    page = page_of()
    column = Column("node_disk_read_bytes", (("device", "vda"), ("target", "b1")), "bytes")
    for value in (5.0, 7.0):
        page.show([(column, value)])

    assert values_of(page)['node_disk_read_bytes{device="vda",target="b1"}'] == 7.0


@pytest.mark.long
def test_series_that_come_and_go_for_weeks_do_not_fill_the_memory() -> None:
    page = page_of()
    for first in range(0, MAX_SERIES + 2000, 1000):
        labels = [(("topic", str(at)),) for at in range(first, first + 1000)]
        page.show([(Column("retention_deletions", one, "deletions"), 1.0) for one in labels])

    found = [name for name in values_of(page) if name.startswith("soak_retention")]
    assert len(found) <= MAX_SERIES + 1000
    assert f'soak_retention_deletions_total{{topic="{MAX_SERIES + 1999}"}}' in found


HOSTILE = (
    "<script>alert(1)</script>",
    "a\nsoak_fsync_latency_seconds 7",
    'a"} 1\nb{c="d',
    "\u202eabc\u200f",
    "back\\slash\\n",
    "carriage\rreturn\u2028\x85\x0b",
    "",
    "x" * 10_000,
)


def test_a_label_of_any_text_is_one_sample_with_that_text() -> None:
    """Names of mounts, drives and topics come from outside; none makes a second sample, or markup."""
    columns = [Column("disk_await_seconds", (("mount", text),), "seconds") for text in HOSTILE]
    page = page_of(*((column, float(at)) for at, column in enumerate(columns)))

    found = {
        sample.labels["mount"]: sample.value
        for family in text_string_to_metric_families(text_of(page))
        for sample in family.samples
        if sample.name == "soak_disk_await_seconds"
    }

    assert found == {text: float(at) for at, text in enumerate(HOSTILE)}
    assert text_of(page).count("soak_disk_await_seconds{") == len(HOSTILE)


def test_a_label_that_is_no_unicode_costs_no_page() -> None:
    """The name of a mount point may hold any byte; Python reads those that are no text as surrogates."""
    page = page_of((Column("disk_await_seconds", (("mount", "/a\udcff"),), "seconds"), 1.0))

    name = column_name("soak_disk_await_seconds", (("mount", "/a\\udcff"),))
    assert values_of(page)[name] == 1.0


def test_reserved_names_get_a_prefix() -> None:
    """Prometheus adds `up` to each scrape: that of a fetched page would fire alerts on this one."""
    target = (("target", "broker1"),)
    text = text_of(page_of((Column("up", target, "bool"), 0.0)))

    assert '\nsoak_probe_up{target="broker1"} 0.0' in text
    assert "\nup{" not in text
