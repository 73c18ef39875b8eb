"""Whose channels explain nothing: those of brokers whose latency stayed, and of nobody else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from detectors import affected_brokers
from detectors.attribution import attribute
from soak.core.model import Series
from tests.support.detection.cause_panels import END, ONSET, P99, STEP, around, channel, told

STAYED, STEPPED = 0.004, 0.06


def led(leader: str, after: float) -> Series:
    name = f'produce.0@h|publish_latency_seconds{{leader="{leader}",quantile="0.99"}}'
    return channel(name, STAYED, after)


def untouched(
    stepped: str, stayed: Sequence[str], names: Sequence[str], told: Sequence[Series] = ()
) -> set[str]:
    """Return which of these channels are excluded, of those that are watched."""
    latencies = [led(stepped, STEPPED), *(led(leader, STAYED) for leader in stayed)]
    found = around(*latencies, *told, *(channel(name, 1.0, 1.0) for name in names))
    return set(affected_brokers.untouched(names, STEP, found))


def at(*addresses: str) -> list[Series]:
    """Return what a producer tells of where nodes 0, 1, 2 ... are."""
    names = (
        f'produce.0@h|leader_info{{leader="{n}",address="{one}"}}'
        for n, one in enumerate(addresses)
    )
    return [channel(name, 1.0, 1.0) for name in names]


def on(*hosts: str) -> list[str]:
    return [f'probe@{host}|disk_write_await_seconds{{device="vda"}}' for host in hosts]


def of(*targets: str, host: str = "h") -> list[str]:
    return [f'probe@{host}|jvm_gc_collection_seconds{{target="{one}"}}' for one in targets]


def test_ids_are_the_numbers_of_hosts() -> None:
    hosts = on("kafka-1.example.com", "kafka-2.example.com", "kafka-3.example.com")

    assert untouched("2", "13", hosts) == {hosts[0], hosts[2]}


@pytest.mark.parametrize(
    "names",
    [
        on("kafka1", "kafka2", "kafka3"),
        on("kafka2"),
        on("kafka1", "kafka2"),
        on("kafka0.east", "kafka1.east", "kafka1.west", "kafka2.east"),
        on("kafka-0-0", "kafka-0-1", "kafka-0-2"),
    ],
    ids=" ".join,
)
def test_ids_that_are_not_the_numbers_of_all_hosts_name_no_host(names: list[str]) -> None:
    """Ids 0 to 2 may lie on hosts 1 to 3, and which of these is which is not known."""
    assert untouched("1", "02", names) == set()


def test_a_leader_is_on_the_host_that_the_cluster_says() -> None:
    """Ids from 0 on hosts from 1, or in another order: the numbers of hosts say nothing then."""
    hosts = on("kafka1", "kafka2", "kafka3")
    full = at("kafka1.example.com:9092", "kafka2.example.com:9092", "kafka3.example.com:9092")
    crossed = at("kafka2:9092", "kafka1:9092", "kafka0:9092")

    assert untouched("1", "02", hosts, full) == {hosts[0], hosts[2]}
    assert untouched("1", "02", on("kafka1", "kafka2", "kafka0"), crossed) == {
        *on("kafka2", "kafka0")
    }
    assert untouched("11", ["10"], on("10.0.0.1", "11.0.0.1")) == set()
    assert untouched("1", "02", of("kafka2:9404", "kafka3:9404"), full) == {*of("kafka3:9404")}


def test_numbers_of_hosts_are_no_ids_where_the_cluster_contradicts() -> None:
    """It knows the hosts under names that are not those of the probes."""
    crossed = at("b1.internal:9092", "broker-2.internal:9092", "broker-0.internal:9092")
    nameless = at("10.0.0.1:9092", "10.0.0.2:9092", "10.0.0.3:9092")
    hosts = on("kafka0", "kafka1", "kafka2")

    assert untouched("1", "02", hosts, crossed) == set()
    assert untouched("1", "02", hosts, nameless) == {hosts[0], hosts[2]}


def test_brokers_on_kubernetes_are_known_by_their_pods() -> None:
    """The instance is an address of the network of the pods, which is no address of a broker."""
    full = at(*(f"my-cluster-kafka-{n}.my-cluster-kafka-brokers.kafka.svc:9092" for n in range(3)))
    pages = [
        "probe@h|jvm_gc_collection_seconds"
        f'{{instance="10.244.0.{n + 7}:9404",pod="my-cluster-kafka-{n}",target="all"}}'
        for n in range(3)
    ]

    assert untouched("1", "02", pages, full) == {pages[0], pages[2]}


@pytest.mark.parametrize("order", [1, -1])
def test_a_broker_that_moved_may_be_on_either_host(order: int) -> None:
    """Whichever was told last: which of them was meant at the onset is not looked up."""
    moved = [*at("w1:9092", "w2:9092", "w3:9092"), *at("w2:9092", "w1:9092", "w3:9092")]

    assert untouched("1", "02", on("w1", "w2", "w3"), moved[::order]) == {*on("w3")}


def test_a_node_whose_latency_nobody_knows_may_be_the_slow_one_on_its_host() -> None:
    """Node 2 shares a host with node 0, and acknowledges nothing any more."""
    told = at("box1:9092", "box2:9092", "BOX1:9093")

    assert untouched("1", "0", on("box1", "box2"), told) == set()
    assert untouched("1", "0", on("box1", "box2"), told[:2]) == {*on("box1")}


def test_where_the_address_of_one_leader_alone_is_known_others_are_left() -> None:
    """What has neither host nor label is nobody's, and no broker is at `localhost` for all."""
    loads = ["produce.0@h|sent_messages", "consume.0@h|lag_messages"]
    behind = of("localhost:7071", host="kafka-0") + of("localhost:7071", host="kafka-1")
    tunnel = at("localhost:9092", "localhost:9093")

    assert untouched("1", "0", loads, at("W1:9092")) == set()
    assert untouched("1", "0", [*loads, *on("w1")], at("W1:9092")) == {*on("w1")}
    assert untouched("1", "0", behind, tunnel) == {behind[0]}


