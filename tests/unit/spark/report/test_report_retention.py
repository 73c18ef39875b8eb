"""The retention forecast beside what happened, from `forecast.json` to the page and `summary.json`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probes import retention_kafka
from soak.core.cluster.forecast import unknown_forecast_json
from soak.core.errors import RunFolderError
from soak.core.model import Column
from soak.core.series import series_name
from soak.store.run_folder import RunFolder
from spark.batch.coverage import Coverage
from spark.batch.outcomes import forecast_of, retention
from spark.batch.timeline import Timeline
from spark.report import job as report
from spark.report.page import Page
from spark.report.sections import retention as section
from tests.support.spark.report_run import summary, timeline
from tests.support.spark.synthetic_run import Shape

FORECAST: dict[str, Any] = {
    "first_deletion_seconds": [105.0, 109.0],
    "first_free_seconds": [165.0, 169.0],
    "seen": "in the soak",
    "seen_seconds": 126.0,
    "most_held_bytes": 23 * 2**20,
    "notes": ["by the & by"],
    "warnings": [],
}
LATER = {**FORECAST, "first_deletion_seconds": [500.0, 510.0]}  # the run has ended by then


@pytest.fixture(scope="module")
def deleting(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    """A run whose first deletion is in second 110."""
    return timeline(tmp_path_factory.mktemp("run"), Shape(seconds=140, deletions_k=110, rate=50))


def seen(found: Timeline, forecast: dict[str, Any], seconds: list[int]) -> tuple[Any, str]:
    """Return what happened with deletions in these seconds: as the summary has it, and the page."""
    events = {"retention_deletion": np.array(seconds, dtype=np.int64)}
    found = dataclasses.replace(found, event_seconds=events)
    covered = Coverage(0, 0.0, (), 0, 0.0, ())
    page = Page(found, (), covered, "clean", None, {}, forecast)
    body: Any = retention(found, forecast)["happened"]
    return body, section.render(page)


@pytest.mark.long
def test_the_summary_and_the_page_compare_what_was_foreseen_with_what_happened(
    deleting: Timeline,
) -> None:
    """It came three seconds after the middle of the forecast interval."""
    deleting.folder.forecast.write_text(json.dumps(FORECAST))

    report.write(deleting, [], None)

    body = summary(deleting.folder)["retention"]
    assert body["forecast"] == FORECAST
    assert body["happened"] == {
        "first_deletion_seconds": 110.0,
        "first_free_seconds": None,
        "error_seconds": 3.0,
        "error_ratio": 0.028,
        "is_as_foreseen": True,
        "soak_seconds_with_deletions": 25,  # those of the drain do not count
        "most_held_bytes": None,
    }
    page = deleting.folder.report.read_text()
    assert (
        "Old data was first deleted 3 s after the middle of the forecast interval: as forecast."
        in page
    )
    assert "1 min 45 s to 1 min 49 s" in page
    assert "By the &amp; by." in page


@pytest.mark.parametrize(("directory", "shown"), [(None, 2), ("/var/lib/kafka", 0)])
def test_what_no_probe_could_see_has_its_reason(
    deleting: Timeline, directory: str | None, shown: int
) -> None:
    """Space and sizes are those of the brokers' files; deletions are seen all the same."""
    probes = {"retention_kafka": retention_kafka.Config(directory=directory)}
    plan = dataclasses.replace(deleting.plan, probes=probes)

    _, page = seen(dataclasses.replace(deleting, plan=plan), FORECAST, [110])

    assert page.count("not seen: `directory` is null") == shown
    assert "deletions in 1 second<" in page


@pytest.mark.long
def test_a_deletion_that_came_at_another_time_is_reported_as_such(deleting: Timeline) -> None:
    happened, page = seen(deleting, FORECAST, [130])

    assert happened["is_as_foreseen"] is False
    assert "23 s after the middle of the forecast interval: not as forecast." in page


def test_a_deletion_that_was_foreseen_and_never_came_is_reported_as_such(
    deleting: Timeline,
) -> None:
    """The probe watched for longer than it could have come late."""
    happened, page = seen(deleting, FORECAST, [])

    assert happened["is_as_foreseen"] is False
    assert "No deletion was seen in this run, although the forecast has one." in page


@pytest.mark.parametrize(
    ("seconds", "forecast", "words"),
    [
        ([], LATER, "No deletion was seen in this run."),
        (
            [110],
            unknown_forecast_json("nobody answered"),
            "Old data was deleted; the forecast has no deletion.",
        ),
        (
            [110],
            {},
            (
                "The retention settings of this target were not read when the load began: sizes and times of "
                "retention and segments. What the plan sets of them is under &#34;What was run&#34;."
            ),
        ),
    ],
)
def test_what_cannot_be_compared_is_not(
    deleting: Timeline, seconds: list[int], forecast: dict[str, Any], words: str
) -> None:
    happened, page = seen(deleting, forecast, seconds)

    assert happened["is_as_foreseen"] is None
    assert words in page


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.forecast.write_text("{")

    with pytest.raises(RunFolderError, match=r"forecast\.json is damaged"):
        forecast_of(folder)


def test_a_run_without_a_forecast_has_none(tmp_path: Path) -> None:
    """One that an older version made."""
    assert forecast_of(RunFolder(tmp_path)) == {}


def test_the_most_that_was_held_is_that_of_all_topics_at_one_time(deleting: Timeline) -> None:
    columns, series = dict(deleting.columns), dict(deleting.series)
    for topic, values in (("a", [10.0, 20.0, 5.0]), ("b", [1.0, 2.0, 30.0])):
        column = Column("retention_held_bytes", (("topic", topic),), "bytes")
        name = series_name("probe@host", column.name)
        columns[name], series[name] = column, (np.arange(3), np.array(values))
    body: Any = retention(dataclasses.replace(deleting, columns=columns, series=series), {})

    assert body["happened"]["most_held_bytes"] == 35.0


@pytest.mark.parametrize(
    ("copies", "forecast"),
    [(3, "23 MiB in all copies: 7.67 MiB in each of 3"), (None, "23 MiB in all copies")],
)
def test_bytes_of_all_copies_are_told_from_those_that_a_probe_saw(
    copies: int | None, forecast: str, deleting: Timeline
) -> None:
    """A probe sees the files of its own host."""
    columns, series = dict(deleting.columns), dict(deleting.series)
    column = Column("retention_held_bytes", (("topic", "a"),), "bytes")
    name = series_name("probe@host", column.name)
    columns[name], series[name] = column, (np.arange(2), np.array([1.0, 7.0]) * 2**20)
    found = dataclasses.replace(deleting, columns=columns, series=series)

    _, page = seen(found, {**FORECAST, "limits": {"copies": copies}}, [110])

    assert (
        f'<td class="text">{forecast}</td><td class="text">7 MiB where probes looked</td>' in page
    )
