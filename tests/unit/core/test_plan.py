"""Plans: bad ones are refused with a place, shipped ones load, former keys are read with a warning."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from typer.testing import CliRunner

from detectors import level_shift
from soak.app.plan_files import load_plan
from soak.cli import main
from soak.core.errors import PlanError
from soak.core.plan import plugins
from soak.core.plan import text as plan_text
from soak.core.plan.config import FormerName, FormerNameWarning
from soak.core.plan.plan import PLUGIN_SECTIONS, Plan
from tests.support.examples import examples
from tests.support.paths import DATA, ROOT

BAD = sorted((DATA / "bad_plans").glob("*.yaml"))
GOOD = sorted((ROOT / "configs").glob("plans/*.yaml"))


def _check(path: Path) -> str:
    """Return what `soak check` refuses this plan with; its exit code must be that of a bad plan."""
    result = CliRunner().invoke(main.build(["check"]), ["check", str(path)])
    assert isinstance(result.exception, PlanError), result.output
    return str(result.exception)


@pytest.mark.long
@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_bad_plan_is_refused_with_file_line_and_key(path: Path) -> None:
    """The name of the file is the fault, the message lies beside it. No cluster answers, another fault."""
    expected = path.with_suffix(".txt").read_text().strip()

    first, *others = [line.strip() for line in _check(path).splitlines()]

    lines = others or [first]
    assert any(line.startswith(str(path.parent / expected)) for line in lines)
    assert all(line.startswith(str(path)) for line in lines)
    assert not any("hunter2" in line for line in lines)


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_a_plan_that_ships_loads_and_survives_being_written_out(path: Path) -> None:
    plan = load_plan(path).plan

    again = plan_text.load(plan_text.dump(plan), "again").plan

    assert again == plan


def test_a_file_larger_than_any_plan_is_refused_unparsed(tmp_path: Path) -> None:
    """The parser would take minutes and gigabytes for a log that is given by mistake."""
    path = tmp_path / "p.yaml"
    path.write_text(f"name: x\n#{'-' * 2**20}")

    with pytest.raises(PlanError, match=r"p\.yaml:1: too large: more than 1,048,576 characters"):
        load_plan(path)


def test_a_plan_that_is_not_there_is_a_bad_plan() -> None:
    with pytest.raises(PlanError, match=r"nowhere\.yaml: cannot read the plan"):
        load_plan(Path("nowhere.yaml"))


@pytest.mark.parametrize("lab", ["", "lab: {}\n"])
@pytest.mark.parametrize("kind", ["kafka", "pulsar"])
def test_a_plan_without_an_address_gets_a_lab_broker_of_its_kind(
    tmp_path: Path, kind: str, lab: str
) -> None:
    (tmp_path / "p.yaml").write_text(f"name: x\n{lab}broker:\n  {kind}: {{}}\n")

    plan = load_plan(tmp_path / "p.yaml").plan

    assert plan.lab is not None
    assert plan.lab.broker == kind


@pytest.mark.parametrize(
    ("drive", "why"),
    [
        ("{dirty_limit: 512KiB}", "dirty_limit: must be at least 1MiB"),
        ("{write_rate: 200B}", "write_rate: must be at least 1MiB"),
        ("{brokers: [0]}", "counted from 1"),
        ("{brokers: [2]}", "must name brokers from 1 to 1"),
    ],
)
def test_a_drive_that_no_lab_has_is_refused(drive: str, why: str) -> None:
    text = f"name: p\nbroker: {{kafka: {{}}}}\nlab:\n  drive: {drive}\n"

    with pytest.raises(PlanError, match=why):
        plan_text.load(text, "p.yaml")


def test_the_reference_shows_every_default() -> None:
    """`configs/reference.yaml` says what a plan of nothing but the required keys resolves to."""
    text = (ROOT / "configs" / "reference.yaml").read_text()
    shown = plan_text.load(text, "reference.yaml").plan
    bare = "\n".join(
        [
            "name: reference",
            "broker: {kafka: {}}",
            "lab: {}",
            "probes:",
            *(f"  {name}: {{}}" for name in plugins.names("probes")),
            "detection: {detectors: {level_shift: {}}}",
            "sinks: {mail: {to: [oncall@example.org]}, webhook: {url: http://127.0.0.1:9093}}",
        ]
    )

    assert plan_text.dump(shown) == plan_text.dump(plan_text.load(bare, "bare").plan)
    keys = [line for line in plan_text.dump(shown).splitlines() if ":" in line]
    for line in keys:
        assert re.search(rf"^[ -]*{re.escape(line.split(':')[0].strip(' -'))}", text, re.MULTILINE)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "detection: {trigger: 5s}",
        "detection: {detectors: {}}",
    ],
)
def test_the_detector_that_every_stream_runs_is_in_every_plan(said: str) -> None:
    """The stream asks for no leave: a plan without it is loaded and shown with its settings."""
    plan = plan_text.load(f"name: p\nbroker: {{kafka: {{}}}}\n{said}\n", "p.yaml").plan

    assert plan.detection.detectors["level_shift"] == level_shift.Config()
    assert "level_shift:" in plan_text.dump(plan)


@settings(max_examples=examples(300))
@given(st.text(st.characters(codec="utf-8"), max_size=80) | st.binary(max_size=80).map(repr))
def test_any_text_is_a_plan_or_a_clear_error(text: str) -> None:
    message = ""
    try:
        plan_text.load(text, "p")
    except PlanError as error:
        message = str(error)

    assert message == "" or message.startswith("p:")


# --- `configs/reference.yaml` forgets no key: not of a section that may be left out, nor of another broker.

TEXT = (ROOT / "configs" / "reference.yaml").read_text()


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


FORMER_KEYS = [
    ("alerts.most_per_hour", "max_per_hour", "alerts: {most_per_hour: 23}"),
    ("consumers.tailing", "live_subscriptions", "consumers: {subscriptions: 3, tailing: 1}"),
    ("phases.ramp.most", "max_rate", "phases: {ramp: {most: 23k/s}}"),
    (
        "probes.prometheus.targets.b.look_back",
        "backfill",
        "probes: {prometheus: {targets: {b: {url: 'http://b', maps: [jvm], look_back: 23s}}}}",
    ),
    (
        "probes.prometheus.largest_page",
        "max_page_size",
        "probes: {prometheus: {largest_page: 23KiB}}",
    ),
    ("probes.prometheus.most_series", "max_series", "probes: {prometheus: {most_series: 23}}"),
    ("sinks.webhook.lasts", "resolve_timeout", "sinks: {webhook: {url: 'http://a', lasts: 23min}}"),
]
"""Every former key with its current name, and a section that uses it."""


@pytest.mark.parametrize(("former", "current", "section"), FORMER_KEYS)
def test_a_former_key_is_read_with_one_warning(former: str, current: str, section: str) -> None:
    """The warning names file, line, and both keys; the plan is the one with the current key."""
    text = f"name: x\nbroker: {{kafka: {{}}}}\n{section}\n"
    key = former.rpartition(".")[2]

    with pytest.warns(FormerNameWarning) as caught:
        plan = plan_text.load(text, "plan.yaml").plan

    assert [str(one.message) for one in caught] == [
        f"plan.yaml:3: {former}: is now called {current}"
    ]
    assert plan == plan_text.load(text.replace(key, current), "plan.yaml").plan


@pytest.mark.parametrize(("former", "current", "section"), FORMER_KEYS)
def test_a_key_under_both_names_is_refused(former: str, current: str, section: str) -> None:
    key = former.rpartition(".")[2]
    text = f"name: x\nbroker: {{kafka: {{}}}}\n{section.replace(f'{key}: ', f'{current}: 1, {key}: ')}\n"

    with pytest.raises(
        PlanError, match=rf"plan\.yaml:3: {former}: is the former name of {current}"
    ):
        plan_text.load(text, "plan.yaml")


def test_a_wrong_value_of_a_former_key_is_refused_at_its_line() -> None:
    text = "name: x\nbroker: {kafka: {}}\nalerts:\n  most_per_hour: many\n"

    with (
        pytest.warns(FormerNameWarning),
        pytest.raises(
            PlanError, match=r"plan\.yaml:4: alerts\.max_per_hour: must be a whole number"
        ),
    ):
        plan_text.load(text, "plan.yaml")


def test_every_former_key_is_tried() -> None:
    """The list above has the former names of all sections and plug-ins."""
    former = {
        one.name
        for kind in SECTIONS
        for hint in get_type_hints(kind, include_extras=True).values()
        for one in getattr(hint, "__metadata__", ())
        if isinstance(one, FormerName)
    }

    assert former == {key.rpartition(".")[2] for key, _, _ in FORMER_KEYS}
