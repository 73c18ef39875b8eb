"""The probe `prometheus` on pages: names, rates, resets, sums, quantiles, and missing metrics."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.prometheus import name_map
from probes.prometheus import probe as prometheus
from probes.prometheus.aggregation import Samples, bucket_quantiles, cumulative_counts
from probes.prometheus.probe import Config, MetricsTarget, Prometheus, Target
from probes.prometheus.sources import Fetched
from soak.app.preflight.probes import probe_warnings
from soak.core.clock import SystemClock
from soak.core.errors import NotAvailableError, PlanError, ProbeError, SettingError
from soak.core.model import Column
from soak.core.plan import plugins
from soak.core.plan import text as plan_text
from soak.core.plan.plan import ProbePlan
from soak.core.units import SECOND_NS
from tests.support.fakes import FakeClock
from tests.support.pages import pages
from tests.support.probes.metrics_pages import URL, Watched, recorded

MAPS = sorted(path.stem for path in name_map.FOLDER.glob("*.toml"))
PAGE = b'node_load1 2.5\nnode_disk_written_bytes_total{device="vda"} %d\n'


def written(number: int) -> bytes:
    return PAGE % number


@pytest.mark.parametrize("name", MAPS)
def test_every_name_map_loads_and_describes_itself(name: str) -> None:
    """Found by listing the folder."""
    entries = name_map.load([name])

    assert entries
    assert "about = " in (name_map.FOLDER / f"{name}.toml").read_text()
    assert not [
        entry.name for entry in entries if entry.name.endswith("_total")
    ]  # rates and levels


@pytest.mark.parametrize(
    ("page", "maps"),
    [
        ("bookie-4.17.3", ["bookkeeper", "jvm"]),
        ("pulsar-4.2.4", ["pulsar", "jvm"]),
        ("node_exporter-1.5.0", ["node_exporter"]),
        ("redpanda_internal", ["redpanda_internal"]),
        ("redpanda_public", ["redpanda_public"]),
        ("kafka_jmx_example", ["kafka_jmx"]),
        ("kafka_jmx_attributes", ["kafka_jmx"]),
        ("kminion", ["kminion"]),
    ],
)
def test_a_recorded_page_has_all_metrics_that_its_map_expects(page: str, maps: list[str]) -> None:
    """Nothing is reported as missing."""
    reading = Watched(maps, recorded(page)).look()

    assert reading.events == ()
    assert len(reading.samples) >= 5


def test_a_counter_becomes_a_rate_at_the_second_reading() -> None:
    """A level is returned at once."""
    watched = Watched(["node_exporter"], written(1000), written(1230))

    assert watched.values() == {"node_load1": 2.5}
    assert watched.values() == {"node_load1": 2.5, 'node_disk_written_bytes{device="vda"}': 230.0}


def test_there_is_no_rate_across_a_restart() -> None:
    """The growth of a reset counter is unknown; the next reading is right again."""
    watched = Watched(["node_exporter"], written(1000), written(23), written(46))
    watched.values()

    assert watched.values() == {"node_load1": 2.5}
    assert watched.values()['node_disk_written_bytes{device="vda"}'] == 23.0


@pytest.mark.parametrize("spelling", ["node_disk_written_bytes", "node_disk_written_bytes_total"])
def test_a_counter_is_found_with_and_without_total(spelling: str) -> None:
    """Python's client adds it, Redpanda leaves it out."""
    pages = [b'%s{device="vda"} %d\n' % (spelling.encode(), number) for number in (0, 23)]
    watched = Watched(["node_exporter"], *pages)
    watched.values()

    assert watched.values() == {'node_disk_written_bytes{device="vda"}': 23.0}


