"""Read a plan from YAML and write it back: every error names file, line and key."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import yaml
from pydantic import BeforeValidator, TypeAdapter, ValidationError

from soak.core.errors import PlanError
from soak.core.plan import plugins
from soak.core.plan.config import FormerName, FormerNameWarning
from soak.core.plan.plan import (
    OUTAGE_DETECTOR,
    PLUGIN_SECTIONS,
    STREAM_DETECTOR,
    AlertingPlan,
    AnyPlan,
    Detection,
    FleetPlan,
    Plan,
    ProbePlan,
)
from soak.core.units import IN_TEXT

KeyPath = tuple[str | int, ...]

MAX_VALUES = 20_000
"""Maximum number of keys and items of a file; repetitions by aliases count."""

MAX_CHARACTERS = 2**20
"""Of a file: far more than any plan has, and a few seconds of parsing."""

_PLAIN_TAGS = {"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file; `lines` gives the line (from 1) of every key and list item."""

    name: str
    value: Any
    lines: dict[KeyPath, int]

    def rename_key(self, place: KeyPath, name: str) -> None:
        """Let errors about what stands at `place` call its last key `name`."""
        new = (*place[:-1], name)
        for known in [one for one in self.lines if one[: len(place)] == place]:
            self.lines[*new, *known[len(place) :]] = self.lines[known]

    def error(self, place: KeyPath, message: str) -> PlanError:
        """Return the error `file:line: key: message`; a missing key has the line of its parent."""
        known = place
        while known and known not in self.lines:
            known = known[:-1]
        line = self.lines.get(known, 1)
        key = ".".join(str(part) for part in place)
        error = PlanError(f"{self.name}:{line}: {key + ': ' if key else ''}{message}")
        error.place = place
        return error


