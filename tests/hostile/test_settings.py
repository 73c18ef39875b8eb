"""A plan or a driver file from elsewhere: no setting of it runs code, writes files or gives a secret away."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from soak.cli import main
from soak.clients.client_settings import librdkafka_settings, loads_code
from tests.support.omb.plans import KAFKA, PULSAR, WORKLOAD, imported

NATIVE = (
    "plugin.library.paths",
    "sasl.kerberos.kinit.cmd",
    "ssl.engine.location",
    "ssl.providers",
    "interceptors",
    "offset.store.path",
    "stats_cb",
)
QUICK = "broker: {kafka: {bootstrap_servers: '127.0.0.1:1', timeout: 100ms}}"
SECTIONS = {
    "common": "broker: {kafka: {bootstrap_servers: '127.0.0.1:1', common: {%s}}}",
    "producer": "broker: {kafka: {bootstrap_servers: '127.0.0.1:1', producer: {%s}}}",
    "consumer": "broker: {kafka: {bootstrap_servers: '127.0.0.1:1', consumer: {%s}}}",
    "redpanda": "broker: {redpanda: {bootstrap_servers: '127.0.0.1:1', common: {%s}}}",
    "ship": f"{QUICK}\nship: {{bootstrap_servers: '127.0.0.1:1', client: {{%s}}}}",
    "store": f"{QUICK}\nstore: {{url: 'kafka://127.0.0.1:1', client: {{%s}}}}",
    "probe": "probes: {retention_kafka: {client: {%s}}}",
}


def refusal(folder: Path, text: str) -> str:
    """Return why `soak check` refuses a plan with this text."""
    plan = folder / "plan.yaml"
    plan.write_text(f"name: x\nrun_directory: {folder}\n{text}\n")
    result = CliRunner().invoke(main.build(["check"]), ["check", str(plan)])
    assert result.exception is not None, result.output
    return f"{result.exception}"


@pytest.mark.parametrize(
    ("section", "name"),
    [*(("common", name) for name in NATIVE), *((section, NATIVE[0]) for section in SECTIONS)],
)
def test_a_setting_that_runs_code_is_refused(section: str, name: str, tmp_path: Path) -> None:
    """By `soak check` already: a client loads a library when it is made."""
    why = refusal(tmp_path, SECTIONS[section] % f'"{name}": "/tmp/evil.so"')

    assert name in why
    assert "is not allowed in a plan: it runs code" in why


def test_each_setting_of_a_known_kind_is_one_that_runs_code() -> None:
    """Callbacks, pointers, libraries and commands, also those that a newer client adds."""
    named = {one for one in librdkafka_settings() if one.endswith(("_cb", ".cmd", "library.paths"))}

    assert len(named) > 15
    assert all(map(loads_code, named))
    assert all(map(loads_code, ("ssl.provider.path", "metrics.plugin", "sasl.login.cmd")))
    assert not any(
        map(loads_code, ("ssl.ca.location", "acks", "enable.auto.offset.store", "debug"))
    )


@pytest.mark.parametrize("key", ["commonConfig", "producerConfig", "consumerConfig"])
def test_a_driver_file_carries_no_code_into_a_plan(key: str) -> None:
    """What is left out, and what weakens TLS, is said in the plan."""
    evil = "plugin.library.paths=/x/evil.so\n  sasl.kerberos.kinit.cmd=rm -rf /\n"
    weak = "  enable.ssl.certificate.verification=false\n"
    plan, text = imported(WORKLOAD, KAFKA.replace(f"{key}: |\n", f"{key}: |\n  {evil}{weak}"))
    config = plan.broker_config

    settings = {**config.common, **config.producer, **config.consumer}
    assert not any(map(loads_code, settings))
    assert "plugin.library.paths: omitted" in text
    assert "enable.ssl.certificate.verification: false: the server's certificate is not" in text


def test_a_pulsar_driver_that_trusts_anybody_is_remarked() -> None:
    driver = PULSAR.replace("  ioThreads: 8\n", "  tlsAllowInsecureConnection: true\n")

    _, text = imported(WORKLOAD, driver)

    assert "tlsAllowInsecureConnection: the server's certificate is not checked" in text


@pytest.mark.parametrize(
    "text",
    [
        "broker: {pulsar: {service_url: 'pulsar://b1:6650', admin_url: 'https://b1:8443', client: %s}}",
        "broker: {pulsar: {service_url: 'pulsar+ssl://b1:6651', admin_url: 'http://b1:8080', client: %s}}",
        "broker: {pulsar: {service_url: 'pulsar://127.0.0.1:1,b1:1', admin_url: 'https://b1', client: %s}}",
        "probes: {retention_pulsar: {admin_url: 'http://b1:8080', client: %s}}",
    ],
)
def test_a_token_for_another_machine_needs_tls(text: str, tmp_path: Path) -> None:
    why = refusal(tmp_path, text % "{authentication: token, token: '${env:T}'}")

    assert "token: would be sent to" in why


@pytest.mark.parametrize(
    "secret", ["password: '${env:T}', username: u", "bearer_token: '${env:T}'"]
)
def test_the_secret_of_a_page_on_another_machine_needs_tls(secret: str, tmp_path: Path) -> None:
    target = f"{{url: 'http://b1:9644/metrics', maps: [jvm], client: {{{secret}}}}}"

    why = refusal(tmp_path, f"probes: {{prometheus: {{targets: {{b: {target}}}}}}}")

    assert (
        "would be sent to http://b1:9644/metrics unencrypted: use TLS, or set send_secrets" in why
    )


def test_the_token_endpoint_of_oauth_needs_tls(tmp_path: Path) -> None:
    url = '"sasl.oauthbearer.token.endpoint.url": "http://idp.example.org/token"'

    assert "must begin with https" in refusal(tmp_path, SECTIONS["common"] % url)
