"""Plan text to `Plan` and back: every error names file, line and key, and lists the known keys."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from soak.core import plugins
from soak.core.errors import PlanError
from soak.core.plan import PLUGIN_SECTIONS, STREAM_DETECTOR, Plan
from soak.core.plan_alerts import Telling
from soak.core.plan_numbers import guessed
from soak.core.plan_probe import AnyPlan, ProbePlan
from soak.core.units import IN_TEXT
from soak.core.yaml_text import Document, Place, parse

_NO_PLAN = "a plan is a mapping of keys, such as `name: my-soak`"
_MISSING = "is missing and has no default"
_OF_A_HOST = "a plan of a host that only probes is for `soak probe`"
_NOUN = {
    "soak.brokers": "broker",
    "probes": "probe",
    "detectors": "detector",
    "soak.sinks": "sink",
}

_KINDS = {
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
"""What a value must be, by the kind of pydantic's error; the value may be a secret, and is not repeated."""


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan and where its keys stand, so that later checks can point at them."""

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
    document = parse(text, name)
    raw = _raw(document)
    if "broker" not in raw and raw.get("probes"):
        raise document.error(("broker",), f"{_MISSING}; {_OF_A_HOST}")
    return PlanFile(typed(Plan, _with_detector(raw), document, ()), document)


def load_any(text: str, name: str) -> tuple[AnyPlan, Document]:
    """Return a plan with every default, and its text: without a broker it is that of a host that only probes.

    Raises:
        PlanError: the first fault found, as `file:line: key: what is wrong`.
    """
    document = parse(text, name)
    raw = _raw(document)
    if "broker" in raw:
        return typed(Plan, _with_detector(raw), document, ()), document
    return typed(ProbePlan, raw, document, ()), document


def load_telling(text: str, name: str) -> tuple[Telling, Document]:
    """Return of a plan whom it tells and when, and its text; what else it says may be wrong.

    Raises:
        PlanError: the first fault found in that, as `file:line: key: what is wrong`.
    """
    document = parse(text, name)
    if not isinstance(document.value, dict):
        raise document.error((), _NO_PLAN)
    keys = [item.name for item in dataclasses.fields(Telling)]
    raw = {key: document.value[key] for key in keys if document.value.get(key) is not None}
    place = ("sinks",)
    raw = _with_plugins(raw, document, place, PLUGIN_SECTIONS[place])
    telling: Telling = typed(Telling, raw, document, ())
    return telling, document


def _raw(document: Document) -> dict[str, Any]:
    """Return a plan's keys, with the configurations of its plug-ins typed."""
    if not isinstance(document.value, dict):
        raise document.error((), _NO_PLAN)
    raw = dict(document.value)
    for place, package in PLUGIN_SECTIONS.items():
        raw = _with_plugins(raw, document, place, package)
    _check_sampled(raw, document)
    return raw


def _with_detector(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a plan's keys with the detector that every stream runs, where they do not name it."""
    detection = raw.get("detection", {})
    detectors = detection.get("detectors", {}) if isinstance(detection, dict) else None
    if not isinstance(detectors, dict) or STREAM_DETECTOR in detectors:
        return raw  # what is no mapping is told of with the other types
    config = plugins.load("detectors", STREAM_DETECTOR).Config()
    return {
        **raw,
        "detection": {**detection, "detectors": {STREAM_DETECTOR: config, **detectors}},
    }


def dump(plan: AnyPlan) -> str:
    """Return YAML that loads as the same plan, every default written out."""
    return written(body(plan))


def body(plan: AnyPlan) -> dict[str, Any]:
    """Return a plan's keys and values as people write them, every default among them."""
    found: dict[str, Any] = TypeAdapter(type(plan)).dump_python(plan, mode="json")
    return found


def written(value: object) -> str:
    """Return YAML, in the order that is given."""
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)


