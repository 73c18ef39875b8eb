"""Another host whose records come over the samples topic, and strangers who write there too."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from soak.core.clock import SystemClock
from soak.core.journal_format import columns_line, encode
from soak.core.model import Column, Record
from soak.core.plan.plan import Ship
from soak.core.units import SECOND_NS
from soak.runtime.grid import host_name
from soak.shipping.sender import Shipper
from soak.store.admission import Signer
from soak.store.journal.reader import SourceReader, complete_size, last_record, segments
from soak.store.journal.writer import JournalWriter
from soak.store.run_folder import Run, RunFolder, read_run, write_run
from soak.store.samples_topic import SamplesWriter
from tests.chaos.storm import Storm
from tests.support.raw_kafka import RawProducer
from tests.support.strangers import Forged, Target, columns_of_forged, forged_messages

SOURCE = "probe@other"
SECRET = "a secret of the deployment"
TOPIC = "soak-chaos-samples"
COLUMN = Column("a_ratio", (), "ratio")
_AT_ONCE = 10  # messages
_PAUSE_SECONDS = 0.5
_SETTINGS = {"message.timeout.ms": "5000", "message.max.bytes": str(2**24)}
# Believed by whoever has the key: while a clock is wrong, or until the real one has spoken.
_OF_TRUSTED = {"an interval ahead of the clock", "another folder of that name"}


class Hostile:
    """Call `start` once the storm's daemons record, `finish` when it has settled, and `close`, always."""

    def __init__(self, home: Path, bootstrap_servers: str, seed: int) -> None:
        self._home, self._servers, self._rng = home, bootstrap_servers, random.Random(seed)
        key = home / "ship-key"
        key.write_text(SECRET)
        port = int(bootstrap_servers.rpartition(":")[2])
        server = f"broker.soak.test:{port}"
        self.plan = (
            f"ship: {{bootstrap_servers: '{server}', topic: {TOPIC}, key: '${{file:{key}}}'}}\n"
        )
        self._ship = Ship(
            bootstrap_servers=bootstrap_servers,
            topic=TOPIC,
            timeout=5 * SECOND_NS,
            key=f"${{file:{key}}}",
        )
        self._folder = RunFolder(home / "other")
        self._sent: Counter[bool] = Counter()  # messages, by whether a receiver counts them
        self._written: list[int] = []  # seconds
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def start(self, storm: Storm) -> None:
        """Begin to send, as another host does, and to forge."""
        run = read_run(storm.folder)
        self._folder.path.mkdir()
        write_run(self._folder, Run(run.id, run.start_wall_ns, "other", {}, "running", run.name))
        for work in (self._be_another_host, self._forge):
            thread = threading.Thread(target=self._noting_errors, args=(work, storm), daemon=True)
            thread.start()
            self._threads.append(thread)

    def finish(self, storm: Storm) -> None:
        """Return when the run has all that the other host wrote before now."""
        last = self._written[-1]

        def has_arrived() -> bool:
            newest = last_record(storm.folder.journal, SOURCE)
            return newest is not None and newest[0].k >= last

        storm.until(has_arrived, f"second {last} of the other host")
        self.close()

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def figures(self, summary: Mapping[str, Any]) -> dict[str, int]:
        return {
            "messages": self._sent.total(),
            "to_be_refused": self._sent[True],
            "refused": sum(one["count"] for one in summary["refused"]),
            "records_of_the_other_host": len(self._written),
        }

    def complaints(self, folder: RunFolder, summary: Mapping[str, Any]) -> list[str]:
        """Return what is not as it must be: each record came once, and nothing else did."""
        arrived = [
            record.k
            for path in segments(folder.journal / SOURCE)
            for record, _ in SourceReader(path.parent).read(path, 0, complete_size(path))
        ]
        found = [f"the other host: {error!r}" for error in self._errors]
        written = [k for k in self._written if arrived and k <= arrived[-1]]
        if arrived != written or not arrived:
            lost, new = set(written) - set(arrived), set(arrived) - set(written)
            found.append(
                f"of {len(written)} seconds of the other host {len(arrived)} came; "
                f"lost {sorted(lost)[:9]}, never written {sorted(new)[:9]}"
            )
        figures = self.figures(summary)
        if not 0 < figures["refused"] <= figures["to_be_refused"]:
            found.append(f"{figures['refused']} of {figures['to_be_refused']} were refused")
        return found

    def _noting_errors(self, work: Any, storm: Storm) -> None:
        try:
            work(storm)
        except BaseException as error:  # noqa: BLE001  # the oracle complains of it
            self._errors.append(error)

    def _be_another_host(self, storm: Storm) -> None:
        """Record a second of its own each second, and send it."""
        clock = SystemClock()
        run = read_run(self._folder)
        journal = JournalWriter(self._folder.journal / SOURCE, clock).open()
        target = SamplesWriter(self._ship, run.id, run.start_wall_ns, clock, "other-folder")
        shipper = Shipper(self._folder, target, clock, "other")
        columns = (COLUMN,)
        while not self._stop.is_set():
            k = storm.k
            if k >= 0 and k not in self._written[-1:]:
                at_ns, name = clock.wall_ns(), columns_line(columns).id
                journal.append(Record(k, journal.epoch, at_ns, SECOND_NS, name, (0.5,)), columns)
                self._written.append(k)
            self._stop.wait(min(1.0, max(0.2, shipper.send_batch())))
        target.close()
        journal.close(is_end=False)

    def _forge(self, _storm: Storm) -> None:
        """Send a message of each kind again and again."""
        run = read_run(self._folder)
        signer = Signer(SECRET.encode())
        target = Target(
            *(run.id, run.start_wall_ns, run.name, SOURCE, "other-folder", host_name(), signer)
        )
        producer = RawProducer({"bootstrap.servers": self._servers, **_SETTINGS})
        waiting: list[Forged] = []
        while not self._stop.wait(_PAUSE_SECONDS):
            if not waiting:
                waiting = self._kinds(target)
            for one in [columns_of_forged(target), *waiting[:_AT_ONCE]]:
                is_sent = producer.produce(
                    TOPIC, one.value, key=one.key, partition=one.partition, headers=one.headers
                )
                if is_sent:
                    self._sent[one.is_counted] += 1
            del waiting[:_AT_ONCE]
            producer.flush(1000)
        producer.flush()
        producer.close()

    def _kinds(self, target: Target) -> list[Forged]:
        if not self._written:
            return []
        k, now_ns = self._written[-1], SystemClock().wall_ns()
        first = Record(self._written[0], 1, now_ns, SECOND_NS, columns_line((COLUMN,)).id, (0.5,))
        found = forged_messages(target, k, now_ns, encode(first).rstrip())
        found = [one for one in found if one.kind not in _OF_TRUSTED]
        self._rng.shuffle(found)
        return found
