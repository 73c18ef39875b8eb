"""Every probe, by listing the package: a new one is under test as soon as it exists."""

from __future__ import annotations

import io
import threading
from types import ModuleType

import pytest
from rich.console import Console

from soak.app.host import ProbeReadings, print_probes, read_probes
from soak.core.errors import NotAvailableError, PlanError, ProbeError
from soak.core.model import Column, Reading
from soak.core.plan import plugins
from soak.core.plan import text as plan_text
from tests.support.fakes import FakeClock, FakeProbe, HangingProbe

NAMES = plugins.names("probes")


@pytest.fixture(params=NAMES)
def module(request: pytest.FixtureRequest) -> ModuleType:
    return plugins.load("probes", request.param)


def test_the_probes_of_the_first_release_exist() -> None:
    """A plan names them by their modules."""
    assert {"disk_io", "fsync", "host", "pressure", "retention_kafka"} <= set(NAMES)


def test_a_probe_documents_source_overhead_and_caveats(module: ModuleType) -> None:
    """In its docstring."""
    text = module.__doc__ or ""

    assert all(f"\n{word}" in text for word in ("Source: ", "Overhead: ", "Caveats: "))


def test_a_probe_needs_no_settings_and_does_nothing_until_it_is_read(module: ModuleType) -> None:
    """Constructors only store: no thread, no clock, no file."""
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
    """The written plan loads as the same configuration."""
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


DEVICE = (("device", "vda"),)
AWAIT = Column("disk_write_await_seconds", DEVICE, "seconds")
BYTES = Column("disk_capacity_bytes", DEVICE, "bytes")
P99 = Column("fsync_latency_seconds", (("directory", "/d"), ("quantile", "0.99")), "seconds")


def shown(seen: dict[str, ProbeReadings]) -> str:
    text = io.StringIO()
    print_probes(seen, Console(file=text, width=100, highlight=False))
    return text.getvalue()


def test_each_probe_is_a_block_with_its_values() -> None:
    """Of any reading; labels that all values share are in the heading."""
    first, later = Reading(((BYTES, 2.74877906944e11),)), Reading(((AWAIT, 0.000132304),))
    flush = FakeProbe(Reading(((P99, 0.0023),)))

    text = shown(read_probes({"disk_io": FakeProbe(first, later), "fsync": flush}, FakeClock()))

    assert text.splitlines()[2:5] == [
        "  device=vda",
        "  disk_capacity_bytes        274,877,906,944  bytes",
        "  disk_write_await_seconds       0.000132304  seconds",
    ]
    assert "  directory=/d quantile=0.99" in text
    assert text.endswith("available: disk_io, fsync\n")


def test_a_probe_without_values_has_a_reason() -> None:
    """Unavailable, failed and empty are different."""
    probes = {
        "smart": FakeProbe(NotAvailableError("no smartctl")),
        "clock": FakeProbe(ProbeError("cannot read it")),
        "pressure": FakeProbe(Reading(())),
        "disk_io": FakeProbe(Reading(((AWAIT, 1.0),))),
    }

    text = shown(read_probes(probes, FakeClock()))

    assert "  not available: no smartctl\n" in text
    assert "  failed: cannot read it\n" in text
    assert "  no values within these seconds\n" in text
    assert text.splitlines()[-4:] == [
        "available: disk_io",
        "not available: smart",
        "failed: clock",
        "no values: pressure",
    ]


def test_a_hanging_probe_is_reported_as_such() -> None:
    """It is not waited for again."""
    hanging = HangingProbe(Reading(()))

    text = shown(read_probes({"host": hanging}, FakeClock(), timeout_seconds=0.05))
    hanging.let_go.set()

    assert "  no answer: a file or a server that it reads hangs\n" in text
    assert text.endswith("available: none\nno answer: host\n")


class InterruptedClock(FakeClock):
    """Somebody presses Ctrl-C while the second reading is waited for."""

    def sleep_until(self, mono_ns: int) -> None:
        super().sleep_until(mono_ns)
        if mono_ns:
            raise KeyboardInterrupt


def test_an_interrupt_closes_the_probes() -> None:
    """One of them has a file on the measured drive."""
    probe = FakeProbe(Reading(()))

    with pytest.raises(KeyboardInterrupt):
        read_probes({"fsync": probe}, InterruptedClock())

    assert probe.is_closed
