"""What a suspect is called: a broker by the address at which it is asked, however its page is called."""

from __future__ import annotations

import numpy as np
import pytest

from detectors.attribution import attribute
from detectors.causes.places import Suspects
from soak.core.model import Series
from tests.support.detection.cause_panels import END, ONSET, OUTAGE, K, around, channel, told

SILENT = range(ONSET, ONSET + 61)


def page(labels: str, metric: str = "up", source: str = "probe@h") -> Series:
    return channel(f"{source}|{metric}{{{labels}}}", 1.0, 1.0)


def target(name: str, metric: str = "up", source: str = "probe@h") -> Series:
    return page(f'target="{name}"', metric, source)


def asked(*addresses: str) -> list[Series]:
    return [target(one, "broker_round_trip_seconds") for one in addresses]


def led(*addresses: str, by: str = "produce.0@h") -> list[Series]:
    """Return the leaders 1, 2 and so on, with their addresses."""
    return [
        page(f'address="{address}",leader="{n}"', "leader_info", by)
        for n, address in enumerate(addresses, start=1)
    ]


def scraped(instance: str) -> Series:
    return page(f'instance="{instance}",target="all"')


LISTED = page('follower="b1:9092"', "cluster_under_replicated_partitions")
PARTITIONS = "kafka_server_replicamanager_partitioncount"


@pytest.mark.parametrize(
    ("name", "series", "address"),
    [
        ("b1:9404", [target("b1:9404"), *led("b1:9092", "b2:9092")], "b1:9092"),
        ("b1:9404", [target("b1:9404"), *asked("b1:9092", "b2:9092")], "b1:9092"),
        ("b1:9404", [target("b1:9404"), LISTED], "b1:9092"),
        ("b1:9404", [target("b1:9404"), *led("b1.example.org:9092")], "b1.example.org:9092"),
        ("b1", [scraped("b1:9404"), scraped("b2:9404"), *led("b1:9092", "b2:9092")], "b1:9092"),
        ("2", [target("2"), *led("b1:9092", "b2:9092")], "b2:9092"),
        (
            "b1:9405",
            [page('broker="2",target="b1:9405"', PARTITIONS), *led("b1:9092", "b1:9093")],
            "b1:9093",
        ),
        (
            "kafka2:9404",
            [target("kafka1:9404"), target("kafka2:9404"), *led("10.0.0.1:9092", "10.0.0.2:9092")],
            "10.0.0.2:9092",
        ),
        (
            "localhost:9404",
            [
                target("localhost:9404", source="probe@box"),
                *led("localhost:9092", by="produce.0@box"),
            ],
            "localhost:9092",
        ),
    ],
    ids=["led", "asked", "listed", "domain", "scraped", "id", "id on a page", "number", "local"],
)
def test_a_page_of_one_broker_goes_by_the_address_at_which_this_is_asked(
    name: str, series: list[Series], address: str
) -> None:
    assert Suspects(around(*series)).address(name) == address


@pytest.mark.parametrize(
    ("name", "series"),
    [
        ("b1:9404", [target("b1:9404")]),
        ("b3:9404", [target("b3:9404"), *led("b1:9092", "b2:9092")]),
        ("b1:9404", [target("b1:9404"), *led("b1:9092", "b1:9093")]),
        (
            "b1:9404",
            [
                target("b1:9404", PARTITIONS),
                target("b1:9405", PARTITIONS),
                *asked("b1:9092"),
            ],
        ),
        ("all", [scraped("b1:9404"), scraped("b2:9404"), *led("b1:9092")]),
        ("b1:8000", [target("b1:8000", "bookie_journal_JOURNAL_SYNC"), *led("b1:6650")]),
        ("b1:8080", [target("b1:8080", "kminion_kafka_topic_info"), *asked("b1:9092")]),
        ("b1:8083", [target("b1:8083", "jvm_gc_collection_seconds"), *asked("b1:9092")]),
        ("b1", [target("b1", source="probe@b1"), *asked("b1:9092")]),
        ("b1:9092", asked("b1:9092")),
        ("vda on b1:9404", [target("b1:9404"), *asked("b1:9092")]),
        ("", [target("b1:9404"), *asked("b1:9092")]),
    ],
    ids=[
        *("no address", "another host", "two brokers", "two pages", "a server of several"),
        *(
            "a bookie",
            "KMinion",
            "another JVM",
            "a host that is probed",
            "an address",
            "a drive",
            "nothing",
        ),
    ],
)
def test_any_other_name_stays(name: str, series: list[Series]) -> None:
    """A wrong broker is worse than the name of a page."""
    assert Suspects(around(*series)).address(name) == name


def test_a_broker_is_one_suspect_whether_its_page_or_its_own_silence_tells_of_it() -> None:
    """First its page alone is known to be silent; then it gave no answer to short questions either."""
    is_out = np.isin(K, SILENT)
    known = [
        Series("produce.0@h|sent_messages", K, np.full(END, 300.0)),
        Series("produce.0@h|acked_messages", K, np.where(is_out, 0.0, 300.0)),
        Series("produce.0@h|failed_messages", K, np.where(ONSET + 20 == K, 18_000.0, 0.0)),
        Series('probe@h|up{target="b1:9404"}', K, np.where(is_out, 0.0, 1.0)),
        *led("b1:9092"),
    ]
    reason = "http://b1:9404/metrics does not answer: [Errno 111] Connection refused"
    refused = told("target_failed", ONSET + 1, target="b1:9404", reason=reason)
    trips = Series(
        'probe@h|broker_round_trip_seconds{target="b1:9092"}',
        K[~is_out],
        np.full(K[~is_out].size, 5e-4),
    )
    early, late = (
        attribute(OUTAGE, around(*known, *more, events=refused))[0] for more in ([], [trips])
    )

    assert (early.cause, early.suspect) == ("broker_down", "b1:9092")
    assert (late.cause, late.suspect) == (early.cause, early.suspect)
