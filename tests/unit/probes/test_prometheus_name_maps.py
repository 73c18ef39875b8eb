"""The shipped name maps on pages as rules of others make them, and which entry of a name is used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from probes.common.counters import Step, Steps
from probes.prometheus import name_map
from probes.prometheus import probe as prometheus
from probes.prometheus.aggregation import Aggregator
from probes.prometheus.name_map import Entry
from probes.prometheus.probe import Config, Target
from soak.core.clock import SystemClock
from soak.core.errors import PlanError
from soak.core.model import Column
from tests.support.pages import pages
from tests.support.probes.metrics_pages import Watched, later, rated, recorded

IDLE = "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_ratio"
SHARE = "kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent"
PRODUCE = "kafka_network_requestmetrics_totaltime_seconds"
BROKER = {
    "kafka_server_brokertopicmetrics_messagesin": 23.0,
    "kafka_server_brokertopicmetrics_bytesin": 4600.0,
    "kafka_server_brokertopicmetrics_bytesout": 46.0,
    "kafka_server_replicamanager_underreplicatedpartitions": 3.0,
    "kafka_server_replicamanager_isrshrinks": 1.0,
    "kafka_server_replicamanager_leadercount": 23.0,
    "kafka_server_replicamanager_partitioncount": 46.0,
}
JVM = {
    'jvm_gc_collection_seconds{gc="G1 Young Generation"}': 0.23,
    'jvm_gc_collection_seconds{gc="G1 Old Generation"}': 0.0,
    'jvm_memory_used_bytes{area="heap"}': 365922848.0,
    'jvm_memory_used_bytes{area="nonheap"}': 98e6,
    "process_cpu_seconds": 0.5,
}


BITNAMI = {
    'kafka_server_brokertopicmetrics_messagesinpersec_count{topic="soak",}': 20.0,
    "kafka_server_brokertopicmetrics_total_messagesinpersec_count": 23.0,
    "kafka_server_brokertopicmetrics_total_bytesinpersec_count": 4600.0,
    "kafka_server_brokertopicmetrics_total_bytesoutpersec_count": 46.0,
    "kafka_server_replicamanager_total_isrshrinkspersec_count": 1.0,
    "kafka_server_kafkarequesthandlerpool_total_requesthandleravgidlepercent_count": 0.25e9,
    "java_lang_garbagecollector_collectiontime_g1_young_generation": 230.0,
    "java_lang_operatingsystem_processcputime": 0.5e9,
}
NO_RULES = {
    'kafka_server_BrokerTopicMetrics_Count{name="MessagesInPerSec",}': 23.0,
    'kafka_server_BrokerTopicMetrics_Count{name="MessagesInPerSec",topic="soak",}': 20.0,
    'kafka_server_BrokerTopicMetrics_Count{name="BytesInPerSec",}': 4600.0,
    'kafka_server_BrokerTopicMetrics_Count{name="BytesOutPerSec",}': 46.0,
    'kafka_server_ReplicaManager_Count{name="IsrShrinksPerSec",}': 1.0,
    'kafka_server_KafkaRequestHandlerPool_Count{name="RequestHandlerAvgIdlePercent",}': 0.25e9,
    'kafka_log_LogFlushStats_Count{name="LogFlushRateAndTimeMs",}': 2.0,
    'java_lang_GarbageCollector_CollectionTime{name="G1 Young Generation",}': 230.0,
    "java_lang_OperatingSystem_ProcessCpuTime": 0.5e9,
}
CONFLUENT = {
    "kafka_server_brokertopicmetrics_messagesinpersec": 23.0,
    "kafka_server_brokertopicmetrics_bytesinpersec": 4600.0,
    "kafka_server_brokertopicmetrics_bytesoutpersec": 46.0,
    "kafka_server_replicamanager_isrshrinkspersec": 1.0,
    "kafka_log_logflushstats_logflushrateandtimems": 2.0,
    SHARE: 0.25e9,
}


def lower(text: str) -> str:
    """Return a page, or a series, with lowercaseOutputName: labels stay as they are."""
    return re.sub(r"^\w+", lambda name: name[0].lower(), text, flags=re.MULTILINE | re.ASCII)


def test_bitnamis_totals_are_read_although_topics_have_the_other_spelling() -> None:
    """Its rules put `_total_` into the name of what has no topic; the exporter is a process of its own."""
    page = recorded("kafka_jmx_bitnami")

    found = rated(["kafka_jmx", "jvm"], page, BITNAMI)

    wanted = {**BROKER, **JVM, IDLE: 0.25, "kafka_log_log_size_bytes": 4000.0}
    assert found == pytest.approx(wanted)


def test_what_bitnamis_rules_leave_out_is_missing() -> None:
    """And nothing else."""
    (event,) = Watched(["kafka_jmx", "jvm"], recorded("kafka_jmx_bitnami")).look().events

    assert event.fields["missing"] == "kafka_log_logflushstats_logflushes"


@pytest.mark.parametrize("is_lower", [False, True])
def test_without_rules_the_name_of_the_bean_is_a_label(*, is_lower: bool) -> None:
    """As at Amazon MSK; in Confluent for Kubernetes in lower case. Quantiles are in the name."""
    page, grown = recorded("kafka_jmx_no_rules"), dict(NO_RULES)
    if is_lower:
        page = lower(page.decode()).encode()
        grown = {lower(series): value for series, value in grown.items()}

    found = rated(["kafka_jmx", "jvm"], page, grown)

    wanted = {
        **BROKER,
        **JVM,
        IDLE: 0.25,
        f'{PRODUCE}{{quantile="0.5",request="Produce"}}': 0.001,
        f'{PRODUCE}{{quantile="0.99",request="Produce"}}': 0.009,
        f'{PRODUCE}{{quantile="0.99",request="FetchConsumer"}}': 0.502,
        'kafka_network_requestmetrics_localtime_seconds{quantile="0.99",request="Produce"}': 0.002,
        'kafka_network_requestmetrics_requestqueuetime_seconds{quantile="0.99",request="Produce"}': 0.001,
        'kafka_log_logflushstats_logflushrateandtime_seconds{quantile="0.99"}': 0.0045,
        "kafka_log_logflushstats_logflushes": 2.0,
        "kafka_log_log_size_bytes": 4000.0,
        "kafka_log_log_numlogsegments": 5.0,
    }
    assert found == pytest.approx(wanted)


@pytest.mark.parametrize("is_lower", [False, True])
def test_without_rules_the_collectors_of_a_newer_jvm_are_in_the_names(*, is_lower: bool) -> None:
    """It names a collector before the type of the bean."""
    page = "".join(
        f'java_lang_G1_{age}_Generation_CollectionTime{{type="GarbageCollector"}} 1200.0\n'
        for age in ("Young", "Old")
    )
    page = lower(page) if is_lower else page

    found = rated(["jvm"], page.encode(), {page.partition(" ")[0]: 230.0})

    assert found == pytest.approx(
        {series: value for series, value in JVM.items() if "gc=" in series}
    )


def test_the_jvm_is_read_as_opentelemetrys_agent_names_it() -> None:
    """Its pauses are a histogram, its memory is by pool."""
    pauses = 'jvm_gc_duration_seconds_sum{{jvm_gc_action="x",jvm_gc_name="G1 {} Generation"}}'
    used = 'jvm_memory_used_bytes{{jvm_memory_pool_name="{}",jvm_memory_type="{}"}}'
    page = (
        f"{pauses.format('Young')} 1.2\n{pauses.format('Old')} 0.5\n"
        f"{used.format('Eden', 'heap')} 20.0\n{used.format('Old', 'heap')} 3.0\n"
        f"{used.format('Metaspace', 'non_heap')} 7.0\n"
        "jvm_cpu_time_seconds_total 70.0\n"
    )

    grown = {pauses.format("Young"): 0.23, "jvm_cpu_time_seconds_total": 0.5}
    found = rated(["jvm"], page.encode(), grown)

    memory = {
        'jvm_memory_used_bytes{area="heap"}': 23.0,
        'jvm_memory_used_bytes{area="nonheap"}': 7.0,
    }
    assert found == pytest.approx({**JVM, **memory})


def test_a_count_that_has_the_name_of_its_quantiles_is_no_quantile() -> None:
    """As Confluent's rules make them."""
    found = rated(["kafka_jmx"], recorded("kafka_jmx_confluent"), CONFLUENT)

    wanted = {
        **BROKER,
        IDLE: 0.25,
        f'{PRODUCE}{{quantile="0.50",request="Produce"}}': 0.001,
        f'{PRODUCE}{{quantile="0.99",request="Produce"}}': 0.009,
        'kafka_log_logflushstats_logflushrateandtime_seconds{quantile="0.99"}': 0.0045,
        "kafka_log_logflushstats_logflushes": 2.0,
    }
    assert found == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("page", "maps"),
    [
        ("kafka_jmx_no_rules", ["kafka_jmx", "jvm"]),
        ("kafka_jmx_confluent", ["kafka_jmx"]),
        ("kafka_otel_automq", ["kafka_otel"]),
    ],
)
def test_nothing_is_missing_on_a_page_of_others(page: str, maps: list[str]) -> None:
    """Each metric that its map expects is read from one entry of its name."""
    assert Watched(maps, recorded(page)).look().events == ()


