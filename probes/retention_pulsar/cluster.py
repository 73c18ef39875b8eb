"""Asks a Pulsar cluster for the ledgers of topics, and bookies for their metrics pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from soak.clients import client_settings
from soak.clients.http import HttpClient, HttpError, access_of
from soak.clients.pulsar_admin import connect_admin, topic_path
from soak.core.errors import BrokerError, ProbeError
from soak.core.plan.config import Settings

MAX_PAGE_BYTES = 32 * 2**20  # of a bookie
_INSECURE = "tls_allow_insecure_connection"
_FILES = {
    "ca_file": "tls_trust_certs_file_path",
    "cert_file": "tls_certificate_file_path",
    "key_file": "tls_private_key_file_path",
}
"""The TLS files for the page of a bookie, by the client's settings; it needs no token."""


class PulsarCluster:
    """One admin interface and its bookies; every request has a time limit."""

    def __init__(
        self,
        admin_url: str,
        bookie_urls: Sequence[str],
        namespace: str,
        client: Settings,
        timeout_seconds: float,
    ) -> None:
        try:
            settings = client_settings.resolve_secrets(client)
            is_insecure = settings.get(_INSECURE, "false") == "true"
            token = settings.get("token", "").strip()
            tls = {**settings, _INSECURE: is_insecure}
            self._admin = connect_admin(admin_url, timeout_seconds, token, tls)
        except BrokerError as error:
            raise ProbeError(str(error)) from error
        self._namespace = namespace
        own = {ours: settings[theirs] for ours, theirs in _FILES.items() if settings.get(theirs)}
        self._pages = {
            url: HttpClient(
                url,
                access=lambda: access_of(own),
                timeout_seconds=timeout_seconds,
                max_bytes=MAX_PAGE_BYTES,
            )
            for url in bookie_urls
        }

    @property
    def bookies(self) -> tuple[str, ...]:
        return tuple(self._pages)

    def ledgers(self, topic: str) -> Mapping[int, Any]:
        """Return the `internalStats` of a topic by number of partition.

        Raises:
            ProbeError: there is no answer in time, or it is not of this form.
        """
        full = topic if "://" in topic else f"persistent://{self._namespace}/{topic}"
        try:
            answer = self._admin.get(f"{topic_path(full)}/partitioned-internalStats")
        except BrokerError as error:
            raise ProbeError(f"cannot list the ledgers of {topic}: {error}") from error
        found = answer.get("partitions") if isinstance(answer, dict) else None
        if not isinstance(found, dict):
            raise ProbeError(f"the answer of the cluster holds no ledgers of {topic}")
        try:
            return {int(name.rpartition("-")[2]): stats for name, stats in found.items()}
        except ValueError as error:
            raise ProbeError(f"unknown form of the partition names of {topic}: {error}") from error

    def page(self, bookie: str) -> bytes:
        """Return the metrics page of a bookie.

        Raises:
            ProbeError: there is no complete page in time.
        """
        try:
            return self._pages[bookie].get(bookie)
        except HttpError as error:
            raise ProbeError(str(error)) from error

    def close(self) -> None:
        for page in self._pages.values():
            page.close()
