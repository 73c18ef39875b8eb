"""Records of another host over a real Kafka that is unreachable for a while: each arrives once."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from soak.core.clock import SystemClock
from soak.core.errors import BrokerError
from soak.core.plan.plan import Ship
from soak.core.units import SECOND_NS
from soak.lab.brokers import kafka
from soak.lab.ports import Running
from soak.runtime.grid import host_name
from soak.service import children
from soak.shipping import receiver
from soak.shipping.ingest import Ingest
from soak.shipping.sender import Shipper
from soak.store.journal.reader import read_source, sources
from soak.store.run_folder import RunFolder
from soak.store.samples_topic import SamplesReader, SamplesWriter, ShippedLine
from tests.support.shipping.shipped_run import START_NS, Host, folder_of, records

pytestmark = pytest.mark.broker

SOURCE = "probe@b"
LIMIT_NS = 120 * SECOND_NS


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A Kafka of its own, for it is stopped."""
    found = kafka.start(tmp_path_factory.mktemp("ship-kafka"), {})
    yield found
    found.kill()  # nothing in it is needed any more


def ship_to(broker: Running, topic: str) -> Ship:
    return Ship(bootstrap_servers=broker.bootstrap_servers, topic=topic, timeout=3 * SECOND_NS)


def test_nothing_is_lost_while_the_cluster_is_unreachable(broker: Running, tmp_path: Path) -> None:
    """Records wait on disk, and arrive once when it answers again."""
    here, there = folder_of(tmp_path / "b"), folder_of(tmp_path / "a")
    clock, ship = SystemClock(), ship_to(broker, "soak.samples")
    host, writer = Host(here, SOURCE), SamplesWriter(ship, "r1", START_NS, SystemClock())
    shipper = Shipper(here, writer, clock, "b")
    reader, ingest = (
        SamplesReader(ship, "r1", START_NS, {}, SystemClock()),
        Ingest(there, clock, "a"),
    )

    host.write(23)
    shipper.send_batch()
    reader.open()
    broker.stop()
    host.write(23)
    away = shipper.send_batch()
    behind = shipper.waiting_bytes()
    broker.restart()
    host.write(23)
    host.close(is_end=True)
    deadline_ns = clock.mono_ns() + LIMIT_NS
    while len(records_or_none(there)) < 69 and clock.mono_ns() < deadline_ns:
        shipper.send_batch()
        ingest.write(reader.poll(1000, 0.5))
    reader.close()
    ingest.close()
    writer.close()

    assert behind > 0
    assert away >= 1.0
    assert records(there, SOURCE) == records(here, SOURCE)
    assert shipper.waiting_bytes() == 0


def records_or_none(folder: RunFolder) -> list[object]:
    return list(read_source(folder.journal, SOURCE)) if SOURCE in sources(folder.journal) else []


def test_each_run_reads_its_own_records_of_a_shared_topic(broker: Running, tmp_path: Path) -> None:
    """Also records that a second shipper sends again."""
    ship, there = ship_to(broker, "fleet"), folder_of(tmp_path / "a")
    hosts = [folder_of(tmp_path / name, name) for name in ("r1", "r2")]
    for at, folder in enumerate(hosts):
        host = Host(folder, f"probe@host{at}")
        host.write(23)
        for _ in range(2):  # a second shipper that knows of no position
            writer = SamplesWriter(ship, folder.path.name, START_NS, SystemClock())
            Shipper(folder, writer, SystemClock(), f"host{at}").send_batch()
            (folder.path / "ship.json").unlink()
    there.plan.write_text(
        "name: x\nbroker: {kafka: {bootstrap_servers: 'h:9'}}\n"
        f"ship: {{bootstrap_servers: '{ship.bootstrap_servers}', topic: fleet}}\n"
    )

    received: list[int] = []
    codes = [
        receiver.run(
            there.path, threading.Event(), SystemClock(), is_once=True, report=received.append
        )
        for _ in range(2)
    ]

    assert (codes, received) == ([0, 0], [23, 0])
    assert sources(there.journal) == ["probe@host0"]
    assert records(there, "probe@host0") == records(hosts[0], "probe@host0")


def test_a_line_that_is_too_large_delays_no_other(broker: Running) -> None:
    """The topic refuses it for good."""
    ship = ship_to(broker, "large")
    writer = SamplesWriter(ship, "r1", START_NS, SystemClock())

    writer.send([ShippedLine(SOURCE, b"x" * (17 * 2**20)), ShippedLine(SOURCE, b"y")])
    reader = SamplesReader(ship, "r1", START_NS, {}, SystemClock())
    reader.open()
    ends = reader.ends(reader.offsets)
    found: list[ShippedLine] = []
    while any(reader.offsets[at] < end for at, end in ends.items()):
        found += reader.poll(10, 0.5)
    reader.close()
    writer.close()

    assert writer.too_large == 1
    assert [line.raw for line in found] == [b"y"]


