"""Connections to a Kafka broker that take requests: with TLS and a login, as the settings of clients say.

Sources: SaslHandshake 1 and SaslAuthenticate 0 of Kafka's protocol, KIP-152; RFC 4616 (PLAIN); RFC 5802 and
RFC 7677 (SCRAM), of which Kafka's clients bind no channel.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
import socket
import ssl
import struct
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from soak.clients.client_settings import resolve_secrets
from soak.clients.http import tls_context
from soak.core.errors import BrokerError, ProbeError

_CLIENT_ID = b"soak"
_SASL_HANDSHAKE, _SASL_AUTHENTICATE = (17, 1), (36, 0)  # key and version
_MAX_ANSWER_BYTES = 2**20  # a broker's answer has some hundred
_DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_PLAIN = "PLAIN"
_UNUSED_TLS = (  # settings of librdkafka that change what a broker accepts and have no counterpart here
    "ssl.certificate.pem",
    "ssl.key.pem",
    "ssl.keystore.location",
    "ssl.crl.location",
    "ssl.cipher.suites",
    "ssl.curves.list",
    "ssl.sigalgs.list",
)
_NOT_KAFKA = "the answer is not in Kafka's protocol"
_ITERATIONS = range(
    4096, 2**20
)  # of SCRAM: Kafka's smallest number; above, a server wants our processor


class LoginRefusedError(OSError):
    """A broker refuses the login, or is not the one that knows the password."""


@dataclass(frozen=True, slots=True)
class Security:
    """How a listener wants to be spoken to; without a mechanism there is no login."""

    tls: ssl.SSLContext | None = None
    mechanism: str = ""
    username: str = ""
    password: str = field(default="", repr=False)


def why_unsupported(client: Mapping[str, str]) -> str:
    """Return what of the settings of librdkafka a connection cannot do; "" if it can do everything."""
    protocol, mechanism = _protocol(client), _mechanism(client)
    if protocol.startswith("SASL_") and mechanism not in {_PLAIN, *_DIGESTS}:
        return f"it cannot log in with {mechanism}, only with {', '.join((_PLAIN, *_DIGESTS))}"
    unused = [name for name in _UNUSED_TLS if name in client]
    return f"it does not take {unused[0]}" if protocol.endswith("SSL") and unused else ""


def read_security(client: Mapping[str, str]) -> Security:
    """Return the security of settings of librdkafka, with the secrets that they refer to.

    Raises:
        ProbeError: a secret or a file is not where the settings say, or cannot be used.
    """
    try:
        known = resolve_secrets(client)
        protocol = _protocol(known)
        tls = _tls(known) if protocol.endswith("SSL") else None
    except (BrokerError, ssl.SSLError) as error:
        raise ProbeError(str(error)) from error
    if not protocol.startswith("SASL_"):
        return Security(tls)
    return Security(
        tls, _mechanism(known), known.get("sasl.username", ""), known.get("sasl.password", "")
    )


def _protocol(client: Mapping[str, str]) -> str:
    return client.get("security.protocol", "PLAINTEXT").upper().replace("-", "_")


def _mechanism(client: Mapping[str, str]) -> str:
    return client.get("sasl.mechanism", client.get("sasl.mechanisms", "GSSAPI")).upper()


def _tls(client: Mapping[str, str]) -> ssl.SSLContext:
    ca = client.get("ssl.ca.location", "")
    is_verifying = client.get("enable.ssl.certificate.verification", "true").lower() != "false"
    context = tls_context(
        "" if ca == "probe" else ca,  # librdkafka's word for the CAs of the system
        client.get("ssl.certificate.location"),
        client.get("ssl.key.location"),
        client.get("ssl.key.password", ""),  # without a text OpenSSL would ask at the terminal
        is_verifying=is_verifying,
    )
    if "ssl.ca.pem" in client:
        context.load_verify_locations(cadata=client["ssl.ca.pem"])
    if client.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    return context


def request(key: int, version: int, body: bytes = b"") -> bytes:
    """Return a request of Kafka's protocol, with its length before it."""
    header = struct.pack(">hhih", key, version, 0, len(_CLIENT_ID)) + _CLIENT_ID
    return struct.pack(">i", len(header) + len(body)) + header + body


async def read_answer(reader: StreamReader) -> bytes:
    """Return the next answer without its length.

    Raises:
        OSError, EOFError: the connection has failed.
        ValueError: the answer is not in Kafka's protocol.
    """
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    if not 0 <= size <= _MAX_ANSWER_BYTES:
        raise ValueError(_NOT_KAFKA)
    return await reader.readexactly(size)


