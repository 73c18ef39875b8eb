"""Hours under a real systemd manager, a daemon killed every few minutes: `make test-endurance`."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from soak.core.units import SECOND_NS, duration_ns
from soak.lab.brokers.kafka import Kafka
from soak.store.run_folder import read_run
from tests.support.lab.held import Course, Sample, courses, samples, table
from tests.support.load.kafka_count import messages_in
from tests.support.systemd.machine import DAEMONS, Machine
from tests.support.systemd.world import booted, why_not

LENGTH_SECONDS = duration_ns(os.environ.get("ENDURANCE_LENGTH", "2h")) / SECOND_NS
EVERY_SECONDS = duration_ns(os.environ.get("ENDURANCE_KILL_EVERY", "5min")) / SECOND_NS
SAMPLE_SECONDS = 10.0
WARM_UP_SECONDS = min(300.0, LENGTH_SECONDS / 20)  # of each life: not judged
LEAST_COVERAGE = 0.97
BUILD = Path("build/endurance")
PARTITIONS = 2
UNIT = re.compile(r"soak-([a-z]+)@t\.service")
PLAN = """
name: t
broker: {{kafka: {{bootstrap_servers: '{servers}'}}}}
topic: {{partitions: {partitions}}}
load: {{rate: 200/s, message_size: 200B}}
phases: {{warm_up: 30s, soak: {soak}s, drain: 60s}}
probes: {{host: {{}}, clock: {{}}, pressure: {{}}}}
"""

pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
    pytest.mark.endurance,
    pytest.mark.timeout(LENGTH_SECONDS + 3600),
]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with booted(tmp_path) as world:
        machine = Machine(world)
        yield machine
        keep_runs(machine)
    shutil.rmtree(tmp_path / "lib", ignore_errors=True)  # checkpoints of Spark


def keep_runs(machine: Machine) -> None:
    """Copy the run folders beside the samples: what is wrong after hours is looked into there."""
    shutil.rmtree(BUILD / "runs", ignore_errors=True)
    for name in machine.runs():
        shutil.copytree(
            machine.home / name, BUILD / "runs" / name, ignore=shutil.ignore_patterns("checkpoint")
        )


def test_hours_of_kills_are_a_run_like_any_other(machine: Machine, lab_kafka: Kafka) -> None:
    """What each daemon holds is flat, nothing is lost, little is missing, and the cluster is not blamed."""
    servers = lab_kafka.bootstrap_servers
    machine.install(PLAN.format(servers=servers, partitions=PARTITIONS, soak=round(LENGTH_SECONDS)))
    machine.ctl("start", "soak@t.target")
    machine.await_records()
    seen, kills = endure(machine)
    restarts = {
        name: int(machine.world.show(f"soak-{name}@t.service", "NRestarts")) for name in DAEMONS
    }
    machine.world.until(lambda: not (machine.home / "daemons").exists(), "the run to end", 600)
    summary = machine.await_report(since=time.time())  # not that of the day
    run = read_run(machine.folder())
    in_topic = messages_in(servers, f"soak-{run.id}", PARTITIONS)
    found = courses(seen, WARM_UP_SECONDS)
    show(summary, found_table=table(found, lives(seen)), kills=kills, in_topic=in_topic)

    assert run.state == "ended"
    assert list(complaints(summary, found, in_topic)) == []
    assert restarts == {name: kills[name] for name in DAEMONS}, "something died that was not killed"


def complaints(summary: dict[str, Any], found: list[Course], in_topic: int) -> Iterator[str]:
    """Give what is not as in a run that nobody disturbs: all of it, after hours."""
    for one in found:
        if not one.is_flat:
            yield f"{one.daemon}: {one.kind} {one.first:.0f}, then {one.second:.0f}, over {one.over}"
    audit, ratio = summary["audit"], summary["coverage"]["ratio"]
    for name in ("lost", "duplicated", "expired"):
        if audit[name]:
            yield f"audit: {audit[name]} {name}"
    if audit["received"] != in_topic:
        yield f"audit: {audit['received']} received, and the broker holds {in_topic}"
    if ratio < LEAST_COVERAGE:
        yield f"coverage: {ratio}"
    for finding in summary["findings"]:
        if finding["is_about_cluster"]:
            yield f"finding {finding['key']}: {finding['metric']}, {finding['cause']}"
    if summary["verdict"] != "clean":
        yield f"verdict: {summary['verdict']}"


def endure(machine: Machine) -> tuple[list[Sample], Counter[str]]:
    """Kill a daemon after the other until the time is over; return what was held, and who was killed."""
    BUILD.mkdir(parents=True, exist_ok=True)
    turn, kills = cycle(DAEMONS), Counter[str]()
    seen: list[Sample] = []
    began = time.monotonic()
    kill_at = EVERY_SECONDS
    with (BUILD / "samples.jsonl").open("w") as file:
        while (second := time.monotonic() - began) < LENGTH_SECONDS:
            if kill_at <= second < LENGTH_SECONDS - EVERY_SECONDS / 2:  # the last one comes back
                kill_at += EVERY_SECONDS
                name = next(turn)
                kills[name] += 1
                machine.ctl("kill", "-s", "KILL", f"soak-{name}@t.service")
            now = samples(second, UNIT)
            seen += now
            file.writelines(json.dumps(asdict(sample)) + "\n" for sample in now)
            file.flush()
            time.sleep(SAMPLE_SECONDS)  # the pace of the samples
    return seen, kills


def lives(seen: list[Sample]) -> dict[str, int]:
    return {
        name: len({sample.life for sample in seen if sample.daemon == name})
        for name in {sample.daemon for sample in seen}
    }


def show(
    summary: dict[str, Any], *, found_table: list[str], kills: Counter[str], in_topic: int
) -> None:
    """Print the figures, and keep them beside the samples."""
    figures = {
        "length_seconds": LENGTH_SECONDS,
        "kills": dict(sorted(kills.items())),
        "verdict": summary["verdict"],
        "coverage": summary["coverage"]["ratio"],
        "untrusted_seconds": summary["coverage"]["untrusted_seconds"],
        "audit": summary["audit"],
        "in_topic": in_topic,
        "findings": [
            {name: one[name] for name in ("key", "metric", "cause", "is_about_cluster")}
            for one in summary["findings"]
        ],
        "held": found_table,
    }
    (BUILD / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")
    print("\n".join([json.dumps(figures, indent=2), "", *found_table]))  # noqa: T201  # the figures
