"""The process of the relay: `python -m soak.lab.relay_process NETWORK_FILE HERE:THERE...`.

HERE and THERE are ports on loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from soak.lab.files import replace_text
from soak.lab.relay import RESEND_SECONDS, Network, applied_path

_POLL_SECONDS = 0.02
_PIECE_BYTES = 65_536
_MAX_PIECES = 256  # on the way in one direction of one connection

Piece = tuple[float, bytes]


class Route:
    """The network between clients and one broker, shared by all their connections."""

    def __init__(self, chance: random.Random, number: int = 1) -> None:
        self._chance = chance
        self._number = number  # of the broker, from 1
        self.network = Network()
        self.is_open = asyncio.Event()
        self.apply(self.network)

    def apply(self, network: Network) -> None:
        self.network = network if network.only in (0, self._number) else Network()
        (self.is_open.clear if self.network.is_cut else self.is_open.set)()

    def delay_seconds(self) -> float:
        """Return how long the next piece is on the way."""
        is_lost = self._chance.random() < self.network.lost_ratio
        return self.network.delay_seconds + (RESEND_SECONDS if is_lost else 0.0)


async def carry(
    route: Route, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, port: int
) -> None:
    """Carry one direction of a connection until its source ends or its target is closed."""
    pieces: asyncio.Queue[Piece] = asyncio.Queue(_MAX_PIECES)
    delivery = asyncio.create_task(_deliver(route, pieces, target), name=f"deliver {port}")
    clock = asyncio.get_running_loop()
    due = 0.0
    try:
        while piece := await source.read(_PIECE_BYTES):
            due = max(due, clock.time() + route.delay_seconds())  # in order, like TCP
            await pieces.put((due, piece))
        await pieces.put((due, b""))
        await delivery
    finally:
        delivery.cancel()


async def _deliver(
    route: Route, pieces: asyncio.Queue[Piece], target: asyncio.StreamWriter
) -> None:
    clock = asyncio.get_running_loop()
    while True:
        due, piece = await pieces.get()
        await asyncio.sleep(max(0.0, due - clock.time()))
        await route.is_open.wait()
        if not piece:
            return
        target.write(piece)
        await target.drain()


async def connect(
    route: Route, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Carry one connection; when one side ends, both do."""
    await route.is_open.wait()
    with contextlib.suppress(OSError):  # the broker is down: the client's connection ends
        broker_reader, broker_writer = await asyncio.open_connection("127.0.0.1", port)
        directions = [
            asyncio.create_task(carry(route, reader, broker_writer, port=port)),
            asyncio.create_task(carry(route, broker_reader, writer, port=port)),
        ]
        done, pending = await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        for direction in pending:
            direction.cancel()
        await asyncio.gather(*done, *pending, return_exceptions=True)
        broker_writer.close()
    writer.close()


class NetworkFile:
    """The file with the network, which the routes apply whenever it changes."""

    def __init__(self, path: Path, routes: Sequence[Route]) -> None:
        self._path = path
        self._routes = routes
        self._stamp = (0, 0)

    def read(self) -> None:
        status = self._path.stat()
        stamp = (status.st_ino, status.st_mtime_ns)
        if stamp != self._stamp:
            text = self._path.read_text()
            network = Network(**json.loads(text))
            for route in self._routes:
                route.apply(network)
            with contextlib.suppress(OSError):  # disk full: the caller of `apply` gets an error
                replace_text(applied_path(self._path), text)
                self._stamp = stamp

    async def watch(self) -> None:
        while True:
            self.read()
            await asyncio.sleep(_POLL_SECONDS)


async def serve(path: Path, pairs: list[tuple[int, int]]) -> None:
    """Listen and carry until this process is killed."""
    routes = [Route(random.Random(), number) for number in range(1, len(pairs) + 1)]
    for route, (here, there) in zip(routes, pairs, strict=True):

        async def accept(
            reader: asyncio.StreamReader,
            writer: asyncio.StreamWriter,
            route: Route = route,
            there: int = there,
        ) -> None:
            await connect(route, there, reader, writer)

        await asyncio.start_server(accept, "127.0.0.1", here)
    await NetworkFile(path, routes).watch()


def main() -> None:
    path, *pairs = sys.argv[1:]
    ports = [tuple(map(int, pair.split(":"))) for pair in pairs]
    asyncio.run(serve(Path(path), [(here, there) for here, there in ports]))


if __name__ == "__main__":
    main()
