"""What a listener that gives a client no answer is said to be; a secured Kafka's are tested with it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soak.brokers.kafka.listener import (
    Mismatch,
    advertised_error,
    mismatch,
    reach_warnings,
    unreachable,
)
from tests.support.certificate import certificate
from tests.support.examples import examples
from tests.support.listener import answering


def test_a_port_that_is_no_broker_s_is_named() -> None:
    """Such as a web server's."""
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        assert mismatch(address, {}).text == (
            f"what listens at {address} does not answer as a Kafka broker does"
        )


def test_ports_that_refuse_connections_are_left_to_the_client() -> None:
    """It says that itself. Text that is no address is passed over."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    assert (
        mismatch(f"127.0.0.1:{port},nonsense,:9,h:99999,SSL://127.0.0.1:{port}", {}) == Mismatch()
    )


def test_a_broker_that_is_too_busy_to_answer_is_not_said_to_be_none() -> None:
    """The kernel takes its connections while it is stopped."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert mismatch(f"127.0.0.1:{port}", {}, timeout_seconds=0.1) == Mismatch()


@contextlib.contextmanager
def asking_for_a_certificate(folder: Path, newest: ssl.TLSVersion) -> Iterator[str]:
    """Serve TLS up to a version to clients with a certificate, and yield the address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate(folder))
    context.verify_mode, context.maximum_version = ssl.CERT_REQUIRED, newest
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    plain, _ = server.accept()
                    with context.wrap_socket(
                        plain, server_side=True, do_handshake_on_connect=False
                    ) as secure:
                        with contextlib.suppress(OSError):
                            secure.do_handshake()
                        with contextlib.suppress(OSError):
                            while socket.socket.recv(secure, 4096):  # else its alert may be lost
                                pass

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_listener_that_wants_a_certificate_is_said_to_want_one(
    tmp_path: Path, newest: ssl.TLSVersion
) -> None:
    """Before TLS 1.3 the handshake fails, and it is no listener without TLS."""
    with asking_for_a_certificate(tmp_path, newest) as address:
        found = mismatch(address, {"security.protocol": "SSL"})

    assert found.lacks_login
    assert found.text.startswith(f"the listener at {address} asks for a certificate of the client:")


@pytest.mark.long
@settings(max_examples=examples(40), deadline=None)
@given(answer=st.binary(max_size=60))
def test_any_answer_is_read_or_said_to_be_none(answer: bytes) -> None:
    """A torn one, one with a size that it does not have, one of another protocol."""
    with answering(len(answer).to_bytes(4, "big") + answer) as address:
        assert isinstance(mismatch(address, {}), Mismatch)


@pytest.mark.parametrize(
    ("code", "protocol", "said"),
    [
        (34, "PLAINTEXT", ""),
        (34, "SASL_PLAINTEXT", "has no logins: set security.protocol to PLAINTEXT"),
        (33, "PLAINTEXT", "asks for a login (PLAIN): set security.protocol to SASL_PLAINTEXT"),
        (33, "SSL", "does not speak TLS: set security.protocol to SASL_PLAINTEXT"),
    ],
)
def test_the_answer_about_logins_says_which_protocol_is_spoken(
    code: int, protocol: str, said: str
) -> None:
    """As the protocol of Kafka has it: a number, an error, the names of the logins."""
    names = b"\0\0\0\1\0\5PLAIN" if code == 33 else b"\0\0\0\0"
    answer = b"\0\0\0\1" + code.to_bytes(2, "big") + names
    with answering(len(answer).to_bytes(4, "big") + answer) as address:
        found = mismatch(address, {"security.protocol": protocol})

    assert found.text == (f"the listener at {address} {said}" if said else "")


@pytest.mark.parametrize(
    ("name", "common", "is_lacking"),
    [
        ("OAUTHBEARER", {}, True),
        ("OAUTHBEARER", {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}, True),
        ("GSSAPI", {"security.protocol": "SSL"}, True),
        ("PLAIN", {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}, False),
    ],
)
def test_a_login_that_the_settings_lack_is_told_from_one_that_was_refused(
    name: str, common: dict[str, str], *, is_lacking: bool
) -> None:
    """With the logins that the listener takes."""
    names = b"\0\0\0\1" + len(name).to_bytes(2, "big") + name.encode()
    answer = b"\0\0\0\1" + (33).to_bytes(2, "big") + names
    with answering(len(answer).to_bytes(4, "big") + answer) as address:
        found = mismatch(address, common)

    assert (found.lacks_login, found.logins) == (is_lacking, (name,))


def test_a_login_that_no_setting_gives_is_said_before_any_setting() -> None:
    """As the only one of a listener for roles of Amazon; its protocol would be no use."""
    name = b"AWS_MSK_IAM"
    names = b"\0\0\0\1" + len(name).to_bytes(2, "big") + name
    answer = b"\0\0\0\1" + (33).to_bytes(2, "big") + names
    with answering(len(answer).to_bytes(4, "big") + answer) as address:
        found = mismatch(address, {"security.protocol": "SSL"})

    assert found.text == (
        f"the listener at {address} asks for a login (AWS_MSK_IAM) that soakd cannot do: name a listener "
        "with PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or without a login"
    )


def test_brokers_that_cannot_be_reached_are_named_with_the_reason() -> None:
    """The names that a cluster gives its brokers may be known to it alone."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        open_port, closed = server.getsockname()[1], other.getsockname()[1]
        other.close()
        reasons = unreachable([("127.0.0.1", open_port), ("127.0.0.1", closed), ("a" * 64, 9092)])

    assert list(reasons) == [f"127.0.0.1:{closed}", f"{'a' * 64}:9092"]
    assert "refused" in reasons[f"127.0.0.1:{closed}"]


def test_a_cluster_of_which_no_broker_is_reached_is_a_fault_with_the_setting_to_mend() -> None:
    """Of some of them it is a warning; many are named in part."""
    reasons = {f"kafka-{number}:9092": "Name or service not known" for number in range(5)}

    fault = advertised_error("lb:9092", reasons)
    (warning,) = reach_warnings(reasons)

    assert fault.startswith("lb:9092 answers, but this host reaches no broker ")
    for text in (fault, warning):
        assert "kafka-2:9092 (Name or service not known) and 2 more" in text
        assert "advertised.listeners" in text
    assert reach_warnings({}) == []
