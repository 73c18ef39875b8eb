"""Keeps a lab: `python -m soak.lab.standing_keeper HOME`, started by `soak.lab.standing`."""

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
from soak.lab.lab import Lab, start_lab
from soak.lab.ports import Node, Running
from soak.lab.standing import Asked, Home, Injected, Part, State, start_ticks
from soak.runtime.context import boot_id
from soak.service.files import file_lock, write_atomically
from soak.service.signals import exit_on_sigterm

_ACTIONS: Mapping[str, Callable[[Node], None]] = {
    "kill": lambda node: node.kill(),
    "restart": lambda node: node.restart(),
    "stop": lambda node: node.stop(),
}
_TRIES = 25
_ASK_SECONDS = 10.0  # for the words of a request, which come at once


@dataclass(frozen=True, kw_only=True, config=STRICT)
class _Request:
    action: Literal["kill", "restart", "stop", "down"]
    number: int = 0


def keep(home: Home) -> None:
    """Start what is asked for and serve requests until told to end, by one of them or by SIGTERM.

    Raises:
        SoakError: it could not be started; nothing is left running.
    """
    asked = TypeAdapter(Asked).validate_json(home.asked.read_bytes())
    with contextlib.ExitStack() as stack:
        _take(home, stack)
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


def _take(home: Home, stack: contextlib.ExitStack) -> None:
    """Take the lock that says that this keeper lives; who looks at it holds it for a moment."""
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


def _claim(folder: Path, asked: Asked) -> None:
    """Note what a folder's files are of.

    Raises:
        LabError: they are of a lab of another kind or size.
    """
    mark = folder / "soak-lab.json"
    own = {"broker": asked.broker, "nodes": asked.nodes}
    if mark.exists() and json.loads(mark.read_text()) != own:
        was = json.loads(mark.read_text())
        raise LabError(
            f"{folder} holds a {was['broker']} of {was['nodes']} brokers; name another --dir"
        )
    write_atomically(mark, json.dumps(own))


def serve(home: Home, asked: Asked, lab: Lab, listener: socket.socket) -> None:
    """Answer requests until one asks to end; none of them can end it otherwise."""
    action = ""
    while action != "down":
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(_ASK_SECONDS)
            action, error = _done(lab.broker, connection)
            try:
                home.write(_state(asked, lab))
                connection.sendall(json.dumps({"error": error}).encode() + b"\n")
            except OSError as failure:  # whoever asked has gone, or the drive is full
                print(f"no answer to {action!r}: {failure}", file=sys.stderr, flush=True)  # noqa: T201  # its log


def _done(running: Running, connection: socket.socket) -> tuple[str, str]:
    """Do what a connection asks for; return what that was, and what went wrong, or ""."""
    try:
        request = _request(connection.makefile("rb").readline(4096))
        if request.action != "down":
            _do(running, request)
    except (SoakError, OSError, subprocess.SubprocessError) as failure:
        return "", str(failure) or repr(failure)
    return request.action, ""


def _request(line: bytes) -> _Request:
    """Return what is asked for.

    Raises:
        LabError: nothing that there is.
    """
    try:
        return TypeAdapter(_Request).validate_json(line)
    except ValidationError as error:
        raise LabError(f"not a request: {line[:200]!r}") from error


def _do(running: Running, request: _Request) -> None:
    """Do it to one node, or to all.

    Raises:
        LabError: there is no such node, or it failed.
    """
    nodes = [node for node in running.nodes if request.number in (0, node.number)]
    if not nodes:
        known = ", ".join(str(node.number) for node in running.nodes)
        raise LabError(f"the lab has no broker {request.number}; known: {known}")
    if request.number == 0 and request.action == "restart":
        running.restart()  # at once: brokers need each other to become ready
        return
    for node in nodes:
        _ACTIONS[request.action](node)


def _state(asked: Asked, lab: Lab) -> State:
    parts = [
        Part(
            number=node.number,
            pid=node.pid,
            start_ticks=start_ticks(node.pid) or 0,
            log=str(node.log_path),
        )
        for node in lab.broker.nodes
    ]
    drives = [
        Injected(number=number, device=made.device, control=str(made.control))
        for number, made in lab.drives.items()
    ]
    return State(
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
