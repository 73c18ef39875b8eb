"""Runs the Apache Ivy that PySpark brings, to resolve or download jars from its default repository."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

from soak.core.clock import SystemClock
from soak.core.errors import LabError
from soak.core.units import SECOND_NS
from soak.lab import trust
from soak.lab.lock import Artifact
from soak.service import children, java

PROCESSES = 6  # Ivy downloads one file after another; most of that is waiting
_LIMIT_SECONDS = 600
_PATTERN = "[organisation]_[artifact]_[revision](_[classifier]).[ext]"  # as Artifact.file_name
_JAVA_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")
_NOT_FOUND = re.compile(r":: ([\w.\-]+)#([\w.\-]+);([\w.\-]+)(?:!\S+)?: (?:not found|.*)")
_REASON = re.compile(r"\((?:java|javax)\.[\w.]+: ?(.*)\)|ERROR:? (.*)|(java\.[\w.]+Exception: .*)")


def resolve(roots: Sequence[Artifact], folder: Path, work: Path) -> list[Artifact]:
    """Put the roots and all they need into `folder`; return what came, without checksums.

    Raises:
        LabError: something could not be resolved; the message says what.
    """
    _run([_module(roots, "resolve", is_transitive=True)], folder, work)
    return [_artifact_of(path) for path in sorted(folder.glob("*.jar"))]


def download(artifacts: Sequence[Artifact], folder: Path, work: Path) -> None:
    """Put exactly these jars into `folder`, as `Artifact.file_name`, from several processes.

    Raises:
        LabError: a jar could not be fetched; the message says which, why and what to do.
    """
    modules: dict[tuple[str, str, str], list[Artifact]] = {}
    for artifact in artifacts:
        modules.setdefault((artifact.group, artifact.name, artifact.version), []).append(artifact)
    groups = list(modules.values())
    parts = [
        [artifact for group in groups[first::PROCESSES] for artifact in group]
        for first in range(min(PROCESSES, len(groups)))
    ]
    files = [_module(part, f"part{i}", is_transitive=False) for i, part in enumerate(parts)]
    _run(files, folder, work)
    for artifact in artifacts:
        if not (folder / artifact.file_name).is_file():
            raise LabError(_advice(artifact.coordinate, "it was not there"))


def _run(modules: Sequence[str], folder: Path, work: Path) -> None:
    """Run one Ivy a module description, all at once, and end all when one fails."""
    options = [*_JAVA_OPTIONS, *trust.proxy_options()]
    home = java.java_home()
    authorities = trust.certificates() if java.is_packaged(home) else []
    if authorities:
        trust.write_store(work / "authorities.jks", authorities)
        options.append(f"-Djavax.net.ssl.trustStore={work / 'authorities.jks'}")
    running: list[tuple[subprocess.Popen[bytes], Path]] = []
    try:
        for number, module in enumerate(modules):
            own = work / f"ivy{number}"
            own.mkdir()
            (own / "ivy.xml").write_text(module, encoding="utf-8")
            command = [str(home / "bin" / "java"), *options, *_arguments(own, folder)]
            running.append((children.spawn(command, log_path=own / "log"), own / "log"))
        _wait(running)
    finally:
        for process, _ in running:
            children.kill(process)


def _arguments(own: Path, folder: Path) -> list[str]:
    # A home and a cache of its own: two Ivy processes in one cache get in each other's way, and
    # what a user keeps in ~/.ivy2 is not what the lock names.
    return [
        f"-Divy.default.ivy.user.dir={own / 'home'}",
        *("-jar", str(_ivy_jar())),
        *("-cache", str(own / "cache")),
        *("-ivy", str(own / "ivy.xml")),
        *("-confs", "default"),
        *("-retrieve", str(folder / _PATTERN)),
        *("-types", "jar", "bundle"),
    ]


def _wait(running: Sequence[tuple[subprocess.Popen[bytes], Path]]) -> None:
    clock = SystemClock()
    deadline = clock.mono_ns() + _LIMIT_SECONDS * SECOND_NS
    for process, log_path in running:
        try:
            status = process.wait(max(0.0, (deadline - clock.mono_ns()) / SECOND_NS))
        except subprocess.TimeoutExpired as error:
            raise LabError(_advice("the jars", f"no end after {_LIMIT_SECONDS} s")) from error
        if status != 0:
            raise LabError(_failure(log_path.read_text(encoding="utf-8", errors="replace")))


def _failure(log: str) -> str:
    """Return a message that names the first artefact that failed and the first reason given."""
    problems = log.partition("UNRESOLVED DEPENDENCIES")[2] or log.partition("FAILED DOWNLOADS")[2]
    match = _NOT_FOUND.search(problems)
    what = ":".join(match.groups()) if match else "the jars"
    reason = _REASON.search(log)
    why = next((text for text in reason.groups() if text), "") if reason else ""
    return _advice(what, why or ("not found" if match else log.strip()[-400:]))


def _advice(what: str, why: str) -> str:
    return (
        f"cannot fetch {what} from Maven Central: {why.strip()}. Nothing was kept. Check the network "
        "(a proxy: set https_proxy; an authority of your own: set SSL_CERT_FILE) and start again"
    )


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")  # found, not imported: that takes a second
    found = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not found:
        raise LabError("PySpark brings no Ivy here; install the package pyspark again")
    return found[-1]


def _module(artifacts: Sequence[Artifact], name: str, *, is_transitive: bool) -> str:
    modules: dict[tuple[str, str, str], list[str]] = {}
    for one in artifacts:
        classifier = f" m:classifier={quoteattr(one.classifier)}" if one.classifier else ""
        modules.setdefault((one.group, one.name, one.version), []).append(
            f'<artifact name={quoteattr(one.name)} type="jar" ext="jar"{classifier}/>'
        )
    # Two classifiers of one module are two artefacts of one dependency: of two dependencies Ivy
    # would keep one.
    dependencies = "".join(
        f"<dependency org={quoteattr(group)} name={quoteattr(module)} rev={quoteattr(version)}"
        f' transitive="{str(is_transitive).lower()}" conf="default-&gt;default">'
        f"{'' if is_transitive else ''.join(files)}</dependency>"
        for (group, module, version), files in modules.items()
    )
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        f'<info organisation="soakd" module={quoteattr(name)}/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )


def _artifact_of(path: Path) -> Artifact:
    raise NotImplementedError