KUBERNETES_NODE = b"""\
node_network_receive_bytes_total{device="cni0"} 6.40457396794e+11
node_network_receive_bytes_total{device="ens160"} %d
node_network_receive_bytes_total{device="veth16e2c570"} 2.052299248e+09
node_network_receive_bytes_total{device="cali0ef24b2e9a1"} 612
node_network_receive_drop_total{device="ens160"} %d
node_network_receive_drop_total{device="veth16e2c570"} 4
# TYPE node_netstat_Tcp_RetransSegs untyped
node_netstat_Tcp_RetransSegs %d
node_filesystem_avail_bytes{device="/dev/sda2",fstype="ext4",mountpoint="/"} 2e+10
node_filesystem_avail_bytes{device="shm",fstype="tmpfs",mountpoint="/run/containerd/9503/shm"} 6.7e+07
node_filesystem_avail_bytes{device="/dev/loop3",fstype="squashfs",mountpoint="/snap/core20/1"} 0
node_filesystem_avail_bytes{device="/dev/sdb",fstype="ext4",\
mountpoint="/var/lib/kubelet/pods/b49b59c4/volumes/kubernetes.io~csi/pvc-1/mount"} 1e+09
node_filesystem_avail_bytes{device="/dev/sdb",fstype="ext4",\
mountpoint="/var/lib/kubelet/plugins/kubernetes.io/csi/pv/pvc-1/globalmount"} 1e+09
"""


def test_what_comes_and_goes_with_the_containers_of_a_node_is_left_out() -> None:
    """Each would be a new column for ever; and a memory filesystem is no drive that fills."""
    watched = Watched(
        ["node_exporter"], KUBERNETES_NODE % (1000, 7, 2140), KUBERNETES_NODE % (1023, 9, 2145)
    )
    watched.values()

    assert watched.values() == {
        'node_network_receive_bytes{device="cni0"}': 0.0,
        'node_network_receive_bytes{device="ens160"}': 23.0,
        'node_network_receive_drop{device="ens160"}': 2.0,
        "node_netstat_Tcp_RetransSegs": 5.0,
        'node_filesystem_avail_bytes{mountpoint="/"}': 2e10,
        'node_filesystem_avail_bytes{mountpoint="/var/lib/kubelet/plugins/kubernetes.io/csi/pv/pvc-1/'
        'globalmount"}': 1e9,
    }


ROOT_TWICE = b"""\
node_filesystem_avail_bytes{device="rootfs",fstype="rootfs",mountpoint="/"} 2e+10
node_filesystem_avail_bytes{device="/dev/vda1",fstype="xfs",mountpoint="/"} 2e+10
"""


def test_a_filesystem_that_is_listed_twice_has_its_free_space_once() -> None:
    """As on kernel 3.10, and in some containers on later ones."""
    found = Watched(["node_exporter"], ROOT_TWICE).values()

    assert found == {'node_filesystem_avail_bytes{mountpoint="/"}': 2e10}


def test_two_spellings_on_one_page_are_not_summed() -> None:
    """The first of the map is used."""
    both = b"redpanda_cpu_busy_seconds_total 1\nredpanda_cpu_busy_seconds 1\n"
    later = b"redpanda_cpu_busy_seconds_total 3\nredpanda_cpu_busy_seconds 3\n"
    watched = Watched(["redpanda_public"], both, later)
    watched.values()

    found = watched.values()
    assert found.pop("vectorized_reactor_utilization_ratio") == 2.0  # of the same
    assert found == {"redpanda_cpu_busy_seconds": 2.0}


def test_consumed_messages_are_counted_once() -> None:
    """A Pulsar broker with metrics of consumers repeats those of their subscription."""
    page = (
        b'pulsar_out_messages_total{topic="t",subscription="s"} %d\n'
        b'pulsar_out_messages_total{topic="t",subscription="s",consumer_name="c",consumer_id="0"} %d\n'
    )
    watched = Watched(["pulsar"], page % (0, 0), page % (23, 23))
    watched.values()

    assert watched.values() == {"pulsar_out_messages": 23.0}


def test_deletions_in_kafka_are_the_growth_of_its_log_starts() -> None:
    """Its page has no counter of deletions."""
    page = b'kafka_log_log_logstartoffset{topic="t",partition="%d"} %d\n'
    watched = Watched(["kafka_jmx"], page % (0, 5) + page % (1, 7), page % (0, 28) + page % (1, 7))
    watched.values()

    assert watched.values() == {"kafka_log_log_logstartoffset": 23.0}


