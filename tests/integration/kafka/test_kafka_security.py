"""The Kafka broker port against a real Kafka with TLS and passwords."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # their stubs
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from soak.brokers import kafka
from soak.core.clock import SystemClock
from soak.core.errors import BrokerError
from soak.core.ports import EARLIEST, Outgoing, Topics
from soak.core.units import SECOND_NS
from soak.lab.broker_setup import free_ports
from soak.lab.brokers import kafka as lab
from tests.support.certificate import certificate
from tests.support.load.load_run import LoadRun

pytestmark = pytest.mark.broker
MECHANISM = "SCRAM-SHA-512"
PLAN = """
name: guarded
broker:
  kafka:
    bootstrap_servers: {servers}
    common: {{{common}}}
topic: {{partitions: 2}}
load: {{rate: 1k/s, message_size: 256B}}
"""


@dataclass(frozen=True)
class Guarded:
    bootstrap_servers: str
    certificate: Path
    password: str
    password_file: Path

    @property
    def common(self) -> dict[str, str]:
        """Return what a plan says under `common`: where the password is, and no more."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.username": "soakd",
            "sasl.password": f"${{file:{self.password_file}}}",
            "ssl.ca.location": str(self.certificate),
        }

    def broker(self, **more: str) -> kafka.KafkaBroker:
        common = {**self.common, **{name.replace("_", "."): value for name, value in more.items()}}
        config = kafka.Config(
            bootstrap_servers=self.bootstrap_servers, timeout=5 * SECOND_NS, common=common
        )
        return kafka.connect(config, SystemClock())


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A broker for this module only: with TLS it takes two seconds longer to start."""
    folder = tmp_path_factory.mktemp("guarded-kafka")
    public, private = certificate(folder)
    both = folder / "both.pem"
    both.write_text(private.read_text() + public.read_text())
    password = secrets.token_hex(16)
    password_file = folder / "password"
    password_file.write_text(password + "\n")
    address = f"127.0.0.1:{free_ports(1)[0]}"
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    broker = lab.start(
        folder / "kafka",
        {
            "listeners": f"GUARDED://{address}",
            "listener.security.protocol.map": "GUARDED:SASL_SSL",
            "listener.name.guarded.sasl.enabled.mechanisms": MECHANISM,
            f"listener.name.guarded.{MECHANISM.lower()}.sasl.jaas.config": login,
            "listener.name.guarded.ssl.keystore.type": "PEM",
            "listener.name.guarded.ssl.keystore.location": str(both),
        },
    )
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    how = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    user = UserScramCredentialUpsertion("soakd", how, password.encode())
    for told in admin.alter_user_scram_credentials([user]).values():
        told.result(30)
    yield Guarded(address, public, password, password_file)
    broker.kill()  # nothing in it is needed any more


def test_messages_go_through_tls_with_a_password_from_a_file(guarded: Guarded) -> None:
    """Every request of the port, and a message sent and received."""
    broker = guarded.broker()
    topics = Topics((f"soak-test-{secrets.token_hex(4)}",), 1)

    broker.check()
    broker.create_topics(topics, 1, {})
    producer = broker.producer(topics)
    producer.send(Outgoing([0], [b"guarded"], 0))
    acks = producer.close(30)
    consumer = broker.consumer(topics, "audit", {0: EARLIEST})
    batch = consumer.receive(1, 30)
    bounds = consumer.log_bounds([0])
    consumer.close()

    assert [bytes(head).rstrip(b"\0") for head in batch.heads] == [b"guarded"]
    assert batch.offset.tolist() == acks.offset.tolist() == [0]
    assert bounds == {0: (0, 1)}
    assert broker.existing([*topics.names, "soak-not"]) == list(topics.names)
    assert broker.leaders(topics).tolist() == [1]


def test_the_daemons_measure_a_guarded_cluster_and_write_the_password_nowhere(
    guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The password is in the environment; every file of the run is searched for it."""
    monkeypatch.setenv("SOAKD_TEST_PASSWORD", guarded.password)
    common = {**guarded.common, "sasl.password": "${env:SOAKD_TEST_PASSWORD}"}
    words = ", ".join(f"{name}: '{value}'" for name, value in common.items())
    topic = f"soak-test-{secrets.token_hex(4)}"
    guarded.broker().create_topics(Topics((topic,), 2), 1, {})
    text = PLAN.format(servers=guarded.bootstrap_servers, common=words)
    run = LoadRun(tmp_path / "run", text, topic)

    try:
        acked = run.produce(101)
        run.consume(acked)
    finally:
        run.close()

    assert run.verdict() == {"received": acked}
    written = [path for path in run.folder.path.rglob("*") if path.is_file()]
    assert run.folder.plan in written
    assert not [path for path in written if guarded.password.encode() in path.read_bytes()]


def test_a_wrong_password_is_named_as_the_cause_and_not_shown(
    guarded: Guarded, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The error of the request itself is only that no broker answers."""
    wrong = tmp_path / "wrong"
    wrong.write_text("hunter2\n")
    broker = guarded.broker(sasl_password=f"${{file:{wrong}}}")

    with pytest.raises(
        BrokerError, match=r"no Kafka broker answered .*invalid credentials"
    ) as told:
        broker.check()

    assert "hunter2" not in str(told.value) + caplog.text


def test_an_untrusted_certificate_is_refused(guarded: Guarded, tmp_path: Path) -> None:
    """A second self-signed certificate does not vouch for the first."""
    stranger, _ = certificate(tmp_path)

    with pytest.raises(BrokerError, match="certificate verify failed"):
        guarded.broker(ssl_ca_location=str(stranger)).check()
