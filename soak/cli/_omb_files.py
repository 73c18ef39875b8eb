"""Tells the benchmark's files apart, prints results, and writes files whole or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from soak.cli import _omb_text
from soak.cli._omb_text import Format, Imported
from soak.core.errors import PlanError
from soak.omb import packed_text, read_result, source_file
from soak.omb.source_file import SourceFile

_YAML = {".yaml", ".yml"}


def sort_out(paths: Sequence[Path]) -> tuple[list[Imported], list[SourceFile]]:
    """Return the results, and the workloads and drivers: told by their names, else by how they begin.

    Raises:
        PlanError: one of them is neither.
    """
    results: list[Imported] = []
    sources: list[SourceFile] = []
    for path in paths:
        text = packed_text.read(path)
        if path.suffix in _YAML or text.lstrip()[:1] not in ("{", "[", ""):
            sources.append(source_file.read(text, str(path)))
        else:
            body = packed_text.parse_json(text, str(path))
            results.append((path, read_result.parse(body, str(path))))
    return results, sources


def show(results: list[Imported], output: Format) -> None:
    """Print results."""
    if output is Format.csv:
        sys.stdout.write(_omb_text.csv_text(results))
        return
    lines_of = _omb_text.json_rows if output is Format.jsonl else _omb_text.summary
    for path, result in results:
        for line in lines_of(path, result):
            print(line)


def write(path: Path, chunks: Iterable[str]) -> None:
    """Replace a file by these chunks; it stays as it was until all are written.

    Raises:
        PlanError: it cannot be written there.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(chunks)
        temporary.replace(path)
    except OSError as error:
        raise PlanError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
