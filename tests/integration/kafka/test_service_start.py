"""`soak service start` on a real Kafka, after it was killed halfway."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from soak.app.lifecycle import start_run
from soak.core.clock import SystemClock
from soak.core.errors import PlanError
from soak.lab.ports import Running
from soak.store.plan_home import PlanHome
from soak.store.run_folder import read_run, write_run

pytestmark = pytest.mark.broker


def test_a_start_that_was_killed_is_resumed(tmp_path: Path, lab_kafka: Running) -> None:
    """Its topics exist and are its own; another plan must not touch them."""
    plan = tmp_path / "p.yaml"
    servers = lab_kafka.addresses["bootstrap_servers"]
    text = (
        f"name: p\nbroker: {{kafka: {{bootstrap_servers: '{servers}'}}}}\ntopic: {{name: half}}\n"
    )
    plan.write_text(text)
    home = PlanHome(tmp_path / "p")
    start_run(plan, home, SystemClock())
    folder = home.current_in("running")
    assert folder is not None
    write_run(folder, dataclasses.replace(read_run(folder), state="beginning", start_wall_ns=0))
    home.remove_daemons()
    start_run(plan, home, SystemClock())
    again = home.current_in("running")
    write_run(folder, dataclasses.replace(read_run(folder), state="beginning"))
    plan.write_text(text + "load: {rate: 7/s}\n")

    assert again == folder
    with pytest.raises(PlanError, match="topic half exists already"):
        start_run(plan, home, SystemClock())


def test_a_start_records_the_brokers_and_their_release(tmp_path: Path, lab_kafka: Running) -> None:
    """Two runs can be compared later, when the cluster was upgraded or has moved."""
    servers = lab_kafka.addresses["bootstrap_servers"]
    plan = tmp_path / "p.yaml"
    plan.write_text(f"name: p\nbroker: {{kafka: {{bootstrap_servers: '{servers}'}}}}\n")
    home = PlanHome(tmp_path / "p")

    start_run(plan, home, SystemClock())

    folder = home.current_in("running")
    assert folder is not None
    run = read_run(folder)
    assert run.brokers == (servers,)
    named = {"soakd", "python", "pyspark", "java", "confluent-kafka", "librdkafka", "kafka"}
    assert run.versions.keys() == named