def test_the_idle_ratio_of_kafkas_threads_is_that_of_the_last_minute() -> None:
    """The mean since the start would hardly change when they get busy."""
    name = "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_ratio"

    assert Watched(["kafka_jmx"], recorded("kafka_jmx_attributes")).values()[name] == 0.97
    assert name not in Watched(["kafka_jmx"], recorded("kafka_jmx_example")).values()


def test_shards_are_summed_and_the_class_is_kept() -> None:
    """Starvation of `raft` on two shards: 0.25 s and 0.5 s in a second."""
    before = recorded("redpanda_internal")
    after = before.replace(b"} 1.250000\n", b"} 1.500000\n").replace(
        b"} 0.750000\n", b"} 1.250000\n"
    )
    watched = Watched(["redpanda_internal"], before, after)
    first = watched.values()

    found = watched.values()

    assert first["vectorized_reactor_utilization_ratio"] == 0.8  # the busiest core
    assert found['vectorized_io_queue_starvation_time_sec{class="raft"}'] == 0.75
    assert found['vectorized_io_queue_starvation_time_sec{class="default"}'] == 0.0


def test_there_is_no_sum_while_its_series_change() -> None:
    """A shard with a missing line must not look idle."""
    before = recorded("redpanda_internal")
    line = next(one for one in before.splitlines(keepends=True) if b'ioshard="1"' in one)
    watched = Watched(["redpanda_internal"], before, before.replace(line, b""), before, before)
    name = 'vectorized_io_queue_starvation_time_sec{class="raft"}'
    watched.values()

    assert name not in watched.values()
    assert name not in watched.values()
    assert watched.values()[name] == 0.0


def test_quantiles_come_from_the_growth_of_a_histogram() -> None:
    """1,000 more requests: half below 1.023 ms, 99 % below 2.047 ms."""
    after = recorded("redpanda_internal")
    before = (
        after.replace(b"} 500\n", b"} 0\n")
        .replace(b"} 990\n", b"} 0\n")
        .replace(b"} 1000\n", b"} 0\n")
    )
    watched = Watched(["redpanda_internal"], before, after)
    watched.values()

    found = watched.values()

    name = "vectorized_kafka_latency_produce_latency_seconds"
    assert found[f'{name}{{quantile="0.5"}}'] == pytest.approx(0.001023)
    assert found[f'{name}{{quantile="0.99"}}'] == pytest.approx(0.002047)


def test_a_histogram_that_did_not_grow_has_no_quantile() -> None:
    """No request is not zero latency."""
    watched = Watched(["redpanda_public"], recorded("redpanda_public"))
    watched.values()

    assert not [name for name in watched.values() if "latency" in name]


def test_pulsars_buckets_are_of_a_window_and_not_cumulative() -> None:
    """Both families of buckets lead to the same quantile of the load's 2,485 writes."""
    watched = Watched(["pulsar"], recorded("pulsar-4.2.4"))

    reading = watched.look()

    found = dict(reading.samples)
    labels = (("quantile", "0.5"), ("target", "b"))
    storage = Column("pulsar_storage_write_latency_seconds", labels, "seconds", 60.0)
    managed = Column("pulsar_ml_AddEntryLatency_seconds", labels, "seconds", 60.0)
    assert found[storage] == pytest.approx(0.003027, rel=1e-3)
    assert found[managed] == pytest.approx(found[storage])


def test_a_bookies_quantiles_are_of_success_and_its_mean_is_a_lower_bound() -> None:
    """Sums count whole milliseconds: 9 calls of 1.3 ms add up to 9."""
    before = recorded("bookie-4.17.3")
    after = before.replace(
        b'JOURNAL_SYNC_count{success="true", journalIndex="0"} 6611',
        b'JOURNAL_SYNC_count{success="true", journalIndex="0"} 6620',
    ).replace(b"} 207.0", b"} 216.0")
    watched = Watched(["bookkeeper"], before, after)
    watched.values()

    found = watched.values()

    assert found['bookie_journal_JOURNAL_SYNC_seconds{quantile="0.99"}'] == pytest.approx(0.000949)
    assert found["bookie_journal_JOURNAL_SYNC_floor_seconds"] == pytest.approx(0.001)
    assert found["bookie_journal_JOURNAL_SYNC"] == 9.0
    assert "bookkeeper_server_ADD_ENTRY_REQUEST_floor_seconds" not in found  # none came