@pytest.mark.parametrize("box", ["box", "127.0.0.1", "localhost"])
def test_nodes_on_one_host_are_told_apart_by_their_ports_alone(box: str) -> None:
    told = at(f"{box}:9092", f"{box}:9093", f"{box}:9094")
    names = [*on(box), *of(f"{box}:9094", f"{box}:7071")]

    assert untouched("1", "02", names, told) == {*of(f"{box}:9094")}


def test_an_address_of_a_host_itself_that_several_hosts_ask_is_nobody_s() -> None:
    """The load reaches the brokers through tunnels, whose ends have the ports of another one there."""
    tunnel = at("localhost:9092", "localhost:9093")
    own = of("localhost:9092", host="kafka-0") + of("localhost:9092", host="kafka-1")

    assert untouched("1", "0", own, tunnel) == {own[0]}


def test_a_node_without_latency_counts_among_the_ids() -> None:
    """Node 0 leads nothing: ids 1 and 2 may be on the second and third of three hosts."""
    told = at("10.0.0.1:9092", "10.0.0.2:9092", "10.0.0.3:9092")

    assert untouched("1", "2", on("kafka-1", "kafka-2"), told) == set()


def test_the_drive_of_the_broker_that_slowed_is_named_whatever_its_host_is_called() -> None:
    """Id 1 is on kafka2, and its drive answers later with no more to do."""
    drive = '{device="vda"}'
    starving = [
        channel(f"probe@kafka2|disk_write_await_seconds{drive}", 1e-4, 1.1e-3),
        channel(f"probe@kafka2|node_disk_write_time_seconds{drive}", 0.145, 0.96),
        channel(f"probe@kafka2|node_disk_written_bytes{drive}", 9e6, 9e6),
        channel(f"probe@kafka2|disk_device_turnover_ratio{drive}", 2.0, 2.0),
    ]
    others = [channel(name, 1e-4, 1e-4) for name in on("kafka1", "kafka3")]
    latencies = [led("1", STEPPED), led("0", STAYED), led("2", STAYED)]

    assert attribute(STEP, around(*starving, *others, *latencies))[0].cause == "drive_gc"


