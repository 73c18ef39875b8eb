"""When, where and of which state of the program a result is: what it is worth depends on it."""

from __future__ import annotations

import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from soak.core import wording

CHECKOUT = Path(__file__).resolve().parents[2]
_GIT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Origin:
    at: str  # UTC, ISO 8601
    host: str
    revision: (
        str  # of the checkout, with a mark where it was changed, or the version of the package
    )


def here(wall_ns: int, checkout: Path = CHECKOUT) -> Origin:
    """Return the origin of what is found out on this machine now."""
    return Origin(wording.iso(wall_ns), platform.node(), _described(checkout) or _version())


def _described(checkout: Path) -> str:
    """Return the revision of a checkout; "" where there is none, or nobody who could tell.

    What the docs are changed to is no other program: results are written there.
    """
    if not (checkout / ".git").exists():
        return ""
    try:
        told = _git(checkout, "describe", "--always", "--tags")
        changed = _git(checkout, "diff", "--quiet", "HEAD", "--", ".", ":(exclude)docs")
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if told.returncode:
        return ""
    return told.stdout.strip() + ("-dirty" if changed.returncode else "")


def _git(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", "-C", str(checkout), *words],  # noqa: S607  # any will do
        capture_output=True,
        text=True,
        timeout=_GIT_SECONDS,
        check=False,
    )


def _version() -> str:
    try:
        return version("soakd")
    except PackageNotFoundError:
        return ""
