"""Finds in a plan's text what pydantic would guess a number or a truth from: `producers: yes` would be 1."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from soak.core.yaml_text import Place

_KINDS: Mapping[type[Any], str] = {int: "a whole number", float: "a number", bool: "true or false"}


def guessed(hint: Any, value: object, place: Place) -> Iterator[tuple[Place, str]]:  # noqa: ANN401  # any annotation
    """Yield where a number or a truth is wanted and another kind is written, and what it must be."""
    if isinstance(hint, type) and hint in _KINDS:
        is_other = isinstance(value, bool) != (hint is bool) and value is not None
        if isinstance(value, str) or (is_other and isinstance(value, bool | int | float)):
            yield place, f"must be {_KINDS[hint]}"
    elif dataclasses.is_dataclass(hint) and isinstance(value, dict):
        hints = get_type_hints(hint, include_extras=True)
        for key, item in value.items():
            if key in hints:
                yield from guessed(hints[key], item, (*place, key))
    elif get_origin(hint) is not Annotated:  # those read text themselves
        for inner in get_args(hint):
            for at, item in _items(hint, value):
                yield from guessed(inner, item, (*place, *at))


def _items(hint: Any, value: object) -> Iterator[tuple[Place, object]]:  # noqa: ANN401  # any annotation
    """Yield what an annotation's arguments are about: items of a list or mapping, else the value itself."""
    if get_origin(hint) is tuple and isinstance(value, list):
        yield from (((number,), item) for number, item in enumerate(value))
    elif get_origin(hint) is dict and isinstance(value, dict):
        yield from (((key,), item) for key, item in value.items())
    elif get_origin(hint) not in {tuple, dict}:
        yield (), value
