"""A JVM is asked by its own socket: a stand-in that does as one does, so that no Java has to start."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from soak.core.errors import LabError
from soak.lab import jvm_attach

_JVM = """
import os, signal, socket, sys
address = f"/tmp/.java_pid{os.getpid()}"

def listen(*_):
    if not os.path.exists(f"/proc/self/cwd/.attach_pid{os.getpid()}"):
        return
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address + ".tmp")
    listener.listen()
    os.rename(address + ".tmp", address)  # whoever sees it can connect
    while os.path.exists(address):
        connection, _ = listener.accept()
        asked = connection.recv(100)
        connection.sendall(sys.argv[1].encode() + b"\\n" + asked)
        connection.close()

signal.signal(signal.SIGQUIT, listen)
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def jvm(tmp_path: Path) -> Iterator[int]:
    yield from stand_in(tmp_path, "0")


@pytest.fixture
def refusing(tmp_path: Path) -> Iterator[int]:
    yield from stand_in(tmp_path, "101")


def stand_in(folder: Path, says: str) -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", _JVM, says], cwd=folder, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        process.kill()
    socket_of(process.pid).unlink(missing_ok=True)


def socket_of(pid: int) -> Path:
    return Path(f"/tmp/.java_pid{pid}")


def test_a_jvm_is_asked_again_and_again_and_nothing_is_left(jvm: int, tmp_path: Path) -> None:
    """Killed, it would leave its socket for good."""
    jvm_attach.collect_garbage(jvm)
    during = socket_of(jvm).exists()
    jvm_attach.collect_garbage(jvm)
    jvm_attach.remove_socket(jvm)

    assert during
    assert not socket_of(jvm).exists()
    assert list(tmp_path.iterdir()) == []


def test_the_socket_of_one_that_was_killed_is_not_taken_for_that_of_this_one(jvm: int) -> None:
    """Numbers of processes come again."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(socket_of(jvm)))

    jvm_attach.collect_garbage(jvm)

    assert socket_of(jvm).exists()


def test_one_that_refuses_or_has_ended_is_reported(refusing: int) -> None:
    """A collection that did not happen is no fault."""
    with pytest.raises(LabError, match="refuses to collect: b'101"):
        jvm_attach.collect_garbage(refusing)
    with subprocess.Popen(["true"]) as ended:
        pass
    with pytest.raises(LabError, match="does not answer"):
        jvm_attach.collect_garbage(ended.pid)


def test_the_socket_of_a_killed_jvm_is_cleared_and_that_of_a_live_one_is_not(jvm: int) -> None:
    """A JVM makes it when it is asked for the first time, and takes it away when it ends in order."""
    with subprocess.Popen(["true"]) as gone:
        pass
    left, alive = (Path(f"/tmp/.java_pid{pid}") for pid in (gone.pid, jvm))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(left))
    jvm_attach.collect_garbage(jvm)

    jvm_attach.remove_sockets_of_ended_jvms()

    assert (left.exists(), alive.exists()) == (False, True)
