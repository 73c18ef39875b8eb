"""The Pulsar broker port against a real Pulsar with TLS and tokens."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from soak.brokers import pulsar
from soak.core.clock import SystemClock
from soak.core.errors import BrokerError
from soak.core.ports import EARLIEST, Outgoing, Topics
from soak.lab.brokers import pulsar as lab
from tests.support.certificate import certificate

pytestmark = pytest.mark.broker
AUTHENTICATION = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
PROVIDER = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"


@dataclass(frozen=True)
class Guarded:
    service_url: str
    admin_url: str
    certificate: Path
    token: Path

    def broker(self, **client: str) -> pulsar.PulsarBroker:
        config = pulsar.Config(
            service_url=self.service_url,
            admin_url=self.admin_url,
            client={"tls_validate_hostname": "true", **client},
        )
        return pulsar.connect(config, SystemClock())


def token_of(key: bytes, subject: str) -> str:
    """Return a JSON web token, HS256."""

    def part(content: bytes) -> str:
        return base64.urlsafe_b64encode(content).decode().rstrip("=")

    claims = f"{part(json.dumps({'alg': 'HS256'}).encode())}.{part(json.dumps({'sub': subject}).encode())}"
    return f"{claims}.{part(hmac.digest(key, claims.encode(), hashlib.sha256))}"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    public, private = certificate(folder)
    key = secrets.token_bytes(32)
    token = folder / "token"
    token.write_text(token_of(key, "admin") + "\n")
    ports = lab.new_ports()
    broker = lab.start(
        folder / "pulsar",
        {
            "numHttpServerThreads": "8",  # two connectors take more
            "authenticationEnabled": "true",
            "authenticationProviders": PROVIDER,
            "tokenSecretKey": f"data:;base64,{base64.b64encode(key).decode()}",
            "superUserRoles": "admin",
            "brokerClientAuthenticationPlugin": AUTHENTICATION,
            "brokerClientAuthenticationParameters": f"token:{token_of(key, 'admin')}",
            "brokerServicePortTls": str(ports.service),
            "webServicePortTls": str(ports.web),
            "tlsCertificateFilePath": str(public),
            "tlsKeyFilePath": str(private),
        },
    )
    yield Guarded(
        f"pulsar+ssl://127.0.0.1:{ports.service}",
        f"https://127.0.0.1:{ports.web}",
        public,
        token,
    )
    broker.kill()  # nothing in it is needed any more


def test_messages_go_through_tls_with_a_token_from_a_file(guarded: Guarded) -> None:
    """Both the client and the admin interface use it; the plan only refers to it."""
    broker = guarded.broker(
        authentication="token",
        token=f"${{file:{guarded.token}}}",
        tls_trust_certs_file_path=str(guarded.certificate),
    )
    topics = Topics((f"soak-test-{secrets.token_hex(4)}",), 1)

    broker.check()
    broker.create_topics(topics, 1, {})
    producer = broker.producer(topics)
    producer.send(Outgoing([0], [b"guarded"], 0))
    acks = producer.close(30)
    consumer = broker.consumer(topics, "audit-0", {0: EARLIEST})
    batch = consumer.receive(1, 30)
    consumer.close()

    assert batch.heads == [b"guarded"]
    assert batch.offset.tolist() == acks.offset.tolist()


def test_without_a_token_the_cluster_refuses(guarded: Guarded) -> None:
    broker = guarded.broker(tls_trust_certs_file_path=str(guarded.certificate))

    with pytest.raises(BrokerError, match=r"HTTP 401"):
        broker.check()


def test_an_untrusted_certificate_is_refused(guarded: Guarded) -> None:
    broker = guarded.broker(authentication="token", token=f"${{file:{guarded.token}}}")

    with pytest.raises(BrokerError, match=r"(?i)certificate"):
        broker.check()
