"""The base of every configuration section: strict dataclasses, former keys, settings passed through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict

STRICT = ConfigDict(extra="forbid")
"""For every configuration: an unknown key is an error."""


def _texts(value: object) -> object:
    """Return settings as text, which they are on the wire, while YAML reads numbers and booleans."""
    if not isinstance(value, Mapping):
        return value
    for key, item in value.items():
        if item is None or isinstance(item, Mapping | list):
            raise ValueError(f"{key} must be text, a number or true or false")
    return {
        key: str(item).lower() if isinstance(item, bool) else str(item)
        for key, item in value.items()
    }


Settings = Annotated[dict[str, str], BeforeValidator(_texts)]
"""Settings passed through to a client or broker under their real names."""


@dataclass(frozen=True, slots=True)
class FormerName:
    """A key that older files use for a field: `max_runs: Annotated[int, FormerName("most_runs")]`."""

    name: str


class FormerNameWarning(FutureWarning):
    """A file uses a former key; the message names file, line, and both keys."""


PluginConfigs = dict[str, Any]
"""Name of a plug-in to its `Config`; `soak.core.plan.text` loads it."""


def check_between(section: object, key: str, low: float, high: float) -> None:
    """Raise `ValueError` when a number of a section lies outside its bounds (inclusive)."""
    if not low <= getattr(section, key) <= high:
        raise ValueError(f"{key} must lie between {low} and {high}")
