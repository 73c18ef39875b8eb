"""`configs/reference.yaml` forgets no key: not of a section that may be left out, nor of another broker."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError

from soak.core import plugins
from soak.core.plan import PLUGIN_SECTIONS, Plan

TEXT = (Path(__file__).resolve().parents[1] / "configs" / "reference.yaml").read_text()


def _configs() -> Iterator[type[Any]]:
    for package in PLUGIN_SECTIONS.values():
        for name in plugins.names(package):
            module = plugins.load(package, name)
            if hasattr(module, "Config") and (package != "detectors" or hasattr(module, "Panel")):
                yield module.Config


def _below(hint: Any) -> Iterator[type[Any]]:  # any annotation
    """Yield the dataclasses of an annotation, and those of their fields."""
    for inner in get_args(hint):
        yield from _below(inner)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        yield hint
        for one in get_type_hints(hint).values():
            yield from _below(one)


def _defaults(kind: type[Any]) -> dict[str, Any]:
    """Return what each key is when it is left out, as a plan writes it; nothing where some cannot be."""
    try:
        return dict(TypeAdapter(kind).dump_python(kind(), mode="json"))
    except ValidationError:
        return {}


SECTIONS = list(dict.fromkeys(kind for top in (Plan, *_configs()) for kind in _below(top)))


@pytest.mark.parametrize("kind", SECTIONS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_every_key_is_shown_with_its_default(kind: type[Any]) -> None:
    """Those of a section that is null by default stand in comments."""
    defaults = _defaults(kind)

    for field in dataclasses.fields(kind):
        shown = re.findall(rf"(?<![\w.]){field.name}:(?: ([^#,}}\n]*))?", TEXT)
        assert shown, field.name
        default = defaults.get(field.name)
        if isinstance(default, str | int | float) and default != "":  # filled, where it is empty
            assert default in [yaml.safe_load(one) for one in shown], field.name
