"""Lock files of jars: Maven coordinates and sha256, so that every machine fetches the same files.

A line is `group:artifact:version[:classifier] sha256`; `#` begins a comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from soak.core.errors import LabError

_PART = r"[A-Za-z0-9_.\-]+"
_LOCK_LINE = re.compile(
    rf"(?P<group>{_PART}):(?P<name>{_PART}):(?P<version>{_PART})(?::(?P<classifier>{_PART}))?"
    r"\s+(?P<sha256>[0-9a-f]{64})"
)


@dataclass(frozen=True, slots=True, order=True)
class Artifact:
    """One jar; an empty classifier is the module's main file."""

    group: str
    name: str
    version: str
    classifier: str = ""
    sha256: str = ""

    @property
    def coordinate(self) -> str:
        parts = [self.group, self.name, self.version, self.classifier]
        return ":".join(part for part in parts if part)

    @property
    def file_name(self) -> str:
        """Return a name without colons, which would split a class path."""
        return self.coordinate.replace(":", "_") + ".jar"


def parse_lock(text: str, source: str) -> list[Artifact]:
    """Return the jars in order; `source` names the text in errors.

    Raises:
        LabError: a line is malformed, a jar is listed twice, or there is none.
    """
    found: dict[str, Artifact] = {}
    for number, line in enumerate(text.splitlines(), 1):
        content = line.split("#", 1)[0].strip()
        if not content:
            continue
        match = _LOCK_LINE.fullmatch(content)
        if match is None:
            raise LabError(
                f"{source}:{number}: {content!r} is not `group:artifact:version[:classifier] sha256`"
            )
        artifact = Artifact(**match.groupdict(default=""))
        if artifact.coordinate in found:
            raise LabError(f"{source}:{number}: {artifact.coordinate} is listed twice")
        found[artifact.coordinate] = artifact
    if not found:
        raise LabError(f"{source}: lists no jar")
    return list(found.values())


def render_lock(artifacts: Iterable[Artifact], comment: str) -> str:
    """Return the text of a lock file, sorted, so that two of them can be compared by line."""
    head = [f"# {line}" for line in comment.splitlines()]
    lines = [f"{artifact.coordinate} {artifact.sha256}" for artifact in sorted(artifacts)]
    return "\n".join([*head, *lines, ""])
