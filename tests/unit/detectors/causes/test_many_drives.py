"""Many drives, and pages of many hosts: which of them is named, and what its peers say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from detectors.attribution import attribute
from detectors.nearby import Nearby
from soak.core.model import Explanation, Series
from tests.support.detection.cause_panels import END, ONSET, STEP, around, channel

HOSTS = ("b1:9100", "b2:9100", "b3:9100")
LONG_BEFORE = -500
SLOW_BEFORE = (-300, -276)


def exported(host: str, slower: float = 1.0, label: str = "instance") -> list[Series]:
    """Return what a node exporter tells of a drive whose writes slow so many times."""
    page = f'target="{host}"' if label == "target" else f'instance="{host}",target="hosts"'
    labels = f'{{device="nvme0n1",{page}}}'
    return [
        channel(f"probe@load|node_disk_write_time_seconds{labels}", 0.2, 0.2 * slower),
        channel(f"probe@load|node_disk_writes_completed{labels}", 100.0, 100.0),
        channel(f"probe@load|node_disk_written_bytes{labels}", 9e6, 9e6),
    ]


def drive(name: str, slower: float = 1.0, more: float = 1.0) -> list[Series]:
    """Return a drive such as `vda@b1` whose writes take longer after the onset, or which gets more to do."""
    device, _, host = name.partition("@")
    place = f'{{device="{device}"}}'
    return [
        channel(f"probe@{host}|disk_write_await_seconds{place}", 1e-3, 1e-3 * slower),
        channel(f"probe@{host}|node_disk_write_time_seconds{place}", 0.1, 0.1 * slower),
        channel(f"probe@{host}|node_disk_written_bytes{place}", 9e6, 9e6 * more),
    ]


def first(*series: Series) -> Explanation:
    return attribute(STEP, around(*series))[0]


def texts(found: Explanation) -> str:
    return " ".join(one.text for one in (*found.evidence, *found.against))


def test_of_the_hosts_of_a_prometheus_server_the_one_whose_drive_slows_is_named() -> None:
    """One target, three instances: none of them stands for the others, and the others are its peers."""
    hosts = [exported(host, 3.0 if host == "b1:9100" else 1.0) for host in HOSTS]
    found = first(*(one for every in hosts for one in every))

    assert (found.cause, found.suspect) == ("drive_gc", "nvme0n1 on b1:9100")
    assert "The same channel of other hosts stayed" in texts(found)


def test_of_pages_that_one_host_reads_each_is_of_a_host_of_its_own() -> None:
    pages = [exported(host, 3.0 if host == "b3:9100" else 1.0, "target") for host in HOSTS]
    found = first(*(one for every in pages for one in every))

    assert (found.cause, found.suspect) == ("drive_gc", "nvme0n1 on b3:9100")


def test_drives_of_all_instances_that_slow_alike_speak_against_one_of_them() -> None:
    hosts = [exported(host, 3.0) for host in HOSTS]
    found = first(*(one for every in hosts for one in every))

    assert found.cause == "unknown"
    assert "Drives of other hosts slowed down as much at the same time" in texts(found)


def test_a_drive_that_is_measured_twice_is_no_peer_of_itself() -> None:
    """By our probe on its host, and by a page of this host."""
    found = first(*drive("nvme0n1@b1", 3.0), *exported("b1:9100", 3.0), *exported("b2:9100"))

    assert found.cause == "drive_gc"
    assert "slowed down as much" not in texts(found)


def jbod(*without: str) -> list[Series]:
    """Return the calm drives of three brokers with twelve each, without some."""
    names = [f"sd{letter}@b{host}" for host in (1, 2, 3) for letter in "abcdefghijkl"]
    return [one for name in names if name not in without for one in drive(name)]


def test_a_bystander_among_many_drives_cancels_nothing() -> None:
    """One gets more to do by chance, another slows down as well; thirty-three of the others stay."""
    odd = [*drive("sda@b2", more=2.5), *drive("sdb@b3", slower=5.0, more=2.0)]
    found = first(*drive("sda@b1", 11.0), *odd, *jbod("sda@b1", "sda@b2", "sdb@b3"))

    assert (found.cause, found.suspect) == ("drive_gc", "sda on b1")
    assert "got more to do" not in texts(found)
    assert "The same channel of other hosts stayed (23 of 24 drives)" in texts(found)


def test_most_drives_that_get_more_to_do_are_the_load_s() -> None:
    busier = [f"sd{letter}@b{host}" for host in (1, 2) for letter in "cdefghijkl"]
    more = [one for name in busier for one in drive(name, more=2.5)]
    found = first(*drive("sda@b1", 11.0), *more, *jbod("sda@b1", *busier))

    assert found.cause != "drive_gc"
    assert "The 35 other drives together got more to do at the same time" in texts(found)


def odd_drive() -> list[Series]:
    """Return a drive that slows threefold at the onset, as it did once in the eight minutes before."""
    k = np.arange(LONG_BEFORE, END)
    rng = np.random.default_rng(0)
    was_slow = (k >= SLOW_BEFORE[0]) & (k < SLOW_BEFORE[1])
    factor = np.where(was_slow, 3.6, np.where(k < ONSET, 1.0, 3.0))
    levels = (
        ("disk_write_await_seconds", 1e-3 * factor),
        ("node_disk_write_time_seconds", 0.1 * factor),
        ("node_disk_written_bytes", np.full(k.size, 9e6)),
    )
    return [
        Series(f'probe@b1|{metric}{{device="sda"}}', k, level * rng.lognormal(0.0, 0.05, k.size))
        for metric, level in levels
    ]


def named(*series: Series) -> str:
    found = Nearby(LONG_BEFORE, END, {one.name: one for one in series})
    return attribute(STEP, found)[0].cause


def test_what_one_of_many_drives_does_now_and_then_is_chance_at_the_onset() -> None:
    """Of a single drive it is news; of thirty-six, one or another does so at any time."""
    others = jbod("sda@b1")

    assert named(*odd_drive()) == "drive_gc"
    assert named(*odd_drive(), *others) == "unknown"
    assert named(*drive("sda@b1", 3.0), *others) == "drive_gc"


def slowed(host: str, at: int) -> list[Series]:
    """Return a drive whose writes take three times as long from a second on."""
    place = '{device="vda"}'
    return [
        channel(f"probe@{host}|disk_write_await_seconds{place}", 1e-3, 3e-3, at),
        channel(f"probe@{host}|node_disk_write_time_seconds{place}", 0.1, 0.3, at),
        channel(f"probe@{host}|node_disk_written_bytes{place}", 9e6, 9e6),
    ]


def test_drives_that_slow_alike_anywhere_in_a_wide_onset_speak_against_one_of_them() -> None:
    """The suspect's own may have slowed anywhere in it."""
    wide = replace(STEP, interval=(70, 104))
    alone, alike = (
        attribute(wide, around(*(one for host in hosts for one in slowed(host, 80))))[0]
        for hosts in (("b1",), ("b1", "b2", "b3"))
    )

    assert (alone.cause, alike.cause) == ("drive_gc", "unknown")
    assert "Drives of other hosts slowed down as much" in texts(alike)


def test_a_drive_of_the_load_s_own_host_is_none_of_a_broker() -> None:
    """A server scrapes its page as well."""
    pages = [*exported("h:9100", 3.0), *exported("b1:9100")]
    leader = channel('produce.0@h|leader_info{address="b1:9092",leader="1"}', 1.0, 1.0)

    assert first(*pages).cause == "drive_gc"
    assert first(*pages, leader).cause == "unknown"
