"""The lab's own network: what passes is delayed, held up or cut, and comes in order."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from soak.core.errors import LabError
from soak.lab.broker_setup import free_ports
from soak.lab.relay import RESEND_SECONDS, Network, Relay
from soak.lab.relay_process import Route

LIMIT_SECONDS = 20.0


@pytest.fixture
def echo() -> Iterator[int]:
    """Return a port on which everything comes back."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # the test is over
                    return
                with connection:
                    while piece := connection.recv(65_536):
                        connection.sendall(piece)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def relay(echo: int, tmp_path: Path) -> Iterator[Relay]:
    (port,) = free_ports(1)
    made = Relay(tmp_path, {port: echo})
    made.port = port  # type: ignore[attr-defined]  # for the tests alone
    made.start()
    yield made
    made.stop()


def connected(relay: Relay) -> socket.socket:
    port: int = relay.port  # type: ignore[attr-defined]  # as above
    return socket.create_connection(("127.0.0.1", port), LIMIT_SECONDS)


def back(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        found += connection.recv(65_536)
    return found


def route(network: Network, place: int = 1) -> Route:
    made = Route(random.Random(23), place)
    made.apply(network)
    return made


@pytest.mark.long
def test_everything_passes_unchanged_and_in_order(relay: Relay) -> None:
    """More than one piece, both ways."""
    sent = random.Random(1).randbytes(300_000)
    with connected(relay) as connection:
        threading.Thread(target=connection.sendall, args=(sent,), daemon=True).start()

        assert back(connection, len(sent)) == sent


@pytest.mark.long
def test_a_cut_holds_everything_and_loses_nothing(relay: Relay) -> None:
    """What was sent meanwhile comes when it is whole again."""
    with connected(relay) as connection:
        relay.apply(Network(is_cut=True))
        connection.settimeout(0.3)
        connection.sendall(b"x")
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(LIMIT_SECONDS)
        relay.apply(Network())

        assert back(connection, 1) == b"x"


@pytest.mark.long
def test_a_command_is_in_force_when_the_call_returns(relay: Relay) -> None:
    """From the first piece on, ever again."""
    with connected(relay) as connection:
        for _ in range(5):
            relay.apply(Network(delay_seconds=0.1))
            begun = time.monotonic()
            connection.sendall(b"x")
            back(connection, 1)

            assert time.monotonic() - begun >= 0.2  # both ways
            relay.apply(Network())


@pytest.mark.long
def test_a_relay_that_has_ended_needs_no_undoing(relay: Relay) -> None:
    """Nothing passes, and `apply` does not wait."""
    relay.stop()

    relay.apply(Network(is_cut=True))
    relay.apply(Network())


@pytest.mark.long
def test_a_relay_that_does_not_heed_is_an_error_until_it_does(echo: int, tmp_path: Path) -> None:
    """It was stopped by a signal, say."""
    (port,) = free_ports(1)
    made = Relay(tmp_path, {port: echo}, apply_seconds=1)
    made.start()
    os.kill(made.pid, signal.SIGSTOP)
    try:
        with pytest.raises(LabError, match="did not apply Network"):
            made.apply(Network(is_cut=True))
    finally:
        os.kill(made.pid, signal.SIGCONT)
    made.apply(Network(is_cut=True))
    made.stop()


@pytest.mark.long
def test_a_relay_without_room_to_say_what_it_heeds_goes_on(echo: int, tmp_path: Path) -> None:
    """Here a folder is in the way of its file."""
    (port,) = free_ports(1)
    made = Relay(tmp_path, {port: echo}, apply_seconds=1)
    made.start()
    (tmp_path / "applied.part").mkdir()
    with pytest.raises(LabError, match="did not apply"):
        made.apply(Network(delay_seconds=0.01))
    with socket.create_connection(("127.0.0.1", port), LIMIT_SECONDS) as connection:
        connection.sendall(b"x")

        assert back(connection, 1) == b"x"
    made.stop()


def test_a_piece_takes_the_delay_and_a_lost_one_the_time_to_send_it_again() -> None:
    """25 of a hundred at a quarter, with this seed."""

    async def takes(network: Network) -> list[float]:
        made = route(network)
        return [made.delay_seconds() for _ in range(100)]

    delayed = asyncio.run(takes(Network(delay_seconds=0.02)))
    lossy = asyncio.run(takes(Network(lost_ratio=0.25)))

    assert set(delayed) == {0.02}
    assert set(lossy) == {0.0, RESEND_SECONDS}
    assert lossy.count(RESEND_SECONDS) == 25


def test_the_way_to_one_broker_may_be_longer_than_to_others() -> None:
    """By its place; the next network applies to all of them again."""

    async def takes(network: Network) -> list[float]:
        return [route(network, place).delay_seconds() for place in (1, 2, 3)]

    assert asyncio.run(takes(Network(delay_seconds=0.02, only=2))) == [0.0, 0.02, 0.0]
    assert asyncio.run(takes(Network(delay_seconds=0.05))) == [0.05] * 3


def test_its_commands_are_in_one_file(tmp_path: Path) -> None:
    """Replaced as a whole."""
    network = Network(delay_seconds=0.5, lost_ratio=0.1)
    Relay(tmp_path, {}).apply(network)

    assert json.loads((tmp_path / "network.json").read_text()) == asdict(network)


@pytest.mark.long
def test_a_relay_that_cannot_listen_says_why(tmp_path: Path) -> None:
    """Somebody has its port, on every address of the machine's own."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))  # bound, but not listening
        made = Relay(tmp_path, {other.getsockname()[1]: 1})

        with pytest.raises(LabError, match=r"(?s)relay did not start.*address already in use"):
            made.start()
