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
    """Return the revision of a checkout; "" where there is none, or nobody who could tell."""
    if not (checkout / ".git").exists():
        return ""
    try:
        told = subprocess.run(
            ["git", "-C", str(checkout), "describe", "--always", "--tags", "--dirty"],  # noqa: S607  # any will do
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return told.stdout.strip() if told.returncode == 0 else ""


def _version() -> str:
    try:
        return version("soakd")
    except PackageNotFoundError:
        return ""
