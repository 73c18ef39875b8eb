"""Records of another host over a real Kafka, which goes away and comes back: each arrives, none twice."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from soak.core.clock import SystemClock
from soak.core.errors import BrokerError
from soak.core.plan_records import Ship
from soak.core.units import SECOND_NS
from soak.daemons import receive
from soak.daemons.context import host_name
from soak.daemons.intake import Intake
from soak.daemons.ship import Shipper
from soak.lab.brokers import kafka
from soak.lab.ports import Running
from soak.store.journal_reader import read_source, sources
from soak.store.run_folder import RunFolder
from soak.store.samples_topic import Line, SamplesReader, SamplesWriter
from tests.shipped_run import START_NS, Host, folder_of, records

pytestmark = pytest.mark.broker

SOURCE = "probe@b"
LIMIT_NS = 120 * SECOND_NS


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A Kafka of its own, for it is stopped."""
    found = kafka.start(tmp_path_factory.mktemp("ship-kafka"), {})
    yield found
    found.stop()


def ship_to(broker: Running, topic: str) -> Ship:
    return Ship(bootstrap_servers=broker.bootstrap_servers, topic=topic, timeout=3 * SECOND_NS)


def test_nothing_is_lost_while_the_cluster_is_away(broker: Running, tmp_path: Path) -> None:
    """Shipped before, during and after: the receiver, which never stops, has every record once."""
    here, there = folder_of(tmp_path / "b"), folder_of(tmp_path / "a")
    clock, ship = SystemClock(), ship_to(broker, "soak.samples")
    host, writer = Host(here, SOURCE), SamplesWriter(ship, "r1", START_NS, SystemClock())
    shipper = Shipper(here, writer, clock, "b")
    reader, intake = (
        SamplesReader(ship, "r1", START_NS, {}, SystemClock()),
        Intake(there, clock, "a"),
    )

    host.write(23)
    shipper.round()
    reader.open()
    broker.stop()
    host.write(23)
    away = shipper.round()
    behind = shipper.waiting_bytes()
    broker.restart()
    host.write(23)
    host.close(is_end=True)
    deadline_ns = clock.mono_ns() + LIMIT_NS
    while len(records_or_none(there)) < 69 and clock.mono_ns() < deadline_ns:
        shipper.round()
        intake.take(reader.take(1000, 0.5))
    reader.close()
    intake.close()
    writer.close()

    assert behind > 0
    assert away >= 1.0
    assert records(there, SOURCE) == records(here, SOURCE)
    assert shipper.waiting_bytes() == 0


def records_or_none(folder: RunFolder) -> list[object]:
    return list(read_source(folder.journal, SOURCE)) if SOURCE in sources(folder.journal) else []


def test_a_topic_of_many_runs_gives_each_its_own(broker: Running, tmp_path: Path) -> None:
    """By run and start; a record that is sent twice, and another run's, change nothing."""
    ship, there = ship_to(broker, "fleet"), folder_of(tmp_path / "a")
    hosts = [folder_of(tmp_path / name, name) for name in ("r1", "r2")]
    for at, folder in enumerate(hosts):
        host = Host(folder, f"probe@host{at}")
        host.write(23)
        for _ in range(2):  # a second shipper that knows of no position
            writer = SamplesWriter(ship, folder.path.name, START_NS, SystemClock())
            Shipper(folder, writer, SystemClock(), f"host{at}").round()
            (folder.path / "ship.json").unlink()
    there.plan.write_text(
        "name: x\nbroker: {kafka: {bootstrap_servers: 'h:9'}}\n"
        f"ship: {{bootstrap_servers: '{ship.bootstrap_servers}', topic: fleet}}\n"
    )

    codes = [
        receive.run(there.path, threading.Event(), SystemClock(), is_once=True) for _ in range(2)
    ]

    assert codes == [0, 0]
    assert sources(there.journal) == ["probe@host0"]
    assert records(there, "probe@host0") == records(hosts[0], "probe@host0")


def test_a_line_that_the_cluster_refuses_for_good_holds_up_no_other(broker: Running) -> None:
    """It is counted: its second is a gap."""
    ship = ship_to(broker, "large")
    writer = SamplesWriter(ship, "r1", START_NS, SystemClock())

    writer.send([Line(SOURCE, b"x" * (17 * 2**20)), Line(SOURCE, b"y")])
    reader = SamplesReader(ship, "r1", START_NS, {}, SystemClock())
    reader.open()
    ends = reader.ends(reader.offsets)
    found: list[Line] = []
    while any(reader.offsets[at] < end for at, end in ends.items()):
        found += reader.take(10, 0.5)
    reader.close()
    writer.close()

    assert writer.too_large == 1
    assert found == [Line(SOURCE, b"y")]


def test_a_cluster_that_is_not_there_is_told_in_time() -> None:
    """With the address and the cause, before anything is sent."""
    ship = Ship(bootstrap_servers="127.0.0.1:9", timeout=SECOND_NS)
    writer = SamplesWriter(ship, "r1", START_NS, SystemClock())

    with pytest.raises(BrokerError, match=r"answered at 127\.0\.0\.1:9: .*refused"):
        writer.send([Line(SOURCE, b"x")])


def sent(folder: RunFolder) -> str:
    path = folder.path / "ship.json"
    return path.read_text() if path.exists() else ""


def test_a_host_that_only_probes_ships_what_it_records(broker: Running, tmp_path: Path) -> None:
    """Two processes: one samples, one sends; SIGTERM ends both, with the last line sent."""
    ship, there = ship_to(broker, "alone"), folder_of(tmp_path / "a")
    plan, folder = tmp_path / "p.yaml", RunFolder(tmp_path / "b")
    plan.write_text(
        f"name: x\nprobes: {{pressure: {{}}}}\n"
        f"ship: {{bootstrap_servers: '{ship.bootstrap_servers}', topic: alone}}\n"
    )
    options = ["--run-dir", str(folder.path), "--run-id", "r1", "--start", "2026-09-21T14:13:20Z"]
    command = [sys.executable, "-m", "soak.cli.main", "probe", str(plan), *options]
    source = f"probe@{host_name()}"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        deadline_ns = SystemClock().mono_ns() + LIMIT_NS
        while source not in sent(folder) and SystemClock().mono_ns() < deadline_ns:
            threading.Event().wait(0.1)
        process.terminate()
        process.wait(60)

    reader, intake = (
        SamplesReader(ship, "r1", START_NS, {}, SystemClock()),
        Intake(there, SystemClock(), "a"),
    )
    reader.open()
    ends = reader.ends(reader.offsets)
    while any(reader.offsets[at] < end for at, end in ends.items()):
        intake.take(reader.take(1000, 0.5))
    reader.close()
    intake.close()
    assert process.returncode == 0
    assert records(there, source) == records(folder, source)
    assert b'"t":"end"' in b"".join(
        path.read_bytes() for path in (there.journal / source).glob("*.jsonl")
    )
