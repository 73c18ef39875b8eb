"""Strangers on a real samples topic: what they write is refused, and what they pack is not unpacked."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from soak.core.clock import SystemClock
from soak.core.journal_format import columns_line, encode
from soak.core.plan.plan import Ship
from soak.core.units import SECOND_NS
from soak.lab.ports import Running
from soak.shipping.ingest import Ingest
from soak.shipping.sender import Shipper
from soak.store.admission import SIGNATURE_HEADER, read_refused
from soak.store.run_announcements import (
    ANNOUNCEMENT_PARTITION,
    Announcement,
    AnnouncementReader,
    AnnouncementWriter,
)
from soak.store.samples_topic import (
    ANNOUNCEMENT_HEADER,
    SamplesClients,
    SamplesReader,
    SamplesWriter,
    headers_of,
)
from tests.support.hostile import COLUMNS, forged_records
from tests.support.shipping.shipped_run import START_NS, Host, folder_of, records

pytestmark = pytest.mark.broker
SOURCE = "probe@b"


@pytest.fixture
def ship(lab_kafka: Running, tmp_path: Path, request: pytest.FixtureRequest) -> Ship:
    """A topic of the test's own, and a key."""
    (tmp_path / "key").write_text("a secret of the deployment\n")
    return Ship(
        bootstrap_servers=lab_kafka.bootstrap_servers,
        topic=f"trust-{abs(hash(request.node.name)) % 10**6}",
        timeout=12 * SECOND_NS,
        key=f"${{file:{tmp_path / 'key'}}}",
    )


def received(ship: Ship, folder: Path) -> Ingest:
    """Take all that the topic holds."""
    reader = SamplesReader(ship, "r1", START_NS, {}, SystemClock())
    ingest = Ingest(folder_of(folder), SystemClock(), "a")
    reader.open()
    ends = reader.ends(reader.offsets)
    while any(reader.offsets[at] < end for at, end in ends.items()):
        ingest.write(reader.poll(1000, 0.5))
    reader.close()
    ingest.close()
    return ingest


def test_forged_records_of_every_kind_change_nothing(ship: Ship, tmp_path: Path) -> None:
    """They come between and after those of the host, without a signature and with a wrong one."""
    here = folder_of(tmp_path / "b")
    host = Host(here, SOURCE)
    stranger = confluent_kafka.Producer({"bootstrap.servers": ship.bootstrap_servers})
    writer = SamplesWriter(ship, "r1", START_NS, SystemClock(), "sender")
    shipper = Shipper(here, writer, SystemClock(), "b")
    forged = [encode(columns_line(COLUMNS)).rstrip()]
    forged += [one.line for one in forged_records(10**6, START_NS)]
    for signature in ({}, {SIGNATURE_HEADER: b"x" * 32}):
        host.write(10)
        shipper.send_batch()
        headers: dict[str, str | bytes | None] = {
            **headers_of("r1", START_NS),
            "sender": b"sender",
            **signature,
        }
        for line in forged:
            stranger.produce(ship.topic, line, SOURCE, headers=headers)
        stranger.flush(30)
    host.close(is_end=True)
    shipper.send_batch()

    ingest = received(ship, tmp_path / "a")

    assert records(folder_of(tmp_path / "a"), SOURCE) == records(here, SOURCE)
    assert (ingest.records, ingest.refused, ingest.unsigned) == (20, 2 * len(forged), 0)
    (one,) = read_refused(tmp_path / "a" / "refused")
    assert (one.reason, one.count) == ("its signature does not hold", 2 * len(forged))


def test_a_signed_announcement_is_heard_and_no_other(ship: Ship) -> None:
    """Brackets, a forged end, and the real one."""
    reader = AnnouncementReader(ship, SystemClock())
    SamplesClients(ship, "t", SystemClock()).ensure_topic()
    reader.open()
    reader.poll(3.0)
    now_ns = SystemClock().wall_ns()
    real = Announcement("p", "r1", START_NS, None, is_over=False, sent_wall_ns=now_ns)
    forged = Announcement("p", "r1", START_NS, 1, is_over=True, sent_wall_ns=now_ns)
    stranger = confluent_kafka.Producer({"bootstrap.servers": ship.bootstrap_servers})
    writer = AnnouncementWriter(ship, SystemClock())
    heard: list[Announcement] = []
    for _ in range(20):
        for raw in (b"[" * 100_000, forged.to_json().encode()):
            stranger.produce(
                ship.topic,
                raw,
                partition=ANNOUNCEMENT_PARTITION,
                headers={ANNOUNCEMENT_HEADER: b"p"},
            )
        stranger.flush(10)
        writer.send(real)
        heard += reader.poll(1.0)
        if heard and reader.refused:
            break
    writer.close()
    reader.close()

    assert set(heard) == {real}
    assert reader.refused >= 2


@pytest.mark.parametrize("codec", ["", "producer", "gzip"])
def test_a_small_batch_that_unpacks_to_much_is_refused_by_the_broker(
    ship: Ship, codec: str
) -> None:
    """32 MiB of zeros are some 30 KiB on the way; neither our own topic nor one made by others takes it."""
    if codec:
        admin = AdminClient({"bootstrap.servers": ship.bootstrap_servers})
        made = NewTopic(ship.topic, 1, 1, config={"compression.type": codec})
        admin.create_topics([made])[ship.topic].result(20)
    SamplesClients(ship, "t", SystemClock()).ensure_topic()
    failures: list[int] = []
    stranger = confluent_kafka.Producer(
        {
            "bootstrap.servers": ship.bootstrap_servers,
            "compression.type": "zstd",
            "message.max.bytes": str(64 * 2**20),
            "message.timeout.ms": "20000",
        }
    )
    stranger.produce(
        ship.topic,
        bytes(32 * 2**20),
        on_delivery=lambda error, _: failures.append(0 if error is None else error.code()),
    )
    stranger.flush(30)

    assert failures == [KafkaError.MSG_SIZE_TOO_LARGE]


def test_check_says_that_everybody_may_write_and_what_is_unpacked(ship: Ship) -> None:
    """The lab's cluster has no authorizer."""
    admin = AdminClient({"bootstrap.servers": ship.bootstrap_servers})
    admin.create_topics([NewTopic(ship.topic, 1, 1)])[ship.topic].result(20)

    found = SamplesClients(ship, "t", SystemClock()).topic_warnings()

    assert [one.partition(": ")[2] for one in found] == [
        "set its compression.type to uncompressed",
        "everybody who reaches the cluster may write to it, for the cluster has no authorizer",
    ]
