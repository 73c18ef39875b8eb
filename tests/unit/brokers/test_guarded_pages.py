"""Admin pages of a cluster are requested with the CA and the user of its client."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from probes.retention_pulsar.cluster import PulsarCluster
from soak.brokers import redpanda
from soak.brokers.pulsar import client as pulsar_client
from soak.brokers.pulsar.durability import read_durability
from soak.core.cluster import durability
from soak.core.plan.plan import Topic
from tests.support.certificate import certificate
from tests.support.pages import serving

USER, PASSWORD = "soakd", "hunter2"
BASIC = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
BODY = b"""{"write_caching_default": "false", "journalSyncData": "false", "bookies": ["b"]}"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate and its key."""
    return certificate(tmp_path_factory.mktemp("pages"))


@contextmanager
def page(
    files: tuple[Path, Path] | None, heard: list[str | None], status: int = 200
) -> Iterator[str]:
    """Serve one page under every path and note each request's authorization; yields the address."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.headers.get("Authorization"))
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            self.wfile.write(BODY)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's
            """Say nothing."""

    context = None
    if files is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*files)
    with serving(Page, context) as address:
        yield address


def of_redpanda(address: str, **more: str) -> durability.SettingValue:
    common = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": USER,
        "sasl.password": "${env:SOAKD_TEST_PASSWORD}",
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    config = redpanda.Config(
        bootstrap_servers="b1:9092", metrics_urls=(f"{address}/metrics",), common=common
    )
    return redpanda.cluster_caching(config)


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOAKD_TEST_PASSWORD", PASSWORD)


@pytest.mark.long
def test_the_admin_api_of_redpanda_gets_the_ca_and_user_of_the_plan(
    files: tuple[Path, Path],
) -> None:
    heard: list[str | None] = []
    with page(files, heard) as address:
        setting = of_redpanda(address, ssl_ca_location=str(files[0]))

    assert (setting.value, heard) == ("false", [BASIC])


@pytest.mark.long
def test_an_untrusted_server_gets_no_password(files: tuple[Path, Path]) -> None:
    heard: list[str | None] = []
    with page(files, heard) as address:
        setting = of_redpanda(address)

    assert setting.value is None
    assert "certificate" in setting.where.lower()
    assert heard == []


def test_no_password_goes_over_a_connection_without_tls() -> None:
    heard: list[str | None] = []
    with page(None, heard) as address:
        setting = of_redpanda(address)

    assert (setting.value, heard) == ("false", [None])


@pytest.mark.long
def test_a_redirect_of_the_admin_api_is_not_followed(files: tuple[Path, Path]) -> None:
    """The password is meant for this server only."""
    heard: list[str | None] = []
    with page(files, heard, status=307) as address:
        setting = of_redpanda(address, ssl_ca_location=str(files[0]))

    assert setting.value is None
    assert "answers 307" in setting.where
    assert heard == [BASIC]


@pytest.mark.parametrize(
    ("value", "error"), [("/nowhere/ca.pem", "No such file"), ("", "does not tell")]
)
def test_a_missing_ca_is_an_error(files: tuple[Path, Path], value: str, error: str) -> None:
    with page(files, []) as address:
        setting = of_redpanda(address, ssl_ca_location=value)

    assert setting.value is None
    assert error in setting.where


def test_the_probe_of_bookies_uses_the_ca_of_the_plan(files: tuple[Path, Path]) -> None:
    heard: list[str | None] = []
    client = {"tls_trust_certs_file_path": str(files[0])}
    with page(files, heard) as address:
        cluster = PulsarCluster(address, [address], "public/default", client, 10.0)
        found = cluster.page(address)
        cluster.close()

    assert (found, heard) == (BODY, [None])


def test_bookies_get_the_ca_of_the_plan_and_no_token(files: tuple[Path, Path]) -> None:
    """Only the admin interface uses the token."""
    heard: list[str | None] = []
    client = {
        "tls_trust_certs_file_path": str(files[0]),
        "authentication": "token",
        "token": "${env:SOAKD_TEST_PASSWORD}",
    }
    with page(files, heard) as address:
        config = pulsar_client.Config(admin_url=address, bookie_urls=address, client=client)
        setting = durability.to_json(read_durability(config, Topic()))

    settings: Any = setting["settings"]
    journal = next(one for one in settings if one["name"] == "journalSyncData")
    assert (journal["value"], journal["where"]) == ("false", f"bookie {address}")
    assert set(heard) == {None, f"Bearer {PASSWORD}"}
    assert heard.count(None) == 1
