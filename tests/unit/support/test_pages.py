"""The pages on loopback that other tests ask: they are there as long as they are served."""

from __future__ import annotations

from contextlib import closing
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from tests.support.pages import pages


def test_a_kept_connection_is_not_answered_after_the_server_has_ended() -> None:
    """Else what is to notice a broker's end would go on being answered."""
    with pages({"/metrics": "a 23\n"}) as address:
        connection = HTTPConnection(urlsplit(address).netloc, timeout=30.0)
        connection.request("GET", "/metrics")
        answer = connection.getresponse().read()

    assert answer == b"a 23\n"
    with closing(connection), pytest.raises(ConnectionError):
        asked_again(connection)


def asked_again(connection: HTTPConnection) -> None:
    connection.request("GET", "/metrics")
    connection.getresponse()