@pytest.mark.parametrize(
    "name",
    [
        "kafka_network_requestmetrics_totaltimems_99thpercentile",  # rules that keep the attribute
        "kafka_network_RequestMetrics_TotalTimeMs_99thPercentile",  # Aiven's
    ],
)
def test_a_quantile_in_the_name_of_a_metric_becomes_a_label(name: str) -> None:
    page = f'{name}{{request="Produce",}} 3.5\n{name}{{request="Heartbeat",}} 1.0\n'

    found = Watched(["kafka_jmx"], page.encode()).values()

    assert found == pytest.approx({f'{PRODUCE}{{quantile="0.99",request="Produce"}}': 0.0035})


def test_the_idle_time_is_counted_where_the_page_has_a_count() -> None:
    """Its one-minute rate shows a change a minute late. Newer versions of jmx_exporter add `_total`."""
    name = "kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent"
    page = f"{name}_count_total 5.0E12\n{name}_oneminuterate 0.8912\n".encode()
    watched = Watched(["kafka_jmx"], page, later(page, {f"{name}_count_total": 0.75e9}))
    watched.look()

    found = dict(watched.look().samples)

    assert found[Column(IDLE, (("target", "b"),), "ratio", 0.0)] == pytest.approx(0.75)


def test_the_rules_of_opentelemetry_lead_to_the_same_metrics() -> None:
    """AutoMQ's count by topic, and call what comes in `int`."""
    page = recorded("kafka_otel_automq")
    grown = {
        'kafka_message_count_total{direction="in",topic="soak"}': 20.0,
        'kafka_message_count_total{direction="in",topic="other"}': 3.0,
        'kafka_network_io_bytes_total{direction="int",topic="soak"}': 4600.0,
        'kafka_network_io_bytes_total{direction="out",topic="soak"}': 46.0,
        "kafka_logs_flush_count_total": 2.0,
    }

    found = rated(["kafka_otel"], page, grown)

    wanted = {
        "kafka_server_brokertopicmetrics_messagesin": 23.0,
        "kafka_server_brokertopicmetrics_bytesin": 4600.0,
        "kafka_server_brokertopicmetrics_bytesout": 46.0,
        "kafka_server_replicamanager_partitioncount": 46.0,
        f'{PRODUCE}{{quantile="0.5",request="Produce"}}': 0.001,
        f'{PRODUCE}{{quantile="0.99",request="Produce"}}': 0.009,
        "kafka_log_logflushstats_logflushes": 2.0,
    }
    assert found == pytest.approx(wanted)


