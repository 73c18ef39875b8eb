"""The tutorial of the first soak, followed as it is written, on a Kafka of somebody else.

The Kafka has TLS, passwords, and rights that a new user does not have. The commands are those of the page;
only addresses, paths and the password are put in, the installation is left out, and the soak is shorter.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # their stubs
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from soak.lab.broker_setup import free_ports
from soak.lab.brokers import kafka as lab
from soak.service import children
from tests.docs import walkthrough
from tests.support.certificate import certificate
from tests.support.paths import ROOT

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]
PAGE = ROOT / "docs" / "tutorials" / "first-soak.md"
SECONDS = int(os.environ.get("SOAKD_FIRST_SOAK_SECONDS", "45"))
MECHANISM = "SCRAM-SHA-512"
CODES = {"clean": 0, "regressed": 3, "inconclusive": 4}
LIMIT_SECONDS = 300
OF_A_SHORT_SOAK = (
    ("replication sync", r"replication \w+"),
    ("verdict: clean", r"verdict: \w+"),
    ("Clean: the cluster kept its latency", r"\w+: .+"),
    (": kept, budget", r": [\w ]+, budget"),
    (" minutes left", ".*"),
    (" messages left", ".*"),
)
"""What depends on the number of brokers, and what a soak that is too short to be judged may say."""


@dataclass(frozen=True)
class Stranger:
    """A Kafka of which a user knows the address, a certificate, a name and a password."""

    bootstrap_servers: str
    certificate: Path
    password: str
    admin_properties: Path


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stranger]:
    folder = tmp_path_factory.mktemp("stranger")
    public, private = certificate(folder)
    both = folder / "both.pem"
    both.write_text(private.read_text() + public.read_text())
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    broker = lab.start(
        folder / "kafka",
        {
            "listeners": f"GUARDED://{address}",
            "listener.security.protocol.map": "GUARDED:SASL_SSL",
            "listener.name.guarded.sasl.enabled.mechanisms": MECHANISM,
            f"listener.name.guarded.{MECHANISM.lower()}.sasl.jaas.config": f"{login};",
            "listener.name.guarded.ssl.keystore.type": "PEM",
            "listener.name.guarded.ssl.keystore.location": str(both),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:admin",
            "log.retention.check.interval.ms": "5000",
        },
    )
    passwords = {name: secrets.token_hex(16) for name in ("admin", "soakd")}
    how = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    users: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(name, how, password.encode())
        for name, password in passwords.items()
    ]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for made in admin.alter_user_scram_credentials(users).values():
        made.result(30)
    properties = folder / "admin.properties"
    properties.write_text(
        f"security.protocol=SASL_SSL\nsasl.mechanism={MECHANISM}\n"
        f'sasl.jaas.config={login} username="admin" password="{passwords["admin"]}";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={public}\n"
    )
    yield Stranger(address, public, passwords["soakd"], properties)
    broker.kill()  # nothing in it is needed any more


def programs(folder: Path) -> str:
    """Make what the page calls by its name; return the PATH on which it is found first."""
    folder.mkdir()
    for name, module in (
        ("soak", "soak.cli.main"),
        ("kafka-acls.sh", "tests.support.kafka_acls"),
    ):
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        program.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def put_in(script: str, stranger: Stranger) -> str:
    """Return the commands of a step with the addresses and files of this Kafka, and a shorter soak."""
    for of_page, here in (
        ("broker1:9093,broker2:9093,broker3:9093", stranger.bootstrap_servers),
        ("broker1:9093", stranger.bootstrap_servers),
        ("/etc/soak/ca.pem", str(stranger.certificate)),
        ("the password of the user", stranger.password),
        ("admin.properties", str(stranger.admin_properties)),
        ("soak run my-soak.yaml", f"soak run my-soak.yaml --duration {SECONDS}s"),
    ):
        script = script.replace(of_page, here)
    return script


def follow(step: walkthrough.Step, stranger: Stranger, env: dict[str, str], folder: Path) -> str:
    """Run a step in a shell, check its exit code, take over what it exports; return its output."""
    kept, output = folder / "environment", folder / "output"
    script = f"trap 'env -0 > {kept}' EXIT\n{put_in(step.script, stranger)}"
    with output.open("wb") as file:
        process = subprocess.Popen(
            children.with_death_signal(["bash", "-e", "-c", script]),
            cwd=folder / "home",
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            code = process.wait(LIMIT_SECONDS)
        finally:
            process.kill()
    text = output.read_text()
    verdict = re.search(r"^verdict: (\w+)$", text, re.MULTILINE)
    assert code == (CODES[verdict[1]] if verdict else step.exit_code), text
    pairs = (one.partition("=") for one in kept.read_text().split("\0") if one)
    env |= {name: value for name, _, value in pairs}
    return text


def test_the_page_leads_to_a_verdict_and_leaves_no_topic(
    stranger: Stranger, tmp_path: Path
) -> None:
    """Each step gives the output that the page shows; the first is refused for lack of rights."""
    env = {**os.environ, "PATH": programs(tmp_path / "bin"), "PYTHONPATH": str(ROOT)}
    env |= {"COLUMNS": "300", "TERM": "dumb"}
    (tmp_path / "home").mkdir()
    outputs = []
    for step in walkthrough.steps(PAGE.read_text()):
        if "pip install" in step.script:
            continue
        outputs.append(follow(step, stranger, env, tmp_path))
        assert walkthrough.missing(step.expected, outputs[-1], OF_A_SHORT_SOAK) == []

    (run_dir,) = (tmp_path / "home" / "runs").iterdir()
    audit = json.loads((run_dir / "report" / "summary.json").read_text())["audit"]
    files = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert audit["lost"] == audit["duplicated"] == audit["failed"] == 0
    assert audit["received"] == audit["acked"] > 0
    assert outputs[-1].endswith("deleted: 1\n")
    assert any("Z report: reading the journals\n" in output for output in outputs)
    assert not [path for path in files if stranger.password.encode() in path.read_bytes()]
