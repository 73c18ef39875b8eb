"""Fetch the jars that a lock file names, once and verified, into the user's cache; all of them or none.

`python -m soak.lab.jars.cache --lock FILE ROOT...` resolves the roots and writes a lock file.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from soak.core.clock import SystemClock
from soak.core.errors import LabError
from soak.core.units import SECOND_NS
from soak.lab.jars import ivy
from soak.lab.jars.lock import Artifact, parse_lock, render_lock
from soak.service.files import user_cache

KAFKA_LOCK = Path(__file__).parent / "kafka.lock"

_MARKER = "complete.json"
_LOCK_LIMIT_SECONDS = 900
_LOCK_POLL_NS = SECOND_NS // 5
_COMMENT = """Jars by coordinate and sha256, written by
python -m soak.lab.jars.cache --lock {path} {roots}"""

Download = Callable[[Sequence[Artifact], Path, Path], None]


def fetch(
    lock: Path,
    *,
    cache: Path | None = None,
    report: Callable[[str], None] = lambda _: None,
    download: Download = ivy.download,
) -> Path:
    """Return the folder with exactly the jars of `lock`, after fetching them if it does not exist.

    `report` gets a line if jars must be fetched. Parallel processes may call it.

    Raises:
        LabError: a jar could not be fetched, or is not the one that the lock names.
    """
    artifacts = parse_lock(lock.read_text(encoding="utf-8"), lock.name)
    folder = jars_folder(artifacts, cache)
    root = folder.parent
    if _is_complete(folder, artifacts):
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / f".{folder.name}.lock"):
        if _is_complete(folder, artifacts):  # another process was faster
            return folder
        report(f"fetching {len(artifacts)} jars of {lock.stem}, once")
        draft = root / f".{folder.name}.part"
        shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed
        try:
            _fill(draft, artifacts, download)
            shutil.rmtree(folder, ignore_errors=True)  # incomplete
            draft.rename(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return folder


def jars_folder(artifacts: Sequence[Artifact], cache: Path | None = None) -> Path:
    """Return where these jars are, or will be once they are fetched."""
    return (cache or user_cache()) / "jars" / _digest(artifacts)


def verify(folder: Path, artifacts: Sequence[Artifact]) -> None:
    """Raise `LabError` unless every jar is in the folder with its checksum."""
    for artifact in artifacts:
        found = _sha256(folder / artifact.file_name)
        if found != artifact.sha256:
            raise LabError(
                f"{artifact.coordinate} is not the file in the lock: its sha256 is {found}, expected "
                f"{artifact.sha256}. The files were discarded. Check what changes files between here and "
                "Maven Central (a proxy that sends an error page?), then try again"
            )


def make_lock(path: Path, roots: Sequence[str]) -> list[Artifact]:
    """Resolve `group:artifact:version` roots with their dependencies, and write the lock file."""
    wanted = [Artifact(*root.split(":")) for root in roots]
    with tempfile.TemporaryDirectory(prefix="soakd-lock-") as work:
        jars = Path(work) / "jars"
        found = ivy.resolve(wanted, jars, Path(work))
        pinned = [
            Artifact(one.group, one.name, one.version, one.classifier, _sha256(file))
            for one, file in found.items()
        ]
    comment = _COMMENT.format(path=path, roots=" ".join(roots))
    path.write_text(render_lock(pinned, comment), encoding="utf-8")
    return pinned


def _digest(artifacts: Sequence[Artifact]) -> str:
    lines = (f"{one.coordinate} {one.sha256}\n" for one in artifacts)
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def _fill(draft: Path, artifacts: Sequence[Artifact], download: Download) -> None:
    draft.mkdir()
    with tempfile.TemporaryDirectory(prefix="soakd-fetch-") as work:
        download(artifacts, draft, Path(work))
    verify(draft, artifacts)
    sizes = {one.file_name: (draft / one.file_name).stat().st_size for one in artifacts}
    (draft / _MARKER).write_text(json.dumps(sizes), encoding="utf-8")


def _is_complete(folder: Path, artifacts: Sequence[Artifact]) -> bool:
    """Return whether all jars are there with their checksums: 50 ms for Kafka's at each start."""
    try:
        if (folder / _MARKER).is_file():
            verify(folder, artifacts)
            return True
    except (OSError, LabError):
        pass
    return False


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that ends with the process; wait for another holder up to a limit."""
    clock = SystemClock()
    deadline_ns = clock.mono_ns() + _LOCK_LIMIT_SECONDS * SECOND_NS
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if clock.mono_ns() > deadline_ns:
                    raise LabError(
                        f"another process has held {path} for {_LOCK_LIMIT_SECONDS} s"
                    ) from error
            clock.sleep_until(clock.mono_ns() + _LOCK_POLL_NS)
        yield
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _main(arguments: list[str]) -> None:
    if len(arguments) < 3 or arguments[0] != "--lock":  # noqa: PLR2004 - --lock FILE ROOT
        sys.exit(f"usage: {__doc__}")
    try:
        pinned = make_lock(Path(arguments[1]), arguments[2:])
    except LabError as error:
        sys.exit(str(error))
    sys.stdout.write(f"{arguments[1]}: {len(pinned)} jars\n")


if __name__ == "__main__":
    _main(sys.argv[1:])
