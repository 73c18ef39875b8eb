"""A `soak serve` on loopback, and what asks it."""

from __future__ import annotations

import atexit
import hashlib
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from http.client import HTTPConnection
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple

from soak.app.live.folder import ServedFolder
from soak.app.live.jobs import Jobs
from soak.app.live.server import Serving, start
from soak.core.clock import SystemClock
from soak.core.ports import Clock


class Got(NamedTuple):
    """An answer; the names of its headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class Served:
    """A server on a port of its own."""

    def __init__(self, serving: Serving, jobs: Jobs) -> None:
        self.serving = serving
        self.jobs = jobs

    def get(self, path: str, method: str = "GET", **headers: str) -> Got:
        """Return the answer to one request; a path is sent as it is."""
        connection = HTTPConnection("127.0.0.1", self.serving.port, timeout=30)
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        body = answer.read()
        connection.close()
        return Got(answer.status, found, body)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.serving.port), timeout=30)


def refuse_to_spawn(arguments: list[str], log: Path, folder: Path) -> Popen[bytes]:
    """Raise, since no process may be started by the one who asks."""
    raise AssertionError(f"{arguments} in {folder}, {log}")


@contextmanager
def served(
    root: Path,
    clock: Clock | None = None,
    *,
    address: str = "127.0.0.1",
    token: str = "",
    renew_ns: int = 0,
    spawn: Callable[[list[str], Path, Path], Popen[bytes]] | None = None,
) -> Iterator[Served]:
    """Serve a folder while the block runs."""
    clock = clock or SystemClock()
    folder = ServedFolder(root.resolve())
    jobs = Jobs(folder.root, clock, renew_ns, spawn or refuse_to_spawn)
    serving = start(folder, jobs, clock, address, 0, token)
    try:
        yield Served(serving, jobs)
    finally:
        serving.end()
        jobs.close()


class Elements(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def tags(self) -> set[str]:
        return {tag for tag, _ in self.found}

    @property
    def links(self) -> list[str]:
        return [found["href"] for tag, found in self.found if tag == "a"]


def contents(folder: Path) -> dict[str, str]:
    """Return what is in a folder: the hash of each file by its path."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def new_folder() -> Path:
    """Return a new folder for an example of a property; `tmp_path` is the same for all of them.

    It is removed when the tests are over.
    """
    folder = Path(tempfile.mkdtemp(prefix="soak-served-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
