"""When retention was forecast to delete, when it did, and how much of it the soak saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from soak.core import wording
from spark.batch.outcomes import retention
from spark.report.page import Page, joined, table, tag

ORDER = 62
TITLE = "Retention"


def render(page: Page) -> Markup:
    found: Mapping[str, Any] = retention(page.timeline, page.forecast)
    forecast, came = found["forecast"], found["happened"]
    if not forecast:
        return tag("p", "The retention settings of this target were not read.")
    rows = [
        (
            "first deletion",
            _window(forecast.get("first_deletion_seconds")),
            _at(came, "first_deletion"),
        ),
        ("its space free", _window(forecast.get("first_free_seconds")), _at(came, "first_free")),
        (
            "soak with deletions",
            wording.span(forecast.get("seen_seconds") or 0),
            f"{came['soak_seconds_with_deletions']:,} seconds held one",
        ),
        ("most held", _bytes(forecast.get("most_held_bytes")), ""),
    ]
    notes = [*forecast.get("warnings", ()), *forecast.get("notes", ())]
    parts = [tag("p", _verdict(came)), table(("", "forecast", "happened"), rows)]
    return joined([*parts, *(tag("p", f"{note[:1].upper()}{note[1:]}.") for note in notes)])


def _verdict(came: Mapping[str, Any]) -> str:
    if came["first_deletion_seconds"] is None:
        is_missed = came["is_as_foreseen"] is False
        return f"No deletion was seen in this run{', although the forecast has one' if is_missed else ''}."
    if came["is_as_foreseen"] is None:
        return "Old data was deleted; the forecast has no deletion."
    error = came["error_seconds"]
    side = "after" if error >= 0 else "before"
    late = f"{wording.span(abs(error))} {side} the middle of the forecast interval"
    verdict = "as forecast" if came["is_as_foreseen"] else "not as forecast"
    return f"Old data was first deleted {late}: {verdict}."


def _window(pair: Sequence[float] | None) -> str:
    if pair is None:
        return "-"
    early, late = (wording.span(value) for value in pair)
    return early if early == late else f"{early} to {late}"


def _at(came: Mapping[str, Any], what: str) -> str:
    seconds = came[f"{what}_seconds"]
    return "-" if seconds is None else wording.span(seconds)


def _bytes(value: float | None) -> str:
    return "-" if value is None else wording.amount(value, "bytes")
