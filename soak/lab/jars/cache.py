"""Fetch the jars that a lock file names, once and verified, into the user's cache; all of them or none.

`python -m soak.lab.jars.cache --lock FILE ROOT...` resolves a lock file anew.
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
_COMMENT = """Jars by coordinate and sha256. Made anew by
python -m soak.lab.jars.cache --lock {path} {roots}"""

Download = Callable[[Sequence[Artifact], Path, Path], None]


def fetch(
    lock: Path,
    *,
    cache: Path | None = None,
    report: Callable[[str], None] = lambda _: None,
    download: Download = ivy.download,
) -> Path:
    """Return the folder that holds exactly the jars of `lock`, fetching them when it is not there.

    `report` is told once if something has to be fetched. Safe among parallel processes.

    Raises:
        LabError: an artefact could not be fetched or is not the one that the lock names.
    """
    text = lock.read_text(encoding="utf-8")
    root = (cache or user_cache()) / "jars"
    folder = root / hashlib.sha256(text.encode()).hexdigest()[:16]
    if _is_complete(folder):
        return folder
    artifacts = parse_lock(text, lock.name)
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / f".{folder.name}.lock"):
        if _is_complete(folder):  # another process was faster
            return folder
        report(f"fetching {len(artifacts)} jars of {lock.stem}, once")
        draft = root / f".{folder.name}.part"
        shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed
        try:
            _fill(draft, artifacts, download)
            shutil.rmtree(folder, ignore_errors=True)  # damaged, or it would be complete
            draft.rename(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return folder


def verify(folder: Path, artifacts: Sequence[Artifact]) -> None:
    """Raise `LabError` unless every artefact is in the folder with its checksum."""
    for artifact in artifacts:
        found = _sha256(folder / artifact.file_name)
        if found != artifact.sha256:
            raise LabError(
                f"{artifact.coordinate} is not the file that was pinned: sha256 {found}, expected "
                f"{artifact.sha256}. Nothing was kept. Something between here and Maven Central "
                "changes files (a proxy's error page?); find out what before you start again"
            )


def make_lock(path: Path, roots: Sequence[str]) -> list[Artifact]:
    """Resolve `group:artifact:version` roots with all they need, and write the lock file."""
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


def _fill(draft: Path, artifacts: Sequence[Artifact], download: Download) -> None:
    draft.mkdir()
    with tempfile.TemporaryDirectory(prefix="soakd-fetch-") as work:
        download(artifacts, draft, Path(work))
    verify(draft, artifacts)
    sizes = {one.file_name: (draft / one.file_name).stat().st_size for one in artifacts}
    (draft / _MARKER).write_text(json.dumps(sizes), encoding="utf-8")


def _is_complete(folder: Path) -> bool:
    """Compare names and sizes with the marker, not 44 MB with their checksums: 1 ms."""
    try:
        sizes = json.loads((folder / _MARKER).read_text(encoding="utf-8"))
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that ends with the process; wait for another holder, with a limit."""
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
                    raise LabError(f"another process has held {path} for too long") from error
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
    sys.stdout.write(f"{arguments[1]}: {len(pinned)} artefacts\n")


if __name__ == "__main__":
    _main(sys.argv[1:])
