"""What is ruled out where drives, flushes or CPU of some brokers only are measured."""

from __future__ import annotations

import pytest

from detectors.attribution import attribute
from soak.core.model import Explanation, Series
from tests.support.detection.cause_panels import STEP, around, channel

RETRANSMITTED = "probe@b1|node_netstat_Tcp_RetransSegs"
THREE = ("b1:9092", "b2:9092", "b3:9092")


def drive(source: str, page: str = "") -> list[Series]:
    """Return a calm drive; of a page by its rates."""
    labels = f'{{device="vda"{page}}}'
    own = [channel(f"{source}|disk_write_await_seconds{labels}", 1e-3, 1e-3)]
    rates = [
        channel(f"{source}|node_disk_write_time_seconds{labels}", 0.1, 0.1),
        channel(f"{source}|node_disk_writes_completed{labels}", 100.0, 100.0),
    ]
    written = channel(f"{source}|node_disk_written_bytes{labels}", 9e6, 9e6)
    return [*(rates if page else own), written]


def on(*hosts: str) -> list[Series]:
    return [one for host in hosts for one in drive(f"probe@{host}")]


def led(*addresses: str, by: str = "produce.0@h") -> list[Series]:
    return [
        channel(f'{by}|leader_info{{address="{address}",leader="{n}"}}', 1.0, 1.0)
        for n, address in enumerate(addresses, start=1)
    ]


def latency(leader: str, after: float) -> Series:
    name = f'produce.0@h|publish_latency_seconds{{leader="{leader}",quantile="0.99"}}'
    return channel(name, 0.004, after)


def bookie(name: str) -> Series:
    return channel(f'probe@h|retention_reclaimed_bytes{{bookie="{name}"}}', 1e6, 1e6)


def judged(*series: Series) -> Explanation:
    (found,) = attribute(STEP, around(*series))
    return found


def is_ruled_out(found: Explanation) -> bool:
    return any(one.text.startswith("Drive GC is ruled out") for one in found.against)


def missing(found: Explanation) -> str:
    return " ".join(one.text for one in found.evidence if "To tell" in one.text)


def test_drives_of_all_brokers_that_stay_rule_a_drive_out() -> None:
    assert is_ruled_out(judged(*led(*THREE), *on("b1", "b2", "b3.example.org")))


def test_a_drive_that_is_measured_twice_does_not_stand_for_one_that_is_not() -> None:
    """Three channels of drives, of which two are of broker 1: its probe, and a page under another name."""
    pages = [*drive("probe@load", ',target="n1"'), *drive("probe@load", ',target="n2"')]
    found = judged(*led(*THREE), *on("b1"), *pages)

    assert not is_ruled_out(found)
    assert "time of a write of 1 of 3 brokers" in missing(found)


@pytest.mark.parametrize("hosts", ["123", "12345"])
def test_as_many_pages_of_one_observer_as_there_are_brokers_are_of_all_of_them(hosts: str) -> None:
    """Whatever they are called, and of other hosts too: it reads the page of no host twice."""
    pages = [
        one for n in hosts for one in drive("probe@load", f',instance="n{n}:9100",target="hosts"')
    ]

    assert is_ruled_out(judged(*led("10.0.0.1:9092", "10.0.0.2:9092", "10.0.0.3:9092"), *pages))


@pytest.mark.parametrize(("watched", "is_all"), [(("b1",), False), (("b1", "b2", "b3"), True)])
def test_brokers_behind_one_address_are_as_many_as_lead(
    watched: tuple[str, ...], *, is_all: bool
) -> None:
    found = judged(*led("lb:9093", "lb:9094", "lb:9095"), *on(*watched))

    assert is_ruled_out(found) is is_all
    assert is_all or "time of a write of 2 of 3 brokers" in missing(found)


def test_the_drives_of_brokers_whose_latency_stayed_are_measured_all_the_same() -> None:
    latencies = [latency("1", 0.004), latency("2", 0.06), latency("3", 0.004)]

    assert is_ruled_out(judged(*led(*THREE), *latencies, *on("b1", "b2", "b3")))


def test_brokers_on_the_machine_that_is_watched_are_all_watched() -> None:
    """As in a lab: each has a port of its own."""
    local = led("127.0.0.1:9092", "127.0.0.1:9093", "127.0.0.1:9094", by="produce.0@box")

    assert is_ruled_out(judged(*local, *on("box")))
    assert not is_ruled_out(judged(*local, *on("b1")))


def test_on_pulsar_the_drives_of_all_bookies_have_to_be_measured() -> None:
    """A probe on one of five says nothing of the others."""
    names = [f"bookie{n}" for n in range(1, 6)]
    five = [bookie(f"{name}:8000") for name in names]
    one = judged(*five, *on("bookie1"))

    assert not is_ruled_out(one)
    assert "time of a write of 4 of 5 bookies" in missing(one)
    assert is_ruled_out(judged(*five, *on(*names)))


def test_on_pulsar_without_a_page_of_a_bookie_it_is_not_known_how_many_there_are() -> None:
    """Its leaders go by their addresses; their own drives keep no messages."""
    leaders = [latency("s1:8080", 0.06), latency("s2:8080", 0.06)]
    found = judged(*leaders, *on("s1", "s2"))

    assert not is_ruled_out(found)
    assert "time of a write of the bookies" in missing(found)


MANY = [*led(*(f"b{n}:9092" for n in range(1, 17))), latency("others", 0.06)]
"""Sixteen leaders with a name, and more that share one."""
THIRTY = [f"b{n}" for n in range(1, 31)]


def test_more_hosts_than_leaders_with_a_name_are_all_brokers() -> None:
    assert is_ruled_out(judged(*MANY, *on(*THIRTY)))


def test_of_leaders_without_a_name_there_is_one_or_as_many_as_the_cluster_has_more() -> None:
    ids = [
        channel(
            f'probe@h|kminion_kafka_broker_log_dir_size_bytes{{broker_id="{n}",target="k"}}',
            1e9,
            1e9,
        )
        for n in range(30)
    ]
    few, most = judged(*MANY, *on(*THIRTY[:5])), judged(*MANY, *ids, *on(*THIRTY[:20]))

    assert "time of a write of 12 of at least 17 brokers" in missing(few)
    assert "time of a write of 10 of at least 30 brokers" in missing(most)
    assert is_ruled_out(judged(*MANY, *ids, *on(*THIRTY)))


def test_the_network_is_named_where_thirty_brokers_are_calm() -> None:
    hosts = [
        one
        for host in THIRTY
        for one in (
            channel(f'probe@{host}|node_disk_io_time_seconds{{device="vda"}}', 0.1, 0.1),
            channel(f"probe@{host}|host_cpu_ratio", 0.3, 0.3),
        )
    ]

    assert judged(*MANY, *on(*THIRTY), *hosts, channel(RETRANSMITTED, 1.0, 5.0)).cause == "network"


@pytest.mark.parametrize(("hosts", "cause"), [(("b1",), "unknown"), (("b1", "b2"), "network")])
def test_packets_sent_again_are_the_network_s_where_all_brokers_are_known_to_be_calm(
    hosts: tuple[str, ...], cause: str
) -> None:
    busy = [
        channel(f'probe@{host}|node_disk_io_time_seconds{{device="vda"}}', 0.1, 0.1)
        for host in hosts
    ]
    cpu = [channel(f"probe@{host}|host_cpu_ratio", 0.3, 0.3) for host in hosts]
    again = channel(RETRANSMITTED, 1.0, 5.0)

    assert judged(*led(*THREE[:2]), *on(*hosts), *busy, *cpu, again).cause == cause
