"""Resolve and download jars with the Apache Ivy that PySpark ships.

The Java that pip installed has its own certificate authorities and knows no proxy: it gets those that
Python uses on this machine.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import ssl
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies
from xml.sax.saxutils import quoteattr

from soak.core.clock import SystemClock
from soak.core.errors import LabError
from soak.core.units import SECOND_NS
from soak.lab.jars.lock import Artifact
from soak.service import children, java

_JKS_MAGIC = 0xFEEDFEED
_JKS_VERSION = 2
_TRUSTED = 2  # the tag of an entry that holds a certificate and no key
_PASSWORD = "changeit"  # noqa: S105 - Java's own default; public certificates are no secret


def certificates() -> list[bytes]:
    """Return the authorities that Python trusts on this machine, as DER; also those in `SSL_CERT_FILE`."""
    context = ssl.create_default_context()
    loaded = context.get_ca_certs(binary_form=True)
    folder = ssl.get_default_verify_paths().capath
    if not loaded and folder:  # OpenSSL reads a folder only when it needs to
        for file in sorted(Path(folder).iterdir()):
            try:
                context.load_verify_locations(file)
            except (ssl.SSLError, OSError):
                continue  # a README or a broken link among certificates
        loaded = context.get_ca_certs(binary_form=True)
    return loaded


def write_store(path: Path, authorities: list[bytes]) -> None:
    """Write a JKS file, which every Java reads as a trust store without a password.

    The layout is documented in the source of `sun.security.provider.JavaKeyStore`.
    """
    body = struct.pack(">III", _JKS_MAGIC, _JKS_VERSION, len(authorities))
    for number, certificate in enumerate(authorities):
        body += struct.pack(">I", _TRUSTED) + _text(f"authority-{number}") + struct.pack(">q", 0)
        body += _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    salted = _PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body
    path.write_bytes(body + hashlib.sha1(salted).digest())  # noqa: S324 - the format's checksum


def proxy_options() -> list[str]:
    """Return Java's options for the proxies in `https_proxy` and `http_proxy`, if there are any."""
    options = []
    for scheme, address in getproxies().items():
        proxy = urlsplit(address)
        if scheme in {"http", "https"} and proxy.hostname:
            options.append(f"-D{scheme}.proxyHost={proxy.hostname}")
            options.append(f"-D{scheme}.proxyPort={proxy.port or 80}")
    return options


def _text(value: str) -> bytes:
    encoded = value.encode("utf-8")
    return struct.pack(">H", len(encoded)) + encoded


PROCESSES = 6  # Ivy downloads one file after another; most of that is waiting
_LIMIT_SECONDS = 600
_FLAT = "[organisation]_[artifact]_[revision](_[classifier]).[ext]"  # as Artifact.file_name
_NESTED = "[organisation]/[artifact]/[revision]/jar(_[classifier]).[ext]"
_JAVA_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")
_TRIES = 2
_FAILED = re.compile(r":: ([\w.\-]+)#([\w.\-]+);([\w.\-]+)")
_REASON = re.compile(r"\(javax?\.[\w.]+: ?(.*)\)|(Host \S+ not found)|(java\.[\w.]+Exception: .*)")


def resolve(roots: Sequence[Artifact], folder: Path, work: Path) -> dict[Artifact, Path]:
    """Download the roots and their dependencies below `folder`; return them without checksums.

    Raises:
        LabError: one could not be resolved; the message names it.
    """
    _run([_module(roots, "resolve", is_transitive=True)], folder / _NESTED, work)
    found = {}
    for path in sorted(folder.glob("*/*/*/*.jar")):
        group, name, version = path.relative_to(folder).parts[:3]
        found[Artifact(group, name, version, path.stem.removeprefix("jar").lstrip("_"))] = path
    return found


def download(artifacts: Sequence[Artifact], folder: Path, work: Path) -> None:
    """Download exactly these jars to `folder`, as `Artifact.file_name`, with several processes.

    Raises:
        LabError: a jar could not be fetched; the message says which, why and what to do.
    """
    problem: LabError | None = None
    for attempt in range(_TRIES):
        missing = [one for one in artifacts if not (folder / one.file_name).is_file()]
        if not missing:
            return
        own = work / f"try{attempt}"
        own.mkdir()
        parts = [_module(part, f"part{i}", is_transitive=False) for i, part in _parts(missing)]
        try:
            _run(parts, folder / _FLAT, own)
        except LabError as error:
            problem = error
    for artifact in artifacts:
        if not (folder / artifact.file_name).is_file():
            raise problem or LabError(_advice(artifact.coordinate, "Ivy did not download it"))


