"""YAML to plain values, strictly: safe types only, no duplicate keys, and the line of every key kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from soak.core.errors import PlanError

Place = tuple[str | int, ...]

MOST_PLACES = 20_000
"""Keys and items of a file, those that an alias repeats counted each time."""

_PLAIN_TAGS = {"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file; `lines` gives the line (from 1) of every key and list item."""

    name: str
    value: Any
    lines: Mapping[Place, int]

    def error(self, place: Place, message: str) -> PlanError:
        """Return the error `file:line: key: message`; a key that is not there takes its parent's line."""
        known = place
        while known and known not in self.lines:
            known = known[:-1]
        line = self.lines.get(known, 1)
        key = ".".join(str(part) for part in place)
        return PlanError(f"{self.name}:{line}: {key + ': ' if key else ''}{message}")


def parse(text: str, name: str) -> Document:
    """Return the document.

    Raises:
        PlanError: not YAML, a duplicate key, or a key that is not text; with file and line.
    """
    loader: yaml.SafeLoader | None = None
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        lines: dict[Place, int] = {(): 1}
        value = None if node is None else _build(loader, node, (), lines, name)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise PlanError(f"{name}:{line}: not YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise PlanError(f"{name}:1: not YAML: {error}") from error
    except (ValueError, OverflowError) as error:  # an escape that is no character
        raise PlanError(f"{name}:1: not YAML: {error}") from error
    finally:
        if loader is not None:
            loader.dispose()
    return Document(name, value, lines)


def _build(
    loader: yaml.SafeLoader, node: yaml.Node, place: Place, lines: dict[Place, int], name: str
) -> Any:  # noqa: ANN401  # whatever the file says
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN_TAGS:
        raise PlanError(f"{name}:{line}: not YAML: the tag {node.tag} is not allowed here")
    if len(lines) > MOST_PLACES:  # a few lines of aliases of aliases fill any memory
        many = f"more than {MOST_PLACES:,} values, counting what aliases repeat"
        raise PlanError(f"{name}:{line}: not YAML: {many}")
    if isinstance(node, yaml.MappingNode):
        return _mapping(loader, node, place, lines, name)
    if isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            lines[*place, index] = child.start_mark.line + 1
        return [
            _build(loader, child, (*place, index), lines, name)
            for index, child in enumerate(node.value)
        ]
    return _scalar(loader, node, place, name)


def _scalar(loader: yaml.SafeLoader, node: yaml.Node, place: Place, name: str) -> object:
    """Return what a text stands for; its tag may ask for what it is not, as may a date that never was."""
    try:
        value: object = loader.construct_object(node)
        if isinstance(value, int):
            float(
                value
            )  # beyond that nobody can reckon with it, and 4,300 digits cannot even be shown
    except (ValueError, LookupError, AttributeError, ArithmeticError) as error:
        where = Document(name, None, {place: node.start_mark.line + 1})
        kind = node.tag.rpartition(":")[2]
        raise where.error(place, f"not YAML: the value is no {kind}") from error
    return value


def _mapping(
    loader: yaml.SafeLoader,
    node: yaml.MappingNode,
    place: Place,
    lines: dict[Place, int],
    name: str,
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
        if key is None or key_node.tag == "tag:yaml.org,2002:merge":
            raise PlanError(f"{name}:{line}: a key must be plain text")
        if key in found:
            first = lines[*place, key]
            full = ".".join(map(str, (*place, key)))
            raise PlanError(f"{name}:{line}: {full}: duplicate key, first in line {first}")
        lines[*place, key] = line
        found[key] = _build(loader, value_node, (*place, key), lines, name)
    return found