def test_the_metric_of_the_broker_is_used_and_not_those_of_its_topics() -> None:
    """Kafka has both under one name."""
    before = recorded("kafka_jmx_example")
    after = before.replace(b"7168000.0", b"7191000.0")
    watched = Watched(["kafka_jmx"], before, after)
    watched.values()

    found = watched.values()

    assert found["kafka_server_brokertopicmetrics_bytesin"] == 23000.0
    assert found["kafka_log_log_size_bytes"] == 4000.0
    name = "kafka_network_requestmetrics_totaltime_seconds"
    assert found[f'{name}{{quantile="0.99",request="Produce"}}'] == 0.023


def test_two_sets_of_exporter_rules_lead_to_the_same_metrics() -> None:
    """One of them lacks the idle time of the last minute."""
    example = Watched(["kafka_jmx"], recorded("kafka_jmx_example"))
    attributes = Watched(["kafka_jmx"], recorded("kafka_jmx_attributes"))
    example.values(), attributes.values()

    known = example.values()
    assert known.items() <= attributes.values().items()
    assert len(known) >= 10


def test_missing_metrics_are_reported_once() -> None:
    """Under the names of the map."""
    lines = recorded("node_exporter-1.5.0").splitlines(keepends=True)
    less = b"".join(line for line in lines if b"node_load1" not in line)
    watched = Watched(["node_exporter"], less)

    events = [*watched.look().events, *watched.look().events]

    assert [(one.kind, one.fields["missing"]) for one in events] == [
        ("metrics_missing", "node_load1")
    ]


def test_a_failed_target_is_reported_while_others_go_on() -> None:
    """By its column each second, and by an event once a minute."""
    clock = FakeClock()
    page = Watched(["node_exporter"], written(0))
    page.clock = clock
    config = Config(targets={name: Target(url=URL, maps=("node_exporter",)) for name in "ab"})
    probe = Prometheus(config, clock, open_source=page.open_source)
    probe.open()
    probe.targets[0].fetch()
    error = ProbeError("b does not answer")

    first = probe.taken({"b": error}, 0)
    second = probe.taken({"b": error}, 0)

    up = {
        dict(column.labels)["target"]: value
        for column, value in first.samples
        if column.metric == "up"
    }
    assert up == {"a": 1.0, "b": 0.0}
    assert [event.kind for event in first.events if event.kind != "metrics_missing"] == [
        "target_failed"
    ]
    assert second.events == ()


def test_if_every_target_fails_each_is_down() -> None:
    """In a total outage the columns and the events say so: the probe itself works."""
    watched = Watched(["node_exporter"], ProbeError("connection refused"))

    reading = watched.look()

    up = Column("up", (("target", "b"),), "ratio")
    assert reading.samples == ((up, 0.0),)
    assert [(event.kind, event.fields["reason"]) for event in reading.events] == [
        ("target_failed", "connection refused")
    ]


@pytest.mark.parametrize("reason", ["does not answer within 5 s", "answers 503"])
def test_a_target_is_down_in_each_second_until_it_answers(reason: str) -> None:
    """Also in those in which it is not asked, or has not timed out again yet."""
    watched = Watched(["node_exporter"], ProbeError(reason), written(23))
    watched.target.close()  # no thread: the fetches are done here
    with pytest.raises(ProbeError):
        watched.target.fetch()

    failing = [watched.probe.read() for _ in range(3)]
    watched.target.fetch()
    answered = watched.probe.read()

    up = Column("up", (("target", "b"),), "ratio")
    assert [reading.samples for reading in failing] == [((up, 0.0),)] * 3
    assert [event.fields["reason"] for reading in failing for event in reading.events] == [reason]
    assert dict(answered.samples)[up] == 1.0