def _parts(artifacts: Sequence[Artifact]) -> Iterator[tuple[int, list[Artifact]]]:
    """Divide the jars among the processes, those of one module to one process."""
    modules: dict[tuple[str, str, str], list[Artifact]] = {}
    for one in artifacts:
        modules.setdefault((one.group, one.name, one.version), []).append(one)
    groups = list(modules.values())
    for first in range(min(PROCESSES, len(groups))):
        yield first, [one for group in groups[first::PROCESSES] for one in group]


def _run(modules: Sequence[str], pattern: Path, work: Path) -> None:
    """Run one Ivy for each module description, all at once, and wait until all have ended."""
    options = [*_JAVA_OPTIONS, *proxy_options()]
    home = java.packaged_home()  # the user's own may lack an authority that Python trusts
    authorities = certificates()
    if authorities:
        write_store(work / "authorities.jks", authorities)
        options.append(f"-Djavax.net.ssl.trustStore={work / 'authorities.jks'}")
    running: list[tuple[subprocess.Popen[bytes], Path]] = []
    try:
        for number, module in enumerate(modules):
            own = work / f"ivy{number}"
            own.mkdir()
            (own / "ivy.xml").write_text(module, encoding="utf-8")
            command = [str(home / "bin" / "java"), *options, *_arguments(own, pattern)]
            running.append((children.spawn(command, log_path=own / "log"), own / "log"))
        _wait(running)
    finally:
        for process, _ in running:
            children.kill(process)


def _arguments(own: Path, pattern: Path) -> list[str]:
    # Each has its own home and cache: two Ivy processes disturb each other in one cache, and
    # jars in a user's ~/.ivy2 are not those that the lock names.
    return [
        f"-Divy.default.ivy.user.dir={own / 'home'}",
        *("-jar", str(_ivy_jar())),
        *("-cache", str(own / "cache")),
        *("-ivy", str(own / "ivy.xml")),
        *("-confs", "default"),
        *("-retrieve", str(pattern)),
        *("-types", "jar", "bundle"),
    ]


def _wait(running: Sequence[tuple[subprocess.Popen[bytes], Path]]) -> None:
    clock = SystemClock()
    deadline = clock.mono_ns() + _LIMIT_SECONDS * SECOND_NS
    for process, _ in running:
        try:
            process.wait(max(0.0, (deadline - clock.mono_ns()) / SECOND_NS))
        except subprocess.TimeoutExpired as error:
            raise LabError(_advice("the jars", f"no end after {_LIMIT_SECONDS} s")) from error
    for process, log_path in running:
        if process.returncode != 0:
            raise LabError(failure_message(log_path.read_text(encoding="utf-8", errors="replace")))


def failure_message(log: str) -> str:
    """Return a message with the first jar that failed and the first reason in the log."""
    problems = log.partition("UNRESOLVED DEPENDENCIES")[2] or log.partition("FAILED DOWNLOADS")[2]
    match = _FAILED.search(problems)
    what = ":".join(match.groups()) if match else "the jars"
    reason = _REASON.search(log)
    why = next((text for text in reason.groups() if text), "") if reason else ""
    return _advice(what, why or ("not found" if match else log.strip()[-400:]))


def _advice(what: str, why: str) -> str:
    return (
        f"cannot fetch {what} from Maven Central: {why.strip()}. No file was kept. Check the network "
        "(set https_proxy for a proxy, SSL_CERT_FILE for an authority of your own) and try again"
    )


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")  # an import would take a second
    found = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not found:
        raise LabError("the installed PySpark contains no Ivy; install the package pyspark again")
    return found[-1]


def _module(artifacts: Sequence[Artifact], name: str, *, is_transitive: bool) -> str:
    modules: dict[tuple[str, str, str], list[str]] = {}
    for one in artifacts:
        classifier = f" m:classifier={quoteattr(one.classifier)}" if one.classifier else ""
        modules.setdefault((one.group, one.name, one.version), []).append(
            f'<artifact name={quoteattr(one.name)} type="jar" ext="jar"{classifier}/>'
        )
    # Two classifiers of one module are two artifacts of one dependency: Ivy would keep only one of
    # two dependencies.
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
