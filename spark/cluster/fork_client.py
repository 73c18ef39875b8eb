"""Run a module of Python as a fork of `fork_server`, or here where there is none.

`python -I -S fork_client.py -m MODULE [ARGUMENT ...]`, by the path of this file, in the working folder of
the server. It imports nothing of ours or of any package, as Spark waits for it. It ends with 0 when the fork
does; a fork gets a SIGTERM when it ends first.
"""

from __future__ import annotations

import json
import os
import socket
import sys

SOCKET = "python.socket"


def main() -> None:
    """Pass arguments, environment and standard streams on, then wait for the end of the fork."""
    arguments = sys.argv[1:]
    connection = _served(arguments[1:]) if arguments[:1] == ["-m"] else None
    if connection is None:
        os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606  # takes the place of this process
    os.dup2(connection.fileno(), 0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    # The fork and its own forks have the other end and write nothing; it is closed when they have ended.
    os.execvp("cat", ["cat"])  # noqa: S606, S607  # a Python that waits would take 6 MiB


def _served(module: list[str]) -> socket.socket | None:
    """Return the connection to a fork that runs the module with its arguments; None: there will be none."""
    try:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(SOCKET)
        socket.send_fds(connection, [b"\0"], [0, 1, 2])
        connection.sendall(json.dumps([module, dict(os.environ)]).encode())
        connection.shutdown(socket.SHUT_WR)
        return connection if connection.recv(1) else None
    except OSError:  # no server, or it ended
        return None


if __name__ == "__main__":
    main()
