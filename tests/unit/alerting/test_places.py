"""Ids before brokers' addresses, and mount points after drives, in the texts of messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.alerting.message.compose import compose
from soak.alerting.message.context import MessageContext
from soak.alerting.places import NOWHERE, Places, places_of, read_places
from soak.core.journal_format import Columns, columns_line, encode
from soak.core.model import Column, Evidence, Explanation, Finding, Record
from soak.core.ports import Message
from soak.core.units import SECOND_NS
from soak.store.journal.history import History
from tests.support.alerting.findings import NOW, finding

LED = 'produce.0@h|leader_info{{leader="{}",address="{}"}}'
MOUNTED = 'probe@b1|disk_mount_info{{device="{}",mountpoint="{}"}}'
PLACES = places_of(
    [
        LED.format(1, "10.0.0.4:9092"),
        LED.format(2, "B2.example:9092"),
        LED.format(3, "10.0.0.4:90"),
        MOUNTED.format("nvme0n1", "/var/lib/kafka"),
    ]
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.4:9092", "broker 1 at 10.0.0.4:9092"),
        ("10.0.0.4:90, b2.example:9092", "broker 3 at 10.0.0.4:90, broker 2 at b2.example:9092"),
        (
            "Broker 10.0.0.4:9092 stopped answering at the onset, for 55 s.",
            "Broker 1 at 10.0.0.4:9092 stopped answering at the onset, for 55 s.",
        ),
        (
            "broker round trip (10.0.0.4:9092) of probe@vm",
            "broker round trip (broker 1 at 10.0.0.4:9092) of probe@vm",
        ),
        ("110.0.0.4:9092, 10.0.0.4:90921 and x-10.0.0.4:90", None),
        ("nvme0n1 on b1", "nvme0n1 (/var/lib/kafka) on b1"),
        ("nvme0n1 on b12, nvme0n1p1 on b1", None),
        ("disk write await (nvme0n1) of probe@b1 went from 264 us to 352 ms.", None),
    ],
)
def test_what_is_named_gets_its_place_where_that_is_known(text: str, expected: str | None) -> None:
    assert PLACES.named(text) == (text if expected is None else expected)
    assert NOWHERE.named(text) == text


def test_a_leader_in_a_title_becomes_its_broker() -> None:
    titles = ["p99 publish latency (leader 2)", "p99 publish latency (leader 9)"]

    assert [PLACES.with_leaders(one) for one in titles] == [
        "p99 publish latency (broker 2 at b2.example:9092)",
        "p99 publish latency (leader 9)",
    ]


def test_a_subject_has_the_id_of_the_broker_alone() -> None:
    titles = ["p99 publish (leader 2)", "p99 publish (leader 9)"]

    assert [PLACES.with_leader_ids(one) for one in titles] == [
        "p99 publish (broker 2)",
        "p99 publish (leader 9)",
    ]


def test_an_address_that_had_two_ids_is_not_known() -> None:
    replaced = places_of([LED.format(1, "b1:9092"), LED.format(4, "b1:9092")])

    assert replaced.named("b1:9092") == "b1:9092"


def test_leaders_of_a_pulsar_have_no_id_beside_their_address() -> None:
    assert places_of([LED.format("b1:8080", "b1:6650")]) == Places()


def test_a_drive_that_holds_several_filesystems_has_two_of_them() -> None:
    found = places_of([MOUNTED.format("sda", f"/data{at}") for at in range(4)])

    assert found.named("sda on b1") == "sda (/data0, /data1 and 2 more) on b1"


def test_a_name_is_no_pattern() -> None:
    """Names come from clusters and hosts that may be anybody's."""
    evil = Places({"x.*y:9092": "7", "[::1]:9092": "8"}, {("b1", r"a\1"): r"/a\g<0>"})

    assert evil.named(r"a\1 on b1") == r"a\1 (/a\g<0>) on b1"
    assert evil.named("x.*y:9092, xaay:9092") == "broker 7 at x.*y:9092, xaay:9092"
    assert evil.named("[::1]:9092") == "broker 8 at [::1]:9092"


def test_places_are_read_around_the_onset(tmp_path: Path) -> None:
    """A broker that leads nothing any more had an address before."""
    led = columns_line((Column("leader_info", (("leader", "2"), ("address", "b2:9092"))),))
    none = columns_line((Column("sent_messages", (), "messages"),))
    folder = tmp_path / "produce.0@h"
    folder.mkdir()
    lines = b"".join(_record(k, led if k < 100 else none) for k in range(140))
    (folder / "000000.jsonl").write_bytes(encode(led) + encode(none) + lines)
    history = History(tmp_path)

    found = [read_places(history, k).named("b2:9092") for k in (105, 170)]

    assert found == ["broker 2 at b2:9092", "b2:9092"]


def _record(k: int, columns: Columns) -> bytes:
    record = Record(
        k=k,
        epoch=1,
        at_ns=NOW + (k + 1) * SECOND_NS,
        length_ns=SECOND_NS,
        columns_id=columns.id,
        values=(1.0,),
    )
    return encode(record)


def mail(found: Finding, places: Places = PLACES) -> Message:
    """Return the first message about a finding."""
    context = MessageContext(found, "opened", "demo", "on h1: soak report r", NOW, places=places)
    return compose(context, None, 0)


def test_a_mail_has_the_id_of_the_broker_in_its_subject_and_wherever_it_names_it() -> None:
    cause = Explanation(
        "broker_down",
        0.99,
        (Evidence("Broker 10.0.0.4:9092 stopped answering at the onset, for 55 s."),),
        suspect="10.0.0.4:9092",
    )

    message = mail(finding(causes=(cause,), changes=()))

    assert message.subject == (
        "[soakd] broker down on broker 1 at 10.0.0.4:9092: "
        "p99 end-to-end 4.1 ms -> 61 ms (x15) - demo"
    )
    assert "suspect   broker 1 at 10.0.0.4:9092\n" in message.text
    assert (
        "  - Broker 1 at 10.0.0.4:9092 stopped answering at the onset, for 55 s.\n" in message.text
    )


def test_a_mail_has_the_mount_point_of_the_drive_beside_its_host() -> None:
    cause = Explanation(
        "drive_gc",
        0.9,
        (Evidence("disk write await (nvme0n1) of probe@b1 went from 264 us to 352 ms."),),
        suspect="nvme0n1 on b1",
    )

    message = mail(finding(causes=(cause,), changes=()))

    assert "[soakd] drive GC on nvme0n1 on b1: " in message.subject
    assert "suspect   nvme0n1 (/var/lib/kafka) on b1\n" in message.text
    assert (
        "  - disk write await (nvme0n1) of probe@b1 went from 264 us to 352 ms.\n" in message.text
    )


def test_a_mail_says_which_broker_leads_what_changed() -> None:
    series = 'produce.0@h|acknowledgement_outage_seconds{leader="1"}'
    outage = finding(series=series, kind="outage", before=0.0, after=5.0, changes=())

    text = mail(outage).text

    assert text.startswith(
        "what      nothing was acknowledged by broker 1 at 10.0.0.4:9092 for 5 s\n"
    )


def test_a_mail_without_places_names_what_the_finding_names() -> None:
    cause = Explanation("broker_down", 0.99, (), suspect="10.0.0.4:9092")

    text = mail(finding(causes=(cause,)), NOWHERE).text

    assert "suspect   10.0.0.4:9092\n" in text
