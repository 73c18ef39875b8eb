"""What every plug-in guarantees: new files are under test the moment they exist."""

from __future__ import annotations

import dataclasses
import importlib
import math
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import pytest
from pydantic import TypeAdapter, ValidationError
from typer.testing import CliRunner

from detectors import attribution
from soak.alerting.document import COLUMNS
from soak.cli import main
from soak.core.plan import plugins
from soak.core.plan.plan import PLUGIN_SECTIONS
from soak.lab.faults import all_faults
from tests.support.paths import ROOT

CONFIGS = {
    f"{package}.{name}": plugins.load(package, name).Config
    for package in PLUGIN_SECTIONS.values()
    for name in plugins.names(package)
    if hasattr(plugins.load(package, name), "Config")
} | {f"faults.{name}": fault.config for name, fault in all_faults().items()}


def _modules() -> list[str]:
    return sorted(
        module.name
        for root in ("soak", "probes", "detectors", "spark")
        for module in pkgutil.walk_packages([str(ROOT / root)], f"{root}.")
        if module.name != "soak.service.death_signal"
    )


@pytest.mark.parametrize("kind", CONFIGS.values(), ids=CONFIGS)
def test_a_configuration_is_frozen_and_refuses_unknown_keys(kind: Any) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python({"no_such_key": 1})
    assert kind.__dataclass_params__.frozen


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("kind", CONFIGS.values(), ids=CONFIGS)
def test_a_configuration_refuses_a_number_that_is_none(kind: Any, value: float) -> None:
    """YAML has `.nan` and `.inf`: no comparison with them comes out as the bound says."""
    fractions = [key for key, hint in get_type_hints(kind).items() if hint is float]

    for key in fractions:
        with pytest.raises(ValidationError, match=key):
            TypeAdapter(kind).validate_python({key: value})


@pytest.mark.parametrize(("cause", "step"), attribution.causes().items(), ids=str)
def test_a_cause_says_where_to_look(cause: str, step: str) -> None:
    """In a line of a mail."""
    assert 0 < len(f"next      {step}") <= COLUMNS, cause


@pytest.mark.parametrize("kind", plugins.names("soak.brokers"))
@pytest.mark.parametrize("cause", sorted(set(attribution.causes()) - {attribution.UNKNOWN}))
def test_a_cause_has_a_command_that_confirms_it(cause: str, kind: str) -> None:
    """Of tools that such a cluster has, with a sign of at most two lines of a mail."""
    one = attribution.confirmations(kind)[cause].filled({})

    assert len(f"shows     {one.sign}") <= 2 * COLUMNS - 10
    assert not (kind == "pulsar" and "kafka" in one.command)


@pytest.mark.parametrize("name", plugins.names("spark.report.sections"))
def test_a_section_has_its_place_and_renders(name: str) -> None:
    section = plugins.load("spark.report.sections", name)

    assert isinstance(section.ORDER, int)
    assert callable(section.render)


def test_sections_have_places_of_their_own() -> None:
    places = [
        plugins.load("spark.report.sections", name).ORDER
        for name in plugins.names("spark.report.sections")
    ]

    assert len(set(places)) == len(places)


def test_every_module_says_in_a_sentence_what_it_is() -> None:
    silent = [name for name in _modules() if not _has_words(importlib.import_module(name))]

    assert silent == []


def _has_words(module: ModuleType) -> bool:
    is_empty = not (module.__file__ and Path(module.__file__).read_text().strip())
    return is_empty or (module.__doc__ or "").strip().endswith((".", ")", "`", "?"))


@pytest.mark.parametrize("name", sorted(main.commands()))
def test_a_command_has_help(name: str) -> None:
    done = CliRunner().invoke(main.build([name]), [name, "--help"])

    assert done.exit_code == 0
    assert "Usage" in done.output


# One process for all of them: to start one costs more than what it does.
EACH = """
import sys
from soak.cli import main
folder, *names = sys.argv[1:]
for name in names:
    sys.argv[1:] = [name, "--run-dir", folder]
    try:
        main.run()
    except SystemExit as end:
        print(name, end.code, file=sys.stderr)
"""


@pytest.mark.long
def test_a_run_folder_that_is_none_is_said_without_a_traceback(tmp_path: Path) -> None:
    names = ["produce", "consume", "conduct", "alert", "detect-stream"]
    done = subprocess.run(
        [sys.executable, "-c", EACH, str(tmp_path), *names],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=60,
    )

    said = f"soak: {tmp_path} is not a run folder: it has no "
    lines = [line for line in done.stderr.splitlines() if not line.startswith(said)]
    assert lines == [f"{name} 1" for name in names]
    assert done.stderr.count(said) == len(names)


def test_configurations_are_listed() -> None:
    assert {"probes.fsync", "faults.quiet"} <= CONFIGS.keys()
    assert all(map(dataclasses.is_dataclass, CONFIGS.values()))
