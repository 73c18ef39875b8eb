"""What drills there are, and how some went: the tables of `soak lab drill`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

from soak.cli import _lab_drill

if TYPE_CHECKING:  # a command imports what it needs when it is called
    from pathlib import Path

    from rich.table import Table

    from soak.core.plan import Plan
    from soak.lab.drill import Drill


_OUTCOME = ("drill", "injected", "found", "when", "why", "verdict")
_WIDE = 120


class Listing(TyperCommand):
    """The command, whose help has the drills below its options."""

    def format_help(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401  # typer's own, and private
        super().format_help(*arguments, **named)
        show()


def show() -> None:
    """Print every drill that ships."""
    from rich.console import Console

    Console().print(listed())


def listed() -> Table:
    """Return what each drill does, needs and takes."""
    from soak.cli import _checks

    title = "drills; each takes a start and a report longer"
    table = _table(title, ("drill", "what is done", "needs", "takes"))
    plans: dict[Path, Plan] = {}  # many drills share one
    for name in _lab_drill.known():
        found = _lab_drill.find(name)
        if found.plan not in plans:
            plans[found.plan] = _checks.load_plan(found.plan).plan
        plan = plans[found.plan]
        table.add_row(name, found.description, _needs(found, plan), _takes(plan))
    return table


def outcome(rows: Sequence[Sequence[str]], width: int) -> Table:
    """Return what was injected and found, as rows of `drill_result.row`, for a terminal so many columns wide.

    One drill, or a terminal too narrow for six columns: a line for each cell that says something.
    """
    from rich.text import Text

    from soak.core import wording

    shown = [[Text(wording.printable(cell)) for cell in row] for row in rows]  # a log is no markup
    if len(rows) > 1 and width >= _WIDE:
        table = _table("drills", (*_OUTCOME[:-1], ""))
        for cells in shown:
            table.add_row(*cells)
        return table
    table = _table("", ("", ""))
    table.show_header = False
    for cells in shown:
        if table.row_count:
            table.add_row()
        for heading, cell in zip(_OUTCOME, cells, strict=True):
            if cell:
                table.add_row(heading, cell)
    return table


def _table(title: str, headings: Sequence[str]) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _needs(found: Drill, plan: Plan) -> str:
    has_drive = plan.lab is not None and plan.lab.drive is not None
    lack = _lab_drill.lacking(found, plan.lab)
    needs = ["root, FUSE"] * has_drive + [f"not here: {lack}"] * bool(lack)
    return "; ".join(needs) or "-"


def _takes(plan: Plan) -> str:
    """Return how long the phases last; what depends on data counts at its longest, but for a ramp."""
    from soak.core import phase_plan, wording
    from soak.core.phases import Phases
    from soak.core.units import SECOND_NS

    load_seconds = phase_plan.drain_k(Phases(), plan.phases)
    longest = wording.span(load_seconds + plan.phases.drain / SECOND_NS)
    return f"{longest}, and a ramp" if plan.phases.ramp else longest
