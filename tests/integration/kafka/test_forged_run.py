"""A run whose records come over a real Kafka, while strangers write there too: the results stay the same.

Receiver, detector and report are processes as their units start them; the records are those of a run that was
written before, so that two runs can be compared word for word. In one of them a message of each forged kind
comes between the records.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import yaml
from confluent_kafka import KafkaError

from soak.alerting.daemon import AlertDaemon
from soak.core.clock import SystemClock
from soak.core.journal_format import decode
from soak.core.model import Record
from soak.core.plan.plan import Ship
from soak.core.units import SECOND_NS
from soak.lab.ports import Running
from soak.runtime.grid import host_name
from soak.service import children
from soak.shipping.sender import Shipper
from soak.sinks.mail import Config, MailSink
from soak.store.admission import Signer
from soak.store.findings.store import FindingsStore
from soak.store.journal.reader import has_ended, last_record, sources
from soak.store.run_announcements import Announcement, AnnouncementReader
from soak.store.run_folder import RunFolder, read_plan, read_run, write_run
from soak.store.samples_topic import SamplesWriter
from tests.support.alerting.mail_server import Inbox, served
from tests.support.fakes import FakeClock
from tests.support.raw_kafka import RawProducer
from tests.support.spark.growing_run import begun, end, grow
from tests.support.spark.synthetic_run import (
    PROBE,
    START_WALL_NS,
    Shape,
    write_synthetic_run,
)
from tests.support.strangers import Forged, Target, columns_of_forged, forged_messages, send

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

RUN, PLAN = "synthetic-1", "synthetic"
SECRET = "a secret of the deployment"
SENDER = "the-other-folder"
SOURCES = 3
STEP_SECONDS = 20
PATIENCE_SECONDS = 180.0
SHAPE = Shape(seconds=320, deletions_k=200, fault_k=202, sinks="{mail: {to: [oncall@example.org]}}")
BOMB_BYTES = 32 * 2**20


def until(condition: Callable[[], object], what: str) -> None:
    """Ask until it holds; a bound, not a pace."""
    limit = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > limit:
            pytest.fail(f"waited in vain for {what}")
        threading.Event().wait(0.05)


def soak(folder: RunFolder, *command: str) -> subprocess.Popen[bytes]:
    with (folder.path / f"{command[0]}.out").open("ab") as output:
        return subprocess.Popen(
            children.with_death_signal([sys.executable, "-m", "soak.cli.main", *command]),
            stdout=output,
            stderr=output,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What people and programs learn of a run."""

    summary: dict[str, Any]
    findings: list[tuple[str, str, str, int]]
    mails: list[list[tuple[object, ...]]]
    refused: list[dict[str, Any]]
    refused_on_page: float
    heard: set[tuple[str, int, bool]]  # of announcements: run, start, whether it is over


@dataclass
class Strangers:
    """Write what is forged, a share of it after each step."""

    ship: Ship
    producer: RawProducer
    sent: list[Forged] = field(default_factory=list)

    def write(self, step: int, k: int, real: bytes) -> None:
        target = Target(
            RUN, START_WALL_NS, PLAN, PROBE, SENDER, host_name(), Signer(SECRET.encode())
        )
        messages = forged_messages(target, k, SystemClock().wall_ns(), real)
        steps = SHAPE.seconds // STEP_SECONDS
        share = [one for at, one in enumerate(messages) if at % steps == step]
        send(self.producer, self.ship.topic, [columns_of_forged(target), *share])
        self.sent += share


def real_record(folder: RunFolder) -> bytes:
    """Return the first record that the source has sent."""
    for raw in (folder.journal / PROBE / "000000.jsonl").read_bytes().splitlines():
        if isinstance(decode(raw), Record):
            return raw
    raise AssertionError("nothing was sent")


def newest(folder: RunFolder) -> list[int]:
    """Return the newest interval of each source that is there."""
    names = sources(folder.journal) if folder.journal.exists() else []
    found = [last_record(folder.journal, name) for name in names]
    return [one[0].k for one in found if one is not None]


