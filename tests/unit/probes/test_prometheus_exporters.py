"""The shipped name maps on pages that other exporters, collectors and servers make."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.core.model import Column
from tests.support.probes.metrics_pages import Watched, rated

IDLE = "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_ratio"
SHARE = "kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent"


@pytest.mark.parametrize(
    ("name", "values", "idle"),
    [
        (f"{SHARE}_total", (5e12, 5e12 + 0.25e9), 0.25),  # Strimzi's reporter
        (f"{SHARE}_total", (0.97, 0.95), 0.95),  # Confluent's rules
        (SHARE, (0.97, 0.95), 0.95),  # the same, behind a jmx_exporter from 1.0 on
        (f"{SHARE}_total", (0.0, 0.25e9), 0.25),  # of a broker that starts
    ],
)
def test_a_count_of_idle_nanoseconds_is_told_from_a_share_by_its_fraction(
    name: str, values: tuple[float, float], idle: float
) -> None:
    """Both have these names; a count has none."""
    watched = Watched(["kafka_jmx"], *(f"{name} {value}\n".encode() for value in values))
    watched.values()

    assert watched.values() == pytest.approx({IDLE: idle})


def test_a_rate_that_has_the_name_of_a_count_is_no_count() -> None:
    """Its rises would be taken for messages; a count has no fraction, which a rate lacks at times only."""
    name, messages = (f"kafka_server_brokertopicmetrics_messagesin{end}" for end in ("persec", ""))
    rates = (0.0, 22.5, 23.5, 23.0)
    watched = Watched(["kafka_jmx"], *(f"{name} {rate}\n".encode() for rate in rates))

    found = [watched.values() for _ in rates]

    assert found == [{}, {}, {messages: 23.5}, {messages: 23.0}]


@pytest.mark.parametrize(
    "series",
    [
        "kafka_server_brokertopicmetrics_bytesinpersec_oneminuterate",
        'kafka_server_BrokerTopicMetrics_OneMinuteRate{name="BytesInPerSec"}',
        "cp_kafka_server_brokertopicmetrics_bytesinpersec",  # cp-helm-charts
    ],
)
def test_without_a_count_the_mean_of_the_last_minute_is_read(series: str) -> None:
    """It shows a change a minute late."""
    found = dict(Watched(["kafka_jmx"], f"{series} 4600.5\n".encode()).look().samples)

    bytes_in = "kafka_server_brokertopicmetrics_bytesin"
    assert found[Column(bytes_in, (("target", "b"),), "bytes", 60.0)] == 4600.5


def test_topics_are_added_up_where_rules_count_by_topic_only() -> None:
    """Some of these give a total, too, as the topic `all`."""
    name, messages = (f"kafka_server_brokertopicmetrics_messagesin{end}" for end in ("_total", ""))
    grown = {f'{name}{{topic="soak"}}': 20.0, f'{name}{{topic="other"}}': 3.0}
    page = "".join(f"{series} 7.0\n" for series in (*grown, f'{name}{{topic="all"}}'))

    assert rated(["kafka_jmx"], page.encode(), grown) == {messages: 23.0}


def test_rates_of_topics_are_not_taken_for_counts_while_some_are_idle() -> None:
    """One with a fraction says what they all are."""
    name = "kafka_server_brokertopicmetrics_bytesinpersec"
    page = f'{name}{{topic="soak"}} 4600.5\n{name}{{topic="idle"}} 0.0\n'

    assert rated(["kafka_jmx"], page.encode(), {}) == {}


def test_brokers_on_one_page_are_kept_apart() -> None:
    """As on /federate of a server; what it calls `exported_` is the label of the broker's own page."""
    leaders = "kafka_server_replicamanager_leadercount"
    page = (
        f'{leaders}{{instance="b1:9404",pod="kafka-0"}} 23\n'
        f'{leaders}{{instance="prometheus:9090",exported_instance="b2:9404"}} 46\n'
    )

    found = Watched(["kafka_jmx"], page.encode()).values()

    assert found == {
        f'{leaders}{{instance="b1:9404",pod="kafka-0"}}': 23.0,
        f'{leaders}{{instance="b2:9404"}}': 46.0,
    }


