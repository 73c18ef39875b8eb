"""By what name a cluster knows the clients of a run: its quotas, metrics and logs go by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.core.clock import SystemClock
from soak.core.plan import text
from soak.runtime.context import open_context
from soak.store.run_folder import Run, RunFolder, write_run

KAFKA = "kafka: {bootstrap_servers: 'b1:9092'}"
REDPANDA = "redpanda: {bootstrap_servers: 'b1:9092'}"


def settings_in_a_daemon(path: Path, broker: str, role: str) -> tuple[dict[str, str], ...]:
    """Return what every client gets, and what a producer gets over it, in a daemon of the run r1."""
    folder = RunFolder(path)
    plan = text.load(f"name: x\nbroker: {{{broker}}}\n", "plan.yaml").plan
    folder.plan.write_text(text.dump(plan))
    write_run(folder, Run("r1", 0, "host", {}, "running"))
    context = open_context(path, role, SystemClock())
    context.writer.close(is_end=True)
    config = context.plan.broker_config
    return config.common, config.producer


@pytest.mark.parametrize("broker", [KAFKA, REDPANDA])
@pytest.mark.parametrize("role", ["produce.0", "consume.11"])
def test_each_daemon_s_clients_are_named_after_the_run_and_the_daemon(
    tmp_path: Path, broker: str, role: str
) -> None:
    common, _ = settings_in_a_daemon(tmp_path, broker, role)

    assert common == {"client.id": f"soakd-r1-{role}"}


@pytest.mark.parametrize("section", ["common", "producer"])
def test_a_name_that_the_plan_gives_wins(tmp_path: Path, section: str) -> None:
    """A quota may be set for it."""
    broker = KAFKA.replace("}", f", {section}: {{client.id: ours}}}}")

    common, producer = settings_in_a_daemon(tmp_path, broker, "produce.0")

    assert {**common, **producer}["client.id"] == "ours"


def test_a_client_that_takes_no_name_is_left_alone(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    plan = text.load("name: x\nbroker: {pulsar: {}}\n", "plan.yaml").plan
    folder.plan.write_text(text.dump(plan))
    write_run(folder, Run("r1", 0, "host", {}, "running"))

    context = open_context(tmp_path, "produce.0", SystemClock())
    context.writer.close(is_end=True)

    assert context.plan == plan