def test_an_answer_that_comes_after_the_reading_is_taken_by_the_next_one() -> None:
    """Of a page that takes 0.8 s, the next fetch has begun by then."""
    taken: list[Samples] = []

    class Slow:
        """A source that is read while it answers."""

        @staticmethod
        def kept(_labels: object) -> tuple[str, ...]:
            return ()

        def fetch(self) -> Fetched:
            taken.append(target.take()[0])
            return Fetched({})

        def close(self) -> None:
            """Nothing is held."""

    target = MetricsTarget(
        "b",
        name_map.load(["node_exporter"]),
        FakeClock(),
        open_source=Slow,  # type: ignore[arg-type]  # stands in
        max_seconds=10.0,
        max_busy_ratio=0.5,
    )
    target.fetch()
    target.fetch()

    assert [[column.metric for column, _ in samples] for samples in taken] == [
        [],
        ["scrape_duration_seconds"],
    ]


def test_a_target_that_fails_has_no_values_of_before() -> None:
    """What was fetched and not yet taken is dropped."""
    watched = Watched(["node_exporter"], written(0), ProbeError("no answer"))
    watched.target.fetch()
    with pytest.raises(ProbeError):
        watched.target.fetch()

    assert watched.target.take()[0] == []


def test_lines_that_cannot_be_read_are_reported_once() -> None:
    """Their metrics are on the page, so they are not missing; without a word they would be."""
    page = recorded("node_exporter-1.5.0").replace(b"node_load1 ", b"node_load1 about ")
    watched = Watched(["node_exporter"], page)

    events = [*watched.look().events, *watched.look().events]

    assert [(one.kind, one.fields["names"]) for one in events] == [
        ("metrics_unreadable", "node_load1")
    ]


@pytest.mark.parametrize("tail", ["", " 1739889638.000", ' # {trace_id="ab12"} 1.0 1739889638.000'])
def test_pages_with_timestamps_and_exemplars_have_the_same_numbers(tail: str) -> None:
    """As client_java writes them in seconds, behind each value."""
    text = "".join(
        f"kafka_server_{line}{tail}\n"
        for line in (
            "brokertopicmetrics_messagesin_total {}",
            "replicamanager_underreplicatedpartitions 7.0",
        )
    )
    answers = [text.replace("{}", str(number)).encode() for number in (1000, 2500)]
    watched = Watched(["kafka_jmx"], *answers)
    watched.values()

    found = watched.values()

    assert found["kafka_server_brokertopicmetrics_messagesin"] == 1500.0
    assert found["kafka_server_replicamanager_underreplicatedpartitions"] == 7.0


def test_a_map_may_want_names_that_a_page_has_to_quote(tmp_path: Path) -> None:
    """Under a name of its own."""
    path = tmp_path / "own.toml"
    path.write_text(
        "about = 'x'\n[[metric]]\nname = 'kafka_messages'\nspellings = ['kafka.messages']\n"
        "kind = 'gauge'\nunit = 'messages'\n"
    )

    found = Watched([str(path)], b'{"kafka.messages","topic"="a"} 5\n').values()

    assert found == {"kafka_messages": 5.0}


def test_without_a_target_the_probe_is_not_available() -> None:
    """The reason is reported once."""
    with pytest.raises(NotAvailableError, match="name a page or a server"):
        prometheus.build(Config(), FakeClock()).read()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("{url: 'ftp://h/m', maps: [jvm]}", "is no address of a page"),
        ("{url: 'http://u:p@h/m', maps: [jvm]}", "url: holds a password"),
        ("{url: 'http://h/m', maps: []}", "maps: must name at least one"),
        (
            "{url: 'http://h/m', maps: [jvm], selector: 'a=\"b\"'}",
            "selector: goes with `kind: server` only",
        ),
        ("{url: 'http://h/m', maps: [jvm], backfill: 8d}", "backfill: must lie between"),
    ],
)
def test_an_invalid_target_is_refused(target: str, message: str) -> None:
    """With file and line."""
    text = (
        f"name: x\nbroker: {{kafka: {{}}}}\nprobes:\n  prometheus:\n    targets: {{b: {target}}}\n"
    )

    with pytest.raises(PlanError, match=message):
        plan_text.load(text, "plan.yaml")


