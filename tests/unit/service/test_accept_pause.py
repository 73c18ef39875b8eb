"""A server whose connections cannot be accepted."""

from __future__ import annotations

import errno
import socket
import socketserver
import subprocess
import sys
import threading

import pytest

from soak.service.accept_pause import PausingServer


class NoDescriptors:
    """A listening socket whose connections cannot be accepted, as without a free descriptor."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self.was_tried = threading.Event()
        self.tries = 0

    def fileno(self) -> int:
        return self._listening.fileno()

    def accept(self) -> tuple[socket.socket, object]:
        self.tries += 1
        self.was_tried.set()
        raise OSError(errno.EMFILE, "too many open files")

    def close(self) -> None:
        self._listening.close()


def test_a_connection_that_cannot_be_accepted_is_not_tried_again_at_once() -> None:
    """It stays in the queue, so a loop without a pause tries it thousands of times a second."""
    server = PausingServer(("127.0.0.1", 0), socketserver.BaseRequestHandler)
    listening = NoDescriptors(server.socket)
    server.socket = listening  # type: ignore[assignment]  # what the base class uses of it
    thread = threading.Thread(target=server.serve_forever)
    with socket.create_connection(server.server_address[:2]):  # type: ignore[arg-type]  # host and port
        thread.start()
        listening.was_tried.wait()
        server.shutdown()
        thread.join()
    server.server_close()

    assert listening.tries <= 2


@pytest.mark.long
def test_the_live_server_loads_no_library_for_metrics_pages() -> None:
    code = "import sys, soak.app.live.server; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
