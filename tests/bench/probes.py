"""`make bench-probes`: what probes cost, each reading and the whole daemon at 1 Hz, beside the usual ways.

Parts: `readings`, each probe's work in a loop beside the plain way to do it; `trouble`, the daemon while
pages answer late and while every target refuses, beside pages that answer; `same` and `all`, the daemon
beside a node_exporter that is scraped at 1 Hz. Side by side in one run: same machine, same seconds, in turn.
Writes `build/bench/probes.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from probes import disk_io, fsync, pressure
from probes.broker_log import patterns
from probes.broker_log.probe import BrokerLog
from probes.broker_log.probe import Config as LogConfig
from probes.common.exposition import ExpositionParser
from probes.prometheus import name_map
from probes.smart.tools import parse_smartctl
from soak.core.clock import SystemClock
from soak.core.errors import SoakError
from soak.core.units import SECOND_NS
from soak.lab.broker_setup import free_ports
from soak.lab.brokers import kafka
from soak.runtime.grid import host_name
from soak.service import children
from soak.service.signals import exit_on_sigterm
from soak.store.journal.reader import last_record
from tests.bench.figures import (
    Figure,
    Goal,
    Measures,
    Spec,
    figures,
    side_by_side,
    stolen,
    table,
    write,
)
from tests.support.pages import pages, serving
from tests.support.paths import RECORDED
from tests.support.probes.metrics_pages import recorded
from tests.support.probes.node_exporter import NODE_EXPORTER, WITHOUT, node_exporter

RESULT = Path("build/bench/probes.json")
ROUNDS = 3
WARM_SECONDS = 5  # imports, first readings, looking for devices
TABLE_WIDTH = 140
PAGE_LINES = 2000  # of a Pulsar broker
MB = 10**6

SAME = ("cpu", "diskstats", "loadavg", "meminfo", "netdev", "pressure", "vmstat")
"""node_exporter's collectors for what `disk_io`, `host` and `pressure` give."""

SPECS_SAME = (
    Spec("cores", "same metrics: CPU, cores", Goal(ratio_most=1.0)),
    Spec("mb", "same metrics: memory, MB", Goal()),
    stolen("same metrics"),
)
SPECS_ALL = (
    Spec("cores", "all probes: CPU, cores", Goal(ours_most=0.01)),
    Spec("mb", "all probes: memory, MB", Goal(ours_most=60.0)),
    stolen("all probes"),
)

FLUSH_PERIOD_SECONDS = 0.2  # the default of the probe
LATE_SECONDS = 0.8
TARGETS = 3
MAPS = ["pulsar", "jvm"]

SPECS_READINGS = (
    Spec("page", "a page of 2,000 lines, beside prometheus_client: CPU, ms", Goal(ratio_most=0.2)),
    Spec(
        "log",
        "1,000 lines of a broker's log, beside a loop of regexes: CPU, ms",
        Goal(ratio_most=1),
    ),
    Spec("gc", "1,000 lines of a JVM's log, beside the same loop: CPU, ms", Goal(ours_most=50.0)),
    Spec("smart", "a drive's report, beside json.loads alone: CPU, ms", Goal(ours_most=1.0)),
    Spec("disk_io", "disk_io, beside psutil.disk_io_counters: CPU, ms", Goal(ours_most=1.0)),
    Spec(
        "pressure", "pressure, beside reading and splitting the files: CPU, ms", Goal(ours_most=1.0)
    ),
    Spec(
        "fsync",
        "fsync at 5 Hz, beside a loop of write and fsync: CPU, cores",
        Goal(ours_most=0.005),
    ),
    stolen("readings"),
)
SPECS_TROUBLE = (
    Spec(
        "late", "pages that come 0.8 s late, beside prompt ones: CPU, cores", Goal(ours_most=0.05)
    ),
    Spec("refused", "every target refuses, beside prompt pages: CPU, cores", Goal(ours_most=0.05)),
    stolen("trouble"),
)

