"""`soak clean`: deletes the topics of a run that is over, which nobody else does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def clean(
    run_dir: Annotated[
        Path, typer.Argument(help="Folder of a run that is over.", resolve_path=True)
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Delete them without being asked.")] = False,
) -> None:
    """Name the topics that a run made and that are there still, and delete them once that is agreed to.

    Exit: 0 none of them is left, 1 some are.
    """
    from soak.cli import _clean
    from soak.core.clock import SystemClock
    from soak.daemons.context import connect
    from soak.store.run_folder import RunFolder, exclusive, read_plan

    folder = RunFolder(run_dir)
    _clean.refuse_unended(folder)
    plan = read_plan(folder)
    if plan.lab is not None:
        print("its topics went with the lab's broker")
        return
    with exclusive(folder.path / "run.lock", "this run folder"):
        found = _clean.look(folder, connect(plan, SystemClock()))
        print("\n".join(_clean.lines(found, plan)))
        if not found.own:
            return
        if not yes and not (sys.stdin.isatty() and typer.confirm("Delete them with all in them?")):
            print("nothing was deleted: --yes deletes them")
            raise typer.Exit(1)
        _clean.delete(found, connect(plan, SystemClock()))
    print(f"deleted: {len(found.own)}")


command = clean
