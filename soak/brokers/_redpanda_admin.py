"""Redpanda's Admin API, asked as the Kafka client would: with its CA, certificate and user.

Source: Redpanda's documentation: the users of SASL are those of the Admin API, by HTTP's basic
authentication. Like all that is asked of a Redpanda it never ran live. A password goes over TLS alone, and to
nobody that an answer points to.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from soak.clients import secret
from soak.core.plan_base import Settings

_CA, _VERIFIES = "ssl.ca.location", "enable.ssl.certificate.verification"
_CERTIFICATE, _KEY = "ssl.certificate.location", "ssl.key.location"


def ask(url: str, common: Settings, timeout_seconds: float) -> bytes:
    """Return what the Admin API answers; `common` are settings of librdkafka's.

    Raises:
        BrokerError: a secret is not where the plan says.
        OSError: no answer, a refusal, or a file of certificates that cannot be used.
    """
    settings = secret.resolved(common)
    is_safe = urlsplit(url).scheme == "https"
    headers = _basic(settings) if is_safe else {}
    handlers = [HTTPSHandler(context=_context(settings))] if is_safe else []
    question = Request(url, headers=headers)  # noqa: S310  # the plan names the scheme
    with build_opener(_Stay(), *handlers).open(question, timeout=timeout_seconds) as answer:
        body: bytes = answer.read()
        return body


class _Stay(HTTPRedirectHandler):
    """Follows nobody: the library would take the password along."""

    def redirect_request(self, *_: Any, **__: Any) -> None:  # noqa: ANN401  # wherever it is
        return None


def _basic(settings: Mapping[str, str]) -> dict[str, str]:
    user, password = settings.get("sasl.username"), settings.get("sasl.password")
    if not user or password is None:
        return {}
    told = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {told}"}


def _context(settings: Mapping[str, str]) -> ssl.SSLContext:
    place = settings.get(_CA)
    if place == "probe":  # librdkafka's word for the system's own
        place = None
    is_folder = place is not None and Path(place).is_dir()
    context = ssl.create_default_context(
        cafile=None if is_folder else place, capath=place if is_folder else None
    )
    certificate = settings.get(_CERTIFICATE)
    if certificate:
        context.load_cert_chain(certificate, settings.get(_KEY), settings.get("ssl.key.password"))
    if settings.get("ssl.endpoint.identification.algorithm") == "none":
        context.check_hostname = False
    if settings.get(_VERIFIES) == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
