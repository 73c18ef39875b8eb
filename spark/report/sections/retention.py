"""When retention was forecast to delete, when it did, and what that and the load took of the drives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from soak.core import wording
from soak.core.cluster.drives import Measured
from spark.batch.outcomes import checks_of, drives, retention
from spark.report.page import Page, joined, table, tag
from spark.report.sections import setup

ORDER = 62
TITLE = "Retention and drives"


def render(page: Page) -> Markup:
    return joined([_retention(page), tag("h3", "Drives"), _drives(page)])


def _retention(page: Page) -> Markup:
    found: Mapping[str, Any] = retention(page.timeline, page.forecast)
    forecast, came = found["forecast"], found["happened"]
    if not forecast:
        text = (
            "The retention settings of this target were not read when the load began: sizes and times of "
            f'retention and segments. What the plan sets of them is under "{setup.TITLE}".'
        )
        return tag("p", text)
    unseen = _unseen(page)
    rows = [
        (
            "first deletion",
            _window(forecast.get("first_deletion_seconds")),
            _at(came, "first_deletion"),
        ),
        (
            "its space free",
            _window(forecast.get("first_free_seconds")),
            unseen or _at(came, "first_free"),
        ),
        (
            "soak with deletions",
            wording.span(forecast.get("seen_seconds") or 0),
            f"deletions in {wording.counted(came['soak_seconds_with_deletions'], 'second')}",
        ),
        (
            "most held",
            _held(forecast),
            unseen or _seen(came["most_held_bytes"]),
        ),
    ]
    notes = [*forecast.get("warnings", ()), *forecast.get("notes", ())]
    parts = [tag("p", _verdict(came)), table(("what", "forecast", "happened"), rows)]
    return joined([*parts, *(tag("p", f"{note[:1].upper()}{note[1:]}.") for note in notes)])


def _unseen(page: Page) -> str:
    """Return why no probe of this run saw the files of brokers; "" where one could."""
    config = page.timeline.plan.probes.get("retention_kafka")
    is_null = config is not None and config.directory is None
    return "not seen: `directory` is null" if is_null else ""


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


def _held(forecast: Mapping[str, Any]) -> str:
    """Return the forecast of the most that is held, of all copies and, if their number is known, of each."""
    most, copies = forecast.get("most_held_bytes"), (forecast.get("limits") or {}).get("copies")
    if most is None:
        return "-"
    each = f": {_bytes(most / copies)} in each of {copies}" if copies else ""
    return f"{_bytes(most)} in all copies{each}"


def _seen(most: float | None) -> str:
    """Return the most that was held; a probe sees the brokers of its own host."""
    return "-" if most is None else f"{_bytes(most)} where probes looked"


def _bytes(value: float) -> str:
    return wording.amount(value, "bytes")


# --- What the drives could do before and after the load, and how often the load wrote them over.


def _of_capacity(turns: float) -> str:
    """Return `0.0968 %`, or `3.2 times`."""
    return f"{turns:.3g} times" if turns >= 1.0 else f"{100 * turns:.3g} %"


def _drives(page: Page) -> Markup:
    found: Mapping[str, Any] = drives(page.timeline)
    parts = [tag("p", f"{warning[:1].upper()}{warning[1:]}.") for warning in found["warnings"]]
    checks = checks_of(page.timeline)
    if checks:
        headings = ("drive", "measured", "fsync p50", "fsync p99", "writing", "state")
        parts.append(table(headings, [_drive_row(page, one) for one in checks]))
    else:
        parts.append(
            tag("p", "The drives were not measured without load: the plan's drive_check was 0s.")
        )
    rows = [
        (name, _of_capacity(one["turns"]), wording.amount(one["bytes"], "bytes"))
        for name, one in sorted(found["written"].items())
    ]
    if rows:
        parts.append(table(("drive", "written in this run, of its capacity", "in bytes"), rows))
        parts.append(tag("p", _amplification(page, found)))
    return joined(parts)


def _drive_row(page: Page, one: Measured) -> tuple[str, ...]:
    def shown(value: float | None, unit: str) -> str:
        return "-" if value is None else wording.amount(value, unit)

    seconds = (one.at_wall_ns - page.timeline.run.start_wall_ns) / 1e9
    rate = one.write_bytes_per_second
    return (
        one.name,
        f"{one.moment} the load, at {page.moment(seconds)}",
        shown(one.fsync_p50_seconds, "seconds"),
        shown(one.fsync_p99_seconds, "seconds"),
        "-" if rate is None else f"{shown(rate, 'bytes')}/s",
        _drive_state(one),
    )


def _drive_state(one: Measured) -> str:
    state = one.state
    if state is None:
        return one.trouble
    return f"{state.words}; {one.trouble}" if one.trouble else state.words


def _amplification(page: Page, found: Mapping[str, Any]) -> str:
    ratio = found["write_amplification"]
    if ratio is None and page.timeline.not_audited:
        return "Write amplification is unknown: the messages were not audited."
    if ratio is None:
        return "Write amplification is unknown: nothing was acknowledged, or nothing written."
    client = wording.amount(found["client_bytes"], "bytes")
    return (
        f"These drives took {ratio:.3g} bytes for each byte of payload acknowledged ({client}): copies, "
        "indexes, journals, and other writers of these drives. Compression lowers it."
    )