def typed(kind: type[Any], raw: object, document: Document, place: Place) -> Any:  # noqa: ANN401  # an instance of `kind`
    """Return `raw` as an instance of a strict pydantic dataclass; `place` is where it stands.

    Raises:
        PlanError: with the line and key of the first fault.
    """
    if raw is None:
        raw = {}
    for where, message in guessed(kind, raw, ()):
        raise document.error((*place, *where), message)
    try:
        return TypeAdapter(kind).validate_python(raw, context=IN_TEXT)
    except ValidationError as error:
        first = error.errors()[0]
        inner: Place = tuple(part for part in first["loc"] if isinstance(part, str | int))
        said, at = _message(kind, first, inner), (*place, *inner)
        raise _at_its_key(said, at, document) from error


def _check_sampled(raw: dict[str, Any], document: Document) -> None:
    """Refuse a word on how a probe is read that the plan does not have."""
    sampling, probes = raw.get("sampling"), raw.get("probes") or {}
    for name in sampling if isinstance(sampling, dict) else ():
        if name not in probes:
            there = ", ".join(probes) or "there are none"
            raise document.error(("sampling", name), f"is none of the plan's probes: {there}")


def _with_plugins(
    raw: dict[str, Any], document: Document, place: Place, package: str, before: Place = ()
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
    section: dict[str, Any], document: Document, place: Place, package: str
) -> dict[str, Any]:
    found = {}
    for name, raw in section.items():
        if name not in plugins.names(package) or not _has_config(package, name):
            known = [one for one in plugins.names(package) if _may_stand(package, one)]
            hint = plugins.nearest(name, known)
            raise document.error((*place, name), f"unknown {_NOUN[package]}{hint}")
        kind = plugins.load(package, name).Config
        found[name] = typed(kind, raw, document, (*place, name))
    return found


def _has_config(package: str, name: str) -> bool:
    """Return whether a plug-in can stand in a plan; loads it, and with it what it imports."""
    module = plugins.load(package, name)
    return hasattr(module, "Config") and module.Config.__module__ == module.__name__


def _may_stand(package: str, name: str) -> bool:
    """Return whether it can stand in a plan and is of use there: of detectors, those that follow a stream."""
    is_of_stream = package != "detectors" or hasattr(plugins.load(package, name), "Panel")
    return is_of_stream and _has_config(package, name)


def _message(kind: type[Any], error: Any, inner: Place) -> str:  # noqa: ANN401  # pydantic's ErrorDetails
    if error["type"] in {"unexpected_keyword_argument", "extra_forbidden"}:
        known = _known_keys(kind, inner[:-1])
        return f"unknown key{plugins.nearest(str(inner[-1]), known)}"
    if error["type"] in {"missing", "missing_argument", "missing_keyword_only_argument"}:
        return _MISSING
    if error["type"] == "literal_error":
        return f"must be {error['ctx']['expected']}"
    if error["type"] in _KINDS:
        return f"must be {_KINDS[error['type']]}"
    text = str(error["msg"]).removeprefix("Value error, ")
    return f"{text[:1].lower()}{text[1:]}" if text[:1].isupper() else text


def _at_its_key(message: str, section: Place, document: Document) -> PlanError:
    """Return the error, at the key that its first word names where the section in the file has that key."""
    word, _, rest = message.partition(" ")
    word = word.removesuffix(":")
    parts = tuple(int(part) if part.isdecimal() else part for part in word.split("."))
    is_of_one = not rest.startswith("and ")
    readings: tuple[Place, ...] = ((word,), parts)
    for inner in readings:
        if is_of_one and (*section, inner[0]) in document.lines:
            return document.error((*section, *inner), rest)
    return document.error(section, message)


def _known_keys(kind: Any, place: Place) -> list[str]:  # noqa: ANN401  # any annotation
    """Return the keys of the dataclass found by walking down `place` from `kind`."""
    for part in place:
        hints = get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}
        if str(part) not in hints:
            continue  # an item of a list, or a name in a mapping
        hint = hints[str(part)]
        candidates = (hint, *get_args(hint))  # `Lab | None` is a dataclass too
        kind = next((item for item in candidates if dataclasses.is_dataclass(item)), None)
    return sorted(item.name for item in dataclasses.fields(kind)) if kind else []
