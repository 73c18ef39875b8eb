"""The relay's process: `python -m soak.lab.relay_process NETWORK_FILE HERE:THERE...`, ports on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from soak.lab.files import replace_text
from soak.lab.relay import RESEND_SECONDS, Network, heeded_path

_LOOK_SECONDS = 0.02
_PIECE_BYTES = 65_536
_MOST_PIECES = 256  # under way in one direction of one connection

Piece = tuple[float, bytes]


class Line:
    """The way to one broker as it is now; every connection to it asks it."""

    def __init__(self, chance: random.Random, place: int = 1) -> None:
        self._chance = chance
        self._place = place  # of the broker, from 1
        self.network = Network()
        self.is_open = asyncio.Event()
        self.heed(self.network)

    def heed(self, told: Network) -> None:
        self.network = told if told.only in (0, self._place) else Network()
        (self.is_open.clear if self.network.is_cut else self.is_open.set)()

    def takes_seconds(self) -> float:
        """Return how long the next piece is under way."""
        is_lost = self._chance.random() < self.network.lost_ratio
        return self.network.delay_seconds + (RESEND_SECONDS if is_lost else 0.0)


async def carry(
    line: Line, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, port: int
) -> None:
    """Carry one direction of a connection until its source ends or its target is gone."""
    under_way: asyncio.Queue[Piece] = asyncio.Queue(_MOST_PIECES)
    out = asyncio.create_task(_deliver(line, under_way, target), name=f"deliver {port}")
    clock = asyncio.get_running_loop()
    due = 0.0
    try:
        while piece := await source.read(_PIECE_BYTES):
            due = max(due, clock.time() + line.takes_seconds())  # in order, as TCP is
            await under_way.put((due, piece))
        await under_way.put((due, b""))
        await out
    finally:
        out.cancel()


async def _deliver(
    line: Line, under_way: asyncio.Queue[Piece], target: asyncio.StreamWriter
) -> None:
    clock = asyncio.get_running_loop()
    while True:
        due, piece = await under_way.get()
        await asyncio.sleep(max(0.0, due - clock.time()))
        await line.is_open.wait()
        if not piece:
            return
        target.write(piece)
        await target.drain()


async def connect(
    line: Line, there: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Carry one connection; when one side ends, both do."""
    await line.is_open.wait()
    with contextlib.suppress(OSError):  # the broker is down: the client sees its connection end
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", there)
        ways = [
            asyncio.create_task(carry(line, reader, far_writer, port=there)),
            asyncio.create_task(carry(line, far_reader, writer, port=there)),
        ]
        done, left = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in left:
            way.cancel()
        await asyncio.gather(*done, *left, return_exceptions=True)
        far_writer.close()
    writer.close()


class NetworkFile:
    """What the file says: the lines heed it whenever it is new."""

    def __init__(self, path: Path, lines: Sequence[Line]) -> None:
        self._path = path
        self._lines = lines
        self._stamp = (0, 0)

    def look(self) -> None:
        status = self._path.stat()
        stamp = (status.st_ino, status.st_mtime_ns)
        if stamp != self._stamp:
            text = self._path.read_text()
            told = Network(**json.loads(text))
            for line in self._lines:
                line.heed(told)
            with contextlib.suppress(OSError):  # no room: who told it learns that, and no client
                replace_text(heeded_path(self._path), text)
                self._stamp = stamp

    async def watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(_LOOK_SECONDS)


async def serve(path: Path, pairs: list[tuple[int, int]]) -> None:
    """Listen and carry until killed."""
    lines = [Line(random.Random(), place) for place in range(1, len(pairs) + 1)]
    for line, (here, there) in zip(lines, pairs, strict=True):

        async def accept(
            reader: asyncio.StreamReader,
            writer: asyncio.StreamWriter,
            line: Line = line,
            there: int = there,
        ) -> None:
            await connect(line, there, reader, writer)

        await asyncio.start_server(accept, "127.0.0.1", here)
    await NetworkFile(path, lines).watch()


def main() -> None:
    path, *pairs = sys.argv[1:]
    ports = [tuple(map(int, pair.split(":"))) for pair in pairs]
    asyncio.run(serve(Path(path), [(here, there) for here, there in ports]))


if __name__ == "__main__":
    main()
