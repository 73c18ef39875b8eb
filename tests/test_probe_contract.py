"""Every probe, by listing the package: a new file is under test the moment it exists."""

from __future__ import annotations

import threading
from types import ModuleType

import pytest

from soak.core import plan_text, plugins
from soak.core.errors import PlanError
from tests.fakes import FakeClock

NAMES = plugins.names("probes")


@pytest.fixture(params=NAMES)
def module(request: pytest.FixtureRequest) -> ModuleType:
    return plugins.load("probes", request.param)


def test_the_probes_of_the_first_release_are_there() -> None:
    """A plan names them by their files."""
    assert {"disk_io", "fsync", "host", "pressure", "retention_kafka"} <= set(NAMES)


def test_a_probe_says_where_its_numbers_come_from(module: ModuleType) -> None:
    """Source, overhead and caveats stand in the docstring."""
    text = module.__doc__ or ""

    assert all(f"\n{word}" in text for word in ("Source: ", "Overhead: ", "Caveats: "))


def test_a_probe_needs_no_settings_and_does_nothing_until_it_is_read(module: ModuleType) -> None:
    """Constructors only store: no thread, no clock, no file; and it can be closed at once."""
    before = threading.active_count()

    probe = module.build(module.Config(), FakeClock())
    after = threading.active_count()
    probe.close()

    assert callable(probe.read)
    assert after == before


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_key_is_refused_with_file_and_line(name: str) -> None:
    """A mistyped setting is an error, not a default."""
    text = f"name: x\nbroker: {{kafka: {{}}}}\nprobes:\n  {name}:\n    perid: 1s\n"

    with pytest.raises(PlanError, match=rf"plan\.yaml:5: probes\.{name}\.perid: unknown key"):
        plan_text.load(text, "plan.yaml")


@pytest.mark.parametrize("name", NAMES)
def test_the_defaults_survive_the_resolved_plan(name: str) -> None:
    """What is written out loads as the same configuration."""
    plan = plan_text.load(f"name: x\nbroker: {{kafka: {{}}}}\nprobes: {{{name}: {{}}}}\n", "a").plan

    again = plan_text.load(plan_text.dump(plan), "b").plan

    assert again.probes == plan.probes


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("fsync: {period: 1ms}", "period: must lie between 10ms and 60s"),
        ("fsync: {payload_size: 2MiB}", "payload_size: must lie between"),
        ("fsync: {sync: sometimes}", "'fsync', 'fdatasync' or 'directory'"),
        (
            "fsync: {write: append, append_limit: 1KiB}",
            "append_limit: must lie between payload_size",
        ),
        ("fsync: {sync: directory, write: append}", "a directory sync writes nothing"),
        ("clock: {chrony_period: 10ms}", "chrony_period: must lie between 1s and 1h"),
        ("smart: {period: 1s}", "period: must lie between 10s and 1d"),
        ("retention_kafka: {period: 1h}", "period: must lie between 100ms and 60s"),
        ("retention_kafka: {partitions_per_poll: 0}", "partitions_per_poll: must be at least 1"),
        ("retention_kafka: {timeout: 0s}", "timeout: must be above 0s"),
        ("round_trip: {period: 1h}", "period: must lie between 10ms and 1s"),
        ("round_trip: {connections: 0}", "connections: must lie between 1 and 16"),
        ("round_trip: {timeout: 0s}", "timeout: must be above 0s"),
        ("retention_pulsar: {period: 1h}", "period: must lie between 100ms and 60s"),
        ("retention_pulsar: {timeout: 0s}", "timeout: must be above 0s"),
    ],
)
def test_settings_out_of_bounds_are_refused(section: str, message: str) -> None:
    """The message names the bound."""
    with pytest.raises(PlanError, match=message):
        plan_text.load(f"name: x\nbroker: {{kafka: {{}}}}\nprobes: {{{section}}}\n", "plan.yaml")