def made(broker: Running, topic: str, partitions: int = 1, **settings: str) -> AdminClient:
    """Make a topic as somebody else would; return who may change it."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    config = {name.replace("_", "."): value for name, value in settings.items()}
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config)
    admin.create_topics([new])[topic].result(LIMIT_NS / SECOND_NS)
    return admin


def test_a_topic_with_a_small_limit_takes_all_lines_that_fit(broker: Running) -> None:
    """Batches are no larger than the limit."""
    made(broker, "narrow", max_message_bytes="131072")
    writer = SamplesWriter(ship_to(broker, "narrow"), "r1", START_NS, SystemClock())
    lines = [ShippedLine(SOURCE, random.Random(at).randbytes(6000)) for at in range(230)]

    writer.send([*lines, ShippedLine(SOURCE, random.Random(0).randbytes(200_000))])
    writer.close()
    reader = SamplesReader(ship_to(broker, "narrow"), "r1", START_NS, {}, SystemClock())
    reader.open()
    found: list[ShippedLine] = []
    while reader.offsets != reader.ends(reader.offsets):
        found += reader.poll(1000, 0.5)
    reader.close()

    assert writer.too_large == 1
    assert [line.raw for line in found] == [line.raw for line in lines]


@pytest.mark.parametrize(("kept", "skipped"), [(3, 7), (99, 0)])
def test_an_offset_out_of_range_moves_to_the_oldest(
    broker: Running, kept: int, skipped: int
) -> None:
    """The messages between are counted as skipped."""
    topic = f"deleted-{kept}"
    admin = made(broker, topic)
    writer = SamplesWriter(ship_to(broker, topic), "r1", START_NS, SystemClock())
    writer.send([ShippedLine(SOURCE, b"%d" % at) for at in range(23)])
    writer.close()
    first = TopicPartition(topic, 0, 10)
    admin.delete_records([first])[TopicPartition(topic, 0)].result(LIMIT_NS / SECOND_NS)

    reader = SamplesReader(ship_to(broker, topic), "r1", START_NS, {0: kept}, SystemClock())
    reader.open()
    found: list[ShippedLine] = []
    while reader.offsets != reader.ends(reader.offsets):
        found += reader.poll(1000, 0.5)
    reader.close()

    assert [line.raw for line in found] == [b"%d" % at for at in range(10, 23)]
    assert reader.skipped == skipped


def test_a_compacted_topic_is_logged_once(
    broker: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """It would keep one line a source."""
    made(broker, "compacted", cleanup_policy="compact")
    writer = SamplesWriter(ship_to(broker, "compacted"), "r1", START_NS, SystemClock())

    for _ in range(2):
        writer.send([ShippedLine(SOURCE, b"x")])
        writer.close()

    logged = [one.getMessage() for one in caplog.records if "is_compacted" in one.getMessage()]
    assert logged == ["topic_is_compacted topic=compacted cleanup_policy=compact"]


def test_a_topic_that_was_created_again_is_read_from_its_beginning(broker: Running) -> None:
    """The stored offsets are of the deleted topic."""
    admin, ship = made(broker, "anew"), ship_to(broker, "anew")
    reader = SamplesReader(ship, "r1", START_NS, {0: 23}, SystemClock())
    reader.open()
    admin.delete_topics(["anew"])["anew"].result(LIMIT_NS / SECOND_NS)
    writer = SamplesWriter(ship, "r1", START_NS, SystemClock())
    writer.send([ShippedLine(SOURCE, b"%d" % at) for at in range(23)])
    writer.close()

    reader.open()
    ends = reader.ends(reader.offsets)
    found: list[ShippedLine] = []
    while any(reader.offsets[at] < end for at, end in ends.items()):
        found += reader.poll(1000, 0.5)
    reader.close()

    assert [line.raw for line in found] == [b"%d" % at for at in range(23)]


def test_an_unreachable_cluster_is_an_error_in_time() -> None:
    """Within the timeout of the plan, and with the reason."""
    ship = Ship(bootstrap_servers="127.0.0.1:9", timeout=SECOND_NS)
    writer = SamplesWriter(ship, "r1", START_NS, SystemClock())

    with pytest.raises(BrokerError, match=r"answered at 127\.0\.0\.1:9: .*refused"):
        writer.send([ShippedLine(SOURCE, b"x")])


def sent(folder: RunFolder) -> str:
    path = folder.path / "ship.json"
    return path.read_text() if path.exists() else ""


def test_a_probe_host_ships_its_records(broker: Running, tmp_path: Path) -> None:
    """Over the command line of both sides."""
    ship, there = ship_to(broker, "alone"), folder_of(tmp_path / "a")
    plan, folder = tmp_path / "p.yaml", RunFolder(tmp_path / "b")
    plan.write_text(
        f"name: x\nprobes: {{pressure: {{}}}}\n"
        f"ship: {{bootstrap_servers: '{ship.bootstrap_servers}', topic: alone}}\n"
    )
    options = ["--run-dir", str(folder.path), "--run-id", "r1", "--start", "2026-09-21T14:13:20Z"]
    command = [sys.executable, "-m", "soak.cli.main", "probe", str(plan), *options]
    source = f"probe@{host_name()}"
    with subprocess.Popen(
        children.with_death_signal(command), stdout=subprocess.DEVNULL
    ) as process:
        deadline_ns = SystemClock().mono_ns() + LIMIT_NS
        while source not in sent(folder) and SystemClock().mono_ns() < deadline_ns:
            threading.Event().wait(0.1)
        process.terminate()
        process.wait(60)

    reader, ingest = (
        SamplesReader(ship, "r1", START_NS, {}, SystemClock()),
        Ingest(there, SystemClock(), "a"),
    )
    reader.open()
    ends = reader.ends(reader.offsets)
    while any(reader.offsets[at] < end for at, end in ends.items()):
        ingest.write(reader.poll(1000, 0.5))
    reader.close()
    ingest.close()
    assert process.returncode == 0
    assert records(there, source) == records(folder, source)
    assert b'"t":"end"' in b"".join(
        path.read_bytes() for path in (there.journal / source).glob("*.jsonl")
    )
