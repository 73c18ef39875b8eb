"""Whether a cluster gave us executors, and whether they see the folder that they share with the driver.

Executors read journals and write digests and the detector's state as plain files. So the folder is on
storage that every host mounts at the same path; an object store has no appends and no locks of its own.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from pyspark import SparkContext

from soak.core.errors import NotAvailableError, PlanError, RunFolderError
from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.service.files import file_lock, is_locked

PATIENCE_NS = 120 * SECOND_NS
"""How long the first executor may take: a node of a cluster may have to be started, or an image loaded."""

_LOOK_NS = SECOND_NS // 2
_SHARED = ".shared-"


def run_folder_path(text: str) -> Path:
    """Return the path of a folder that is given as a path or as a `file:` URI.

    Raises:
        PlanError: it is a URI of something that is not mounted as files.
    """
    scheme = urlsplit(text).scheme
    if not scheme or "://" not in text:
        return Path(text)
    found = urlsplit(text)
    if scheme == "file" and found.netloc in {"", "localhost"}:
        return Path(unquote(found.path))
    raise PlanError(
        f"{text}: this folder is read and written as files, so {scheme}:// is not supported. Give a path "
        "or file:///PATH that this host and all executors mount (NFS, CephFS, or the store's own mount)"
    )


@contextmanager
def shared_file(folder: Path) -> Iterator[Path]:
    """Keep a file in a folder for as long as executors may be asked whether they see it.

    It has a name of its own: a copy of the folder, or what a host remembers of it, has no such file.
    It is locked while it is kept, so that files that killed processes left are told from it and removed.

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
    if not shared.exists():
        return f"{shared.parent} there is another folder, or missing"
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

    Returns False when `stop` was set before there was one. `alive` is called again and again meanwhile.
    `fault_of` is called in executors, and says why they cannot work, or "".

    Raises:
        NotAvailableError: no executor came, and Spark itself would wait for ever; or one cannot work.
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

    def look(_: Iterable[int]) -> Iterator[tuple[str, str, str]]:
        yield socket.gethostname(), fault_of_folder(shared), fault_of()

    found = context.parallelize(range(parts), parts).mapPartitions(look).collect()
    alive()
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