Raw = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bench:
    """Runs one side for some seconds and says what it used."""

    folder: Path
    seconds: int

    def ours(self, probes: Mapping[str, Raw], number: int) -> Measures:
        """Run the probe daemon as on a broker's host, each probe with something to read."""
        used, run_dir = self.daemon(probes, f"{len(probes)}-{number}")
        _check_complete(run_dir, probes)
        return used

    def daemon(self, probes: Mapping[str, Raw], name: str) -> tuple[Measures, Path]:
        """Run the probe daemon, whatever its probes find; return what it used, and its run folder."""
        plan = self.folder / "plan.yaml"
        plan.write_text(json.dumps({"name": "bench", "probes": probes}))  # JSON is YAML
        run_dir = self.folder / f"run-{name}"
        argv = [
            sys.executable,
            "-m",
            "soak.cli.main",
            "probe",
            str(plan),
            "--run-dir",
            str(run_dir),
        ]
        log_path = self.folder / f"probe-{name}.log"
        process = children.spawn(argv, log_path=log_path)
        try:
            used = _used(process.pid, self.seconds, lambda: None)
        except psutil.Error as error:
            raise SoakError(f"soak probe ended:\n{children.log_tail(log_path)}") from error
        finally:
            children.stop(process, 5.0)
        return used, run_dir

    def peer(self, collectors: Sequence[str]) -> Measures:
        """Run node_exporter, with these collectors alone if any are named, scraped once a second."""
        options = [f"--collector.{name}" for name in collectors]
        if collectors:
            options.append("--collector.disable-defaults")
        with node_exporter(self.folder, options) as (url, pid):
            return _used(pid, self.seconds, lambda: _scrape(url))


def _used(pid: int, seconds: int, each_second: Callable[[], None]) -> Measures:
    """Return cores and the most memory of a process and its children, after they have warmed up."""
    clock = SystemClock()
    begin_ns = clock.mono_ns()
    before = 0.0
    most = 0
    for second in range(1, WARM_SECONDS + seconds + 1):
        clock.sleep_until(begin_ns + second * SECOND_NS)
        each_second()
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        most = max(most, sum(one.memory_info().rss for one in family))
        spent = sum(_cpu_seconds(one.pid) for one in family)
        if second == WARM_SECONDS:
            before, begin_measured_ns = spent, clock.mono_ns()
    cores = (spent - before) * SECOND_NS / (clock.mono_ns() - begin_measured_ns)
    return {"cores": cores, "mb": most / MB}


def _cpu_seconds(pid: int) -> float:
    """Return what all threads have run: the scheduler's own count, as that of psutil is in steps of 10 ms."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in tasks) / SECOND_NS


def _scrape(url: str) -> None:
    with urllib.request.urlopen(url, timeout=5.0) as answer:
        answer.read()


def _check_complete(run_dir: Path, probes: Mapping[str, Raw]) -> None:
    """Refuse a result for which a probe gave nothing: what does no work costs nothing."""
    found = last_record(run_dir / "journal", f"probe@{host_name()}")
    record, columns = found if found is not None else (None, ())
    values = dict(
        zip((column.name for column in columns), record.values if record else (), strict=True)
    )
    for name in probes:
        if values.get(f'probe_success{{probe="{name}"}}') != 1.0:
            raise SoakError(f"the probe {name} gave nothing in the end: {run_dir}")


def same_metrics(bench: Bench, rounds: int) -> list[Figure]:
    probes: dict[str, Raw] = {
        "disk_io": {"directory": str(bench.folder)},
        "host": {},
        "pressure": {},
    }
    pairs = side_by_side(
        rounds, lambda number: bench.ours(probes, number), lambda _: bench.peer(SAME)
    )
    return figures(SPECS_SAME, pairs)


def all_probes(bench: Bench, rounds: int) -> list[Figure]:
    """All but `smart` and `retention_pulsar`, each with something to read; the peer with its defaults."""
    with ExitStack() as stack:
        probes = stack.enter_context(_sources(bench.folder))
        pairs = side_by_side(
            rounds, lambda number: bench.ours(probes, number), lambda _: bench.peer(())
        )
    return figures(SPECS_ALL, pairs)


@contextmanager
def _sources(folder: Path) -> Iterator[dict[str, Raw]]:
    """Yield the probes' sections: a real Kafka, its log, a broker's page, this machine's drive."""
    broker = kafka.start(folder / "kafka", {})
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("bench", 10, 1)])["bench"].result(30)
        with pages({"/metrics": _page()}) as url:
            yield {
                "disk_io": {"directory": str(folder)},
                "fsync": {"directory": str(folder)},
                "host": {},
                "pressure": {},
                "clock": {},
                "broker_log": {"log": str(broker.log_path)},
                "prometheus": {"targets": {"broker": {"url": f"{url}/metrics", "maps": MAPS}}},
                "retention_kafka": {
                    "bootstrap_servers": broker.bootstrap_servers,
                    "topics": ["bench"],
                    "directory": str(broker.data_directory),
                },
            }
    finally:
        broker.stop()


