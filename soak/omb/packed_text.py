"""Reads a file, packed or not, and JSON out of it; a fault is told with its place."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

from soak.core.errors import PlanError

_GZIP_MAGIC = b"\x1f\x8b"


def read(path: Path) -> str:
    """Return a file's text, unpacked when it is gzip, whatever its name.

    Raises:
        PlanError: it cannot be read, is cut off, damaged or no text.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise PlanError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        return (gzip.decompress(raw) if raw.startswith(_GZIP_MAGIC) else raw).decode("utf-8-sig")
    except EOFError as error:
        raise PlanError(f"{path}: cut off after {len(raw)} packed bytes") from error
    except (OSError, zlib.error) as error:
        raise PlanError(f"{path}: the packed file is damaged: {error}") from error
    except UnicodeDecodeError as error:
        raise PlanError(f"{path}: not text: byte {error.start} is not UTF-8") from error


def parse_json(text: str, name: str) -> object:
    """Return the JSON value.

    Raises:
        PlanError: with line and column of the fault.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        said = error.msg.lower().removesuffix(" starting at")
        is_cut = not text[error.pos :].strip() or error.msg.startswith("Unterminated")
        hint = "; the file seems to be cut off" if is_cut else ""
        where = f"{name}:{error.lineno}:{error.colno}"
        raise PlanError(f"{where}: not JSON: {said}{hint}") from error
    except (RecursionError, ValueError) as error:  # ValueError: a number of thousands of digits
        raise PlanError(f"{name}:1: not JSON: {error}") from error
