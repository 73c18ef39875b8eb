"""Class archives: a JVM that maps the classes which an earlier one has parsed starts with half of the CPU.

JEP 350, `-XX:ArchiveClassesAtExit`, which every Java that we accept has. Measured with Java 21 up to the
first answer: Kafka 2.8 s of CPU instead of 4.7, Pulsar 9 instead of 13. A JVM that cannot use an archive,
because a jar or an option differs, starts without it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import subprocess
import uuid
from dataclasses import dataclass, field
from pathlib import Path

LOG = logging.getLogger(__name__)

_DUMP_SECONDS = 60.0
_WRITE_SECONDS = 40  # 10 s of CPU for Pulsar
_IN_ORDER = (0, 128 + signal.SIGTERM)
_QUIET = "-Xlog:cds*=off"  # else it lists each class that cannot be archived


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive of one program, in `folder`; the first of its JVMs to end in order writes it."""

    folder: Path
    home: Path  # of the Java
    writer: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def _base(self) -> Path:
        """Return the path of the classes of Java itself, on which the program's archive is based."""
        release = self.home / "release"
        known = release.read_bytes() if release.is_file() else b""
        digest = hashlib.sha256(f"{self.home}\n".encode() + known).hexdigest()[:12]
        return self.folder / f"java-{digest}.jsa"

    @property
    def _program(self) -> Path:
        return self._base.with_suffix(".program.jsa")

    @property
    def _draft(self) -> Path:
        return self.folder / f".{self.writer}.jsa"

    def options(self) -> list[str]:
        """Return the options of a JVM that uses the archive; none if there is no archive yet."""
        base, program = self._base, self._program
        if not program.is_file() or os.pathsep in str(self.folder):
            return []
        return [_QUIET, f"-XX:SharedArchiveFile={base}{os.pathsep}{program}"]

    def writing_options(self) -> list[str]:
        """Return `options`, or those of a JVM that writes the archive when it ends: then call `keep`."""
        if self._program.is_file() or not self._has_base():
            return self.options()
        draft = self._draft
        return [_QUIET, f"-XX:SharedArchiveFile={self._base}", f"-XX:ArchiveClassesAtExit={draft}"]

    @property
    def more_seconds(self) -> int:
        """Return how much longer a JVM may take to end because it writes the archive."""
        return 0 if self._program.is_file() else _WRITE_SECONDS

    def keep(self, status: int) -> None:
        """Keep what a JVM wrote that ended with this status, if it ended in order and none was faster."""
        if status in _IN_ORDER:
            _publish(self._draft, self._program)
        self._draft.unlink(missing_ok=True)

    def _has_base(self) -> bool:
        if self._base.is_file():
            return True
        self.folder.mkdir(parents=True, exist_ok=True)
        java = str(self.home / "bin" / "java")
        command = [java, "-XX:+UseSerialGC", "-Xshare:dump", f"-XX:SharedArchiveFile={self._draft}"]
        try:
            subprocess.run(command, capture_output=True, check=True, timeout=_DUMP_SECONDS)
            _publish(self._draft, self._base)
        except (OSError, subprocess.SubprocessError) as error:
            LOG.info("no_class_archive java=%s error=%s", java, error)
        finally:
            self._draft.unlink(missing_ok=True)
        return self._base.is_file()


def _publish(draft: Path, path: Path) -> None:
    """Give a file its name; one that has it stays, because other archives may be based on it."""
    if draft.is_file() and not path.exists():
        try:
            os.link(draft, path)
        except FileExistsError:  # another process was faster
            LOG.debug("class_archive_exists path=%s", path)
