"""A workload or driver file: values of the kind that is asked for, faults with file, line and key."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from soak.core.errors import PlanError
from soak.core.plugins import close_to
from soak.core.yaml_text import Document, Place, parse
from soak.omb.draft import Draft


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One mapping of a file; `place` is where it stands."""

    document: Document
    place: Place
    values: dict[str, Any]

    def error(self, key: str, message: str) -> PlanError:
        return self.document.error((*self.place, key), message)

    def note(self, draft: Draft, key: str, message: str) -> None:
        """Tell, with file, line and key, what does not go into the plan as it stands."""
        draft.notes.append(str(self.error(key, message)))

    def note_unknown(self, draft: Draft, known: Collection[str]) -> None:
        for key in self.values:
            if key not in known:
                hint = close_to(key, sorted(known))
                self.note(draft, key, f"unknown, ignored as the benchmark does{hint}")

    def refuse_unknown(self, known: Collection[str], who: str) -> None:
        for key in self.values:
            if key not in known:
                hint = close_to(key, sorted(known))
                raise self.error(key, f"unknown key, refused as {who} does{hint}")

    def whole(self, key: str, default: int) -> int:
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, f"{value!r} is not a whole number")
        return value

    def count(self, draft: Draft, key: str, why: str) -> int:
        """Return how many there are, 1 where nothing is said; fewer than 1 are 1, and it is told why."""
        value = self.whole(key, 1)
        if value < 1:
            self.note(draft, key, f"{value} is 1 here: {why}")
        return max(1, value)

    def number(self, key: str, default: float) -> float:
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, f"{value!r} is not a number")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"{value!r} is neither true nor false")
        return value

    def text(self, key: str) -> str:
        value = self.values.get(key)
        if isinstance(value, dict | list):
            raise self.error(key, "must be text")
        return "" if value is None else str(value)

    def part(self, key: str) -> SourceFile:
        """Return the mapping under a key; empty where there is none."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.error(key, "must be a mapping")
        return SourceFile(self.document, (*self.place, key), value or {})


def read(text: str, name: str) -> SourceFile:
    """Return a file's mapping.

    Raises:
        PlanError: not YAML, or no mapping of keys.
    """
    document = parse(text, name)
    if not isinstance(document.value, dict):
        raise document.error((), "neither a workload nor a driver: not a mapping of keys")
    return SourceFile(document, (), document.value)
