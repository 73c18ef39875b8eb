"""`soak lab`: real brokers and drills on this machine."""

from __future__ import annotations

import typer

from soak.cli import _lab_drill, _lab_drill_list, _lab_matrix, _lab_standing

command = typer.Typer(
    help="Real brokers and injected faults on this machine.", no_args_is_help=True
)


@command.callback()
def lab() -> None:
    """Real brokers and injected faults on this machine."""


for one in (*_lab_standing.COMMANDS, _lab_matrix.matrix):
    command.command()(one)
command.command(cls=_lab_drill_list.Listing)(_lab_drill.drill)
