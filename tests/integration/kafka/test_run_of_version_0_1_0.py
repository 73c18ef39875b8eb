"""A plan and a run folder that soakd 0.1.0 wrote: they are checked, resumed and reported as they are.

`run.tar.gz` holds a run that was killed 25 s after its start; a finding of it was mailed, and its webhook and
its digest are pending. Here its addresses are those of the session's Kafka, on which its topic is made anew.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from soak.core.units import SECOND_NS
from soak.lab.ports import Running
from soak.service import children
from tests.support.paths import RECORDED, ROOT

EARLIER = RECORDED / "run-0.1.0"
WRITTEN_BELOW = "/tmp/oldrun"
TOPIC = "soak-20261127T073820Z-67ee"
FORMER_KEYS = ("tailing", "lasts", "most_per_hour")
LIMIT_SECONDS = 300

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(LIMIT_SECONDS + 60)]


def soak(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        children.with_death_signal([sys.executable, "-m", "soak.cli.main", *arguments]),
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


@pytest.fixture
def run_dir(tmp_path: Path, lab_kafka: Running) -> Path:
    """Return the run's folder as if the run had begun 45 seconds ago on this session's Kafka."""
    with tarfile.open(EARLIER / "run.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / "oldrun"
    plan = folder / "plan.yaml"
    here = lab_kafka.bootstrap_servers
    topic = f"soak-{uuid.uuid4().hex[:12]}"
    text = re.sub(r"bootstrap_servers: \S+", f"bootstrap_servers: {here}", plan.read_text())
    plan.write_text(text.replace(WRITTEN_BELOW, str(folder)).replace(TOPIC, topic))
    admin = AdminClient({"bootstrap.servers": here})
    admin.create_topics([NewTopic(topic, 2)])[topic].result(30)
    described = admin.describe_topics(TopicCollection([topic]))[topic].result(30)
    created = json.loads((folder / "topics.json").read_text())
    created |= {"asked": [topic], "made": {topic: str(described.topic_id)}}
    (folder / "topics.json").write_text(json.dumps(created))
    run = json.loads((folder / "run.json").read_text())
    run["start_wall_ns"] = time.time_ns() - 45 * SECOND_NS
    (folder / "run.json").write_text(json.dumps(run))
    return folder


def summary(run_dir: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((run_dir / "report" / "summary.json").read_text())
    return body


def test_its_plan_is_checked_with_a_warning_for_each_former_key() -> None:
    """`soak check` accepts the plan and names the current key of each former one once."""
    checked = soak("check", str(EARLIER / "plan.yaml"))

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert [checked.stderr.count(f".{key}") for key in FORMER_KEYS] == [1, 1, 1]


def test_its_run_is_reported(run_dir: Path) -> None:
    """The report shows the finding under the key that it was given, and what the journals hold."""
    reported = soak("report", str(run_dir))
    found = summary(run_dir)

    assert reported.returncode in {3, 4}, reported.stdout + reported.stderr
    assert [one["key"] for one in found["findings"]] == ["20261127T073820Z-67ee-12"]
    assert found["audit"]["acked"] > 1000
    assert found["audit"]["lost"] == 0


def test_its_run_is_resumed_to_its_end(run_dir: Path) -> None:
    """Load goes on in a new epoch on the same topic; no message of before the kill is lost."""
    before = sum(
        len(path.read_text().splitlines())
        for path in (run_dir / "journal").glob("produce.0*/*.jsonl")
    )
    resumed = soak("run", str(EARLIER / "plan.yaml"), "--resume", "--run-dir", str(run_dir))
    assert resumed.returncode in {3, 4}, resumed.stdout + resumed.stderr

    found = summary(run_dir)
    after = sum(
        len(path.read_text().splitlines())
        for path in (run_dir / "journal").glob("produce.0*/*.jsonl")
    )

    assert json.loads((run_dir / "run.json").read_text())["state"] == "ended"
    assert after > before
    assert found["audit"]["lost"] == 0