@pytest.mark.parametrize(
    ("kind", "host", "is_left_out"),
    [
        ("gc_pause", "kafka1", True),
        ("segment_roll", "kafka3", True),
        ("gc_pause", "kafka2", False),
        ("gc_pause", "mill", False),
        ("retention_deletion", "kafka1", False),
        ("leader_change", "kafka1", False),
    ],
)
def test_what_the_files_of_an_untouched_broker_tell_is_left_out(
    kind: str, host: str, *, is_left_out: bool
) -> None:
    """A probe tells also what it asked the cluster, and a log of leaders what is of all brokers."""
    (event,) = told(kind, ONSET)
    event = replace(event, source=f"probe@{host}")
    watched = [channel(name, 1.0, 1.0) for name in on("kafka1", "kafka2", "kafka3")]
    latencies = [led("1", STAYED), led("2", STEPPED), led("3", STAYED)]
    found = around(*watched, *latencies, events=(event,))

    assert affected_brokers.events_of_touched(STEP, found) == (() if is_left_out else (event,))


def test_pauses_of_an_untouched_broker_are_not_the_cause() -> None:
    """One in each second, of a tenth of it."""
    pauses = told("gc_pause", *range(ONSET, END), pause_seconds=0.1)
    watched = [channel(name, 1.0, 1.0) for name in on("kafka1", "kafka2")]
    latencies = [channel(P99, STAYED, STEPPED), led("1", STAYED), led("2", STEPPED)]
    named = {}
    for host in ("kafka1", "kafka2"):
        events = tuple(replace(one, source=f"probe@{host}") for one in pauses)
        named[host] = attribute(STEP, around(*watched, *latencies, events=events))[0].cause

    assert named == {"kafka1": "unknown", "kafka2": "gc_pause"}


def test_the_number_of_a_cluster_is_no_broker_s() -> None:
    hosts = on(*(f"node{n}.kafka2.example" for n in (1, 2, 3)))
    domains = on(*(f"s{n}.corp2.net" for n in (1, 2, 3)))

    assert untouched("1", "23", hosts) == {hosts[1], hosts[2]}
    assert untouched("1", "23", domains) == set()


def test_a_load_s_host_is_no_broker_s() -> None:
    loads = [f"produce.0@node{n}|sent_messages" for n in (1, 2, 3)]

    assert untouched("1", "23", [*loads, *on("node1", "node2", "node3")]) == set(
        on("node2", "node3")
    )


def test_brokers_on_one_host_are_told_apart_by_their_ports() -> None:
    """What is of the host, or of a third port there, may be of either."""
    pages = of("localhost:8080", "localhost:8081", "localhost:8000")

    assert untouched("localhost:8081", ["localhost:8080"], pages) == {pages[0]}


def test_a_broker_is_known_by_its_short_name_and_by_another_port() -> None:
    leaders = [f"s{n}.example.com:8080" for n in (1, 2)]
    names = [*on("s1", "s2"), *of("s1.example.com:9100", "s2:9100", "s1.example.org:9100")]

    assert untouched(leaders[0], leaders[1:], names) == {names[1], names[3]}
    assert untouched("10.0.0.1:8080", ["10.0.0.2:8080"], on("10.0.0.2", "10.0.0.3")) == set(
        on("10.0.0.2")
    )


def test_a_label_says_more_than_the_host_of_the_probe() -> None:
    """A host's own page goes by `localhost`, or by a name that is the same on each host."""
    near = [*of("kafka1:9404", "unknown", host="kafka2"), *of("kafka2:9404", host="kafka1")]
    local = [*of("localhost:9100", "page", host="kafka1"), *of("page", host="kafka2")]

    assert untouched("2", "1", [*near, *local]) == {near[0], *local[:2]}