def readings(bench: Bench, rounds: int) -> list[Figure]:
    """Each probe's own work, and a plain way to do it, in this process: warm, unlike at 1 Hz."""
    with ExitStack() as stack:
        ours, peer = _own_work(bench.folder, stack), _plain_work(bench.folder)

        def measure(
            side: Mapping[str, Callable[[], object]], flush: Callable[[int], float]
        ) -> Measures:
            found = {name: _cpu_ms(work, bench.seconds / 20) for name, work in side.items()}
            return {**found, "fsync": flush(bench.seconds)}

        pairs = side_by_side(
            rounds,
            lambda _: measure(ours, lambda seconds: _probe_flushes(bench.folder, seconds)),
            lambda _: measure(peer, lambda seconds: _plain_flushes(bench.folder, seconds)),
        )
    return figures(SPECS_READINGS, pairs)


def _cpu_ms(work: Callable[[], object], seconds: float) -> float:
    """Return the CPU time of one call, of as many as take so much of it."""
    work()  # imports, first looks
    begin, calls = time.process_time(), 0
    while (spent := time.process_time() - begin) < seconds:
        work()
        calls += 1
    return spent * 1e3 / calls


def _own_work(folder: Path, stack: ExitStack) -> dict[str, Callable[[], object]]:
    clock, page = SystemClock(), _page().encode()
    parser = ExpositionParser({name for entry in name_map.load(MAPS) for name in entry.names()})
    device = disk_io.build(disk_io.Config(directory=str(folder)), clock)
    waits = pressure.build(pressure.Config(), clock)
    report = (RECORDED / "smart/smartctl-7.3-nvme.json").read_text()
    followers = {name: _Follower(folder / f"{name}.log") for name in ("log", "gc")}
    for close in (device.close, waits.close, *(one.close for one in followers.values())):
        stack.callback(close)
    return {
        "page": lambda: parser.parse(page),
        "log": lambda: followers["log"].follow(_broker_lines()),
        "gc": lambda: followers["gc"].follow(_gc_lines()),
        "smart": lambda: parse_smartctl(json.loads(report)),
        "disk_io": device.read,
        "pressure": waits.read,
    }


