"""The service objectives of a run as a comparison needs them: how many of the compared minutes were bad.

A report judges the whole soak. Where less is compared, as an incident was acknowledged, the minutes are
counted again from the journals, without the other seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detectors.objectives import Minutes, Objectives, settings_of
from soak.core.errors import RunFolderError
from soak.store.journal.merged import read_segment
from soak.store.journal.reader import SourceReader
from soak.store.run_folder import RunFolder
from spark.batch.comparison.run import ComparedRun, Ints, each_file, journal_files
from spark.batch.digest import Scope, minutes_of
from spark.batch.outcomes import state_of


@dataclass(frozen=True, slots=True)
class Share:
    """How many of the judged minutes, or messages, of a run were bad; `minutes`: how long they are in all."""

    run: str
    bad: float
    judged: float
    target: float
    is_missed: bool
    is_minutes: bool
    minutes: float


def shares_of(run: ComparedRun) -> dict[str, Share]:
    """Return each objective that was judged, by its text; one whose breach is acknowledged is left out.

    Raises:
        RunFolderError: the report's objectives are damaged.
        JournalError: a journal was written by a newer version.
    """
    try:
        known = _acknowledged(run)
        named = [
            one for one in run.summary.get("objectives") or [] if one["objective"] not in known
        ]
        again = _counted_again(run) if named and run.is_partial else {}
        found = [one | again.get(str(one["objective"]), {}) for one in named]
        return {
            str(one["objective"]): Share(
                run.id,
                float(one["bad"]),
                float(one["judged"]),
                float(one["target_ratio"]),
                one["state"] == "missed",
                one["unit"] == "minutes",
                run.judged.size / 60.0,
            )
            for one in found
            if one["judged"]
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        place = RunFolder(run.path).summary
        advice = f"make it again with `soak report {run.path}`"
        raise RunFolderError(f"{place}: objectives are damaged ({error!r}): {advice}") from error


def _acknowledged(run: ComparedRun) -> set[str]:
    """Return the objectives whose breach is acknowledged."""
    keys = {one.key for one in run.incidents if one.note is not None}
    return {
        str(one["labels"]["objective"])
        for one in run.summary.get("findings") or []
        if one["key"] in keys and one["kind"] == "objective"
    }


def _counted_again(run: ComparedRun) -> dict[str, Mapping[str, Any]]:
    """Return what changes in the objectives of a report where only the compared seconds count."""
    if run.plan is None:
        return {}
    seconds = run.judged
    scope = Scope(run.plan.service_objectives, run.phases)
    objectives = Objectives(settings_of(run.plan, int(seconds.size)))
    paths = journal_files(RunFolder(run.path.resolve()))
    for minutes in each_file(_minutes, [(path, scope, seconds) for path in paths]):
        objectives.merge(minutes)
    objectives.conclude()
    return {
        str(one.objective): {"bad": one.bad, "judged": one.judged, "state": state_of(one)}
        for one in objectives.standings()
    }


def _minutes(wanted: tuple[Path, Scope, Ints]) -> Minutes:
    path, scope, seconds = wanted
    kept = set(seconds.tolist())
    records = [
        (one.record, one.columns)
        for one in read_segment(path, SourceReader(path.parent))
        if one.record.k in kept
    ]
    return minutes_of(path.parent.name, records, scope)
