"""Where reading begins in a topic that the run did not make."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from soak.core.errors import RunFolderError
from soak.core.plan import text
from soak.core.plan.plan import Plan
from soak.core.ports import EARLIEST, LATEST, Topics
from soak.load.consumer.start_offsets import read_start_offsets, store_start_offsets
from soak.store.run_folder import Run, RunFolder
from tests.support.fakes import FakeBroker, FakeConsumer

RUN = Run("x", 0, "host", {}, "running")


class LogBroker(FakeBroker):
    """A cluster of three logs, which end at 23, 0 and 1009."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: tuple[int, str, set[int]] | None = None
        self.reader = FakeConsumer([], {0: (7, 23), 1: (0, 0), 2: (0, 1009)})

    def consumer(
        self, topics: Topics, subscription: str, positions: Mapping[int, int]
    ) -> FakeConsumer:
        self.asked = topics.total, subscription, set(positions.values())
        return self.reader


def _plan(topic: str) -> Plan:
    return text.load(f"name: x\nbroker: {{kafka: {{}}}}\ntopic: {{{topic}}}\n", "p").plan


def test_reading_begins_where_the_logs_ended_before_the_load(tmp_path: Path) -> None:
    """Also where nothing was there: what comes before a late consumer is ours."""
    folder, broker = RunFolder(tmp_path), LogBroker()
    plan = _plan("name: t, partitions: 3, use_existing: true")

    store_start_offsets(folder, RUN, plan, broker)  # type: ignore[arg-type]  # as much as is asked of it

    assert read_start_offsets(folder, plan, (0, 2)) == {0: 23, 2: 1009}
    assert read_start_offsets(folder, plan, (1,)) == {1: 0}
    assert broker.asked == (3, "begin-x-host", {LATEST})
    assert broker.reader.closed == "for good"


def test_a_topic_of_the_run_is_read_from_its_begin(tmp_path: Path) -> None:
    folder, plan = RunFolder(tmp_path), _plan("partitions: 3")

    store_start_offsets(folder, RUN, plan, FakeBroker())  # type: ignore[arg-type]  # nothing is asked of it

    assert read_start_offsets(folder, plan, range(2)) == {0: EARLIEST, 1: EARLIEST}
    assert not folder.begin.exists()


def test_a_run_that_does_not_know_where_reading_begins_is_refused(tmp_path: Path) -> None:
    """Beginning at the end would call what was acknowledged before lost."""
    folder, plan = RunFolder(tmp_path), _plan("name: t, partitions: 3, use_existing: true")

    with pytest.raises(RunFolderError, match="were not stored"):
        read_start_offsets(folder, plan, (0,))
    folder.begin.write_text("[1, 2]")
    with pytest.raises(RunFolderError, match="damaged"):
        read_start_offsets(folder, plan, (2,))
