"""The part of JSON Schema that docs/reference/summary.schema.json uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_TYPES: Mapping[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "integer": int,
    "number": (int, float),
}


def violations(schema: Mapping[str, Any], value: Any, place: str = "$") -> Iterator[str]:
    """Give where a value is not as its schema says."""
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(kind, value) for kind in kinds):
        yield f"{place}: {value!r:.80} is no {' or '.join(kinds)}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{place}: {value!r:.80} is none of {schema['enum']}"
    if isinstance(value, dict):
        known = schema.get("properties", {})
        yield from (
            f"{place}.{key}: missing" for key in schema.get("required", ()) if key not in value
        )
        for key, inner in value.items():
            if key in known:
                yield from violations(known[key], inner, f"{place}.{key}")
            elif schema.get("additionalProperties") is False:
                yield f"{place}.{key}: unknown"
    if isinstance(value, list) and "items" in schema:
        for at, inner in enumerate(value):
            yield from violations(schema["items"], inner, f"{place}[{at}]")


def _is(kind: str, value: Any) -> bool:
    is_number = kind in {"integer", "number"} and isinstance(value, bool)
    return isinstance(value, _TYPES[kind]) and not is_number