async def connect(host: str, port: int, security: Security) -> tuple[StreamReader, StreamWriter]:
    """Open a connection that takes requests; the caller limits the time.

    Raises:
        LoginRefusedError: the broker refuses the login.
        OSError, EOFError: the broker cannot be reached, or its certificate is refused.
        ValueError, OverflowError: the address is invalid, or an answer is not in Kafka's protocol.
    """
    reader, writer = await _open(host, port, security.tls)
    try:
        if security.mechanism:
            await _log_in(reader, writer, security)
    except struct.error as error:
        writer.transport.abort()
        raise ValueError(_NOT_KAFKA) from error
    except BaseException:  # also when it is cancelled
        writer.transport.abort()
        raise
    return reader, writer


async def _open(
    host: str, port: int, tls: ssl.SSLContext | None
) -> tuple[StreamReader, StreamWriter]:
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    failure = OSError(f"{host} has no address")
    name = None if tls is None else host
    for address in in_fixed_order(found):
        try:
            return await asyncio.open_connection(address, port, ssl=tls, server_hostname=name)
        except OSError as error:
            failure = error
    raise failure


def in_fixed_order(found: Iterable[tuple[Any, ...]]) -> list[str]:
    """Return the addresses in answers of `getaddrinfo`, those of the preferred family first.

    A name server returns those of several brokers in turn, and connections are compared with one another.
    """
    families: dict[int, set[str]] = {}
    for family, *_, place in found:
        families.setdefault(family, set()).add(str(place[0]))
    return [address for addresses in families.values() for address in sorted(addresses)]


async def _log_in(reader: StreamReader, writer: StreamWriter, security: Security) -> None:
    name = security.mechanism.encode()
    writer.write(request(*_SASL_HANDSHAKE, struct.pack(">h", len(name)) + name))
    (code,) = struct.unpack_from(">h", await read_answer(reader), 4)
    if code:
        raise LoginRefusedError(f"its listener has no login with {security.mechanism}")
    if security.mechanism == _PLAIN:
        message = f"\0{security.username}\0{security.password}"
        await _authenticate(reader, writer, message)
        return
    first = first_of_scram(security.username, secrets.token_urlsafe(24))
    challenge = await _authenticate(reader, writer, f"n,,{first}")
    # In a thread: its milliseconds would count as delay of the other connections.
    last, verifier = await asyncio.to_thread(
        answer_of_scram, _DIGESTS[security.mechanism], security.password, first, challenge
    )
    found = await _authenticate(reader, writer, last)
    if not hmac.compare_digest(found.encode(), verifier.encode()):
        raise LoginRefusedError("the broker does not know the password that it asks for")


async def _authenticate(reader: StreamReader, writer: StreamWriter, message: str) -> str:
    """Send one message of a login; return the broker's."""
    body = message.encode()
    writer.write(request(*_SASL_AUTHENTICATE, struct.pack(">i", len(body)) + body))
    answer = await read_answer(reader)
    code, size = struct.unpack_from(">hh", answer, 4)
    at = 8 + max(size, 0)  # the text of an error, of length -1 where there is none
    if code:
        why = answer[8:at].decode(errors="replace") or f"error {code}"
        raise LoginRefusedError(f"the login is refused: {why}")
    (length,) = struct.unpack_from(">i", answer, at)
    return answer[at + 4 : at + 4 + max(length, 0)].decode()


def first_of_scram(username: str, nonce: str) -> str:
    """Return a client's first message of SCRAM, without what it says of channels."""
    return f"n={username.replace('=', '=3D').replace(',', '=2C')},r={nonce}"


def answer_of_scram(digest: str, password: str, first: str, challenge: str) -> tuple[str, str]:
    """Return a client's last message of SCRAM, and the answer of a broker that knows the password.

    `first` is the client's first message, `challenge` the broker's answer to it.

    Raises:
        ValueError: the challenge is not one of SCRAM, or asks for too little or too much work.
    """
    parts = dict(part.split("=", 1) for part in challenge.split(","))
    nonce, iterations = parts.get("r", ""), int(parts.get("i", "0"))
    if not nonce.startswith(first.rpartition("r=")[2]) or iterations not in _ITERATIONS:
        raise ValueError("the broker's challenge is not one of SCRAM")
    salt = base64.b64decode(parts.get("s", ""))
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
    last = f"c=biws,r={nonce}"  # biws: no channel is bound
    signed = f"{first},{challenge},{last}".encode()
    client_key = hmac.digest(salted, b"Client Key", digest)
    signature = hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest)
    proof = bytes(ours ^ sign for ours, sign in zip(client_key, signature, strict=True))
    server_key = hmac.digest(salted, b"Server Key", digest)
    verifier = hmac.digest(server_key, signed, digest)
    return (
        f"{last},p={base64.b64encode(proof).decode()}",
        f"v={base64.b64encode(verifier).decode()}",
    )
