"""What `soak check` says of a plan that is good, but not what one may think, as a user calls it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from soak.cli import main
from soak.cli._shown import shown
from soak.core import plan_text
from soak.core.errors import PlanError
from tests.checking import called, checked

PLAN = """\
load: {rate: 1k/s, message_size: 1000B}
phases: {warm_up: 5s, soak: 60s}
broker: {kafka: {}}
"""
SETTINGS = "settings: {retention.ms: 20000, segment.ms: 10000}"
SAID = "topic.settings (retention.ms, segment.ms) are not set: a topic that is there keeps its own"


@pytest.mark.parametrize(
    ("topic", "times"),
    [
        (f"{{name: t, use_existing: true, {SETTINGS}}}", 1),
        ("{name: t, use_existing: true}", 0),
        (f"{{{SETTINGS}}}", 0),
    ],
)
def test_settings_that_an_existing_topic_will_not_get_are_told(
    tmp_path: Path, topic: str, times: int
) -> None:
    said = checked(tmp_path, f"{PLAN}topic: {topic}\n")

    assert said.count(f"Warning: {SAID}.\n") == times


@pytest.mark.parametrize(
    ("sinks", "times"),
    [("", 1), ("sinks: {mail: {to: [a@example.org], sender: b@example.org}}", 0)],
)
def test_that_nobody_will_be_told_is_said(tmp_path: Path, sinks: str, times: int) -> None:
    said = checked(tmp_path, f"{PLAN}{sinks}\n")

    assert said.count("Warning: sinks is empty: nobody is told of what is found") == times


@pytest.mark.parametrize("text", [PLAN, "probes: {fsync: {directory: /nowhere/data}}\n"])
def test_a_plan_that_is_shown_is_checked_all_the_same(tmp_path: Path, text: str) -> None:
    """Its text alone is on stdout, to be kept as a plan; what is told of it is on stderr."""
    told = checked(tmp_path, text)

    shown = called(tmp_path, text, "--show")

    assert plan_text.dump(plan_text.load_any(shown.stdout, "shown")[0]) == shown.stdout
    assert "plan.yaml: good. " in shown.stderr
    assert _warnings(shown.stderr) == _warnings(told)


def test_where_a_secret_is_is_shown_and_never_the_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is printed is to be a plan again; what stands behind a reference is nobody's to see."""
    monkeypatch.setenv("SOAK_TEST_PASSWORD", "hunter2")
    common = "{ssl.key.location: /k.pem, ssl.key.password: '${env:SOAK_TEST_PASSWORD}'}"
    text = f"{PLAN.replace('{kafka: {}}', f'{{kafka: {{common: {common}}}}}')}"

    said = called(tmp_path, text, "--show")

    assert "ssl.key.password: ${env:SOAK_TEST_PASSWORD}\n" in said.stdout
    assert "ssl.key.location: /k.pem\n" in said.stdout
    assert "hunter2" not in said.output


def test_a_secret_that_stands_in_a_plan_is_not_shown() -> None:
    """However long it is, and whatever a reference stands beside."""
    secret = "hunter2 " * 40
    plan = plan_text.load(
        "name: x\nbroker: {kafka: {}}\nlab:\n  settings:\n"
        f"    ssl.keystore.password: '{secret}'\n    sasl.jaas.config: '${{env:A}} {secret}'\n",
        "p.yaml",
    ).plan

    said = shown(plan)

    assert "ssl.keystore.password: '***'\n" in said
    assert "hunter2" not in said


HOST = "probes: {pressure: {}}\n"
AWAY = "ship: {bootstrap_servers: '127.0.0.1:1', timeout: 1s}\n"


@pytest.mark.parametrize("text", [PLAN, HOST])
def test_a_cluster_that_takes_no_records_is_told(tmp_path: Path, text: str) -> None:
    """It ends no run: records wait. A plan that ships to what it measures has asked there already."""
    said = checked(tmp_path, text + AWAY)

    assert said.count("Warning: ship: no Kafka broker answered at 127.0.0.1:1: ") == 1


@pytest.mark.parametrize(
    ("text", "options", "refused"),
    [
        (HOST, ("--scale", "0.1"), "--scale: a host that only probes has no load to cut"),
        (HOST, ("--duration", "1min"), "--duration: a host that only probes has no load"),
        (f"{HOST}free_space_floor: 1000TiB\n", (), "plan.yaml:4: free_space_floor: "),
    ],
)
def test_what_a_host_cannot_do_is_refused(
    tmp_path: Path, text: str, options: tuple[str, ...], refused: str
) -> None:
    """As in the plan of a run; an option is not passed over."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(f"name: x\nrun_directory: {tmp_path}\n{text}")

    result = CliRunner().invoke(main.build(["check"]), ["check", str(plan), *options])

    assert isinstance(result.exception, PlanError)
    assert refused in str(result.exception)


@pytest.mark.parametrize("text", [PLAN, HOST])
def test_an_option_that_would_change_nothing_is_refused(tmp_path: Path, text: str) -> None:
    """Nothing is measured without --drives, so there is nothing to keep in the run's folder."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(f"name: x\nrun_directory: {tmp_path}\n{text}")
    words = ["check", str(plan), "--run-dir", str(tmp_path)]

    refused = CliRunner().invoke(main.build(words), words).exception

    assert isinstance(refused, PlanError)
    assert str(refused) == "--run-dir: is where --drives keeps what it finds, and goes with it"


def test_that_a_shell_is_given_no_credentials_is_said_with_where_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is right: a service would have them."""
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    plan = tmp_path / "plan.yaml"
    common = "common: {sasl.password: '${credential:soak_sasl}'}"
    kafka = f"{{bootstrap_servers: '127.0.0.1:1', {common}}}"
    plan.write_text(f"name: x\nrun_directory: {tmp_path}\nbroker: {{kafka: {kafka}}}\n")
    words = ["check", str(plan)]

    refused = CliRunner().invoke(main.build(words), words).exception

    assert "plan.yaml:3: broker.kafka: sasl.password: systemd gave this process no" in str(refused)
    assert str(refused).endswith("; only a service is given any, see docs/service.md")


def test_a_cluster_that_does_not_answer_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the message that ends the check: a client's own lines say no more."""
    plan = tmp_path / "plan.yaml"
    servers = "{kafka: {bootstrap_servers: '127.0.0.1:1', timeout: 1s}}"
    plan.write_text(f"name: x\nrun_directory: {tmp_path}\nbroker: {servers}\n")

    result = CliRunner().invoke(main.build(["check"]), ["check", str(plan)])

    assert "no Kafka broker answered" in str(result.exception)
    assert caplog.records == []


def _warnings(said: str) -> list[str]:
    return [line for line in said.splitlines() if line.startswith("Warning: ")]
