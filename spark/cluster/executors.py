"""Whether a cluster gave us executors, and whether they see the folder that they share with the driver.

Executors read journals and write digests and the detector's state as plain files. So the folder is on
storage that every host mounts at the same path; an object store has no appends and no locks of its own.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

from soak.core.errors import NotAvailableError, RunFolderError
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.service.files import file_lock, is_locked

PATIENCE_NS = 120 * SECOND_NS
"""How long the first executor may take: a node of a cluster may have to be started, or an image loaded."""

_LOOK_NS = SECOND_NS // 10
_SHARED = ".shared-"

Look = tuple[str, str, str]
"""A host, why it cannot work in the folder, and why it cannot work otherwise; "" where it can."""


@contextmanager
def shared_file(folder: Path) -> Iterator[Path]:
    """Keep a file in a folder for as long as executors may be asked whether they see it.

    It has a name of its own: a copy of the folder, or what a host remembers of it, has no such file.
    It is locked while it is kept: one that nothing locks is of a process that was killed, and is removed.

    Raises:
        RunFolderError: this user may not write there.
    """
    for left in folder.glob(f"{_SHARED}*"):
        with suppress(RunFolderError):  # of another user
            if not is_locked(left):
                left.unlink(missing_ok=True)
    path = folder / f"{_SHARED}{uuid4()}"
    not_yet_locked = folder / f".new{path.name}"
    with file_lock(not_yet_locked, str(folder)):
        not_yet_locked.rename(path)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


def fault_of_folder(shared: Path) -> str:
    """Return why this process cannot work in the folder of a `shared_file`; "" if it can."""
    try:
        shared.stat()
    except FileNotFoundError:
        return f"{shared.parent} there is another folder, or missing"
    except OSError as error:
        return f"{shared.parent}: {error.strerror}"
    return (
        "" if os.access(shared.parent, os.W_OK | os.X_OK) else f"may not write in {shared.parent}"
    )


def check_executors(
    context: SparkContext,
    shared: Path,
    clock: Clock,
    *,
    stop: threading.Event | None = None,
    alive: Callable[[], None] = lambda: None,
    fault_of: Callable[[], str] = lambda: "",
) -> bool:
    """Wait for executors and have them look at a `shared_file`, and at what else they need for their work.

    Returns False when `stop` was set before they had looked. `alive` is called again and again meanwhile.
    `fault_of` is called in executors, and says why they cannot work, or "".

    Raises:
        NotAvailableError: no executor came or answered, and Spark itself would wait for ever; or one cannot
            work.
        RunFolderError: one of them does not see the same folder, or may not write there.
    """
    jvm = context._jsc.sc()  # noqa: SLF001  # the only way to the JVM
    master = str(context.master)

    def executors() -> int:
        alive()
        return int(jvm.getExecutorMemoryStatus().size()) - 1

    if not await_executor(executors, master, clock, stop):
        return False
    parts = max(2, context.defaultParallelism)

    def look(_: Iterable[int]) -> Iterator[Look]:
        yield socket.gethostname(), fault_of_folder(shared), fault_of()

    looks = context.parallelize(range(parts), parts).mapPartitions(look)
    found = await_looks(looks.collect, context.cancelAllJobs, master, clock, stop=stop, alive=alive)
    if found is None:
        return False
    for host, fault, _ in found:
        if fault:
            raise RunFolderError(
                f"executors do not share {shared.parent}: {host}: {fault}. It must be on storage that all "
                "hosts mount at the same path, and belong to a user of theirs"
            )
    for host, _, fault in found:
        if fault:
            raise NotAvailableError(f"{master}: the executor on {host} cannot work: {fault}")
    return True


def await_looks(
    collect: Callable[[], list[Look]],
    cancel: Callable[[], None],
    master: str,
    clock: Clock,
    *,
    stop: threading.Event | None = None,
    alive: Callable[[], None] = lambda: None,
) -> list[Look] | None:
    """Return what executors saw; None when `stop` was set before. A mount that hangs keeps them for ever.

    `cancel` ends `collect`, which is called in a thread.

    Raises:
        NotAvailableError: an executor was lost, or did not answer within `PATIENCE_NS`.
    """
    end_ns = clock.mono_ns() + PATIENCE_NS
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(collect)
        while not job.done():
            alive()
            if stop is not None and stop.is_set():
                cancel()
                return None
            if clock.mono_ns() >= end_ns:
                cancel()
                raise NotAvailableError(
                    f"{master}: an executor does not answer; does the storage of the folder hang on its host?"
                )
            clock.sleep_until(clock.mono_ns() + _LOOK_NS)
        try:
            return job.result()
        except Py4JJavaError as error:
            reason = str(error.java_exception.getMessage()).splitlines()[0]
            raise NotAvailableError(f"{master}: executors cannot work: {reason}") from error


def await_executor(
    executors: Callable[[], int], master: str, clock: Clock, stop: threading.Event | None = None
) -> bool:
    """Return True when there is an executor, and False when `stop` is set before.

    The number of executors is asked for again and again.

    Raises:
        NotAvailableError: there is none after `PATIENCE_NS`.
    """
    end_ns = clock.mono_ns() + PATIENCE_NS
    while executors() < 1:
        if stop is not None and stop.is_set():
            return False
        if clock.mono_ns() >= end_ns:
            raise NotAvailableError(
                f"{master} started no executor in {PATIENCE_NS // SECOND_NS} s: it has no free cores or "
                "memory (another application may hold them), or executors cannot reach this host "
                "(--conf spark.driver.host=ADDRESS)"
            )
        clock.sleep_until(clock.mono_ns() + _LOOK_NS)
    return True