def test_a_name_of_which_no_series_is_taken_is_missing() -> None:
    """Such as rules that call the total a topic: then nothing would be recorded, and nothing said."""
    page = recorded("kafka_jmx_example").decode()
    name = "kafka_server_brokertopicmetrics_messagesin_total"
    text, count = re.subn(
        rf"^{name}(\{{.*\}})? ", f'{name}{{topic="all"}} ', page, flags=re.MULTILINE
    )
    assert count == 2

    (event,) = Watched(["kafka_jmx"], text.encode()).look().events
    with pages({"/metrics": text}) as url:
        target = Target(url=f"{url}/metrics", maps=("kafka_jmx",))
        warnings = prometheus.preflight(Config(targets={"b1": target}), SystemClock())

    assert event.fields["missing"] == "kafka_server_brokertopicmetrics_messagesin"
    assert warnings[-1].endswith("does not have kafka_server_brokertopicmetrics_messagesin")


def test_labels_that_an_earlier_entry_gives_are_not_given_again() -> None:
    """The beans of the broker's JVM come before what the page's own process says."""
    own = 'jvm_memory_used_bytes{area="heap"} 5\njvm_memory_used_bytes{area="nonheap"} 7\n'

    found = Watched(["jvm"], f"{own}java_lang_memory_heapmemoryusage_used 23\n".encode()).values()

    assert found == {
        'jvm_memory_used_bytes{area="heap"}': 23.0,
        'jvm_memory_used_bytes{area="nonheap"}': 7.0,
    }