@pytest.mark.parametrize(
    ("settings", "place", "message"),
    [
        ({"client": {"password": "hunter2"}}, "password", "must not stand in a plan"),
        ({"client": {"pasword": "${env:P}"}}, "pasword", "did you mean 'password'"),
        ({"maps": ("kafka_jxm",)}, "maps", "did you mean 'kafka_jmx'"),
    ],
)
def test_secrets_unknown_settings_and_unknown_maps_are_refused(
    settings: dict[str, object], place: str, message: str
) -> None:
    """At the key that holds them."""
    target = Target(**{"url": URL, "maps": ("jvm",), **settings})  # type: ignore[arg-type]  # as in plans

    with pytest.raises(SettingError, match=message) as caught:
        plugins.load("probes", "prometheus").check_settings(Config(targets={"b": target}))

    assert caught.value.place[:2] == ("targets", "b")
    assert caught.value.place[-1] == place


def test_every_wrong_setting_of_every_target_is_named() -> None:
    targets = {
        "a": Target(url=URL, maps=("kafka_jxm",), client={"pasword": "x", "usename": "x"}),
        "b": Target(url=URL, maps=("jmv",)),
    }

    with pytest.raises(SettingError) as caught:
        plugins.load("probes", "prometheus").check_settings(Config(targets=targets))

    assert [one.place[1:] for one in (caught.value, *caught.value.others)] == [
        ("a", "client", "pasword"),
        ("a", "client", "usename"),
        ("a", "maps"),
        ("b", "maps"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must hold"),
        ("[[metric]]\nname = 'a'", "spellings|kind|unit"),
        ("[[metric]]\nname='a b'\nspellings=['a']\nkind='gauge'\nunit=''", "letters, digits"),
        ("[[metric]]\nname='a'\nspellings=['a']\nkind='gouge'\nunit=''", "kind"),
        ("[[metric]]\nname='a'\nspellings=['a']\nkind='histogram'\nunit=''", "quantiles"),
        ("[[metric]]\nname='a'\nspellings=['a']\nkind='gauge'\nunit=''\nfactor=0.0", "factor"),
        ("[[metric]]\nname='a'\nspellings=['a']\nkind='gauge'\nunit=''\nlag_seconds=inf", "lag"),
        ("[[metric]]\nname='a'\nspellings=['a']\nkind='gauge'\nunit=''\nlabel=['x']", "label"),
        (
            "[[metric]]\nname='a'\nspellings=['a']\nkind='gauge'\nunit=''\nunless={a='('}",
            "unless: a",
        ),
        ("not toml", "cannot be read"),
    ],
)
def test_a_damaged_map_is_refused_with_its_file(tmp_path: Path, text: str, message: str) -> None:
    """A map of the user is a file, too."""
    path = tmp_path / "own.toml"
    path.write_text(text)

    with pytest.raises(PlanError, match=f"own.toml.*({message})"):
        name_map.load([str(path)])


def test_there_is_no_backfill_without_a_server_or_its_map() -> None:
    """A page has no history; the readings report what is wrong."""
    targets = {"page": Target(url=URL, maps=("jvm",))}
    lost = {"map": Target(url=URL, kind="server", maps=("no-such.toml",))}

    for found in (targets, lost):
        assert list(prometheus.build(Config(targets=found), FakeClock()).backfill(0, 10**11)) == []


class Prompt(SystemClock):
    """By it no answer takes any time, however busy this machine is."""

    def mono_ns(self) -> int:
        return 0


def test_preflight_says_how_slow_a_page_is_and_what_it_cannot_read() -> None:
    """With the period that follows from its cost."""
    text = recorded("kminion").replace(b"_low_water_mark{", b"_low_water_mark{{").decode()
    clock = FakeClock()

    class Slow(SystemClock):
        """Each answer takes two seconds."""

        def mono_ns(self) -> int:
            clock.advance(1.0)
            return clock.mono_ns()

    with pages({"/metrics": text}) as url:
        targets = {"kminion": Target(url=f"{url}/metrics", maps=("kminion",))}
        said = prometheus.preflight(Config(targets=targets), Slow())

    assert f"kminion ({url}/metrics) takes " in said[0]
    assert "kminion_kafka_topic_partition_low_water_mark" in said[1]


