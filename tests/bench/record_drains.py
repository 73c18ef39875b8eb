"""Records the catch-up reads that `detect.lab_drains` judges: runs on real brokers, as benchmark results.

Each run has one topic, one producer and one consumer, which pauses until a backlog has its age and then reads
it. A limit on the consumer, as administrators set it, makes the drain of a small backlog last as long as that
of a large one. The run is exported three times, with samples that begin 0, 3 and 7 seconds later.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import shutil
import socket
import struct
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console

from soak.app.analysis.omb import run_seconds, run_source
from soak.core.errors import SoakError
from soak.core.plan.phases import Decision
from soak.lab.brokers import kafka, pulsar
from soak.omb.result import NOMINAL_STEP_MILLIS
from soak.omb.result_file import result_body
from soak.omb.run_result import result_of_run
from soak.service.files import write_atomically
from soak.service.signals import exit_on_sigterm
from soak.store.run_folder import RunFolder
from tests.bench import daemons, process
from tests.bench.detect.lab_drains import FOLDER, LIST

SHIFTS = (0, 3, 7)
"""Seconds by which the samples of each further export of a run begin later."""

_STEP = NOMINAL_STEP_MILLIS // 1000
_WARM_UP = 10  # seconds; the broker itself is warm after the first run
_SOAK = 310
_DRAIN_PHASE = 60
_END = 5
_LIMIT_SECONDS = 60  # beyond the load itself
_TOOL_SECONDS = 150
_MESSAGE_BYTES = 1024
_NO_QUOTA = 10**12  # bytes a second
_ALTER_CLIENT_QUOTAS = 49  # key of the request
_NULL = struct.pack(">h", -1)  # a string that is absent
_INT32 = struct.Struct(">i")
_ANSWER_HEAD_BYTES = 12  # number of the request, throttle time, count of the entries


@dataclass(frozen=True, slots=True)
class Case:
    """One run: its load, the age of its backlog, and how fast its consumer may read."""

    name: str
    broker: str
    rate: int  # messages a second, 1 KiB each
    backlog_seconds: int
    is_flushed: bool  # before each acknowledgement
    read_ratio: float = 0.0  # limit of the consumer, in rates of the producer; 0: none
    pause_seconds: int = 105  # of the soak before the consumer pauses


CASES = (
    Case("kafka-500", "kafka", 500, 60, is_flushed=False, read_ratio=3.0),
    Case("kafka-400-flushed", "kafka", 400, 60, is_flushed=True, read_ratio=2.0),
    Case("kafka-4000", "kafka", 4000, 85, is_flushed=False),
    Case("kafka-300-flushed", "kafka", 300, 40, is_flushed=True),
    Case("kafka-600-first", "kafka", 600, 110, is_flushed=False, read_ratio=2.2, pause_seconds=1),
    Case("pulsar-300-flushed", "pulsar", 300, 60, is_flushed=True, read_ratio=3.0),
    Case("pulsar-800-flushed", "pulsar", 800, 85, is_flushed=True),
    Case("pulsar-500", "pulsar", 500, 45, is_flushed=False, read_ratio=2.0),
    Case("pulsar-1500", "pulsar", 1500, 70, is_flushed=False),
    Case("pulsar-350-first", "pulsar", 350, 95, is_flushed=False, read_ratio=2.5, pause_seconds=1),
)


def record(
    cases: Sequence[Case], work: Path, target: Path, soak_seconds: int, console: Console
) -> None:
    """Run the cases in turn, those of one broker's settings on one broker, and write their results."""
    target.mkdir(parents=True, exist_ok=True)
    for settings, some in groupby(cases, _broker_settings):
        same = list(some)
        folder = work / same[0].name
        with _running(same[0].broker, folder / "broker", dict(settings)) as broker:
            for case in same:
                _limit_reading(broker, case)
                run = _run(case, broker.addresses, folder / case.name, soak_seconds)
                _export(case, run, target)
                console.print(f"{case.name}: recorded")


def _broker_settings(case: Case) -> tuple[tuple[str, str], ...]:
    """Return the broker's settings, which distinguish one broker from the next."""
    if case.broker == "kafka":  # whose topics have the setting
        return ()
    return (
        ("journalSyncData", str(case.is_flushed).lower()),
        ("managedLedgerMaxEntriesPerLedger", "1000000"),
    )


@contextmanager
def _running(
    kind: str, folder: Path, settings: Mapping[str, str]
) -> Iterator[kafka.Kafka | pulsar.Pulsar]:
    module = {"kafka": kafka, "pulsar": pulsar}[kind]
    broker: kafka.Kafka | pulsar.Pulsar = module.start(folder, settings)
    try:
        yield broker
    finally:
        broker.stop()


def _limit_reading(broker: kafka.Kafka | pulsar.Pulsar, case: Case) -> None:
    """Limit all consumers of a broker, or end their limit."""
    messages = round(case.read_ratio * case.rate)
    if isinstance(broker, pulsar.Pulsar):
        _limit_pulsar(broker, messages or -1)
    else:
        _limit_kafka(broker, messages * _MESSAGE_BYTES or _NO_QUOTA)


