"""Start offsets in topics that the run did not create."""

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
        self.client = FakeConsumer([], {0: (7, 23), 1: (0, 0), 2: (0, 1009)})

    def consumer(
        self, topics: Topics, subscription: str, positions: Mapping[int, int]
    ) -> FakeConsumer:
        self.asked = topics.total, subscription, set(positions.values())
        return self.client


def _plan(topic: str) -> Plan:
    return text.load(f"name: x\nbroker: {{kafka: {{}}}}\ntopic: {{{topic}}}\n", "p").plan


def test_an_existing_topic_is_read_from_its_end_before_the_load(tmp_path: Path) -> None:
    """Also empty partitions: messages that arrive before a late consumer belong to the run."""
    folder, broker = RunFolder(tmp_path), LogBroker()
    plan = _plan("name: t, partitions: 3, use_existing: true")

    store_start_offsets(folder, RUN, plan, broker)  # type: ignore[arg-type]  # as much as is asked of it

    assert read_start_offsets(folder, plan, (0, 2)) == {0: 23, 2: 1009}
    assert read_start_offsets(folder, plan, (1,)) == {1: 0}
    assert broker.asked == (3, "begin-x-host", {LATEST})
    assert broker.client.closed == "for good"


def test_a_topic_of_the_run_is_read_from_its_start(tmp_path: Path) -> None:
    folder, plan = RunFolder(tmp_path), _plan("partitions: 3")

    store_start_offsets(folder, RUN, plan, FakeBroker())  # type: ignore[arg-type]  # nothing is asked of it

    assert read_start_offsets(folder, plan, range(2)) == {0: EARLIEST, 1: EARLIEST}
    assert not folder.begin.exists()


def test_without_stored_offsets_a_consumer_does_not_start(tmp_path: Path) -> None:
    """Starting at the end would count messages acknowledged before as lost."""
    folder, plan = RunFolder(tmp_path), _plan("name: t, partitions: 3, use_existing: true")

    with pytest.raises(RunFolderError, match="were not stored"):
        read_start_offsets(folder, plan, (0,))
    folder.begin.write_text("[1, 2]")
    with pytest.raises(RunFolderError, match="damaged"):
        read_start_offsets(folder, plan, (2,))