def page(folder: RunFolder) -> dict[str, float]:
    """Return the metrics page of the receiver."""
    (target,) = json.loads((folder.path / "metrics" / "receive.json").read_text())
    with urllib.request.urlopen(f"http://{target['targets'][0]}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = re.findall(r"^soak_receive_(\w+)(?:{.*})? (\S+)$", "\n".join(lines), re.MULTILINE)
    return {name: float(value) for name, value in found}


def without_date(mail: EmailMessage) -> list[tuple[object, ...]]:
    """Return headers and content of all parts; the borders between parts are random."""
    return [
        (
            [(name, text) for name, text in part.items() if name not in {"Date", "Content-Type"}],
            None if part.is_multipart() else part.get_payload(decode=True),
        )
        for part in mail.walk()
    ]


def live(home: Path, ship: Ship, strangers: Strangers | None) -> Outcome:
    """Let a run arrive second by second, and judge it; strangers write all the while."""
    home.mkdir()
    whole = write_synthetic_run(home / "whole", SHAPE)
    more = {
        "ship": {
            "bootstrap_servers": ship.bootstrap_servers,
            "topic": ship.topic,
            "key": ship.key,
        },
        "alerts": {"report_url": "http://reports/{run}"},
        "metrics": {"port": 0},
    }
    whole.plan.write_text(yaml.safe_dump({**yaml.safe_load(whole.plan.read_text()), **more}))
    write_run(whole, replace(read_run(whole), state="running"))
    here, there = begun(whole, home / "here"), begun(whole, home / "there")
    clock, heard = SystemClock(), set()
    writer = SamplesWriter(ship, RUN, START_WALL_NS, clock, SENDER)
    shipper = Shipper(here, writer, clock, "host")
    with ExitStack() as stack:
        stack.callback(writer.close)
        receiver = soak(there, "receive", "--run-dir", str(there.path))
        stack.callback(receiver.wait, 60)
        stack.callback(receiver.send_signal, signal.SIGTERM)
        detector = soak(there, "detect-stream", "--run-dir", str(there.path))
        stack.callback(detector.kill)
        listening = stack.enter_context(closing(AnnouncementReader(ship, clock)))
        listening.open()
        for step, k in enumerate(range(STEP_SECONDS, SHAPE.seconds + 1, STEP_SECONDS)):
            grow(whole, here, k)
            while shipper.waiting_bytes():
                shipper.send_batch()
            if strangers is not None:
                strangers.write(step, k - 1, real_record(here))
            until(lambda k=k: newest(there) == [k - 1] * SOURCES, f"second {k - 1}")  # type: ignore[misc]  # bound here
            heard |= set(map(identity, listening.poll(0.0)))
        until(lambda: heard.update(map(identity, listening.poll(0.5))) or heard, "an announcement")  # type: ignore[func-returns-value]  # adds what is heard
        end(whole, here)
        shutil.copy(whole.phases, there.phases)
        while shipper.waiting_bytes():
            shipper.send_batch()
        until(lambda: all(has_ended(there.journal / one) for one in sources(there.journal)), "ends")
        expected = sum(one.is_counted for one in strangers.sent) if strangers else 0
        until(lambda: page(there).get("refused_lines_total", -1.0) >= expected, "the page")
        on_page = page(there)["refused_lines_total"]
        assert detector.wait(PATIENCE_SECONDS) == 0, (there.path / "detect-stream.out").read_text()
        receiver.send_signal(signal.SIGTERM)
        assert receiver.wait(60) == 0, (there.path / "receive.out").read_text()
    write_run(there, replace(read_run(there), state="ended"))
    report = soak(there, "report", str(there.path))
    assert report.wait(PATIENCE_SECONDS) in {0, 3, 4}, (there.path / "report.out").read_text()
    summary = json.loads(there.summary.read_text())
    return Outcome(
        {name: value for name, value in summary.items() if name != "refused"},
        findings(there),
        mails(there),
        summary["refused"],
        on_page,
        heard,
    )


def identity(one: Announcement) -> tuple[str, int, bool]:
    return one.run_id, one.start_wall_ns, one.is_over


def findings(folder: RunFolder) -> list[tuple[str, str, str, int]]:
    with FindingsStore(folder.findings) as store:
        return [(one.key, one.state, one.cause, one.onset_k) for one in store.findings(RUN)]


def mails(folder: RunFolder) -> list[list[tuple[object, ...]]]:
    """Send what is pending to a mail server; return what came, without dates."""
    inbox, clock = Inbox(), FakeClock()  # a mail that is sent late says what time it is
    with served(inbox) as port:
        sink = MailSink(Config(to=("oncall@example.org",), host="127.0.0.1", port=port))
        daemon = AlertDaemon(folder, read_plan(folder), read_run(folder), {"mail": sink}, clock)
        daemon.deliver()
    return [without_date(mail) for _, mail in inbox.mails]


def bomb_errors(ship: Ship) -> list[int]:
    """Return how the broker answers small batches that unpack to much."""
    codes: list[int] = []
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        stranger = confluent_kafka.Producer(
            {
                "bootstrap.servers": ship.bootstrap_servers,
                "compression.type": codec,
                "message.max.bytes": str(2 * BOMB_BYTES),
                "message.timeout.ms": "20000",
            }
        )
        stranger.produce(
            ship.topic,
            bytes(BOMB_BYTES),
            on_delivery=lambda error, _: codes.append(0 if error is None else error.code()),
        )
        stranger.flush(30)
    return codes


def ship_of(broker: Running, topic: str, key: Path) -> Ship:
    key.write_text(f"{SECRET}\n")
    return Ship(
        bootstrap_servers=broker.bootstrap_servers,
        topic=topic,
        timeout=12 * SECOND_NS,
        key=f"${{file:{key}}}",
    )


@pytest.fixture
def open_transaction(lab_kafka: Running) -> Iterator[Callable[[Ship], None]]:
    """Begin a transaction on a topic, and leave it open until the end of the test."""
    begun_here: list[confluent_kafka.Producer] = []

    def begin(ship: Ship) -> None:
        settings = {
            "bootstrap.servers": lab_kafka.bootstrap_servers,
            "transactional.id": "holds",
            "transaction.timeout.ms": "600000",  # the test may take minutes
            "log_level": "0",
        }
        producer = confluent_kafka.Producer(settings)
        producer.init_transactions(60)
        producer.begin_transaction()
        for partition in range(8):
            producer.produce(ship.topic, b"x", partition=partition)
        producer.flush(30)
        begun_here.append(producer)

    yield begin
    for producer in begun_here:
        producer.abort_transaction(30)


def test_what_is_forged_changes_no_verdict_finding_or_mail(
    lab_kafka: Running, tmp_path: Path, open_transaction: Callable[[Ship], None]
) -> None:
    """A message of each kind, an open transaction over all of it, and batches that unpack to gigabytes."""
    plain = live(tmp_path / "plain", ship_of(lab_kafka, "plain", tmp_path / "key"), None)
    ship = ship_of(lab_kafka, "attacked", tmp_path / "key")
    SamplesWriter(ship, RUN, START_WALL_NS, SystemClock(), SENDER).send([])
    open_transaction(ship)
    settings = {"bootstrap.servers": ship.bootstrap_servers, "message.max.bytes": str(2**24)}
    with closing(RawProducer(settings)) as producer:
        strangers = Strangers(ship, producer)
        assert set(bomb_errors(ship)) == {KafkaError.MSG_SIZE_TOO_LARGE}
        attacked = live(tmp_path / "attacked", ship, strangers)

    kinds = {one.kind for one in strangers.sent}
    expected = Counter(one.is_counted for one in strangers.sent)[True]
    sys.stdout.write(f"{len(kinds)} kinds, {expected} messages refused\n")
    assert len(kinds) > 100
    assert plain.summary["verdict"] == "regressed"
    assert [cause for _, _, cause, _ in plain.findings] == ["retention_cliff"]
    assert len(plain.mails) >= 1
    assert attacked.findings == plain.findings
    assert attacked.mails == plain.mails
    assert attacked.summary == plain.summary
    assert plain.refused == []
    assert sum(one["count"] for one in attacked.refused) == expected
    assert attacked.refused_on_page == expected
    assert {"announcements", PROBE, f"produce.9@{PROBE.partition('@')[2]}"} <= {
        one["source"] for one in attacked.refused
    }
    assert plain.heard == attacked.heard == {(RUN, START_WALL_NS, False)}
