"""`make bench-probes`: what all probes cost at 1 Hz, beside a node_exporter that is scraped at 1 Hz.

Side by side in one run: same machine, same seconds, in turn. Writes `build/bench/probes.json`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console

from soak.core.clock import SystemClock
from soak.core.errors import SoakError
from soak.core.units import SECOND_NS
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
from tests.support.pages import pages
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

Raw = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bench:
    """Runs one side for some seconds and says what it used."""

    folder: Path
    seconds: int

    def ours(self, probes: Mapping[str, Raw], number: int) -> Measures:
        """Run the probe daemon as on a broker's host."""
        plan = self.folder / "plan.yaml"
        plan.write_text(json.dumps({"name": "bench", "probes": probes}))  # JSON is YAML
        run_dir = self.folder / f"run-{len(probes)}-{number}"
        argv = [
            sys.executable,
            "-m",
            "soak.cli.main",
            "probe",
            str(plan),
            "--run-dir",
            str(run_dir),
        ]
        log_path = self.folder / f"probe-{len(probes)}-{number}.log"
        process = children.spawn(argv, log_path=log_path)
        try:
            used = _used(process.pid, self.seconds, lambda: None)
        except psutil.Error as error:
            raise SoakError(f"soak probe ended:\n{children.log_tail(log_path)}") from error
        finally:
            children.stop(process, 5.0)
        _check_complete(run_dir, probes)
        return used

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
                "prometheus": {
                    "targets": {"broker": {"url": f"{url}/metrics", "maps": ["pulsar", "jvm"]}}
                },
                "retention_kafka": {
                    "bootstrap_servers": broker.bootstrap_servers,
                    "topics": ["bench"],
                    "directory": str(broker.data_directory),
                },
            }
    finally:
        broker.stop()


def _page() -> str:
    """Return a broker's page as long as a real one."""
    text = recorded("pulsar-4.2.4").decode()
    more = PAGE_LINES - text.count("\n")
    return text + "".join(
        f'pulsar_other_{at % 100}{{cluster="c",topic="persistent://public/default/t-{at}"}} {at}.0\n'
        for at in range(more)
    )


PARTS = {"same": same_metrics, "all": all_probes}


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-probes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each part")
    parser.add_argument("--seconds", type=int, default=30, help="measured seconds of each side")
    parser.add_argument("--quick", action="store_true", help="one short round: does it work at all")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this; may come again")
    arguments = parser.parse_args()
    console = Console(width=max(Console().width, TABLE_WIDTH))
    if NODE_EXPORTER is None:
        console.print(f"skipped: {WITHOUT}")
        return
    rounds, seconds = (1, 5) if arguments.quick else (arguments.rounds, arguments.seconds)
    exit_on_sigterm()
    work = Path(tempfile.mkdtemp(prefix="soakd-bench-"))
    found: list[Figure] = []
    try:
        for name in arguments.part or PARTS:
            part = PARTS[name](Bench(work, seconds), rounds)
            found += part
            console.print(table(f"{name}, {rounds} rounds", part))
            write(RESULT, found)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    console.print(f"{RESULT}: {len(found)} figures")


if __name__ == "__main__":
    main()
