"""The classes of Spark as one file that a JVM maps: reading them took half of a start's processor time.

A JVM reads some 16,000 classes from 250 files, checks and links them, before the first batch. Java's class
data sharing keeps the result. The file belongs to one Java and one set of files: any other JVM, and one that
finds no file, starts as it would without. `python -m spark.cluster.class_archive` makes it, once for an
installation, from the classes that a detector loads; `make setup` does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from soak.core.journal_format import End, columns_line, encode
from soak.core.model import Column, Record
from soak.core.plan import text
from soak.core.plan.phases import decision_line
from soak.core.units import SECOND_NS
from soak.service.java import java_home
from soak.store.run_folder import Run, RunFolder, write_run

COLLECTOR = "-XX:+UseSerialGC"
"""The archive is for a JVM with the collector of the one that made it."""
_LIMIT_SECONDS = 600
_SECONDS = 30  # of the run that is looked at
_PLAN = """
name: classes
broker: {kafka: {bootstrap_servers: "127.0.0.1:9"}}
load: {rate: 1/s}
phases: {warm_up: 0s, soak: 30s, drain: 0s}
"""


def archive_path() -> Path:
    """Return where the archive of this installation is, or would be."""
    return Path(sys.prefix) / "share" / "soakd" / "spark-classes.jsa"


def options() -> list[str]:
    """Return the options with which a JVM uses the archive, if there is one."""
    path = archive_path()
    # a JVM that it is not for says so on its output, and reads the classes
    return [f"-XX:SharedArchiveFile={path}", "-Xshare:auto"] if path.is_file() else []


def make() -> Path:
    """Make the archive anew and return its path.

    Raises:
        OSError: it cannot be written.
        subprocess.SubprocessError: the detector or Java failed, or took too long.
    """
    target = archive_path()
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="soak-classes-") as name:
        folder = Path(name)
        classes, draft = folder / "classes", target.with_suffix(f".{os.getpid()}")
        _write_run(RunFolder(folder / "run"))
        command = [sys.executable, "-m", "soak.cli.main", "detect-stream"]
        environment = {**os.environ, "JDK_JAVA_OPTIONS": f"-XX:DumpLoadedClassList={classes}"}
        _run([*command, "--run-dir", str(folder / "run")], environment)
        java, jars = java_home() / "bin" / "java", Path(pyspark.__file__).parent / "jars" / "*"
        dump = ["-Xshare:dump", f"-XX:SharedClassListFile={classes}"]
        try:
            _run(
                [str(java), COLLECTOR, "-cp", str(jars), *dump, f"-XX:SharedArchiveFile={draft}"],
                dict(os.environ),
            )
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
    return target


def _run(command: list[str], environment: dict[str, str]) -> None:
    subprocess.run(
        command,
        env=environment,
        check=True,
        timeout=_LIMIT_SECONDS,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


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
        path = make()
    except (OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(
            f"Spark will start in twice the time: no archive of its classes: {error}\n"
        )
        return 1
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
