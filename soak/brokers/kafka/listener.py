"""How a broker's listener wants to be spoken to, asked once after a client got no answer from it.

A client that speaks another protocol than the listener is disconnected without a reason, and a wrong
`security.protocol` is the most usual mistake. So this looks whether the listener speaks TLS, whether its
certificate is good for its name, and whether it asks for a login. A listener that answers may still name
brokers by addresses that this host cannot reach.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from soak.clients.http import tls_context
from soak.core.errors import BrokerError

_TIMEOUT_SECONDS = 3.0  # of one step
_MAX_PORT = 65_535
_MAX_ADDRESSES = 3
_MAX_ANSWER = 65_536
_MAX_CONCURRENT = 16  # brokers that are connected to at the same time
_MAX_NAMED = 3  # of them in one text
_SASL_HANDSHAKE, _VERSION = 17, 1  # the request that says which logins a listener has
_ILLEGAL_SASL_STATE = 34  # the answer of a listener without logins
_CLIENT_CERTIFICATE = ("CERTIFICATE_REQUIRED", "BAD_CERTIFICATE", "HANDSHAKE_FAILURE")
_CLIENT_LOGINS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
"""Logins that librdkafka can do; the last where it is built with it."""


@dataclass(frozen=True, slots=True)
class _Listener:
    speaks_tls: bool
    logins: (
        tuple[str, ...] | None
    )  # None: no answer to a request of Kafka's; empty: none is asked for
    wants_certificate: bool = False


@dataclass(frozen=True, slots=True)
class Mismatch:
    """In what settings differ from a listener, as text; empty where nothing is found.

    `lacks_login`: it wants a login or a certificate that they do not have; `logins`: those that it names.
    """

    text: str = ""
    lacks_login: bool = False
    logins: tuple[str, ...] = ()


def mismatch(
    bootstrap_servers: str, common: Mapping[str, str], timeout_seconds: float = _TIMEOUT_SECONDS
) -> Mismatch:
    """Return in what the settings of a plan differ from the first listener that can be reached.

    Sends no password; takes some seconds at most.
    """
    for host, port in list(_addresses(bootstrap_servers))[:_MAX_ADDRESSES]:
        try:
            found = _look_at(host, port, timeout_seconds)
        except (OSError, ValueError):
            continue  # cannot be reached, as the client says itself
        text = _difference(host, port, found, common, timeout_seconds)
        return Mismatch(text, _lacks_login(found, common), found.logins or ())
    return Mismatch()


def _addresses(bootstrap_servers: str) -> Iterator[tuple[str, int]]:
    for text in bootstrap_servers.split(","):
        host, _, port = text.strip().rpartition("://")[2].rpartition(":")
        if host and port.isdecimal() and int(port) <= _MAX_PORT:
            yield host.strip("[]"), int(port)


def _look_at(host: str, port: int, timeout_seconds: float) -> _Listener:
    """Speak TLS to a listener, and plain text if it does not understand.

    Raises:
        OSError: it cannot be reached, or does not answer in time.
        ValueError: its name cannot be one.
    """
    with socket.create_connection((host, port), timeout_seconds) as plain:
        try:
            with any_certificate().wrap_socket(plain, server_hostname=host) as secure:
                return _over_tls(secure)
        except ssl.SSLError as error:  # before TLS 1.3 a missing certificate ends the handshake
            if _wants_certificate(error):
                return _Listener(speaks_tls=True, logins=None, wants_certificate=True)
        except OSError:
            pass
    with socket.create_connection((host, port), timeout_seconds) as plain:
        return _Listener(speaks_tls=False, logins=_logins(plain))


def _over_tls(secure: ssl.SSLSocket) -> _Listener:
    try:
        return _Listener(speaks_tls=True, logins=_logins(secure))
    except (
        ssl.SSLError
    ) as error:  # with TLS 1.3 a missing certificate is reported after the handshake
        wants = _wants_certificate(error)
        return _Listener(speaks_tls=True, logins=None, wants_certificate=wants)


def _wants_certificate(error: ssl.SSLError) -> bool:
    return any(word in str(error.reason) for word in _CLIENT_CERTIFICATE)


def any_certificate() -> ssl.SSLContext:
    return tls_context(is_verifying=False)  # nothing secret is sent


def _logins(connection: socket.socket) -> tuple[str, ...] | None:
    """Ask for a login that there is not: the answer has those that there are."""
    body = struct.pack(">hhih", _SASL_HANDSHAKE, _VERSION, 1, -1) + struct.pack(">h", 0)
    try:
        connection.sendall(struct.pack(">i", len(body)) + body)
        answer = read_answer(connection)
        _, error, count = struct.unpack_from(">ihi", answer)
        if error == _ILLEGAL_SASL_STATE:
            return ()
        found, at = [], struct.calcsize(">ihi")
        for _ in range(min(count, _MAX_ANSWER)):
            (size,) = struct.unpack_from(">h", answer, at)
            found.append(answer[at + 2 : at + 2 + size].decode("ascii"))
            at += 2 + size
    except (ssl.SSLError, TimeoutError):  # one that is too busy to answer says nothing of its kind
        raise
    except (OSError, struct.error, UnicodeDecodeError):
        return None
    return tuple(found)


def read_answer(connection: socket.socket) -> bytes:
    """Return one answer, empty if it is torn or larger than any of this kind."""
    with connection.makefile("rb") as stream:
        head = stream.read(4)
        (size,) = struct.unpack(">i", head)
        return stream.read(size) if 0 < size <= _MAX_ANSWER else b""


def _difference(
    host: str, port: int, found: _Listener, common: Mapping[str, str], timeout_seconds: float
) -> str:
    where = f"{host}:{port}"
    uses_tls = security_protocol(common).endswith("SSL")
    if found.logins is None and not found.speaks_tls:
        return f"what listens at {where} does not answer as a Kafka broker does"
    if found.logins and not _possible(found.logins):
        return (
            f"the listener at {where} asks for a login ({', '.join(found.logins)}) that soakd cannot do: "
            f"name a listener with {', '.join(_CLIENT_LOGINS[:-1])} or without a login"
        )
    if found.speaks_tls != uses_tls:
        speaks = "speaks TLS" if found.speaks_tls else "does not speak TLS"
        return f"the listener at {where} {speaks}: set security.protocol to {_wanted(found)}"
    if found.wants_certificate and not _has_certificate(common):
        return (
            f"the listener at {where} asks for a certificate of the client: "
            "set ssl.certificate.location and ssl.key.location"
        )
    why = _login_difference(where, found, common)
    return why or (_certificate_fault(host, port, common, timeout_seconds) if uses_tls else "")


def _login_difference(where: str, found: _Listener, common: Mapping[str, str]) -> str:
    uses_login = security_protocol(common).startswith("SASL")
    if found.logins is not None and bool(found.logins) != uses_login:
        asks = f"asks for a login ({', '.join(found.logins)})" if found.logins else "has no logins"
        return f"the listener at {where} {asks}: set security.protocol to {_wanted(found)}"
    mechanism = _mechanism(common)
    if found.logins and mechanism not in found.logins:
        there = ", ".join(_possible(found.logins))
        return f"the listener at {where} has no {mechanism}, but {there}: set sasl.mechanism"
    return ""


def _wanted(found: _Listener) -> str:
    return ("SASL_" if found.logins else "") + ("SSL" if found.speaks_tls else "PLAINTEXT")


def _possible(logins: Sequence[str]) -> list[str]:
    return [login for login in logins if login in _CLIENT_LOGINS]


def _lacks_login(found: _Listener, common: Mapping[str, str]) -> bool:
    if found.wants_certificate and not _has_certificate(common):
        return True
    has_login = security_protocol(common).startswith("SASL") and _mechanism(common) in (
        found.logins or ()
    )
    return bool(found.logins) and not has_login


def unreachable(
    places: Sequence[tuple[str, int]], timeout_seconds: float = _TIMEOUT_SECONDS
) -> dict[str, str]:
    """Return why each of these hosts and ports takes no connection from here, by address; {} if all do."""

    def why_not(place: tuple[str, int]) -> str:
        try:
            with socket.create_connection(place, timeout_seconds):
                return ""
        except (OSError, ValueError, OverflowError) as error:
            return str(error) or type(error).__name__

    with ThreadPoolExecutor(_MAX_CONCURRENT) as pool:
        reasons = list(pool.map(why_not, places))
    return {f"{host}:{port}": why for (host, port), why in zip(places, reasons, strict=True) if why}


def advertised_error(bootstrap_servers: str, reasons: Mapping[str, str]) -> str:
    """Return the fault of a cluster whose brokers are all unreachable, for these reasons by address."""
    return (
        f"{bootstrap_servers} answers, but this host reaches no broker at the address that the cluster names "
        f"for it, to which clients connect: {_listed(reasons)}; set advertised.listeners of the brokers to "
        "addresses that this host can resolve and reach, or name another listener"
    )


def reach_warnings(reasons: Mapping[str, str]) -> list[str]:
    """Return a warning for the brokers of a cluster that cannot be reached, for these reasons by address."""
    if not reasons:
        return []
    warning = (
        f"this host does not reach {_listed(reasons)}, as the cluster names them: messages for partitions "
        "that they lead wait; start these brokers, or set their advertised.listeners to addresses that this "
        "host can resolve and reach"
    )
    return [warning]


def _listed(reasons: Mapping[str, str]) -> str:
    named = ", ".join(f"{address} ({why})" for address, why in islice(reasons.items(), _MAX_NAMED))
    more = len(reasons) - _MAX_NAMED
    return named + (f" and {more} more" if more > 0 else "")


def security_protocol(common: Mapping[str, str]) -> str:
    return common.get("security.protocol", "PLAINTEXT").upper().replace("-", "_")


def _mechanism(common: Mapping[str, str]) -> str:
    return common.get("sasl.mechanism", common.get("sasl.mechanisms", "GSSAPI"))


def _has_certificate(common: Mapping[str, str]) -> bool:
    return bool(common.get("ssl.certificate.location"))


def _certificate_fault(
    host: str, port: int, common: Mapping[str, str], timeout_seconds: float
) -> str:
    """Return why the certificate is refused, in the words of OpenSSL, which name the host or the date."""
    if common.get("enable.ssl.certificate.verification", "true").lower() == "false":
        return ""
    ca = common.get("ssl.ca.location", "")
    try:
        context = tls_context("" if ca == "probe" else ca)  # the client's word for the system's own
        if "ssl.ca.pem" in common:
            context.load_verify_locations(cadata=common["ssl.ca.pem"])
    except (BrokerError, ssl.SSLError) as error:
        return str(error)
    context.check_hostname = common.get("ssl.endpoint.identification.algorithm", "https") != "none"
    try:
        with (
            socket.create_connection((host, port), timeout_seconds) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return ""
    except ssl.SSLCertVerificationError as error:
        return f"the certificate of {host}:{port} is refused: {error.verify_message.rstrip('.')}"
    except OSError:
        return ""
