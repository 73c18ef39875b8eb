"""Whether a cluster gave us executors, and whether they see the run folder that they share with the driver.

Executors read journals and write digests and the detector's state as plain files. So the folder is on
storage that every host mounts at the same path; an object store has no appends and no locks of its own.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark import SparkContext

from soak.core.errors import NotAvailableError, PlanError, RunFolderError
from soak.core.ports import Clock
from soak.core.units import SECOND_NS

PATIENCE_NS = 120 * SECOND_NS
"""How long the first executor may take: a node of a cluster may have to be started, or an image loaded."""

_LOOK_NS = SECOND_NS // 2


def run_folder_path(text: str) -> Path:
    """Return the path of a run folder that is given as a path or as a `file:` URI.

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
        f"{text}: a run folder is read and written as files, so {scheme}:// is not supported. Give a path "
        "or file:///PATH that this host and all executors mount (NFS, CephFS, or the store's own mount)"
    )


def check_executors(context: SparkContext, known: Path, clock: Clock) -> None:
    """Wait for executors and have them look at the folder of a file before they work there, and at that file.

    Raises:
        NotAvailableError: no executor came: Spark itself would wait for ever.
        RunFolderError: one of them does not see the same folder, or may not write there.
    """
    jvm = context._jsc.sc()  # noqa: SLF001  # the only way to the JVM
    await_executor(lambda: jvm.getExecutorMemoryStatus().size() - 1, str(context.master), clock)
    _check_folder(context, known)


def await_executor(executors: Callable[[], int], master: str, clock: Clock) -> None:
    """Return when there is an executor; the number of them is asked for again and again.

    Raises:
        NotAvailableError: there is none after `PATIENCE_NS`.
    """
    end_ns = clock.mono_ns() + PATIENCE_NS
    while executors() < 1:
        if clock.mono_ns() >= end_ns:
            raise NotAvailableError(
                f"{master} started no executor in {PATIENCE_NS // SECOND_NS} s: it has no free cores or "
                "memory (another application may hold them), or executors cannot reach this host "
                "(--conf spark.driver.host=ADDRESS)"
            )
        clock.sleep_until(clock.mono_ns() + _LOOK_NS)


def _check_folder(context: SparkContext, known: Path) -> None:
    parts = max(2, context.defaultParallelism)
    path, folder, wanted = str(known), str(known.parent), known.read_bytes()

    def look(_: Iterable[int]) -> Iterator[tuple[str, str]]:
        import os  # noqa: PLC0415  # runs in a worker

        try:
            with open(path, "rb") as file:  # noqa: PTH123  # as above
                is_same = file.read() == wanted
        except OSError as error:
            yield socket.gethostname(), f"{error.strerror}: {path}"
            return
        if not is_same:
            yield socket.gethostname(), f"{path} is another file there"
        elif not os.access(folder, os.W_OK | os.X_OK):
            yield socket.gethostname(), f"may not write in {folder}"

    faults = context.parallelize(range(parts), parts).mapPartitions(look).collect()
    if faults:
        host, fault = faults[0]
        raise RunFolderError(
            f"executors do not share {folder}: {host}: {fault}. It must be on storage that all hosts "
            "mount at the same path, and belong to a user or group of theirs"
        )