def _limit_pulsar(broker: pulsar.Pulsar, messages: int) -> None:
    body = {
        "dispatchThrottlingRateInMsg": messages,
        "dispatchThrottlingRateInByte": -1,
        "ratePeriodInSecond": 1,
        "relativeToPublishRate": False,
    }
    request = urllib.request.Request(
        f"{broker.admin_url}/admin/v2/namespaces/public/default/subscriptionDispatchRate",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=_TOOL_SECONDS):
        pass


def _limit_kafka(broker: kafka.Kafka, bytes_per_second: int) -> None:
    """Set the default quota of all clients; the client library has no call for it.

    AlterClientQuotas, version 0: https://kafka.apache.org/protocol#The_Messages_AlterClientQuotas
    """
    entity = _INT32.pack(1) + _string("client-id") + _NULL  # the default
    quota = _string("consumer_byte_rate") + struct.pack(">d?", bytes_per_second, False)
    body = _INT32.pack(1) + entity + _INT32.pack(1) + quota + struct.pack("?", False)
    request = struct.pack(">hhi", _ALTER_CLIENT_QUOTAS, 0, 0) + _NULL + body
    host, port = broker.bootstrap_servers.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=_TOOL_SECONDS) as connection:
        connection.sendall(_INT32.pack(len(request)) + request)
        with connection.makefile("rb") as answers:
            (size,) = _INT32.unpack(answers.read(_INT32.size))
            answer = answers.read(size)
    (error,) = struct.unpack_from(">h", answer, _ANSWER_HEAD_BYTES)
    if error:
        raise SoakError(f"{broker.bootstrap_servers} refused a quota: error code {error}")


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _run(case: Case, addresses: Mapping[str, str], path: Path, soak_seconds: int) -> RunFolder:
    """Produce and consume for the length of the soak; return the run folder."""
    plan = daemons.plan_of(_plan(case, soak_seconds), dict(addresses))
    daemons.create_topics(plan)
    end = _WARM_UP + soak_seconds
    folder = daemons.prepare(path, plan, end)
    write_atomically(folder.phases, "".join(one.to_line() for one in _phases(case, end)))
    roles = [daemons.spawn(folder, role) for role in ("produce", "consume")]
    process.wait_all(roles, daemons.LEAD_SECONDS + end + _END + _LIMIT_SECONDS)
    return folder


def _plan(case: Case, soak_seconds: int) -> dict[str, Any]:
    is_kafka = case.broker == "kafka"
    topic: dict[str, Any] = {"name": case.name, "partitions": 2}
    if is_kafka and case.is_flushed:
        topic["settings"] = {"flush.messages": 1}
    return {
        "name": case.name,
        "broker": {case.broker: {}},
        "topic": topic,
        "load": {"rate": f"{case.rate}/s", "message_size": f"{_MESSAGE_BYTES}B"},
        "phases": {"warm_up": f"{_WARM_UP}s", "soak": f"{soak_seconds}s", "drain": f"{_END}s"},
    }


def _phases(case: Case, end: int) -> list[Decision]:
    drain = _drain_k(case)
    return [
        Decision("warm-up", 0),
        Decision("soak", _WARM_UP),
        Decision("catch-up", _WARM_UP + case.pause_seconds, part="build"),
        Decision("catch-up", drain, part="drain"),
        Decision("soak", min(drain + _DRAIN_PHASE, end - 1)),
        Decision("drain", end),
        Decision("end", end + _END),
    ]


def _drain_k(case: Case) -> int:
    return _WARM_UP + case.pause_seconds + case.backlog_seconds


def _export(case: Case, folder: RunFolder, target: Path) -> None:
    """Write the results, and what is known of them into the list."""
    path = target / LIST
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    known = [one for one in known if one["name"] != case.name]
    source = run_source(folder)
    for shift in SHIFTS:
        begin_k = source.begin_k + shift
        end_k = source.end_k - (source.end_k - begin_k) % _STEP  # whole samples only
        result = result_of_run(replace(source, begin_k=begin_k, end_k=end_k), run_seconds(folder))
        body = result_body(replace(result, distributions={}), "upstream")
        name = f"{case.name}+{shift}.json.gz"
        (target / name).write_bytes(gzip.compress(json.dumps(body).encode(), mtime=0))
        known.append(
            {"file": name, **dataclasses.asdict(case), "drain_seconds": _drain_k(case) - begin_k}
        )
    known.sort(key=lambda one: str(one["file"]))
    path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", help="one run; may be repeated")
    parser.add_argument("--soak", type=int, default=_SOAK, help="seconds of each run")
    parser.add_argument("--target", type=Path, default=FOLDER)
    options = parser.parse_args()
    exit_on_sigterm()
    cases = [one for one in CASES if options.case is None or one.name in options.case]
    work = Path(tempfile.mkdtemp(prefix="soakd-drains-"))
    try:
        record(cases, work, options.target, options.soak, Console())
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
