"""The forecast as `soak check` tells it and as a run keeps it, with what lab and cluster say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from soak.brokers import _redpanda_retention
from soak.cli import _forecast
from soak.core import plan_text
from soak.core.plan import Topic
from soak.store.run_folder import RunFolder
from tests.checking import checked

LOAD = "load: {rate: 1k/s, message_size: 1000B}\nphases: {warm_up: 5s, soak: 60s}\n"
KAFKA = """
broker: {kafka: {producer: {linger.ms: 0}}}
topic: {partitions: 1, settings: {retention.ms: 20000, segment.ms: 10000}}
"""
PULSAR = """
broker: {pulsar: {producer: {batching_enabled: false}}}
lab: {settings: {managedLedgerMaxEntriesPerLedger: 10000}}
topic: {partitions: 1, settings: {retentionSizeInMB: 20}}
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (KAFKA, "the limit in time is reached between 30 s and 31 s after the start, in the soak"),
        (
            PULSAR,
            "the limit in bytes is reached between 30 s and 35 s after the start, in the soak",
        ),
    ],
)
def test_a_check_foretells_what_a_lab_will_do_before_it_is_started(
    tmp_path: Path, text: str, expected: str
) -> None:
    """From the settings that it will be started with."""
    said = checked(tmp_path, f"{LOAD}{text}")

    assert expected in said


def test_a_run_that_will_not_see_it_is_warned_of(tmp_path: Path) -> None:
    text = KAFKA.replace("20000", "200000")
    said = checked(tmp_path, f"{LOAD}{text}")

    assert "Warning: the soak ends before old data is deleted, 3 min 30 s after" in said


def test_a_cluster_that_does_not_tell_ends_no_run(tmp_path: Path) -> None:
    """The forecast is unknown then, and says why."""
    text = "name: x\nbroker: {pulsar: {service_url: 'pulsar://127.0.0.1:9', admin_url: 'http://127.0.0.1:9'}}\n"
    folder = RunFolder(tmp_path)

    _forecast.record(folder, plan_text.load(text, "p").plan, ())

    told = json.loads(folder.forecast.read_text())
    assert (told["seen"], told["first_deletion_seconds"]) == ("unknown", None)
    assert "no Pulsar admin interface at http://127.0.0.1:9" in told["notes"][0]


def test_limits_that_are_none_end_no_run(tmp_path: Path) -> None:
    """A cluster may say anything."""
    text = "name: x\nbroker: {pulsar: {}}\nlab: {settings: {retentionCheckIntervalInSeconds: -5}}\n"
    folder = RunFolder(tmp_path)

    _forecast.record(folder, plan_text.load(text, "p").plan, ())

    told = json.loads(folder.forecast.read_text())
    assert "settings make no sense" in told["notes"][0]


def test_a_soak_whose_rate_a_ramp_will_find_is_not_foreseen(tmp_path: Path) -> None:
    """Neither its first deletion nor that it will not see one."""
    load = LOAD.replace("soak: 60s", "soak: 60s, ramp: {soak_share: 0.8}")
    said = checked(tmp_path, f"{load}{KAFKA}")

    assert "is first deleted is not foreseen: the rate of the soak is what" in said
    assert "Warning: the soak ends" not in said


def test_redpanda_looks_every_ten_seconds_and_frees_at_once() -> None:
    topic = Topic(settings={"retention.ms": "1000"})

    found = _redpanda_retention.assumed(topic, {})

    assert (found.keep_seconds, found.check_seconds, found.free_seconds) == (1, 10, 0)
