"""The process that the Pythons of Spark's JVM are forks of: it has imported what they use.

Spark starts a Python for its workers and one for each way to plan a read. Each would take a second of
processor time and 50 to 100 MiB for pandas, Arrow, the modules of Spark and ours. The program that Spark
starts instead (`fork_client`) passes its arguments, environment and standard streams to this process, whose
fork runs the module in its place. It ends with the driver.
"""

from __future__ import annotations

import fcntl
import json
import os
import runpy
import select
import signal
import socket
import sys
import warnings
from contextlib import suppress
from pathlib import Path

from soak.service.files import raise_descriptor_limit
from spark.cluster.fork_client import SOCKET

_STREAMS = 3  # standard input, output and error


def listen() -> socket.socket:
    """Return a socket in the working folder that only this user may connect to."""
    listener, draft = socket.socket(socket.AF_UNIX), f"{SOCKET}.new"
    mask = os.umask(0o077)
    listener.bind(draft)
    os.umask(mask)
    listener.listen()
    Path(draft).rename(SOCKET)  # a client that finds it can connect
    return listener


def fork_until_end_of_input(listener: socket.socket) -> socket.socket | None:
    """Return the connection in the fork that serves it, and None in this process when its input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the forks
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return None
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            return connection
        connection.close()


def run_module_of(connection: socket.socket) -> None:
    """Run the module that the client names, in its environment and with its streams."""
    _, streams, _, _ = socket.recv_fds(connection, 1, _STREAMS)
    with connection.makefile("rb") as file:
        arguments, environment = json.load(file)
    for place, stream in enumerate(streams):
        os.dup2(stream, place)
        os.close(stream)
    # Spark ends a Python by a signal to the client, whose end closes the connection
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(connection, fcntl.F_SETFL, os.O_ASYNC)
    connection.send(b"\0")  # the client may wait now; before, it would run the module itself
    os.environ.clear()
    os.environ.update(environment)
    # What `ps` shows: the name of the module, or of the worker that a daemon is for.
    with suppress(OSError):
        Path("/proc/self/comm").write_text(arguments[-1].rpartition(".")[2])
    sys.argv = ["-m", *arguments[1:]]
    # the module may be imported already, which is what this process is for
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def main() -> None:
    """Serve, or in a fork do what was asked for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from a terminal; the driver ends the JVM
    raise_descriptor_limit()  # as the JVM does for its own children
    listener = listen()
    from spark.cluster.worker_daemon import import_shared  # noqa: PLC0415  # clients may connect meanwhile

    import_shared()
    connection = fork_until_end_of_input(listener)
    if connection is not None:
        run_module_of(connection)


if __name__ == "__main__":
    main()