def test_a_label_that_the_scraper_renamed_selects_as_the_pages_own() -> None:
    """Where a target has a label `name`, that of the bean is another one."""
    page = 'kafka_server_ReplicaManager_Value{name="east",exported_name="LeaderCount"} 23\n'

    found = Watched(["kafka_jmx"], page.encode()).values()

    assert found == {"kafka_server_replicamanager_leadercount": 23.0}


def test_brokers_whose_pages_differ_are_all_read() -> None:
    """A server has those before and after an upgrade of their exporter side by side."""
    page = (
        'jvm_memory_bytes_used{area="heap",instance="b1:9404"} 23\n'
        'jvm_memory_used_bytes{area="heap",instance="b2:9404"} 46\n'
    )

    found = Watched(["jvm"], page.encode()).values()

    assert found == {
        'jvm_memory_used_bytes{area="heap",instance="b1:9404"}': 23.0,
        'jvm_memory_used_bytes{area="heap",instance="b2:9404"}': 46.0,
    }


def test_each_collector_of_garbage_has_its_own_time() -> None:
    """Whichever the JVM uses; its bean counts milliseconds."""
    pauses = 'java_lang_GarbageCollector_CollectionTime{name="ZGC Pauses",}'
    cycles = 'jvm_gc_duration_seconds_sum{jvm_gc_name="ZGC Cycles"}'
    page = f"{pauses} 1200.0\n{cycles} 5.0\n"

    found = rated(["jvm"], page.encode(), {pauses: 230.0, cycles: 0.5})

    assert found == pytest.approx(
        {
            'jvm_gc_collection_seconds{gc="ZGC Pauses"}': 0.23,
            'jvm_gc_collection_seconds{gc="ZGC Cycles"}': 0.5,
        }
    )


def test_the_direction_of_bytes_may_be_called_their_state() -> None:
    """As by OpenTelemetry's JMX gatherer."""
    came, went = (f'kafka_network_io_bytes_total{{state="{one}"}}' for one in ("in", "out"))

    found = rated(["kafka_otel"], f"{came} 7.0\n{went} 5.0\n".encode(), {came: 4600.0, went: 46.0})

    assert found == {
        "kafka_server_brokertopicmetrics_bytesin": 4600.0,
        "kafka_server_brokertopicmetrics_bytesout": 46.0,
    }


def test_controllers_say_how_many_partitions_and_topics_there_are() -> None:
    """With rules and without."""
    partitions = "kafka_controller_kafkacontroller_globalpartitioncount"
    page = f'{partitions} 23\nkafka_controller_KafkaController_Value{{name="GlobalTopicCount"}} 7\n'

    found = Watched(["kafka_jmx"], page.encode()).values()

    assert found == {partitions: 23.0, "kafka_controller_kafkacontroller_globaltopiccount": 7.0}


@pytest.mark.parametrize(
    "name",
    [
        "kafka_consumergroup_group_sum_lag",  # kafka-lag-exporter
        "kafka_burrow_total_lag",
        "kafka_consumer_group_lag_sum",  # OpenTelemetry's collector
    ],
)
def test_other_exporters_of_backlogs_lead_to_the_same_metric(name: str) -> None:
    """Their label of a group has another name."""
    found = Watched(["kafka_exporter"], f'{name}{{group="etl"}} 23\n'.encode()).values()

    assert found == {'kafka_consumergroup_lag_sum{consumergroup="etl"}': 23.0}


