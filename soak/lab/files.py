"""A file that other processes of the lab read at any time, and never half of it."""

from __future__ import annotations

from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Let a file have this text, all of it at once; it need not outlive the machine.

    Raises:
        OSError: it has what it had.
    """
    draft = path.with_suffix(".part")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
