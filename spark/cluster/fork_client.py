"""Run a module of Python as a fork of `fork_server`, or here where there is none.

`python -I -S fork_client.py -m MODULE [ARGUMENT ...]`, by the path of this file, in the working folder of
the server. It imports nothing of ours or of any package, as Spark waits for it.
"""

import json
import os
import socket
import sys

SOCKET = "python.socket"


def main() -> None:
    """Pass arguments, environment and standard streams on, then wait for the end of the fork."""
    arguments = sys.argv[1:]
    connection = socket.socket(socket.AF_UNIX)
    is_served = arguments[:1] == ["-m"] and connection.connect_ex(SOCKET) == 0
    if not is_served:
        os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606  # takes the place of this process
    socket.send_fds(connection, [b"\0"], [0, 1, 2])
    connection.sendall(json.dumps([arguments[1:], dict(os.environ)]).encode())
    connection.shutdown(socket.SHUT_WR)
    os.dup2(connection.fileno(), 0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    # The fork has the other end, writes nothing, and closes it when it ends.
    os.execvp("cat", ["cat"])  # noqa: S606, S607  # a Python that waits would take 6 MiB


if __name__ == "__main__":
    main()