def test_a_reading_in_which_another_entry_gives_a_value_is_skipped() -> None:
    """Its value is of other series: two such values in a row would look like a step."""
    entries = [
        Entry(name="a", spellings=[name], kind="gauge", unit="bytes") for name in ("first", "next")
    ]
    one: Steps = {"next": {(): Step(7.0, None, 0.0)}}
    both: Steps = {"first": {(): Step(5.0, None, 0.0)}, **one}
    folds = Aggregator(entries, ())

    found = [
        [value for _, value in folds.samples(page, frozenset())]
        for page in (both, one, one, both, both)
    ]

    assert found == [[5.0], [], [7.0], [], [5.0]]


def test_entries_of_one_name_have_one_unit(tmp_path: Path) -> None:
    """Of whichever maps they are: their values go into one column."""
    table = "[[metric]]\nname = 'node_load1'\nspellings = ['%s']\nkind = 'gauge'\nunit = '%s'\n"
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text(table % ("a", "tasks") + table % ("b", "tasks"))
    two.write_text(table % ("a", "tasks") + table % ("b", "seconds"))

    assert len(name_map.load([str(one), str(one)])) == 4
    with pytest.raises(PlanError, match=r"two\.toml: node_load1 is defined with two units"):
        name_map.load([str(two)])
    with pytest.raises(PlanError, match=r"two\.toml: node_load1 is defined with two units"):
        name_map.load(["node_exporter", str(two)])


@pytest.mark.parametrize(
    ("name", "metric", "group", "rest"),
    [
        ("kminion", "kminion_kafka_consumer_group_topic_lag", "group_id", "topic_name"),
        ("kafka_exporter", "kafka_consumergroup_lag_sum", "consumergroup", "topic"),
        (
            "redpanda_public",
            "redpanda_kafka_consumer_group_lag_sum",
            "redpanda_group",
            "redpanda_shard",
        ),
    ],
)
def test_the_backlog_of_each_consumer_group_is_read(
    name: str, metric: str, group: str, rest: str
) -> None:
    """What it has not read of all its topics."""
    lines = [
        f'{metric}{{{group}="etl",{rest}="a"}} 23\n',
        f'{metric}{{{group}="etl",{rest}="b"}} 4\n',
        f'{metric}{{{group}="mirror",{rest}="a"}} 0\n',
    ]

    found = Watched([name], "".join(lines).encode()).values()

    assert found == {
        f'{metric}{{{group}="etl"}}': 27.0,
        f'{metric}{{{group}="mirror"}}': 0.0,
    }