def test_preflight_asks_every_target_once() -> None:
    """Missing metrics and targets that do not answer are reported before the run."""
    text = (
        recorded("kminion").replace(b"kminion_kafka_broker_log_dir_size_total_bytes", b"x").decode()
    )
    with pages({"/metrics": text}) as url:
        targets = {
            "kminion": Target(url=f"{url}/metrics", maps=("kminion",)),
            "gone": Target(url=f"{url}/none", maps=("jvm",)),
        }
        plan = ProbePlan(name="x", probes={"prometheus": Config(targets=targets), "host": None})

        said = probe_warnings(plan, Prompt())

    assert said == [
        f"kminion ({url}/metrics) does not have kminion_kafka_broker_log_dir_size_bytes",
        f"the probe prometheus cannot read gone: {url}/none answers 404 'Not Found'",
    ]


@pytest.mark.parametrize(
    ("seconds", "said"), [(-40, "4[01] s ahead of this host's"), (40, "3[89] s behind this host's")]
)
def test_preflight_says_that_clocks_are_apart(seconds: int, said: str) -> None:
    """The clock here is set `seconds` after the server's."""

    class Apart(Prompt):
        def wall_ns(self) -> int:
            return super().wall_ns() // SECOND_NS * SECOND_NS + seconds * SECOND_NS

    text = recorded("kminion").decode()
    with pages({"/metrics": text}) as url:
        targets = {"kminion": Target(url=f"{url}/metrics", maps=("kminion",))}
        (warning,) = prometheus.preflight(Config(targets=targets), Apart())

    assert re.search(rf"the clock of kminion \({url}/metrics\) is {said}", warning)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=10), st.floats(0.001, 0.999))