def parse_yaml(text: str, name: str) -> Document:
    """Return the document.

    Raises:
        PlanError: too large, not YAML, a duplicate key, or a key that is not text; with file and line.
    """
    if len(text) > MAX_CHARACTERS:
        raise PlanError(f"{name}:1: too large: more than {MAX_CHARACTERS:,} characters")
    loader: yaml.SafeLoader | None = None
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        lines: dict[KeyPath, int] = {(): 1}
        value = None if node is None else _build(loader, node, (), lines, name)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise PlanError(f"{name}:{line}: not YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise PlanError(f"{name}:1: not YAML: {error}") from error
    except (ValueError, OverflowError) as error:  # an escape that is not a character
        raise PlanError(f"{name}:1: not YAML: {error}") from error
    finally:
        if loader is not None:
            loader.dispose()
    return Document(name, value, lines)


def _build(
    loader: yaml.SafeLoader, node: yaml.Node, place: KeyPath, lines: dict[KeyPath, int], name: str
) -> Any:  # noqa: ANN401  # whatever the file says
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN_TAGS:
        raise PlanError(f"{name}:{line}: not YAML: the tag {node.tag} is not allowed here")
    if len(lines) > MAX_VALUES:  # nested aliases could fill the memory
        many = f"more than {MAX_VALUES:,} values, counting repetitions by aliases"
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


def _scalar(loader: yaml.SafeLoader, node: yaml.Node, place: KeyPath, name: str) -> object:
    """Return the value of a scalar.

    Raises:
        PlanError: the text does not fit its tag, such as a date that does not exist.
    """
    try:
        value: object = loader.construct_object(node)
        if isinstance(value, int):
            float(value)  # refuses larger integers, which arithmetic and messages cannot handle
    except (ValueError, LookupError, AttributeError, ArithmeticError) as error:
        where = Document(name, None, {place: node.start_mark.line + 1})
        kind = node.tag.rpartition(":")[2]
        raise where.error(place, f"not YAML: the value is not of type {kind}") from error
    return value


def _mapping(
    loader: yaml.SafeLoader,
    node: yaml.MappingNode,
    place: KeyPath,
    lines: dict[KeyPath, int],
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


_SCALAR_NAMES: Mapping[type[Any], str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def mistyped(hint: Any, value: object, place: KeyPath) -> Iterator[tuple[KeyPath, str]]:  # noqa: ANN401  # any annotation
    """Yield the key paths of numbers and booleans that are written as another type, and what they must be."""
    if isinstance(hint, type) and hint in _SCALAR_NAMES:
        is_other = isinstance(value, bool) != (hint is bool) and value is not None
        if isinstance(value, str) or (is_other and isinstance(value, bool | int | float)):
            yield place, f"must be {_SCALAR_NAMES[hint]}"
    elif dataclasses.is_dataclass(hint) and isinstance(value, dict):
        hints = get_type_hints(hint, include_extras=True)
        for key, item in value.items():
            if key in hints:
                yield from mistyped(hints[key], item, (*place, key))
    elif get_origin(hint) is Annotated:
        inner, *metadata = get_args(hint)
        if not any(isinstance(one, BeforeValidator) for one in metadata):  # these parse text
            yield from mistyped(inner, value, place)
    else:
        for inner in get_args(hint):
            for at, item in _items(hint, value):
                yield from mistyped(inner, item, (*place, *at))


def with_current_keys(hint: Any, value: Any, document: Document, place: KeyPath) -> Any:  # noqa: ANN401  # any annotation
    """Return the value with current keys instead of former ones, and warn about each.

    Raises:
        PlanError: a key is given under both names.
    """
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        hints = get_type_hints(hint, include_extras=True)
        current = _current_names(hints)
        found = {}
        for key, item in value.items():
            name: str = current.get(key) or key
            if name != key:
                _rename_key(document, (*place, key), name, is_given=name in value)
            found[name] = with_current_keys(hints.get(name), item, document, (*place, name))
        return found
    for inner in get_args(hint):
        if get_origin(hint) is tuple and isinstance(value, list):
            value = [
                with_current_keys(inner, item, document, (*place, number))
                for number, item in enumerate(value)
            ]
        elif get_origin(hint) is dict and isinstance(value, dict):
            value = {
                key: with_current_keys(inner, item, document, (*place, key))
                for key, item in value.items()
            }
        elif get_origin(hint) not in {tuple, dict}:
            value = with_current_keys(inner, value, document, place)
    return value


def _current_names(hints: Mapping[str, Any]) -> dict[str, str]:
    """Return the current key of each former key of a section."""
    return {
        former.name: name
        for name, hint in hints.items()
        for former in getattr(hint, "__metadata__", ())
        if isinstance(former, FormerName)
    }


def _rename_key(document: Document, place: KeyPath, name: str, *, is_given: bool) -> None:
    if is_given:
        raise document.error(place, f"is the former name of {name}, which is given too: remove it")
    document.rename_key(place, name)
    text = str(document.error(place, f"is now called {name}"))
    warnings.warn(text, FormerNameWarning, stacklevel=1)


def _items(hint: Any, value: object) -> Iterator[tuple[KeyPath, object]]:  # noqa: ANN401  # any annotation
    """Yield the values that the arguments of an annotation describe: items, or the value itself."""
    if get_origin(hint) is tuple and isinstance(value, list):
        yield from (((number,), item) for number, item in enumerate(value))
    elif get_origin(hint) is dict and isinstance(value, dict):
        yield from (((key,), item) for key, item in value.items())
    elif get_origin(hint) not in {tuple, dict}:
        yield (), value


_NO_PLAN = "a plan is a mapping of keys, such as `name: my-soak`"
_MISSING = "is missing and has no default"
_OF_A_HOST = "the plan of a probe host is for `soak probe`"
_NOUN = {
    "soak.brokers": "broker",
    "probes": "probe",
    "detectors": "detector",
    "soak.sinks": "sink",
}

_EXPECTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dataclass_type": "a mapping",
    "dict_type": "a mapping",
    "finite_number": "a number",
    "float_parsing": "a number",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller number",
    "int_type": "a whole number",
    "list_type": "a list, such as [a, b]",
    "string_type": "text",
    "tuple_type": "a list, such as [a, b]",
}
"""What a value must be, by the type of pydantic's error; the value may be secret and is not printed."""


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan and the lines of its keys, so that later checks can name them."""

    plan: Plan
    document: Document

    def error(self, key: str, message: str) -> PlanError:
        """Return an error about a dotted key such as `topic.name`."""
        return self.document.error(tuple(key.split(".")), message)


def load(text: str, name: str) -> PlanFile:
    """Return the plan with every default filled in.

    Raises:
        PlanError: the first fault found, as `file:line: key: what is wrong`.
    """
    return _plan_file(parse_yaml(text, name))


def load_with_faults(text: str, name: str) -> tuple[PlanFile | None, list[PlanError]]:
    """Return a plan without its wrong keys, and all faults; None if what is left is no plan.

    Each wrong key is left out in turn, so that the others are checked, too. What is then missing, or wrong
    because of the default in its place, is no fault of the plan; it is left out as well.

    Raises:
        PlanError: the text is not YAML, or no mapping.
    """
    document = parse_yaml(text, name)
    faults: list[PlanError] = []
    left_out: list[KeyPath] = []
    with warnings.catch_warnings(record=True) as former:
        warnings.simplefilter("always", FormerNameWarning)
        plan_file: PlanFile | None = None
        while plan_file is None:
            try:
                plan_file = _plan_file(document)
            except PlanError as error:
                several = (error, *error.others)
                new = [one for one in several if not is_consequence(one, left_out)]
                faults += new
                wrong = new or several  # what holds a key may be wrong without it
                places = {_existing(document.value, one.place or ()) for one in wrong} - {()}
                if not places:
                    break
                left_out += [*places, *(one.place for one in wrong if one.place)]
                for place in places:
                    document = replace(document, value=_without(document.value, place))
    for warning in {str(one.message): one.message for one in former}.values():
        warnings.warn(warning, stacklevel=2)
    return plan_file, faults


def is_consequence(error: PlanError, left_out: Iterable[KeyPath]) -> bool:
    """Return whether an error is about a key that was left out, about what holds it or what it holds."""
    place = error.place
    if place is None:
        return False
    return any(place[: len(one)] == one or one[: len(place)] == place for one in left_out)


def _existing(value: Any, place: KeyPath) -> KeyPath:  # noqa: ANN401  # whatever the file says
    """Return the longest part of a key path that the value has, without items of lists."""
    found: list[str | int] = []
    for part in place:
        if not isinstance(value, dict) or part not in value:
            break
        value = value[part]
        found.append(part)
    return tuple(found)


def _without(value: dict[str, Any], place: KeyPath) -> dict[str, Any]:
    key, *rest = place
    if not rest or not isinstance(
        value.get(str(key)), dict
    ):  # what holds it may be left out by now
        return {name: item for name, item in value.items() if name != key}
    return {**value, str(key): _without(value[str(key)], tuple(rest))}


def _plan_file(document: Document) -> PlanFile:
    raw = _raw(document)
    if "broker" not in raw and raw.get("probes"):
        raise document.error(("broker",), f"{_MISSING}; {_OF_A_HOST}")
    return PlanFile(validated(Plan, _with_detector(raw), document, ()), document)


def load_any(text: str, name: str) -> tuple[AnyPlan, Document]:
    """Return a plan with every default, and its document; without a broker it is the plan of a probe host.

    Raises:
        PlanError: the first fault found, as `file:line: key: what is wrong`.
    """
    document = parse_yaml(text, name)
    raw = _raw(document)
    if "broker" in raw:
        return validated(Plan, _with_detector(raw), document, ()), document
    return validated(ProbePlan, raw, document, ()), document


def load_alerting(text: str, name: str) -> tuple[AlertingPlan, Document]:
    """Return the alerting part of a plan, and its document; other sections are not checked.

    Raises:
        PlanError: the first fault found in this part, as `file:line: key: what is wrong`.
    """
    document = parse_yaml(text, name)
    if not isinstance(document.value, dict):
        raise document.error((), _NO_PLAN)
    keys = [item.name for item in dataclasses.fields(AlertingPlan)]
    raw = {key: document.value[key] for key in keys if document.value.get(key) is not None}
    place = ("sinks",)
    raw = _with_plugins(raw, document, place, PLUGIN_SECTIONS[place])
    found: AlertingPlan = validated(AlertingPlan, raw, document, ())
    return found, document


def load_fleet(text: str, name: str) -> FleetPlan:
    """Return the plan of a detector for many runs, with every default.

    Raises:
        PlanError: the first fault found, as `file:line: key: what is wrong`.
    """
    document = parse_yaml(text, name)
    found: FleetPlan = validated(FleetPlan, _with_detector(_raw(document)), document, ())
    return found


def detection_text(plan: Plan) -> str:
    """Return the section `detection` of a plan as JSON, for `load_detection`."""
    return json.dumps(body(plan)["detection"], separators=(",", ":"))


def load_detection(text: str, name: str) -> Detection:
    """Return the section that `detection_text` gave.

    Raises:
        PlanError: another program wrote it.
    """
    place = ("detection", "detectors")
    document = parse_yaml(text, name)
    raw = _with_plugins({"detection": document.value}, document, place, PLUGIN_SECTIONS[place])
    found: Detection = validated(
        Detection, _with_detector(raw)["detection"], document, ("detection",)
    )
    return found


def _raw(document: Document) -> dict[str, Any]:
    """Return the values of a plan, with its plug-ins' configurations as objects."""
    if not isinstance(document.value, dict):
        raise document.error((), _NO_PLAN)
    raw = dict(document.value)
    for place, package in PLUGIN_SECTIONS.items():
        raw = _with_plugins(raw, document, place, package)
    _check_sampled(raw, document)
    return raw


def _with_detector(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a plan, with the detectors of every run."""
    detection = raw.get("detection", {})
    detectors = detection.get("detectors", {}) if isinstance(detection, dict) else None
    if not isinstance(detectors, dict):
        return raw  # a wrong type is reported with the others
    every = {
        name: detectors[name] if name in detectors else plugins.load("detectors", name).Config()
        for name in (STREAM_DETECTOR, OUTAGE_DETECTOR)
    }
    return {**raw, "detection": {**detection, "detectors": {**every, **detectors}}}


def dump(plan: AnyPlan) -> str:
    """Return YAML that loads as the same plan, with every default."""
    return to_yaml(body(plan))


def body(plan: AnyPlan) -> dict[str, Any]:
    """Return a plan's values as they are written in a file, with every default."""
    found: dict[str, Any] = TypeAdapter(type(plan)).dump_python(plan, mode="json")
    return found


def to_yaml(value: object) -> str:
    """Return YAML with keys in their given order."""
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)


def validated(kind: type[Any], raw: object, document: Document, place: KeyPath) -> Any:  # noqa: ANN401  # an instance of `kind`
    """Return `raw`, which stands at `place`, as an instance of a strict pydantic dataclass.

    Raises:
        PlanError: with the line and key of the first fault.
    """
    raw = with_current_keys(kind, {} if raw is None else raw, document, place)
    wrong = [document.error((*place, *at), message) for at, message in mistyped(kind, raw, ())]
    if wrong:
        raise _first(wrong)
    try:
        return TypeAdapter(kind).validate_python(raw, context=IN_TEXT)
    except ValidationError as error:
        raise _first([_located(kind, one, document, place) for one in error.errors()]) from error


def _first(faults: list[PlanError]) -> PlanError:
    """Return the first of several faults, which holds the others."""
    faults[0].others = tuple(faults[1:])
    return faults[0]


def _located(kind: type[Any], error: Any, document: Document, place: KeyPath) -> PlanError:  # noqa: ANN401  # pydantic's ErrorDetails
    inner: KeyPath = tuple(part for part in error["loc"] if isinstance(part, str | int))
    return _at_its_key(_message(kind, error, inner), (*place, *inner), document)


def _check_sampled(raw: dict[str, Any], document: Document) -> None:
    """Refuse `sampling` of a probe that the plan does not have."""
    sampling, probes = raw.get("sampling"), raw.get("probes") or {}
    for name in sampling if isinstance(sampling, dict) else ():
        if name not in probes:
            there = ", ".join(probes) or "there are none"
            raise document.error(("sampling", name), f"is not a probe of this plan: {there}")


def _with_plugins(
    raw: dict[str, Any], document: Document, place: KeyPath, package: str, before: KeyPath = ()
) -> dict[str, Any]:
    """Return a copy of `raw` in which the section at `place` holds typed configurations."""
    key, *rest = place
    section = raw.get(str(key))
    if section is None:
        return raw
    here = (*before, key)
    if not isinstance(section, dict):
        raise document.error(here, "must be a mapping")
    if rest:
        filled = _with_plugins(section, document, tuple(rest), package, here)
    else:
        filled = _configs(section, document, here, package)
    return {**raw, str(key): filled}


def _configs(
    section: dict[str, Any], document: Document, place: KeyPath, package: str
) -> dict[str, Any]:
    found = {}
    for name, raw in section.items():
        if name not in plugins.names(package) or not _has_config(package, name):
            known = [one for one in plugins.names(package) if _may_stand(package, one)]
            hint = plugins.nearest(name, known)
            raise document.error((*place, name), f"unknown {_NOUN[package]}{hint}")
        kind = plugins.load(package, name).Config
        found[name] = validated(kind, raw, document, (*place, name))
    return found


def _has_config(package: str, name: str) -> bool:
    """Return whether a plug-in has a configuration for plans; this imports it."""
    module = plugins.load(package, name)
    home = getattr(module, "Config", type).__module__
    return home == module.__name__ or home.startswith(f"{module.__name__}.")


def _may_stand(package: str, name: str) -> bool:
    """Return whether a plan may name the plug-in; of the detectors, only those of a stream."""
    is_of_stream = package != "detectors" or name == STREAM_DETECTOR
    return is_of_stream and _has_config(package, name)


def _message(kind: type[Any], error: Any, inner: KeyPath) -> str:  # noqa: ANN401  # pydantic's ErrorDetails
    if error["type"] in {"unexpected_keyword_argument", "extra_forbidden"}:
        known = _known_keys(kind, inner[:-1])
        return f"unknown key{plugins.nearest(str(inner[-1]), known)}"
    if error["type"] in {"missing", "missing_argument", "missing_keyword_only_argument"}:
        return _MISSING
    if error["type"] == "literal_error":
        return f"must be {error['ctx']['expected']}"
    if error["type"] in _EXPECTED:
        return f"must be {_EXPECTED[error['type']]}"
    text = str(error["msg"]).removeprefix("Value error, ")
    return f"{text[:1].lower()}{text[1:]}" if text[:1].isupper() else text


def _at_its_key(message: str, section: KeyPath, document: Document) -> PlanError:
    """Return the error at the key that its first word names, if the section has that key."""
    word, _, rest = message.partition(" ")
    word = word.removesuffix(":")
    parts = tuple(int(part) if part.isdecimal() else part for part in word.split("."))
    is_of_one = not rest.startswith("and ")
    readings: tuple[KeyPath, ...] = ((word,), parts)
    for inner in readings:
        if is_of_one and (*section, inner[0]) in document.lines:
            return document.error((*section, *inner), rest)
    return document.error(section, message)


def _known_keys(kind: Any, place: KeyPath) -> list[str]:  # noqa: ANN401  # any annotation
    """Return the keys of the dataclass found by walking down `place` from `kind`."""
    for part in place:
        hints = get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}
        if str(part) not in hints:
            continue  # an item of a list, or a name in a mapping
        hint = hints[str(part)]
        candidates = (hint, *get_args(hint))  # `Lab | None` is a dataclass too
        kind = next((item for item in candidates if dataclasses.is_dataclass(item)), None)
    return sorted(item.name for item in dataclasses.fields(kind)) if kind else []
