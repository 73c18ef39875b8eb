"""A lab that stands until it is told to go: where its files are, what it consists of, how it is spoken to.

One of each kind of broker a user. A keeper, a process of its own, has the brokers as children, so none of
them outlives it; the lock that it holds says whether it lives. Who starts or ends a lab holds another.
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
from soak.runtime.context import boot_id
from soak.service import children
from soak.service.files import file_lock, is_locked, lock_holder, user_cache, write_atomically

START_LIMIT_NS = 600 * SECOND_NS  # the jars may have to be fetched
ANSWER_SECONDS = 300.0  # a cluster of many partitions takes its time to come back
_POLL_NS = SECOND_NS // 20


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Asked:
    """What a lab is to be."""

    broker: str
    folder: str  # of the brokers' files
    nodes: int = 1
    partitions: int = 0  # it is to hold, copies included
    settings: dict[str, str] = field(default_factory=dict)
    drive: LabDrive | None = None  # an injected one for their data


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Part:
    """One process of a lab; `start_ticks` tells it from another that got its number."""

    number: int
    pid: int
    start_ticks: int
    log: str


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Injected:
    """The injected drive of one broker; `control` is the file that it heeds."""

    number: int
    device: str
    control: str


@dataclass(frozen=True, kw_only=True, config=STRICT)
class State:
    """What a lab is."""

    asked: Asked
    addresses: dict[str, str]
    parts: list[Part]
    boot: str  # after another one the processes are nobody's
    drives: list[Injected] = field(default_factory=list)


class Home:
    """The folder by which the lab of one kind is found again; nothing is created by looking."""

    def __init__(self, broker: str, root: Path | None = None) -> None:
        self.broker = broker
        self.path = (root or user_cache() / "labs") / broker
        self.lock = self.path / "lock"
        self.change_lock = self.path / "change.lock"
        self.asked = self.path / "asked.json"
        self.state = self.path / "state.json"
        self.log = self.path / "keeper.log"
        self.files = self.path / "files"  # of the brokers, unless another folder is named

    def is_held(self) -> bool:
        """Return whether a keeper lives."""
        return is_locked(self.lock)

    def is_changing(self) -> bool:
        """Return whether somebody starts or ends the lab."""
        return is_locked(self.change_lock)

    @contextlib.contextmanager
    def changed_by_us_alone(self) -> Iterator[None]:
        """Keep others from starting or ending this lab while the block runs.

        Raises:
            LabError: somebody is at it.
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(file_lock(self.change_lock, f"the lab's {self.broker}"))
            except RunFolderError as error:
                raise LabError(f"{error}: it starts or ends the lab") from error
            yield

    def read(self) -> State | None:
        """Return what the lab is, or was before its keeper was killed; None when there is none."""
        try:
            return TypeAdapter(State).validate_json(self.state.read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def write(self, state: State) -> None:
        write_atomically(self.state, TypeAdapter(State).dump_json(state).decode())

    @contextlib.contextmanager
    def socket_address(self) -> Iterator[str]:
        """Give the keeper's address: through a descriptor, as an address of this kind has 107 bytes."""
        descriptor = os.open(self.path, os.O_PATH | os.O_DIRECTORY)
        try:
            yield f"/proc/self/fd/{descriptor}/keeper.sock"
        finally:
            os.close(descriptor)


def up(home: Home, asked: Asked, *, prepare: Callable[[], None] = lambda: None) -> State:
    """Start a lab and return when it serves clients; first `prepare`, once nobody else can start one.

    What a lab whose keeper was killed left behind is cleared away first.

    Raises:
        LabError: there is one already, or it did not start; nothing is left then.
    """
    with home.changed_by_us_alone():
        if home.is_held():
            raise LabError(
                f"a lab's {home.broker} is up already; `soak lab down {home.broker}` ends it"
            )
        prepare()
        clear(home)
        write_atomically(home.asked, TypeAdapter(Asked).dump_json(asked).decode())
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
    """Have the keeper do something with node `number`, or with all, and return when it is done.

    Raises:
        LabError: there is no lab, or it failed.
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
        raise LabError(answer.get("error") or f"the keeper has ended; {home.log} says why")


def down(home: Home) -> None:
    """End a lab and clear away what killed ones left; files stay, but on an injected drive.

    Raises:
        LabError: it does not end, or somebody else is starting or ending it.
    """
    if home.path.exists():
        with home.changed_by_us_alone():
            if home.is_held():
                if home.read() is None:  # who waited for it to come up was killed
                    end_holder(home.lock)
                else:
                    ask(home, "down")
                _await_end(home)
            clear(home)
    block_device.clear_left()


def end_holder(lock: Path) -> int:
    """Have the process that holds a lock undo what it has begun and end; return its number.

    Raises:
        LabError: it has not said who it is, or is another user's.
    """
    process = lock_holder(lock)
    if process is None:
        raise LabError(f"{lock}: who holds it is about to begin or to end; try again")
    try:
        os.kill(process, signal.SIGTERM)
    except ProcessLookupError:  # it has ended meanwhile
        pass
    except PermissionError as error:
        raise LabError(f"process {process} is not this user's to end") from error
    return process


def clear(home: Home) -> None:
    """Kill what a lab whose keeper is gone left running, and forget it."""
    state = home.read()
    for part in state.parts if state and state.boot == boot_id() else ():
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(part.pid)  # from here on the number is nobody else's
            try:
                if start_ticks(part.pid) == part.start_ticks:
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            finally:
                os.close(descriptor)
    home.state.unlink(missing_ok=True)
    (home.path / "keeper.sock").unlink(missing_ok=True)


def start_ticks(pid: int) -> int | None:
    """Return when a process began, in the kernel's ticks since the boot; None when it has ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return (
        None if words[0] in "ZX" else int(words[19])
    )  # proc(5): the 22nd field, the 3rd is here the 1st


def _await_end(home: Home) -> None:
    clock = SystemClock()
    deadline_ns = clock.mono_ns() + int(ANSWER_SECONDS) * SECOND_NS
    while home.is_held():
        if clock.mono_ns() > deadline_ns:
            raise LabError(f"the lab's {home.broker} does not end; {home.log} may say why")
        clock.sleep_until(clock.mono_ns() + _POLL_NS)


def _await_up(home: Home, keeper: subprocess.Popen[bytes]) -> State:
    clock = SystemClock()
    deadline_ns = clock.mono_ns() + START_LIMIT_NS
    while clock.mono_ns() < deadline_ns:
        state = home.read()
        if state is not None:
            return state
        if keeper.poll() is not None:
            raise LabError(children.log_tail(home.log).strip() or "the lab's keeper has ended")
        clock.sleep_until(clock.mono_ns() + _POLL_NS)
    raise LabError(f"the lab was not up in {START_LIMIT_NS // SECOND_NS} s; {home.log} may say why")
