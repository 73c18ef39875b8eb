"""Reads the TOML files that configure a probe (name maps, log patterns) into dataclasses."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from soak.core.errors import PlanError
from soak.core.plan.plugins import nearest

Table = TypeVar("Table")


def table_path(folder: Path, name: str) -> Path:
    """Return the path of a shipped file in `folder`, or of the user's own, whose name ends in `.toml`.

    Raises:
        PlanError: no file has this name; the message lists the shipped ones.
    """
    if name.endswith(".toml"):
        return Path(name)
    known = sorted(path.stem for path in folder.glob("*.toml"))
    if name not in known:
        raise PlanError(f"there is no {name!r}{nearest(name, known)}; or a path that ends in .toml")
    return folder / f"{name}.toml"


def read_tables(path: Path, table: str, kind: Callable[..., Table]) -> list[Table]:
    """Return the tables `[[table]]` of a file, in order, as pydantic dataclasses.

    Raises:
        PlanError: the file cannot be read, or a table in it is wrong; the message names file and table.
    """
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # missing, not UTF-8, not TOML
        raise PlanError(f"{path}: cannot be read: {error}") from error
    rows = found.pop(table, [])
    about = found.pop("about", "")
    if found or not isinstance(about, str) or not isinstance(rows, list) or not rows:
        raise PlanError(f"{path}: must hold `about` and tables [[{table}]], and nothing else")
    return [_table(path, f"{table} {at}", row, kind) for at, row in enumerate(rows, 1)]


def _table(path: Path, where: str, row: object, kind: Callable[..., Table]) -> Table:
    if not isinstance(row, dict):
        raise PlanError(f"{path}: {where}: must be a table")
    try:
        return kind(**row)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        reason = first["msg"].removeprefix("Value error, ")
        raise PlanError(f"{path}: {where}: {f'{place}: ' if place else ''}{reason}") from error
