"""What a listener that gives a client no answer is said to be; a secured Kafka's are tested with it."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soak.brokers.kafka.listener import Mismatch, mismatch
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