class _Follower:
    """The probe `broker_log` on one file, without its thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()
        self._probe = BrokerLog(LogConfig(log=str(path)), SystemClock())
        self._probe.poll()

    def follow(self, lines: bytes) -> None:
        with self._path.open("ab") as file:
            file.write(lines)
        self._probe.poll()
        self._probe.taken(0)
        os.truncate(self._path, 0)
        self._probe.poll()

    def close(self) -> None:
        self._probe.close_logs()


def _broker_lines() -> bytes:
    """Return 1,000 lines, of which one in ten may be an event."""
    recorded_lines = (RECORDED / "logs/kafka-4.3.1.log").read_bytes().splitlines(keepends=True)
    usual = b"[2026-09-22 00:53:20,250] INFO [GroupCoordinator id=1] Preparing to rebalance group g-%d\n"
    return b"".join(
        usual % at if at % 10 else recorded_lines[at // 10 % len(recorded_lines)]
        for at in range(1000)
    )


def _gc_lines() -> bytes:
    lines = (RECORDED / "logs/gc-g1-21.log").read_bytes().splitlines(keepends=True)
    return b"".join(lines[at % len(lines)] for at in range(1000))


def _plain_work(folder: Path) -> dict[str, Callable[[], object]]:
    """Return what a first script would do: the same numbers, without care for odd input."""
    page, names = _page(), {name for entry in name_map.load(MAPS) for name in entry.names()}
    report = (RECORDED / "smart/smartctl-7.3-nvme.json").read_text()
    expressions = [re.compile(one.expression) for one in patterns.load(LogConfig().patterns)]
    files = [folder / "plain-log", folder / "plain-gc"]
    return {
        "page": lambda: [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name in names
        ],
        "log": lambda: _plain_events(files[0], _broker_lines(), expressions),
        "gc": lambda: _plain_events(files[1], _gc_lines(), expressions),
        "smart": lambda: json.loads(report),
        "disk_io": lambda: psutil.disk_io_counters(perdisk=True),
        "pressure": lambda: [
            [word.partition("=")[2] for word in path.read_text().split()]
            for path in Path("/proc/pressure").glob("*")
        ],
    }


def _plain_events(path: Path, lines: bytes, expressions: Sequence[re.Pattern[str]]) -> list[object]:
    path.write_bytes(lines)
    found: list[object] = []
    with path.open() as file:
        for line in file:
            for expression in expressions:
                if match := expression.search(line):
                    stamp = re.search(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d", line)
                    at = datetime.fromisoformat(stamp[0]) if stamp else None
                    found.append((at, match.groupdict()))
    return found


def _probe_flushes(folder: Path, seconds: int) -> float:
    """Return the cores that the probe takes at its own schedule, read once a second."""
    clock = SystemClock()
    probe = fsync.build(fsync.Config(directory=str(folder)), clock)
    begin, begin_ns = time.process_time(), clock.mono_ns()
    for second in range(1, seconds + 1):
        probe.read()
        clock.sleep_until(begin_ns + second * SECOND_NS)
    probe.close()
    return (time.process_time() - begin) / seconds


def _plain_flushes(folder: Path, seconds: int) -> float:
    clock, begin = SystemClock(), time.process_time()
    begin_ns = clock.mono_ns()
    with (folder / "plain-fsync").open("wb", buffering=0) as file:
        for number in range(1, round(seconds / FLUSH_PERIOD_SECONDS) + 1):
            file.write(bytes(4096))
            os.fsync(file.fileno())
            clock.sleep_until(begin_ns + round(number * FLUSH_PERIOD_SECONDS * SECOND_NS))
    return (time.process_time() - begin) / seconds


def trouble(bench: Bench, rounds: int) -> list[Figure]:
    """The daemon while its pages come late and while all that it asks refuses, beside prompt pages."""
    with pages({"/metrics": _page()}) as prompt, serving(_late_page()) as late:
        sides = {
            "prompt": {"prometheus": _targets(f"{prompt}/metrics")},
            "late": {"prometheus": _targets(f"{late}/metrics")},
            "refused": _refused(),
        }

        def cores(side: str, number: int) -> float:
            return bench.daemon(sides[side], f"{side}-{number}")[0]["cores"]

        def prompt_pages(number: int) -> Measures:
            return dict.fromkeys(("late", "refused"), cores("prompt", number))

        pairs = side_by_side(
            rounds,
            lambda number: {side: cores(side, number) for side in ("late", "refused")},
            prompt_pages,
        )
    return figures(SPECS_TROUBLE, pairs)


def _targets(*urls: str) -> Raw:
    """Return the section of `prometheus` with these pages, the last one as often as it takes."""
    several = [*urls, *urls[-1:] * (TARGETS - len(urls))]
    return {"targets": {f"b{at}": {"url": url, "maps": MAPS} for at, url in enumerate(several)}}


def _refused() -> dict[str, Raw]:
    """Return sections of all that asks a cluster, at ports without a listener."""
    ports = free_ports(TARGETS)
    servers = ",".join(f"127.0.0.1:{port}" for port in ports)
    return {
        "prometheus": _targets(*(f"http://127.0.0.1:{port}/metrics" for port in ports)),
        "retention_kafka": {"bootstrap_servers": servers, "topics": ["t"], "directory": None},
        "round_trip": {"bootstrap_servers": servers},
    }


def _late_page() -> type[BaseHTTPRequestHandler]:
    body, wait = _page().encode(), threading.Event()

    class Late(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            wait.wait(LATE_SECONDS)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's
            """Say nothing."""

    return Late


def _page() -> str:
    """Return a broker's page as long as a real one."""
    text = recorded("pulsar-4.2.4").decode()
    more = PAGE_LINES - text.count("\n")
    return text + "".join(
        f'pulsar_other_{at % 100}{{cluster="c",topic="persistent://public/default/t-{at}"}} {at}.0\n'
        for at in range(more)
    )


PARTS = {"readings": readings, "trouble": trouble, "same": same_metrics, "all": all_probes}
WITH_PEER = ("same", "all")  # these need a node_exporter


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-probes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each part")
    parser.add_argument("--seconds", type=int, default=30, help="measured seconds of each side")
    parser.add_argument("--quick", action="store_true", help="one short round: does it work at all")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this; may come again")
    arguments = parser.parse_args()
    console = Console(width=max(Console().width, TABLE_WIDTH))
    parts = arguments.part or list(PARTS)
    if NODE_EXPORTER is None:
        console.print(f"without {', '.join(WITH_PEER)}: {WITHOUT}")
        parts = [name for name in parts if name not in WITH_PEER]
    rounds, seconds = (1, 5) if arguments.quick else (arguments.rounds, arguments.seconds)
    exit_on_sigterm()
    work = Path(tempfile.mkdtemp(prefix="soakd-bench-"))
    found: list[Figure] = []
    try:
        for name in parts:
            part = PARTS[name](Bench(work, seconds), rounds)
            found += part
            console.print(table(f"{name}, {rounds} rounds", part))
            write(RESULT, found)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    console.print(f"{RESULT}: {len(found)} figures")


if __name__ == "__main__":
    main()