def test_a_host_is_read_as_opentelemetrys_collector_names_it() -> None:
    """Of several hosts behind one collector each has its own values; a partition counts with its drive."""
    disk = (
        'system_disk_operation_time_seconds_total{{device="{}",direction="write",host_name="{}"}}'
    )
    drive, other, partition = (
        disk.format(*one) for one in (("sda", "b1"), ("sda", "b2"), ("sda1", "b1"))
    )
    waits = [
        f'system_cpu_time_seconds_total{{cpu="{cpu}",state="wait",host_name="b1"}}'
        for cpu in ("cpu0", "cpu1")
    ]
    page = "".join(f"{series} 7.0\n" for series in (drive, other, partition, *waits))

    grown = {drive: 0.23, partition: 0.23, waits[0]: 0.5, waits[1]: 0.25}
    found = rated(["host_otel"], page.encode(), grown)

    assert found == pytest.approx(
        {
            'node_disk_write_time_seconds{device="sda",instance="b1"}': 0.23,
            'node_disk_write_time_seconds{device="sda",instance="b2"}': 0.0,
            'node_cpu_seconds{instance="b1",mode="iowait"}': 0.75,
        }
    )


def test_a_host_is_read_as_telegraf_names_it() -> None:
    """It counts milliseconds, and calls a drive `name`."""
    drive, partition = (
        f'diskio_write_time{{host="b1",name="{name}"}}' for name in ("nvme0n1", "nvme0n1p1")
    )
    page = f'{drive} 7000\n{partition} 7000\ndisk_free{{fstype="xfs",host="b1",path="/data"}} 23\n'

    found = rated(["host_telegraf"], page.encode(), {drive: 230.0, partition: 230.0})

    assert found == pytest.approx(
        {
            'node_disk_write_time_seconds{device="nvme0n1",instance="b1"}': 0.23,
            'node_filesystem_avail_bytes{instance="b1",mountpoint="/data"}': 23.0,
        }
    )


def test_kminion_may_have_the_sums_of_topics_alone() -> None:
    """As with the granularity `topic`; with that of partitions it has both."""
    sums = 'kminion_kafka_topic_low_water_mark_sum{topic_name="a"} 23\n'
    each = "".join(
        f'kminion_kafka_topic_partition_low_water_mark{{partition_id="{n}",topic_name="a"}} {n}\n'
        for n in (11, 12)
    )

    found = [Watched(["kminion"], page.encode()).values() for page in (sums, each + sums)]

    assert found == [{'kminion_kafka_topic_partition_low_water_mark{topic_name="a"}': 23.0}] * 2


@pytest.mark.parametrize(
    ("starts", "ups"),
    [
        ((1e9, 2e9) * 4, [1.0] * 4 + [0.0] * 4),
        ((1e9, 1e9, 2e9, 2e9, 3e9), [1.0] * 5),  # it restarts
        ((1e9, 1e9 + 1.0) * 4, [1.0] * 8),  # the kernel sets its clock
    ],
)
def test_an_address_with_several_brokers_behind_it_is_refused(
    starts: tuple[float, ...], ups: list[float]
) -> None:
    """A proxy asks one or the other, and the counters of one would seem to leap to those of the next."""
    page = 'process_start_time_seconds {}\njvm_memory_used_bytes{{area="heap"}} 23\n'
    watched = Watched(["jvm"], *(page.format(at).encode() for at in starts))

    found = [dict(watched.look().samples) for _ in starts]

    assert [one[Column("up", (("target", "b"),), "ratio")] for one in found] == ups


def test_the_start_of_a_process_is_read_where_a_map_has_it(tmp_path: Path) -> None:
    """Pages are looked at for it in any case; without such a map nothing else is said of it."""
    own = tmp_path / "own.toml"
    name = "process_start_time_seconds"
    own.write_text(
        f"[[metric]]\nname = '{name}'\nspellings = ['{name}']\nkind = 'gauge'\nunit = 'seconds'\n"
    )
    twice = f"{name} 7.0\n{name} 8.0\n".encode()  # a proxy adds its own page to that of a program

    events = Watched(["kminion"], twice).look().events

    assert Watched([str(own)], f"{name} 7.0\n".encode()).values() == {name: 7.0}
    assert [event.kind for event in events] == ["metrics_missing"]
