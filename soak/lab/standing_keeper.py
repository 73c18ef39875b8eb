"""The keeper process of a standing lab: `python -m soak.lab.standing_keeper HOME`."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from soak.core.clock import SystemClock
from soak.core.errors import LabError, RunFolderError, SoakError
from soak.core.plan.config import STRICT
from soak.core.units import SECOND_NS
from soak.lab.files import start_ticks
from soak.lab.lab import Lab, start_lab
from soak.lab.ports import Node, Running
from soak.lab.standing import DriveState, Home, LabRequest, LabState, ProcessState
from soak.runtime.grid import boot_id
from soak.service.files import file_lock, write_atomically
from soak.service.signals import exit_on_sigterm

_ACTIONS: Mapping[str, Callable[[Node], None]] = {
    "kill": lambda node: node.kill(),
    "restart": lambda node: node.restart(),
    "stop": lambda node: node.stop(),
}
_TRIES = 25
_REQUEST_SECONDS = 10.0  # a client sends its request at once


@dataclass(frozen=True, kw_only=True, config=STRICT)
class _Request:
    action: Literal["kill", "restart", "stop", "down"]
    number: int = 0


def keep(home: Home) -> None:
    """Start the lab and serve requests until one of them, or SIGTERM, ends it.

    Raises:
        SoakError: the lab could not be started; nothing is left running.
    """
    asked = TypeAdapter(LabRequest).validate_json(home.asked.read_bytes())
    with contextlib.ExitStack() as stack:
        _take_lock(home, stack)
        folder = Path(asked.folder)
        _claim(folder, asked)
        lab = start_lab(
            folder,
            asked.settings,
            kind=asked.broker,
            nodes=asked.nodes,
            partitions=asked.partitions,
            drive=asked.drive,
            with_mailbox=False,
            on_mail=lambda _: None,
        )
        try:
            with home.socket_address() as address, socket.socket(socket.AF_UNIX) as listener:
                listener.bind(address)
                listener.listen()
                home.write(_state(asked, lab))
                serve(home, asked, lab, listener)
        finally:
            lab.stop()
            home.state.unlink(missing_ok=True)
            (home.path / "keeper.sock").unlink(missing_ok=True)


def _take_lock(home: Home, stack: contextlib.ExitStack) -> None:
    """Take the keeper's lock; a process that checks it holds it for a moment."""
    clock = SystemClock()
    for last in (False,) * _TRIES + (True,):
        try:
            stack.enter_context(file_lock(home.lock, f"the lab's {home.broker}"))
        except RunFolderError:
            if last:
                raise
            clock.sleep_until(clock.mono_ns() + SECOND_NS // 50)
        else:
            return


def _claim(folder: Path, asked: LabRequest) -> None:
    """Note in a folder which lab its files belong to.

    Raises:
        LabError: they belong to a lab of another kind or size.
    """
    mark = folder / "soak-lab.json"
    own = {"broker": asked.broker, "nodes": asked.nodes}
    if mark.exists() and (other := json.loads(mark.read_text())) != own:
        raise LabError(
            f"{folder} holds a {other['broker']} of {other['nodes']} brokers; name another --dir"
        )
    write_atomically(mark, json.dumps(own))


def serve(home: Home, asked: LabRequest, lab: Lab, listener: socket.socket) -> None:
    """Answer requests until one is `down`; an error in a request does not end the lab."""
    action = ""
    while action != "down":
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(_REQUEST_SECONDS)
            action, error = _handle(lab.broker, connection)
            try:
                home.write(_state(asked, lab))
                connection.sendall(json.dumps({"error": error}).encode() + b"\n")
            except OSError as failure:  # the client has ended, or the disk is full
                text = f"no answer to {action!r}: {failure}"
                print(text, file=sys.stderr, flush=True)  # into its log  # noqa: T201


def _handle(running: Running, connection: socket.socket) -> tuple[str, str]:
    """Handle the request of a connection; return its action, and the error or ""."""
    try:
        request = _parse_request(connection.makefile("rb").readline(4096))
        if request.action != "down":
            _apply(running, request)
    except (SoakError, OSError, subprocess.SubprocessError) as failure:
        return "", str(failure) or repr(failure)
    return request.action, ""


def _parse_request(line: bytes) -> _Request:
    """Return the request in a line.

    Raises:
        LabError: it is not a request.
    """
    try:
        return TypeAdapter(_Request).validate_json(line)
    except ValidationError as error:
        raise LabError(f"not a request: {line[:200]!r}") from error


def _apply(running: Running, request: _Request) -> None:
    """Apply a request to one node, or to all.

    Raises:
        LabError: there is no such node, or the request failed.
    """
    nodes = [node for node in running.nodes if request.number in (0, node.number)]
    if not nodes:
        known = ", ".join(str(node.number) for node in running.nodes)
        raise LabError(f"the lab has no broker {request.number}; known: {known}")
    if request.number == 0 and request.action == "restart":
        running.restart()  # all at once, because brokers need each other to become ready
        return
    for node in nodes:
        _ACTIONS[request.action](node)


def _state(asked: LabRequest, lab: Lab) -> LabState:
    parts = [
        ProcessState(
            number=node.number,
            pid=node.pid,
            start_ticks=start_ticks(node.pid) or 0,
            log=str(node.log_path),
        )
        for node in lab.broker.nodes
    ]
    drives = [
        DriveState(number=number, device=made.device, control=str(made.control))
        for number, made in lab.drives.items()
    ]
    return LabState(
        asked=asked,
        addresses=dict(lab.broker.addresses),
        parts=parts,
        drives=drives,
        boot=boot_id(),
    )


def main() -> None:
    exit_on_sigterm()
    path = Path(sys.argv[1])
    try:
        keep(Home(path.name, path.parent))
    except (SoakError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
