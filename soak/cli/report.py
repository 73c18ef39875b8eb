"""`soak report`: the timeline report of a run."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer


def report(
    run_dir: Annotated[Path, typer.Argument(help="Folder of the run.")],
    open_: Annotated[bool, typer.Option("--open", help="Show it in a browser.")] = False,
) -> None:
    """Make the report of a run, also of one that was cut short or still goes on.

    Exit: 0 clean, 3 regressed, 4 inconclusive, 1 failed.
    """
    from soak.cli._report import made
    from spark.report import run

    code, folder = made(run_dir, run)
    print(folder.report)
    if open_:
        webbrowser.open(folder.report.as_uri())
    raise typer.Exit(code)


command = report
