"""Reads what the conductor decided, whole; `soak.daemons.context.PhaseFile` follows it as it grows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from soak.core.errors import RunFolderError
from soak.core.phases import Phases, parse

_NOT_OURS = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError)


def read_phases(path: Path) -> Phases:
    """Return the decisions so far; none where there is no file.

    Raises:
        RunFolderError: it is damaged, or cannot be read.
    """
    with damage_told(path):
        return parse(path.read_text()) if path.is_file() else Phases()


@contextmanager
def damage_told(path: Path) -> Iterator[None]:
    """Turn what a file that is not ours makes of a parser for ours into an error that names it."""
    try:
        yield
    except _NOT_OURS as error:
        reason = error or type(error).__name__
        raise RunFolderError(f"{path} is damaged or cannot be read: {reason}") from error