def test_a_quantile_lies_in_the_bucket_that_holds_its_rank(counts: list[int], at: float) -> None:
    """Against the definition, for buckets that end at 1, 2, 3 and so on."""
    ends = [float(end) for end in range(1, len(counts) + 1)]
    up_to = cumulative_counts(
        {**dict(zip(ends, map(float, counts), strict=True)), float("inf"): 0.0}
    )

    found = bucket_quantiles(up_to, [at])

    if not sum(counts):
        assert found == []
        return
    values = [end for end, count in zip(ends, counts, strict=True) for _ in range(count)]
    rank = at * len(values)
    bucket = values[max(0, -int(-rank // 1) - 1)]
    assert bucket - 1.0 <= found[0][1] <= bucket


@pytest.mark.parametrize("counts", [{}, {1.0: 5.0}, {1.0: 5.0, 2.0: 3.0, float("inf"): 5.0}])
def test_counts_that_are_no_histogram_have_no_quantiles(counts: dict[float, float]) -> None:
    """No infinite bucket, or counts that fall."""
    assert bucket_quantiles(counts, [0.5]) == []


BYTES_IN = "kafka_server_brokertopicmetrics_bytesin"


def counted(value: int) -> bytes:
    """Return a page as Telegraf writes it for Aiven."""
    return b"kafka_server_BrokerTopicMetrics_BytesInPerSec_Count %d\n" % value


def bytes_in(*values: int) -> list[float | None]:
    watched = Watched(["kafka_jmx"], *map(counted, values))
    return [watched.values().get(BYTES_IN) for _ in values]


def test_a_page_that_is_made_anew_every_few_seconds_has_values_when_it_changed() -> None:
    """Their rates are over the time between; at first that is not known."""
    found = bytes_in(*(1000 * (second // 10) for second in range(60)))

    assert found[10:31] == [1000.0, *[0.0] * 9, 1000.0, *[0.0] * 9, 1000.0]
    assert found[31:] == [*[None] * 9, 100.0, *[None] * 9, 100.0, *[None] * 9]


def test_a_page_that_stands_still_is_read_as_idle() -> None:
    """After twice the time in which it changed: then the broker does nothing, and not the exporter."""
    found = bytes_in(*(1000 * min(second // 5, 4) for second in range(40)))

    assert found[21:29] == [None] * 8
    assert found[29:] == [0.0] * 11


NEVER_SET = b"kafka_server_ReplicaManager_UnderReplicatedPartitions_Value NaN\n"
EVERY_TENTH = [*[None] * 9, 100.0, *[None] * 9, 100.0, *[None] * 9]


def test_a_copy_of_a_page_with_a_nan_is_a_copy() -> None:
    """It is the same number, though it is not equal to itself."""
    texts = [counted(1000 * (second // 10)) + NEVER_SET for second in range(60)]
    watched = Watched(["kafka_jmx"], *texts)

    found = [watched.values().get(BYTES_IN) for _ in texts]

    assert found[31:] == EVERY_TENTH


def test_an_exporter_may_show_its_own_metrics_between_two_makings_of_the_others() -> None:
    """Telegraf uses two seconds of CPU a second, and takes over the metrics of Kafka every ten."""
    texts = [
        counted(1000 * (second // 10)) + b"process_cpu_seconds_total %d\n" % (2 * second)
        for second in range(60)
    ]
    watched = Watched(["kafka_jmx", "jvm"], *texts)

    found = [watched.values() for _ in texts]

    assert [values.get(BYTES_IN) for values in found[31:]] == EVERY_TENTH
    assert [values.get("process_cpu_seconds") for values in found[1:]] == [2.0] * 59


def test_a_metric_of_the_exporter_never_stands_for_that_of_the_broker() -> None:
    """The page has the CPU of both, and that of the broker is the wanted one: half a core."""
    texts = [
        counted(1000 * (second // 10))
        + b"java_lang_OperatingSystem_ProcessCpuTime %d\n" % (5 * 10**9 * (second // 10))
        + b"process_cpu_seconds_total %d\n" % (2 * second)
        for second in range(60)
    ]
    watched = Watched(["kafka_jmx", "jvm"], *texts)

    found = [watched.values().get("process_cpu_seconds") for _ in texts]

    assert found[31:] == [*[None] * 9, 0.5, *[None] * 9, 0.5, *[None] * 9]


def test_a_few_metrics_that_change_now_and_then_are_no_page_made_anew() -> None:
    """The others change each second: the page is made when it is requested."""
    texts = [
        b"java_lang_OperatingSystem_ProcessCpuTime %d\n" % (10**9 * (second // 10))
        + counted(23 * second)
        + b"kafka_server_BrokerTopicMetrics_MessagesInPerSec_Count %d\n" % second
        for second in range(60)
    ]
    watched = Watched(["kafka_jmx", "jvm"], *texts)

    found = [watched.values().get("process_cpu_seconds") for _ in texts]

    assert found[31:] == [*[0.0] * 9, 1.0, *[0.0] * 9, 1.0, *[0.0] * 9]


@pytest.mark.parametrize("pause", [1, 2])
def test_a_page_that_is_made_when_requested_may_be_unchanged_at_times(pause: int) -> None:
    """As between the messages of a slow producer."""
    found = bytes_in(*(23 * (second // pause + second // 3) for second in range(60)))

    assert None not in found[1:]


def test_a_page_of_known_length_may_lack_its_last_line_feed() -> None:
    """Prometheus reads it, too."""
    with pages({"/metrics": "node_load1 2.5"}) as url:
        target = Target(url=f"{url}/metrics", maps=("node_exporter",))
        source = prometheus.open_source(
            target, prometheus.entries_of(target), Config(), SystemClock()
        )
        found = source.fetch().points
        source.close()

    ((point,),) = found["node_load1"].values()
    assert point.value == 2.5


@pytest.mark.parametrize(
    ("labels", "columns"),
    [
        (['instance="node7",job="node"', 'instance="node7",job="kafka"'], 2),
        (['instance="node7:1",job="node"', 'instance="node7:2",job="kafka"'], 2),
        (['job="node"', 'job="kafka"'], 1),  # a label of the page itself: it has no instances
    ],
)
def test_a_page_of_a_collector_keeps_the_programs_of_one_host_apart(
    labels: list[str], columns: int
) -> None:
    """As `/federate` has them, and OpenTelemetry's collector."""
    page = "".join(f"node_load1{{{one}}} 23\n" for one in labels).encode()

    assert len(Watched(["node_exporter"], page).values()) == columns
