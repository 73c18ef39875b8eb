"""`soak check` of a plan with several faults: each is printed, with what to do, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from soak.app.check import small_drive_warnings
from soak.cli import main
from soak.core.errors import PlanError
from soak.core.plan import text as plan_text
from tests.support.alerting.mail_server import free_port
from tests.support.fakes import FakeBroker

FAULTY = """name: x
run_directory: {folder}
broker: {{kafka: {{bootstrap_servers: '127.0.0.1:{port}', timeout: 1s}}}}
bogus: 1
load:
  rate: fast
topic:
  name: a b
sinks:
  mail: {{to: [oncall@example.org], host: 127.0.0.1, port: {port}, timeout: 1s}}
  webhook: {{url: 'http://127.0.0.1:{port}', timeout: 1s}}
alerts: {{digest: often}}
probes:
  broker_log: {{log: {folder}/no-such.log}}
  prometheus:
    targets:
      broker1: {{url: 'http://127.0.0.1:{port}/metrics', maps: [jvm]}}
  fsync: {{}}
"""


def refused(folder: Path, text: str) -> tuple[list[str], list[str]]:
    """Return the faults of a plan and the warnings beside them, a line each."""
    plan = folder / "plan.yaml"
    plan.write_text(text)
    result = CliRunner().invoke(main.build(["check"]), ["check", str(plan)])
    assert isinstance(result.exception, PlanError), result.output
    faults = [line.strip() for line in str(result.exception).splitlines()]
    warnings = [line for line in result.output.splitlines() if line.startswith("Warning: ")]
    return faults, warnings


@pytest.mark.long
def test_every_fault_of_a_plan_is_printed_at_once(tmp_path: Path) -> None:
    """In its text, on this host and in the cluster, in order of the lines; then what does not answer."""
    first, *faults = refused(tmp_path, FAULTY.format(folder=tmp_path, port=free_port()))[0]

    keys = [line.split(": ")[1] for line in faults]
    assert first == f"{len(faults)} faults"
    assert keys == [
        "broker.kafka.bootstrap_servers",
        "bogus",
        "load.rate",
        "topic.name",
        "alerts.digest",
        "probes.fsync.directory",
    ]


@pytest.mark.long
def test_what_does_not_answer_is_printed_beside_the_faults(tmp_path: Path) -> None:
    """Servers for notifications with their line; logs and pages of brokers; each with what to do."""
    port = free_port()
    warnings = refused(tmp_path, FAULTY.format(folder=tmp_path, port=port))[1]

    assert len(warnings) == 4
    assert [warning for warning in warnings if "plan.yaml:10: sinks.mail.host: " in warning]
    assert [warning for warning in warnings if "plan.yaml:11: sinks.webhook.url: " in warning]
    assert [warning for warning in warnings if "no-such.log" in warning]
    assert [warning for warning in warnings if "cannot read broker1" in warning]


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("lode: 1\nphases: {soak: long}\n", ["lode", "phases.soak"]),
        # a name that is not known hides nothing in its own section or another
        (
            "load: {rat: 1, message_size: 0}\nprobes: {hots: {}, host: {x: 1}}\n",
            ["load.rat", "load.message_size", "probes.hots", "probes.host.x"],
        ),
        # without the wrong host there is no mail server: that is no fault of the plan
        ("sinks: {mail: {to: [a@example.org], host: [h]}}\nlode: 1\n", ["sinks.mail.host", "lode"]),
        # a missing key takes its section along
        ("sinks: {mail: {host: h}}\nlode: 1\n", ["sinks.mail.to", "lode"]),
        (
            "topic: {partitions: few, replication: many}\n",
            ["topic.partitions", "topic.replication"],
        ),
    ],
)
def test_each_wrong_key_is_a_fault_and_its_consequences_are_none(
    tmp_path: Path, text: str, keys: list[str]
) -> None:
    """The rest of the plan is checked without the wrong keys."""
    start = f"name: x\nrun_directory: {tmp_path}\nbroker: {{kafka: {{}}}}\n"

    _, *faults = refused(tmp_path, start + text)[0]

    assert sorted(line.split(": ")[1] for line in faults) == sorted(keys)


def test_without_a_broker_that_is_known_the_rest_of_the_text_is_checked(tmp_path: Path) -> None:
    """There is then no plan whose cluster could be asked."""
    faults, warnings = refused(tmp_path, "name: x\nbroker: {kafak: {}}\nlode: 1\n")

    assert [line.split(": ")[1] for line in faults[1:]] == ["broker.kafak", "lode"]
    assert warnings == []


@pytest.mark.parametrize("brokers", [1, 3])
def test_a_drive_that_is_too_small_is_reported(brokers: int, tmp_path: Path) -> None:
    """Each of the brokers holds its part; the drive of one is on this host."""
    text = f"""name: x
broker: {{kafka: {{bootstrap_servers: a}}}}
probes: {{disk_io: {{directory: {tmp_path}}}}}
"""
    plan = plan_text.load(text, "plan.yaml").plan
    broker = FakeBroker(range(brokers))
    free = shutil.disk_usage(tmp_path).free

    fits = small_drive_warnings(plan, 0.5 * free * brokers, broker)
    (warning,) = small_drive_warnings(plan, 4.0 * free * brokers, broker)

    assert fits == []
    assert f"the drive of {tmp_path} has " in warning


def test_the_drives_of_a_lab_may_be_filled(tmp_path: Path) -> None:
    text = f"name: x\nbroker: {{kafka: {{}}}}\nlab: {{}}\nprobes: {{disk_io: {{directory: {tmp_path}}}}}\n"

    assert small_drive_warnings(plan_text.load(text, "p").plan, 1e30, FakeBroker()) == []
