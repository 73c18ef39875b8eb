"""Files that processes share: atomic replacement, lock files, the user's cache, and what ships with soakd."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import resource
import stat
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import soak
from soak.core import json_text
from soak.core.errors import NotAvailableError, RunFolderError

MAX_SMALL_BYTES = 2**26
"""Far more than any small file of a run has, `summary.json` included."""
_MANY_DESCRIPTORS = 2**20


def user_cache() -> Path:
    """Return `$XDG_CACHE_HOME/soakd`, or `~/.cache/soakd`; it need not exist yet.

    Raises:
        NotAvailableError: this user has no home folder, as an arbitrary user of a container.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The base directory specification: a relative path is to be ignored.
    if base.startswith("/"):
        return Path(base) / "soakd"
    try:
        return Path.home() / ".cache" / "soakd"
    except RuntimeError as error:
        raise NotAvailableError(
            "this user has no home folder: set XDG_CACHE_HOME to a folder that it may write"
        ) from error


def shipped_folder(name: str, holds: str) -> Path:
    """Return a folder that ships with soakd, such as `configs`, in a checkout or an installation.

    `holds` names a file in it: another program may have a folder of that name next to our packages.

    Raises:
        NotAvailableError: this installation does not have it.
    """
    installed = Path(sysconfig.get_path("data")) / "share" / "soakd"
    for folder in (Path(soak.__file__).parents[1] / name, installed / name):
        if (folder / holds).is_file():
            return folder
    raise NotAvailableError(f"this installation of soakd ships no {name}")


def shipped_configs() -> Path:
    """Return the folder of the plans and drills that ship, as `shipped_folder`."""
    return shipped_folder("configs", "reference.yaml")


def read_small(path: Path, max_bytes: int = MAX_SMALL_BYTES, flags: int = 0) -> bytes:
    """Return what a regular file holds; others may have put a pipe, a device or a huge file in its place.

    `flags` are further ones of open(2), such as `O_NOFOLLOW`.

    Raises:
        OSError: it cannot be read, is no regular file, or has more than `max_bytes`.
    """
    # Without O_NONBLOCK a pipe without a writer is waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | flags)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if found.st_size > max_bytes:
            raise OSError(errno.EFBIG, f"more than {max_bytes} bytes", str(path))
        return file.read(found.st_size)


def read_small_text(path: Path) -> str:
    """Return the text of a regular file; raises the errors of `read_small`, and `UnicodeDecodeError`."""
    return read_small(path).decode()


def read_json(path: Path) -> Any:  # noqa: ANN401  # whatever the file holds
    """Return what a regular JSON file holds; raises the errors of `read_small` and of `json_text.loads`."""
    return json_text.loads(read_small(path))


def write_atomically(path: Path, text: str, mode: int = 0o640) -> None:
    """Replace `path` by a file with this text, which is on disk before it takes the name.

    Raises:
        OSError: with the path; the old file is unchanged and no temporary file is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)  # a full drive would get one more with each attempt
        raise OSError(error.errno, error.strerror, str(path)) from error


def cached_script(folder: Path, name: str, script: str, inside: str = "") -> Path:
    """Return the path of a program with this text, below `folder`; it is written if needed.

    Its text is a part of its name, and a second process never runs half of it. With `inside` the name is that
    of a folder which holds the program at this path.

    Raises:
        NotAvailableError: programs in this folder may not be run, as on a file system mounted with `noexec`.
    """
    digest = hashlib.sha256(script.encode()).hexdigest()[:12]
    program = folder / f"{name}-{digest}" / inside
    if not program.is_file():
        write_atomically(program, script, mode=0o755)
    if not os.access(program, os.X_OK):
        raise NotAvailableError(
            f"{program} may not be run: if its file system is mounted with noexec, set XDG_CACHE_HOME to a "
            "folder on another one"
        )
    return program


def free_descriptors(reserved: int) -> int:
    """Return how many more files this process may open, without those in use or `reserved`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MANY_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    in_use = sum(1 for _ in Path("/proc/self/fd").iterdir())
    return limit - max(in_use, reserved)


def raise_descriptor_limit() -> None:
    """Allow this process as many open files as the system lets it: a terminal gives 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # a container that forbids it
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextmanager
def reporting_permission_errors(path: Path) -> Iterator[None]:
    """Turn a refused write to `path` within the block into an error that names the file.

    Raises:
        RunFolderError: this user may not write there; other errors pass unchanged.
    """
    try:
        yield
    except PermissionError as error:
        raise RunFolderError(f"cannot write {path}: permission denied") from error


@contextmanager
def file_lock(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path` while the block runs; the kernel releases it if the process dies.

    Raises:
        RunFolderError: another process holds it, or this user may not write there.
    """
    with reporting_permission_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "another process"
            raise RunFolderError(f"{what} is in use by process {holder} ({path})") from error
        # The process id only informs other processes: on a full drive the lock holds without it.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


def lock_holder(path: Path) -> int | None:
    """Return the process id in a lock file; None while its holder has not written it."""
    try:
        text = read_small_text(path).strip()
    except FileNotFoundError:
        return None
    return int(text) if text.isdecimal() else None


def is_locked(path: Path) -> bool:
    """True while a process holds the lock file `path`.

    Raises:
        RunFolderError: this user may not open the file for writing, which asking requires.
    """
    try:
        with reporting_permission_errors(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
