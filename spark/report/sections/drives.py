"""What the brokers' drives could do before and after the load, and how often the load wrote them over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from soak.core import wording
from soak.core.cluster.drives import Measured
from spark.batch.outcomes import checks_of, drives
from spark.report.page import Page, joined, table, tag

ORDER = 63
TITLE = "Drives"


def render(page: Page) -> Markup:
    found: Mapping[str, Any] = drives(page.timeline)
    parts = [tag("p", f"{warning[:1].upper()}{warning[1:]}.") for warning in found["warnings"]]
    checks = checks_of(page.timeline)
    if checks:
        headings = ("drive", "measured", "fsync p50", "fsync p99", "writing", "state")
        parts.append(table(headings, [_row(page, one) for one in checks]))
    else:
        parts.append(
            tag("p", "The drives were not measured without load: the plan's drive_check was 0s.")
        )
    rows = [
        (name, f"{one['turns']:.3g}", wording.amount(one["bytes"], "bytes"))
        for name, one in sorted(found["written"].items())
    ]
    if rows:
        parts.append(table(("drive", "capacities written in this run", "written in all"), rows))
        parts.append(tag("p", _amplification(found)))
    return joined(parts)


def _row(page: Page, one: Measured) -> tuple[str, ...]:
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
        _state(one),
    )


def _state(one: Measured) -> str:
    state = one.state
    if state is None:
        return one.trouble
    return f"{state.words}; {one.trouble}" if one.trouble else state.words


def _amplification(found: Mapping[str, Any]) -> str:
    ratio = found["write_amplification"]
    if ratio is None:
        return "Write amplification is unknown: nothing was acknowledged, or nothing written."
    client = wording.amount(found["client_bytes"], "bytes")
    return (
        f"These drives took {ratio:.3g} bytes for each byte of payload acknowledged ({client}): copies, "
        "indexes, journals, and other writers of these drives. Compression lowers it."
    )
