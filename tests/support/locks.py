"""The runtime part of the lock, an SBOM, and whether an installation is as locked.

`python -m tests.support.locks runtime` writes `requirements-runtime.lock`, `sbom` prints CycloneDX, `audit`
compares the installed packages and the fetched jars with the locks, file by file.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.markers import Marker

from soak.core.errors import LabError
from soak.lab.jars.cache import jars_folder, verify
from soak.lab.jars.lock import Artifact, parse_lock
from tests.support.paths import ROOT

LOCK, RUNTIME = ROOT / "requirements.lock", ROOT / "requirements-runtime.lock"
BUILD_LOCK = ROOT / "requirements-build.lock"
JARS = sorted((ROOT / "soak/lab/jars").glob("*.lock"))
BUILD = (
    "setuptools"  # builds soakd and pyspark, without an isolated environment that fetches another
)
_HEAD = re.compile(r"^(?P<name>[a-z0-9._-]+)(\[.*\])?==(?P<version>[^ ;\\]+)", re.MULTILINE)
_HEADER = "# A part of requirements.lock, written by `make lock`: what soakd needs where it runs.\n"


@dataclass(frozen=True, slots=True)
class Locked:
    """One package of a lock, with the names of those that need it."""

    name: str
    version: str
    text: str

    @property
    def via(self) -> set[str]:
        after = self.text.partition("# via")[2]
        return set(re.findall(r"[a-z0-9][a-z0-9._-]*", after)) - {"via"}

    @property
    def is_for_here(self) -> bool:
        """Return whether this Python on this system needs it."""
        found = re.match(r"[^\n;]+;([^\n\\]+)", self.text)
        return found is None or Marker(found[1].strip()).evaluate()


def read_lock(text: str) -> list[Locked]:
    """Return the packages of a lock; one may be there twice, for two versions of Python."""
    heads = list(_HEAD.finditer(text))
    ends = [one.start() for one in heads[1:]] + [len(text)]
    return [
        Locked(head["name"], head["version"], text[head.start() : end])
        for head, end in zip(heads, ends, strict=True)
    ]


def runtime_lock(text: str, project: str) -> str:
    """Return the part of a lock that the dependencies of a project need, and what builds it."""
    packages = read_lock(text)
    wanted = {_name(one) for one in tomllib.loads(project)["project"]["dependencies"]} | {BUILD}
    while more := {one.name for one in packages if one.via & wanted} - wanted:
        wanted |= more
    missing = wanted - {one.name for one in packages}
    if missing:
        raise LookupError(f"the lock lacks {', '.join(sorted(missing))}")
    return _HEADER + "".join(one.text for one in packages if one.name in wanted)


def build_lock(text: str) -> str:
    """Return the part of a lock that is installed first."""
    return _HEADER + "".join(one.text for one in read_lock(text) if one.name == BUILD)


def sbom(packages: Sequence[Locked], jars: Mapping[str, list[Artifact]]) -> dict[str, object]:
    """Return a CycloneDX document of packages and jars; scanners with advisory data read it."""
    components: list[dict[str, object]] = [
        {
            "type": "library",
            "name": one.name,
            "version": one.version,
            "purl": f"pkg:pypi/{one.name}@{one.version}",
        }
        for one in packages
    ]
    components += [
        {
            "type": "library",
            "group": one.group,
            "name": one.name,
            "version": one.version,
            "purl": f"pkg:maven/{one.group}/{one.name}@{one.version}",
            "hashes": [{"alg": "SHA-256", "content": one.sha256}],
        }
        for one in sorted({one for artifacts in jars.values() for one in artifacts})
    ]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    main = {"type": "application", "name": project["name"], "version": project["version"]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": main},
        "components": components,
    }


def audit(packages: Sequence[Locked], jars: Mapping[str, list[Artifact]]) -> Iterator[str]:
    """Yield what of this installation is not as the locks say."""
    for one in packages:
        if one.is_for_here:
            yield from _audit_package(one)
    for lock, artifacts in jars.items():
        folder = jars_folder(artifacts)
        if folder.is_dir():
            try:
                verify(folder, artifacts)
            except (LabError, OSError) as error:
                yield f"{lock}: {error}"


def _audit_package(one: Locked) -> Iterator[str]:
    try:
        found = distribution(one.name)
    except PackageNotFoundError:
        yield f"{one.name} {one.version} is not installed"
        return
    if found.version != one.version:
        yield f"{one.name} is {found.version}, locked is {one.version}"
    for file in found.files or ():
        path = Path(str(found.locate_file(file)))
        if file.hash is not None and _digest(path, file.hash.mode) != file.hash.value:
            yield f"{one.name}: {file} is not what was installed"


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return found[0].lower().replace("_", "-") if found else requirement


def _digest(path: Path, algorithm: str) -> str:
    if not path.is_file():
        return "missing"
    digest = hashlib.new(algorithm, path.read_bytes()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def main(command: str) -> int:
    packages = read_lock(RUNTIME.read_text() if command != "runtime" else LOCK.read_text())
    jars = {path.stem: parse_lock(path.read_text(), str(path)) for path in JARS}
    if command == "runtime":
        RUNTIME.write_text(runtime_lock(LOCK.read_text(), (ROOT / "pyproject.toml").read_text()))
        BUILD_LOCK.write_text(build_lock(LOCK.read_text()))
    elif command == "sbom":
        sys.stdout.write(json.dumps(sbom(packages, jars), indent=1) + "\n")
    else:
        wrong = list(audit(packages, jars))
        said = "\n".join(wrong) or "the installed packages and fetched jars are as locked"
        sys.stdout.write(said + "\n")
        return 1 if wrong else 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
