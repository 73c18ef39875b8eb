"""A standing lab, which runs until `soak lab down`: its files, its state, and requests to its keeper.

A user has at most one of each kind of broker. The brokers are children of a keeper process, so none of them
outlives it. The keeper holds a lock as long as it runs; a process that starts or ends a lab holds another.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from soak.core.clock import SystemClock
from soak.core.errors import LabError, RunFolderError
from soak.core.plan.config import STRICT
from soak.core.plan.plan import LabDrive
from soak.core.units import SECOND_NS
from soak.lab.drive import block_device
from soak.lab.files import start_ticks
from soak.runtime.grid import boot_id
from soak.service import children
from soak.service.files import file_lock, is_locked, lock_holder, user_cache, write_atomically

START_LIMIT_NS = 600 * SECOND_NS  # the jars may have to be fetched
ANSWER_SECONDS = 300.0  # a cluster of many partitions needs minutes to start
_POLL_NS = SECOND_NS // 20


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LabRequest:
    """A request for a lab."""

    broker: str
    folder: str  # for the brokers' files
    nodes: int = 1
    partitions: int = 0  # replicas that it will hold
    settings: dict[str, str] = field(default_factory=dict)
    drive: LabDrive | None = None  # injected drives for their data


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ProcessState:
    """One process of a lab; `start_ticks` distinguishes it from a later one with its number."""

    number: int
    pid: int
    start_ticks: int
    log: str


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DriveState:
    """The injected drive of one broker; `control` is the file that controls it."""

    number: int
    device: str
    control: str


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LabState:
    """A lab that runs."""

    asked: LabRequest
    addresses: dict[str, str]
    parts: list[ProcessState]
    boot: str  # the processes do not survive it
    drives: list[DriveState] = field(default_factory=list)


class Home:
    """The folder of the standing lab of one kind of broker; created by `up`."""

    def __init__(self, broker: str, root: Path | None = None) -> None:
        self.broker = broker
        self.path = (root or user_cache() / "labs") / broker
        self.lock = self.path / "lock"
        self.change_lock = self.path / "change.lock"
        self.asked = self.path / "asked.json"
        self.state = self.path / "state.json"
        self.log = self.path / "keeper.log"
        self.files = self.path / "files"  # of the brokers, unless the user names another folder

    def is_held(self) -> bool:
        """Return whether a keeper runs."""
        return is_locked(self.lock)

    def is_changing(self) -> bool:
        """Return whether a process is starting or ending the lab."""
        return is_locked(self.change_lock)

    @contextlib.contextmanager
    def change_locked(self) -> Iterator[None]:
        """Keep other processes from starting or ending this lab during the block.

        Raises:
            LabError: another process is starting or ending it.
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(file_lock(self.change_lock, f"the lab's {self.broker}"))
            except RunFolderError as error:
                raise LabError(f"{error}: it starts or ends the lab") from error
            yield

    def read(self) -> LabState | None:
        """Return the lab, also one whose keeper was killed; None if there is none."""
        try:
            return TypeAdapter(LabState).validate_json(self.state.read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def write(self, state: LabState) -> None:
        write_atomically(self.state, TypeAdapter(LabState).dump_json(state).decode())

    @contextlib.contextmanager
    def socket_address(self) -> Iterator[str]:
        """Give the keeper's address through a descriptor: socket addresses are limited to 107 bytes."""
        descriptor = os.open(self.path, os.O_PATH | os.O_DIRECTORY)
        try:
            yield f"/proc/self/fd/{descriptor}/keeper.sock"
        finally:
            os.close(descriptor)


def up(home: Home, asked: LabRequest, *, prepare: Callable[[], None] = lambda: None) -> LabState:
    """Start a lab and return when it serves clients; call `prepare` first, under the lock.

    The processes of a lab whose keeper was killed are killed first.

    Raises:
        LabError: there is a lab already, or it did not start; nothing is left running then.
    """
    with home.change_locked():
        if home.is_held():
            raise LabError(
                f"a lab's {home.broker} is up already; `soak lab down {home.broker}` ends it"
            )
        prepare()
        clear(home)
        write_atomically(home.asked, TypeAdapter(LabRequest).dump_json(asked).decode())
        home.log.unlink(missing_ok=True)
        with home.log.open("ab", buffering=0) as log:
            keeper = subprocess.Popen(
                [sys.executable, "-m", "soak.lab.standing_keeper", str(home.path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # it stays when the terminal goes
            )
        try:
            return _await_up(home, keeper)
        except BaseException:  # an interrupt too must leave nothing behind
            children.stop(keeper, ANSWER_SECONDS)
            raise


def ask(home: Home, action: str, number: int = 0) -> None:
    """Send the keeper a request for node `number`, or for all (0), and return when it is done.

    Raises:
        LabError: there is no lab, or the request failed.
    """
    if not home.is_held():
        raise LabError(f"no lab's {home.broker} is up; `soak lab up {home.broker}` starts one")
    with home.socket_address() as address, socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_SECONDS)
        try:
            connection.connect(address)
            connection.sendall(json.dumps({"action": action, "number": number}).encode() + b"\n")
            answer: Mapping[str, str] = json.loads(connection.makefile("rb").readline() or b"{}")
        except OSError as error:
            raise LabError(f"the keeper of the lab's {home.broker} does not answer") from error
    if answer.get("error", "it ended") != "":
        raise LabError(answer.get("error") or f"the keeper has ended; see {home.log}")


def down(home: Home) -> None:
    """End a lab and remove the remains of killed ones; its files stay, except on injected drives.

    Raises:
        LabError: it does not end, or another process is starting or ending it.
    """
    if home.path.exists():
        with home.change_locked():
            if home.is_held():
                if home.read() is None:  # the command that started it was killed
                    end_holder(home.lock)
                else:
                    ask(home, "down")
                _await_end(home)
            clear(home)
    block_device.clear_abandoned()


def end_holder(lock: Path) -> int:
    """Send SIGTERM to the process that holds a lock and return its id; it cleans up before it ends.

    Raises:
        LabError: the lock does not name its holder yet, or the process belongs to another user.
    """
    process = lock_holder(lock)
    if process is None:
        raise LabError(f"{lock}: its holder is just starting or ending; try again")
    try:
        os.kill(process, signal.SIGTERM)
    except ProcessLookupError:  # it has ended meanwhile
        pass
    except PermissionError as error:
        raise LabError(f"process {process} belongs to another user") from error
    return process


def clear(home: Home) -> None:
    """Kill the processes of a lab whose keeper has ended, and remove its state."""
    state = home.read()
    # Version 0.1.0 stored the boot id with a newline.
    for part in state.parts if state and state.boot.strip() == boot_id() else ():
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(part.pid)  # from here on the number stays its own
            try:
                if start_ticks(part.pid) == part.start_ticks:
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            finally:
                os.close(descriptor)
    home.state.unlink(missing_ok=True)
    (home.path / "keeper.sock").unlink(missing_ok=True)


def _await_end(home: Home) -> None:
    clock = SystemClock()
    deadline_ns = clock.mono_ns() + int(ANSWER_SECONDS) * SECOND_NS
    while home.is_held():
        if clock.mono_ns() > deadline_ns:
            raise LabError(f"the lab's {home.broker} does not end; see {home.log}")
        clock.sleep_until(clock.mono_ns() + _POLL_NS)


def _await_up(home: Home, keeper: subprocess.Popen[bytes]) -> LabState:
    clock = SystemClock()
    deadline_ns = clock.mono_ns() + START_LIMIT_NS
    while clock.mono_ns() < deadline_ns:
        state = home.read()
        if state is not None:
            return state
        if keeper.poll() is not None:
            raise LabError(children.log_tail(home.log).strip() or "the lab's keeper has ended")
        clock.sleep_until(clock.mono_ns() + _POLL_NS)
    raise LabError(f"the lab was not up in {START_LIMIT_NS // SECOND_NS} s; see {home.log}")
