"""Have the JVM of Spark write the archive of its classes: `python -m spark.cluster.class_archive`, once.

The JVM is that of a detector which takes in a short run and ends; `make setup` calls this. A JVM of another
Java or with other jars starts as it would without the archive.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from soak.core.clock import SystemClock
from soak.core.errors import NotAvailableError, SoakError
from soak.core.journal_format import End, columns_line, encode
from soak.core.model import Column, Record
from soak.core.plan import text
from soak.core.plan.phases import decision_line
from soak.core.units import SECOND_NS
from soak.store.run_folder import Run, RunFolder, write_run
from spark.cluster.session import class_archive
from spark.streaming.checkpoint import await_predecessor

_LIMIT_SECONDS = 600
_WRITE_NS = 120 * SECOND_NS
"""How long the JVM may take to write its classes when the detector has ended, on a busy host."""
_SECONDS = 30  # of the run that is looked at
_PLAN = """
name: classes
broker: {kafka: {bootstrap_servers: "127.0.0.1:9"}}
load: {rate: 1/s}
phases: {warm_up: 0s, soak: 30s, drain: 0s}
"""


def make() -> Path:
    """Create the archive again and return its folder.

    Raises:
        OSError: it cannot be written.
        SoakError: there is no Java, or it did not write the archive.
        subprocess.SubprocessError: the detector failed, or took too long.
    """
    archive = class_archive()
    shutil.rmtree(archive.folder, ignore_errors=True)
    archive.folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="soak-classes-") as name:
        folder = RunFolder(Path(name) / "run")
        _write_run(folder)
        subprocess.run(
            [sys.executable, "-m", "soak.cli.main", "detect-stream", "--run-dir", str(folder.path)],
            env={**os.environ, "JDK_JAVA_OPTIONS": " ".join(archive.writing_options())},
            check=True,
            timeout=_LIMIT_SECONDS,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        await_predecessor(folder.spark, SystemClock(), _WRITE_NS)
    archive.keep(0)
    for path in archive.folder.iterdir():
        path.chmod(0o644)  # daemons are other users
    if not archive.options():
        raise NotAvailableError("Java wrote none")
    return archive.folder


def _write_run(folder: RunFolder) -> None:
    """Write a run that is over, which a detector takes in and ends."""
    source = folder.journal / "probe@host"
    source.mkdir(parents=True)
    folder.plan.write_text(text.dump(text.load(_PLAN, "plan.yaml").plan))
    write_run(folder, Run("classes", 0, "host", {}, "ended", "classes"))
    phases = [decision_line("soak", 0), decision_line("end", _SECONDS)]
    folder.phases.write_text("".join(phases))
    named = columns_line((Column("x_seconds", (), "seconds"),))
    records = [Record(k, 1, k * SECOND_NS, SECOND_NS, named.id, (1.0,)) for k in range(_SECONDS)]
    lines = [encode(named), *map(encode, records), encode(End(1))]
    (source / "000000.jsonl").write_bytes(b"".join(lines))


def main() -> int:
    """Make the archive; without it all works, only slower."""
    try:
        folder = make()
    except (OSError, SoakError, subprocess.SubprocessError) as error:
        sys.stderr.write(
            f"Spark will start in twice the time: no archive of its classes: {error}\n"
        )
        return 1
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
